//! The header: the file `AMINO` of a store's directory. It records the minimum content of the log and the engine.
//!
//! It is text, one field a line, so that a person who finds the directory can recognise it:
//!
//! ```text
//! amino store
//! format 3
//! engine fjall
//! id 00112233445566778899aabbccddeeff
//! checkpoint 1234
//! holds 50 440 0123456789abcdef
//! file 51200 89abcdef01234567 0.jnl
//! segment 7 33554432
//! keep log
//! kept 17 1234
//! crc32c 89abcdef
//! ```
//!
//! - `checkpoint`: the engine holds everything up to this transaction; at most the log before it is gone.
//! - `holds`, for each key space: its tag (hexadecimal), number of entries, and sum ([`Tally`]) at the checkpoint.
//! - `file`, for a file in the engine's directory: the number of its first bytes that are covered, their checksum
//!   ([`FileSum`]), and its path.
//! - `segment`, for a segment of the log that is in use: its number, and the least size of its file, in bytes.
//! - `keep log`, if the line is there: segments that a checkpoint makes superfluous are kept.
//! - `kept`: the first and the last transaction of a range that such segments hold without a gap ([`Kept`]).
//!
//! The last line is the CRC-32C of all bytes before it, in hexadecimal. The first two lines keep their form in all
//! versions, so that an older program can say that a store is too new for it. Format 1 had the fields up to `id` and
//! was never replaced; format 2 had those up to `segment`.

use crate::DecodeError;
use crate::holdings::{Holdings, Tally};

/// Version of the directory layout that this program writes.
pub const FORMAT: u32 = 3;
/// The version before segments of the log could be kept.
const FORMAT_WITHOUT_KEPT: u32 = 2;
/// Oldest version of the directory layout that this program reads.
const FORMAT_WITHOUT_CHECKPOINT: u32 = 1;

/// Longest header accepted, bytes.
pub const HEADER_LEN_MAX: usize = 16 << 20;

const NAME: &str = "store header";
const FIRST_LINE: &str = "amino store\n";
const KEEP_LOG: &str = "keep log";
const SUM_FIELD: &str = "crc32c ";
const NOT_A_NUMBER: &str = "a number is missing or malformed";

/// The fields of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Name of the storage engine, a word.
    pub engine: String,
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// The content that the engine must have; `None` in a store of format 1.
    pub checkpoint: Option<Checkpoint>,
    /// The segments of the log that are in use, in ascending order.
    pub segments: Vec<SegmentSize>,
    /// Whether segments are kept when a checkpoint makes them superfluous.
    pub keep_log: bool,
    /// The transactions that kept segments have, in ascending order.
    pub kept: Vec<Kept>,
}

/// A range of transactions, without gaps, whose frames are in kept segments of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The first one.
    pub first: u64,
    /// The last one.
    pub last: u64,
}

/// The content of an engine when everything up to a transaction is applied and on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The transaction's sequence number, and the engine's counts then.
    pub holdings: Holdings,
    /// The sums of the files that the engine relied on then.
    pub files: Vec<FileSum>,
}

/// A file, or the beginning of one, that must be unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSum {
    /// Its path in the engine's directory, without spaces and line ends.
    pub name: String,
    /// Number of bytes that are covered.
    pub len: u64,
    /// XXH3 (64 bits) of these bytes.
    pub sum: u64,
}

/// A segment of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentSize {
    /// Its number.
    pub number: u64,
    /// Minimum size of its file in bytes.
    pub bytes: u64,
}

/// The format version that a header claims, even one that is newer than this program; `None` if it is not a header.
pub fn claimed_format(raw: &[u8]) -> Option<u32> {
    let end = raw.len().min(64);
    let text = raw.get(..end)?.strip_prefix(FIRST_LINE.as_bytes())?;
    let line = text.split(|&byte| byte == b'\n').next()?;
    std::str::from_utf8(line)
        .ok()?
        .strip_prefix("format ")?
        .parse()
        .ok()
}

impl Header {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let format = match self.checkpoint {
            Some(_) => FORMAT,
            None => FORMAT_WITHOUT_CHECKPOINT,
        };
        let id: String = self.store_id.iter().map(|b| format!("{b:02x}")).collect();
        let mut body = format!(
            "{FIRST_LINE}format {format}\nengine {}\nid {id}\n",
            self.engine
        );
        if let Some(Checkpoint { holdings, files }) = &self.checkpoint {
            body += &format!("checkpoint {}\n", holdings.seq);
            for (tag, Tally { entries, sum }) in &holdings.spaces {
                body += &format!("holds {tag:02x} {entries} {sum:016x}\n");
            }
            for FileSum { name, len, sum } in files {
                body += &format!("file {len} {sum:016x} {name}\n");
            }
            for SegmentSize { number, bytes } in &self.segments {
                body += &format!("segment {number} {bytes}\n");
            }
            if self.keep_log {
                body += KEEP_LOG;
                body.push('\n');
            }
            for Kept { first, last } in &self.kept {
                body += &format!("kept {first} {last}\n");
            }
        }
        let sum = crc32c::crc32c(body.as_bytes());
        format!("{body}{SUM_FIELD}{sum:08x}\n").into_bytes()
    }

    /// Reads what [`Header::encode`] wrote.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut lines = Lines::new(check_sum(raw)?);
        lines.field("amino store")?;
        let format: u32 = lines.number("format ")?;
        let engine = lines.field("engine ")?.to_owned();
        let store_id = lines.id()?;
        let mut header = Self {
            engine,
            store_id,
            checkpoint: None,
            segments: Vec::new(),
            keep_log: false,
            kept: Vec::new(),
        };
        match format {
            FORMAT_WITHOUT_CHECKPOINT => {}
            FORMAT_WITHOUT_KEPT | FORMAT => {
                let mut checkpoint = Checkpoint::default();
                checkpoint.holdings.seq = lines.number("checkpoint ")?;
                while let Some(line) = lines.optional("holds ") {
                    let (tag, tally) = lines.parsed(parse_tally(line))?;
                    checkpoint.holdings.spaces.insert(tag, tally);
                }
                while let Some(line) = lines.optional("file ") {
                    checkpoint.files.push(lines.parsed(parse_file(line))?);
                }
                while let Some(line) = lines.optional("segment ") {
                    header.segments.push(lines.parsed(parse_segment(line))?);
                }
                if format > FORMAT_WITHOUT_KEPT {
                    header.keep_log = match lines.optional(KEEP_LOG) {
                        Some("") => true,
                        None => false,
                        Some(_) => return Err(lines.error("unknown line")),
                    };
                    while let Some(line) = lines.optional("kept ") {
                        header.kept.push(lines.parsed(parse_kept(line))?);
                    }
                }
                header.checkpoint = Some(checkpoint);
            }
            _ => return Err(lines.error("its version is not one this program knows")),
        }
        if !lines.rest.is_empty() {
            return Err(lines.error("unknown line"));
        }
        Ok(header)
    }
}

fn error(offset: usize, why: &'static str) -> DecodeError {
    DecodeError {
        record: NAME,
        offset,
        why,
    }
}

/// The lines before the checksum, after a check of it.
fn check_sum(raw: &[u8]) -> Result<&str, DecodeError> {
    if raw.len() > HEADER_LEN_MAX {
        return Err(error(HEADER_LEN_MAX, "it is too long"));
    }
    let text =
        std::str::from_utf8(raw).map_err(|why| error(why.valid_up_to(), "it is not text"))?;
    let body_len = text
        .strip_suffix('\n')
        .and_then(|text| text.rfind('\n'))
        .map_or(0, |end| end + 1);
    let (body, last) = text.split_at(body_len);
    if last != format!("{SUM_FIELD}{:08x}\n", crc32c::crc32c(body.as_bytes())) {
        return Err(error(body_len, "its checksum does not match"));
    }
    Ok(body)
}

/// The lines that are still to be read.
struct Lines<'a> {
    rest: &'a str,
    at: usize,
}

impl<'a> Lines<'a> {
    const fn new(text: &'a str) -> Self {
        Self { rest: text, at: 0 }
    }

    fn error(&self, why: &'static str) -> DecodeError {
        error(self.at, why)
    }

    /// The next line without its `name`. `None` if it has another name: then nothing is read.
    fn optional(&mut self, name: &str) -> Option<&'a str> {
        let (line, rest) = self.rest.split_once('\n')?;
        let value = line.strip_prefix(name)?;
        self.at += line.len() + 1;
        self.rest = rest;
        Some(value)
    }

    fn field(&mut self, name: &str) -> Result<&'a str, DecodeError> {
        let missing = self.error("a line is missing or has another name");
        self.optional(name).ok_or(missing)
    }

    fn parsed<T>(&self, value: Option<T>) -> Result<T, DecodeError> {
        value.ok_or_else(|| self.error(NOT_A_NUMBER))
    }

    fn number<T: std::str::FromStr>(&mut self, name: &str) -> Result<T, DecodeError> {
        let value = self.field(name)?.parse().ok();
        self.parsed(value)
    }

    fn id(&mut self) -> Result<[u8; 16], DecodeError> {
        let digits = self.field("id ")?;
        let value = u128::from_str_radix(digits, 16).ok();
        let value = value.filter(|_| digits.len() == 32);
        Ok(self.parsed(value)?.to_be_bytes())
    }
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

fn parse_tally(line: &str) -> Option<(u8, Tally)> {
    let mut words = line.split(' ');
    let tag = u8::from_str_radix(words.next()?, 16).ok()?;
    let entries = words.next()?.parse().ok()?;
    let sum = hex(words.next()?)?;
    words
        .next()
        .is_none()
        .then_some((tag, Tally { entries, sum }))
}

fn parse_file(line: &str) -> Option<FileSum> {
    let mut words = line.splitn(3, ' ');
    Some(FileSum {
        len: words.next()?.parse().ok()?,
        sum: hex(words.next()?)?,
        name: words.next()?.to_owned(),
    })
}

fn parse_segment(line: &str) -> Option<SegmentSize> {
    let (number, bytes) = line.split_once(' ')?;
    Some(SegmentSize {
        number: number.parse().ok()?,
        bytes: bytes.parse().ok()?,
    })
}

fn parse_kept(line: &str) -> Option<Kept> {
    let (first, last) = line.split_once(' ')?;
    Some(Kept {
        first: first.parse().ok()?,
        last: last.parse().ok()?,
    })
}
