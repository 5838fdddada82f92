//! The stream of `amino dump`: all records of a store as they were at one moment, with checksums, whatever engine holds them.
//!
//! A header of [`DUMP_HEADER_LEN`] bytes, blocks of records in key order, one end block, and nothing behind it. Integers are
//! little-endian.
//!
//! | offset | header                                                              |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `AMINDUMP`                                                    |
//! | 8      | format version u32 = 1                                              |
//! | 12     | zero u32                                                            |
//! | 16     | id of the store, 16 bytes                                           |
//! | 32     | time of the dump u64, nanoseconds since 1970                        |
//! | 40     | zeros                                                               |
//! | 60     | CRC-32C of bytes 0..60                                              |
//!
//! | offset | block header, [`BLOCK_HEADER_LEN`] bytes                            |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `ADBK`                                                        |
//! | 4      | kind u8: 0 records, 1 end                                           |
//! | 5      | compression of the payload u8: 0 none, 1 one zstd frame             |
//! | 6      | zero u16                                                            |
//! | 8      | number u64, from 0; grows by one from block to block                |
//! | 16     | bytes of the payload as stored u32                                  |
//! | 20     | bytes of the payload u32; at most [`BLOCK_MAX`]                     |
//! | 24     | number of records u32                                               |
//! | 28     | CRC-32C: that of the header, continued over bytes 0..28 and the payload as stored |
//!
//! The checksum covers what identifies the dump and the block's number, so a block of another dump, or at another place, does not match.
//!
//! Payload of a block of records: for each record the key's length (LEB128), the key, the value's length plus one (LEB128), the value:
//! as in the [log](crate::log). Payload of the end block: number of records u64, bytes of keys and values u64.

use bytes::Bytes;

use crate::DecodeError;
use crate::log::{put_change, read_changes};
use crate::wire::Reader;

/// Bytes before the first block.
pub const DUMP_HEADER_LEN: usize = 64;
/// Bytes of a block's header.
pub const BLOCK_HEADER_LEN: usize = 32;
/// Maximum number of bytes of a block's payload: any record fits.
pub const BLOCK_MAX: u32 = 4 << 20;
/// The format that this program writes and reads.
pub const DUMP_FORMAT: u32 = 1;

const DUMP_MAGIC: &[u8; 8] = b"AMINDUMP";
const BLOCK_MAGIC: &[u8; 4] = b"ADBK";
const DUMP_CRC_AT: usize = 60;

/// The header of a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DumpHeader {
    /// Id of the store that was dumped.
    pub store_id: [u8; 16],
    /// Time of the dump, nanoseconds since 1970.
    pub time_ns: u64,
}

impl DumpHeader {
    const NAME: &'static str = "dump header";

    /// The header's bytes.
    pub fn encode(&self) -> [u8; DUMP_HEADER_LEN] {
        let mut out = Vec::with_capacity(DUMP_HEADER_LEN);
        out.extend_from_slice(DUMP_MAGIC);
        out.extend_from_slice(&DUMP_FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.store_id);
        out.extend_from_slice(&self.time_ns.to_le_bytes());
        out.resize(DUMP_CRC_AT, 0);
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut header = [0; DUMP_HEADER_LEN];
        header.copy_from_slice(&out);
        header
    }

    /// Reads a header. An error at offset 0 means that the bytes are not a dump at all.
    pub fn decode(raw: &[u8; DUMP_HEADER_LEN]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::NAME, raw);
        if reader.take(8)? != DUMP_MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let format = reader.u32()?;
        reader.u32()?;
        let header = Self {
            store_id: reader.bytes()?,
            time_ns: reader.u64()?,
        };
        if header_sum(raw) != crc32c::crc32c(raw.get(..DUMP_CRC_AT).unwrap_or_default()) {
            return Err(reader.error(DUMP_CRC_AT, "its checksum does not match"));
        }
        if format != DUMP_FORMAT {
            return Err(reader.error(8, "its version is not one this program knows"));
        }
        Ok(header)
    }
}

/// The checksum in a header. The checksums of the blocks continue it.
fn header_sum(raw: &[u8; DUMP_HEADER_LEN]) -> u32 {
    let mut sum = [0; 4];
    sum.copy_from_slice(&raw[DUMP_CRC_AT..]);
    u32::from_le_bytes(sum)
}

/// The kind of a block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Records.
    Records,
    /// The totals: nothing follows.
    End,
}

/// The header of a block, without its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The kind of its content.
    pub kind: BlockKind,
    /// Whether the payload is stored as a zstd frame.
    pub is_compressed: bool,
    /// Its number.
    pub number: u64,
    /// Bytes of the payload as stored.
    pub stored_len: u32,
    /// Bytes of the payload.
    pub payload_len: u32,
    /// Number of records.
    pub records: u32,
}

impl BlockHeader {
    const NAME: &'static str = "dump block header";

    /// The bytes of the header of a block of the dump that starts with `dump`, with the checksum of its payload as `stored`.
    pub fn encode(&self, dump: &[u8; DUMP_HEADER_LEN], stored: &[u8]) -> [u8; BLOCK_HEADER_LEN] {
        let kind = match self.kind {
            BlockKind::Records => 0,
            BlockKind::End => 1,
        };
        let mut out = Vec::with_capacity(BLOCK_HEADER_LEN);
        out.extend_from_slice(BLOCK_MAGIC);
        out.extend_from_slice(&[kind, u8::from(self.is_compressed), 0, 0]);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.stored_len.to_le_bytes());
        out.extend_from_slice(&self.payload_len.to_le_bytes());
        out.extend_from_slice(&self.records.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c_append(header_sum(dump), &out), stored);
        out.extend_from_slice(&sum.to_le_bytes());
        let mut header = [0; BLOCK_HEADER_LEN];
        header.copy_from_slice(&out);
        header
    }

    /// Reads the header of block `number`. Its checksum needs the payload: [`Self::matches`].
    pub fn decode(raw: &[u8; BLOCK_HEADER_LEN], number: u64) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(Self::NAME, raw);
        if reader.take(4)? != BLOCK_MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let kind = match reader.u8()? {
            0 => BlockKind::Records,
            1 => BlockKind::End,
            _ => return Err(reader.error(4, "its kind is unknown")),
        };
        let is_compressed = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(reader.error(5, "its compression is unknown")),
        };
        reader.u16()?;
        let header = Self {
            kind,
            is_compressed,
            number: reader.u64()?,
            stored_len: reader.u32()?,
            payload_len: reader.u32()?,
            records: reader.u32()?,
        };
        if header.number != number {
            return Err(reader.error(8, "it is the header of another block"));
        }
        // zstd's output is never longer than this. A larger length is damage, and would cost memory.
        if header.payload_len > BLOCK_MAX || header.stored_len > BLOCK_MAX {
            return Err(reader.error(16, "a block of this length is never written"));
        }
        Ok(header)
    }

    /// Whether the checksum in `raw`, of a block of the dump that starts with `dump`, is that of the header and of `stored`.
    pub fn matches(
        &self,
        raw: &[u8; BLOCK_HEADER_LEN],
        dump: &[u8; DUMP_HEADER_LEN],
        stored: &[u8],
    ) -> bool {
        *raw == self.encode(dump, stored)
    }
}

/// Adds a record to the payload of a block.
pub fn put_record(payload: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    put_change(payload, key, Some(value));
}

/// The records of a block's payload; they share its memory.
pub fn read_records(payload: &Bytes, count: u32) -> Result<Vec<(Bytes, Bytes)>, DecodeError> {
    let changes = read_changes(payload, count)?;
    let record = |(key, value): (Bytes, Option<Bytes>)| value.map(|value| (key, value));
    let records: Option<Vec<_>> = changes.into_iter().map(record).collect();
    records.ok_or(DecodeError {
        record: "dump block",
        offset: 0,
        why: "a record has no value",
    })
}

/// The totals of a dump.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DumpTotals {
    /// Number of records.
    pub records: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

impl DumpTotals {
    /// The payload of the end block.
    pub fn encode(&self) -> Vec<u8> {
        [self.records.to_le_bytes(), self.bytes.to_le_bytes()].concat()
    }

    /// Reads the payload of the end block.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("dump totals", payload);
        let totals = Self {
            records: reader.u64()?,
            bytes: reader.u64()?,
        };
        reader.end()?;
        Ok(totals)
    }

    /// Counts a record.
    pub fn count(&mut self, key: &[u8], value: &[u8]) {
        self.records += 1;
        self.bytes += (key.len() + value.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEADER: DumpHeader = DumpHeader {
        store_id: [7; 16],
        time_ns: 12,
    };

    #[test]
    fn each_changed_bit_of_a_dumps_headers_shows() {
        let raw = HEADER.encode();
        assert_eq!(DumpHeader::decode(&raw), Ok(HEADER));
        let stored = b"payload";
        let block = BlockHeader {
            kind: BlockKind::Records,
            is_compressed: false,
            number: 3,
            stored_len: 7,
            payload_len: 7,
            records: 0,
        };
        let block_raw = block.encode(&raw, stored);
        assert_eq!(BlockHeader::decode(&block_raw, 3), Ok(block));
        assert!(block.matches(&block_raw, &raw, stored));
        assert!(BlockHeader::decode(&block_raw, 4).is_err());
        for bit in 0..DUMP_HEADER_LEN * 8 {
            let mut other = raw;
            other[bit / 8] ^= 1 << (bit % 8);
            assert!(DumpHeader::decode(&other).is_err(), "{bit}");
            let in_block = bit % (BLOCK_HEADER_LEN * 8);
            let mut other = block_raw;
            other[in_block / 8] ^= 1 << (in_block % 8);
            let found = BlockHeader::decode(&other, 3);
            let accepted = found.is_ok_and(|found| found.matches(&other, &raw, stored));
            assert!(!accepted, "{in_block}");
        }
    }

    proptest! {
        #[test]
        fn records_of_a_block_are_read_as_written(
            records: Vec<(Vec<u8>, Vec<u8>)>,
            cut: prop::sample::Index,
        ) {
            let mut payload = Vec::new();
            for (key, value) in &records {
                put_record(&mut payload, key, value);
            }
            let count = records.len() as u32;
            let payload = Bytes::from(payload);
            let read = read_records(&payload, count).unwrap();
            let read: Vec<_> = read.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
            prop_assert_eq!(&read, &records);
            if !payload.is_empty() {
                prop_assert!(read_records(&payload.slice(..cut.index(payload.len())), count).is_err());
            }
        }
    }
}
