//! The redo log: segment files, each a header and records one after the other.
//!
//! Segment header, [`SEGMENT_HEADER_LEN`] bytes (only the first 56 are used, the rest is zero so that no record shares
//! a disk block with it):
//!
//! | offset | field                                                               |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `AMINOLOG`                                                    |
//! | 8      | format version u32 = 1                                              |
//! | 12     | zero u32                                                            |
//! | 16     | store id, 16 bytes                                                  |
//! | 32     | segment number u64                                                  |
//! | 40     | created u64, nanoseconds since 1970                                 |
//! | 48     | zero u32                                                            |
//! | 52     | CRC-32C of bytes 0..52                                              |
//!
//! Record, at an offset that is a multiple of [`RECORD_ALIGN`]: a header of [`RECORD_HEADER_LEN`] bytes, the payload,
//! zeros to the next multiple:
//!
//! | offset | field                                                               |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `AREC`                                                        |
//! | 4      | version u8 = 1, three zero bytes                                    |
//! | 8      | payload length u64, bytes                                           |
//! | 16     | sequence number u64                                                 |
//! | 24     | durable u64: every record up to this one was on disk when this one was written |
//! | 32     | time u64, nanoseconds since 1970                                    |
//! | 40     | uid u32, pid u32 of the writing process                             |
//! | 48     | number of changes u32, zero u32                                     |
//! | 56     | header CRC-32C: of bytes 16..48 of the segment header (store id, number, creation) and bytes 0..56 |
//! | 60     | payload CRC-32C: the header CRC continued over the payload          |
//!
//! What identifies the segment is in the checksum and not in the record, so that what a recycled file still holds from
//! its former life is no record. `durable` tells a torn tail from damage: several records that were never synced
//! can reach the disk in any order, so a hole before a valid record is damage only if that record, or a later one,
//! says that the hole had been on disk.
//!
//! Payload: for each change, in key order, key length (LEB128), key, then 0 for a deletion or the value's length plus
//! one (LEB128) and the value.

use bytes::Bytes;

use crate::DecodeError;
use crate::wire::{Reader, put_varint, share};

/// Bytes before the first record of a segment.
pub const SEGMENT_HEADER_LEN: usize = 4096;
/// Records start at multiples of this many bytes.
pub const RECORD_ALIGN: usize = 64;
/// Bytes of a record's header.
pub const RECORD_HEADER_LEN: usize = 64;
/// The log format that this program writes.
pub const LOG_FORMAT: u32 = 1;

const SEGMENT_MAGIC: &[u8; 8] = b"AMINOLOG";
const RECORD_MAGIC: &[u8; 4] = b"AREC";
const RECORD_VERSION: u8 = 1;
const SEGMENT_CRC_AT: usize = 52;
const RECORD_CRC_AT: usize = 56;

/// What a segment file says about itself, and what the checksums of its records start with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// Number of the segment; grows by one, never reused within a store.
    pub number: u64,
    /// Creation, nanoseconds since 1970.
    pub created_ns: u64,
}

impl SegmentHeader {
    const NAME: &'static str = "log segment header";

    /// The header's bytes, zeros included.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_LEN);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&LOG_FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.store_id);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.created_ns.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(SEGMENT_HEADER_LEN, 0);
        out
    }

    /// Reads the start of a segment file.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::NAME, raw);
        if reader.take(8)? != SEGMENT_MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let format = reader.u32()?;
        reader.u32()?;
        let header = Self {
            store_id: reader.bytes()?,
            number: reader.u64()?,
            created_ns: reader.u64()?,
        };
        reader.u32()?;
        let sum = reader.u32()?;
        if crc32c::crc32c(raw.get(..SEGMENT_CRC_AT).unwrap_or_default()) != sum {
            return Err(reader.error(SEGMENT_CRC_AT, "its checksum does not match"));
        }
        if format != LOG_FORMAT {
            return Err(reader.error(8, "its version is not one this program knows"));
        }
        Ok(header)
    }

    /// The checksum that those of this segment's records continue.
    fn seed(&self) -> u32 {
        let numbered =
            crc32c::crc32c_append(crc32c::crc32c(&self.store_id), &self.number.to_le_bytes());
        crc32c::crc32c_append(numbered, &self.created_ns.to_le_bytes())
    }
}

/// The header of a record, without magic and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// Bytes of payload.
    pub payload_len: u64,
    /// Sequence number; grows by one from record to record.
    pub seq: u64,
    /// Every record up to this sequence number was on disk when this one was written.
    pub durable: u64,
    /// Time of writing, nanoseconds since 1970.
    pub time_ns: u64,
    /// Real user id of the writer.
    pub uid: u32,
    /// Process id of the writer.
    pub pid: u32,
    /// Number of changes in the payload.
    pub changes: u32,
}

/// A record header found in a segment, and what its payload must sum up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRecord {
    /// The header.
    pub header: RecordHeader,
    header_crc: u32,
    payload_crc: u32,
}

impl FoundRecord {
    /// Reads a record's header, which starts at `raw[0]`, and checks that it belongs to `segment`.
    pub fn decode(segment: &SegmentHeader, raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("log record header", raw);
        if reader.take(4)? != RECORD_MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let version = reader.u32()?;
        let payload_len = reader.u64()?;
        let (seq, durable, time_ns) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (uid, pid, changes) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.u32()?;
        let (header_crc, payload_crc) = (reader.u32()?, reader.u32()?);
        let covered = raw.get(..RECORD_CRC_AT).unwrap_or_default();
        if crc32c::crc32c_append(segment.seed(), covered) != header_crc {
            return Err(reader.error(RECORD_CRC_AT, "its checksum does not match"));
        }
        if version != u32::from(RECORD_VERSION) {
            return Err(reader.error(4, "its version is not one this program knows"));
        }
        let header = RecordHeader {
            payload_len,
            seq,
            durable,
            time_ns,
            uid,
            pid,
            changes,
        };
        Ok(Self {
            header,
            header_crc,
            payload_crc,
        })
    }

    /// Whether `payload` is the whole and undamaged payload of this record.
    pub fn matches(&self, payload: &[u8]) -> bool {
        payload.len() as u64 == self.header.payload_len
            && crc32c::crc32c_append(self.header_crc, payload) == self.payload_crc
    }
}

/// Starts a record: reserves its header in `out`, which must be empty. Payload follows by [`put_change`].
pub fn begin_record(out: &mut Vec<u8>) {
    debug_assert!(out.is_empty());
    out.resize(RECORD_HEADER_LEN, 0);
}

/// Finishes the record begun in `out`: fills the header in, checksums, and pads with zeros to [`RECORD_ALIGN`].
///
/// The payload length is taken from `out`, whatever `header` says.
pub fn finish_record(out: &mut Vec<u8>, segment: &SegmentHeader, header: &RecordHeader) {
    let payload_len = out.len().saturating_sub(RECORD_HEADER_LEN) as u64;
    let mut head = Vec::with_capacity(RECORD_HEADER_LEN);
    head.extend_from_slice(RECORD_MAGIC);
    head.extend_from_slice(&u32::from(RECORD_VERSION).to_le_bytes());
    for field in [payload_len, header.seq, header.durable, header.time_ns] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    for field in [header.uid, header.pid, header.changes, 0] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    let header_crc = crc32c::crc32c_append(segment.seed(), &head);
    let payload_crc =
        crc32c::crc32c_append(header_crc, out.get(RECORD_HEADER_LEN..).unwrap_or_default());
    head.extend_from_slice(&header_crc.to_le_bytes());
    head.extend_from_slice(&payload_crc.to_le_bytes());
    if let Some(reserved) = out.get_mut(..RECORD_HEADER_LEN) {
        reserved.copy_from_slice(&head);
    }
    out.resize(out.len().next_multiple_of(RECORD_ALIGN), 0);
}

/// Bytes that a record with `payload_len` bytes of payload takes in a segment; `None` on overflow.
pub fn record_len(payload_len: u64) -> Option<u64> {
    payload_len
        .checked_add(RECORD_HEADER_LEN as u64)?
        .checked_next_multiple_of(RECORD_ALIGN as u64)
}

/// An upper bound of the bytes [`put_change`] writes for a key and a value of these lengths.
pub const fn change_len_max(key_len: usize, value_len: usize) -> usize {
    20 + key_len + value_len
}

/// Appends one change to a payload; `None` deletes the key.
pub fn put_change(out: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    put_varint(out, key.len() as u64);
    out.extend_from_slice(key);
    match value {
        None => out.push(0),
        Some(value) => {
            put_varint(out, value.len() as u64 + 1);
            out.extend_from_slice(value);
        }
    }
}

/// A change as it was logged: a key, and its new value or `None` for a deletion.
pub type Change = (Bytes, Option<Bytes>);

/// Takes a payload apart; keys and values share memory with `payload`.
pub fn read_changes(payload: &Bytes, count: u32) -> Result<Vec<Change>, DecodeError> {
    let mut reader = Reader::new("log record payload", payload);
    // Each change takes at least two bytes, which bounds what a damaged count can make us allocate.
    let mut changes = Vec::with_capacity((count as usize).min(payload.len() / 2));
    for _ in 0..count {
        let len = usize::try_from(reader.varint()?).unwrap_or(usize::MAX);
        let key = share(payload, reader.take(len)?);
        let value = match reader.varint()? {
            0 => None,
            len => {
                let len = usize::try_from(len - 1).unwrap_or(usize::MAX);
                Some(share(payload, reader.take(len)?))
            }
        };
        changes.push((key, value));
    }
    reader.end()?;
    Ok(changes)
}
