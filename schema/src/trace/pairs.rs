//! Payload of context and end blocks: names with their values, both byte strings. Unknown names are skipped.
//!
//! Number of pairs (LEB128), then for each: length of the name (LEB128), name, length of the value, value.

use crate::DecodeError;
use crate::wire::{Reader, put_varint};

/// Names with their values, in the order in which they are stored. A name may occur several times.
pub type Pairs = Vec<(String, Vec<u8>)>;

/// The payload.
pub fn encode(pairs: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, pairs.len() as u64);
    for (name, value) in pairs {
        for field in [name.as_bytes(), value] {
            put_varint(&mut out, field.len() as u64);
            out.extend_from_slice(field);
        }
    }
    out
}

/// Reads a payload.
pub fn decode(raw: &[u8]) -> Result<Pairs, DecodeError> {
    let mut reader = Reader::new("context", raw);
    let count = reader.varint()?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        let name = text(&mut reader)?;
        let value = field(&mut reader)?.to_vec();
        pairs.push((name, value));
    }
    reader.end()?;
    Ok(pairs)
}

/// A byte string after its length.
pub(super) fn field<'a>(reader: &mut Reader<'a>) -> Result<&'a [u8], DecodeError> {
    let len = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
    reader.take(len)
}

/// A UTF-8 string after its length.
pub(super) fn text(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let at = reader.at();
    let raw = field(reader)?;
    String::from_utf8(raw.to_vec()).map_err(|_| reader.error(at, "a name is not UTF-8"))
}
