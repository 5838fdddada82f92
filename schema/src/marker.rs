//! The marker file `AMINO`, which makes a directory a store.
//!
//! Text, one field a line, so that a person who finds the directory can tell what it is:
//!
//! ```text
//! amino store
//! format 1
//! engine fjall
//! id 00112233445566778899aabbccddeeff
//! crc32c 89abcdef
//! ```
//!
//! The last line is the CRC-32C of all bytes before it, in hexadecimal. The first two lines keep their form in all
//! versions, so that an older program can say that a store is too new for it.

use crate::DecodeError;

/// Version of the directory layout that this program writes.
pub const MARKER_FORMAT: u32 = 1;

/// Longest marker accepted, bytes.
pub const MARKER_LEN_MAX: usize = 1024;

const NAME: &str = "store marker";
const FIRST_LINE: &str = "amino store\n";

/// What the marker file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker {
    /// Version of the directory layout.
    pub format: u32,
    /// Name of the storage engine, a word.
    pub engine: String,
    /// Random id of the store.
    pub store_id: [u8; 16],
}

/// The format version that a marker claims, even one that is newer than this program; `None` if it is no marker.
pub fn claimed_format(raw: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(raw).ok()?;
    text.strip_prefix(FIRST_LINE)?
        .lines()
        .next()?
        .strip_prefix("format ")?
        .parse()
        .ok()
}

impl Marker {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let id: String = self
            .store_id
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let body = format!(
            "{FIRST_LINE}format {}\nengine {}\nid {id}\n",
            self.format, self.engine
        );
        let sum = crc32c::crc32c(body.as_bytes());
        format!("{body}crc32c {sum:08x}\n").into_bytes()
    }

    /// Reads what [`Marker::encode`] wrote.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let error = |offset, why| DecodeError {
            record: NAME,
            offset,
            why,
        };
        let text = match std::str::from_utf8(raw) {
            Ok(text) if raw.len() <= MARKER_LEN_MAX => text,
            Ok(_) => return Err(error(MARKER_LEN_MAX, "it is too long")),
            Err(why) => return Err(error(why.valid_up_to(), "it is no text")),
        };
        let mut at = 0;
        let mut field = |name: &str| -> Result<&str, DecodeError> {
            let rest = text.get(at..).unwrap_or_default();
            let found = rest
                .split_once('\n')
                .and_then(|(line, _)| line.strip_prefix(name));
            let value = found.ok_or(error(at, "a line is missing or has another name"))?;
            at += name.len() + value.len() + 1;
            Ok(value)
        };
        field("amino store")?;
        let format = field("format ")?;
        let engine = field("engine ")?;
        let id = field("id ")?;
        let sum = field("crc32c ")?;
        let body_len = text.len().saturating_sub("crc32c \n".len() + sum.len());
        if at != text.len() {
            return Err(error(at, "bytes follow its end"));
        }
        if format!(
            "{:08x}",
            crc32c::crc32c(raw.get(..body_len).unwrap_or_default())
        ) != sum
        {
            return Err(error(body_len, "its checksum does not match"));
        }
        let format = format
            .parse()
            .map_err(|_| error(FIRST_LINE.len(), "the format is no number"))?;
        let store_id = parse_id(id).ok_or(error(
            FIRST_LINE.len(),
            "the id is not 32 hexadecimal digits",
        ))?;
        Ok(Self {
            format,
            engine: engine.to_owned(),
            store_id,
        })
    }
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}
