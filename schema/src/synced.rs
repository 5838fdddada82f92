//! The file `synced`: the last transaction up to which the log is on disk.
//!
//! It is written after the log was synced, and is not synced itself. So every version that a crash can leave is correct.
//! Two slots of [`SLOT_LEN`] bytes are written in turns, so that a torn write leaves the other one:
//! magic `AMINOSYN`, store id (16 bytes), sequence number u64, CRC-32C u32, zeros.

use crate::DecodeError;
use crate::wire::{Reader, seal, unseal};

/// Bytes of a slot: a disk's smallest block.
pub const SLOT_LEN: usize = 512;
/// Bytes of the file.
pub const NOTE_LEN: usize = 2 * SLOT_LEN;

const MAGIC: &[u8; 8] = b"AMINOSYN";
const BODY_LEN: usize = 36;

/// The bytes of a slot.
pub fn encode_slot(store_id: &[u8; 16], seq: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_LEN);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(store_id);
    out.extend_from_slice(&seq.to_le_bytes());
    seal(&mut out);
    out.resize(SLOT_LEN, 0);
    out
}

/// The highest sequence number in a valid slot of `note`; `None` without one.
pub fn read_note(store_id: &[u8; 16], note: &[u8]) -> Option<u64> {
    let slots = note.chunks(SLOT_LEN);
    slots
        .filter_map(|slot| read_slot(store_id, slot).ok())
        .max()
}

fn read_slot(store_id: &[u8; 16], slot: &[u8]) -> Result<u64, DecodeError> {
    const NAME: &str = "note of the synced log";
    let body = unseal(NAME, slot.get(..BODY_LEN).unwrap_or_default())?;
    let mut reader = Reader::new(NAME, body);
    if reader.take(8)? != MAGIC {
        return Err(reader.error(0, "the magic number is missing"));
    }
    if reader.bytes::<16>()? != *store_id {
        return Err(reader.error(8, "it belongs to another store"));
    }
    reader.u64()
}
