//! The header of a block.
//!
//! | offset | field                                                                     |
//! |--------|---------------------------------------------------------------------------|
//! | 0      | sync marker, 8 bytes [`SYNC`]                                             |
//! | 8      | kind u8, three zero bytes                                                 |
//! | 12     | raw length u32: bytes of the payload before the codecs                    |
//! | 16     | codecs, 8 bytes: in the order in which they were applied, then zeros      |
//! | 24     | serial, 16 bytes: random, the same in all blocks of a stream              |
//! | 40     | sequence number u64: grows by one from block to block                     |
//! | 48     | records before this block u64, in the stream                              |
//! | 56     | records in this block u32                                                 |
//! | 60     | schema id u32: CRC-32C of the raw payload of the schema block it needs    |
//! | 64     | first time u64, last time u64: nanoseconds of `CLOCK_MONOTONIC`, 0 when none |
//! | 80     | events lost u64: those that never became records, since the stream began  |
//! | 88     | stored length u32: bytes of payload that follow the header                |
//! | 92     | CRC-32C u32 of the stored payload                                         |
//! | 96     | CRC-32C u32 of bytes 8..96                                                |
//!
//! Bytes 8..88 are the block's identity: the codecs that authenticate a block cover them.

use crate::DecodeError;
use crate::wire::Reader;

/// The first bytes of each block.
pub const SYNC: [u8; 8] = [0xf3, b'G', b'T', b'R', 0xb1, 0x0c, 0x9d, 0xe7];
/// Longest payload of a block before the codecs, in bytes.
pub const MAX_BLOCK: u32 = 16 << 20;
/// Longest stored payload: codecs may lengthen it by as much as this allows.
const MAX_STORED: u32 = MAX_BLOCK + (MAX_BLOCK >> 7) + 4096;
const IDENTITY_LEN: usize = 80;
const CODECS: usize = 8;

/// The kind of a block's content. Readers skip blocks of unknown kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Definitions: [`super::Schema`].
    Schema,
    /// Where and how the trace was made: [`super::pairs`].
    Context,
    /// Records: [`super::record`].
    Records,
    /// The stream, or this file of it, ends here: [`super::pairs`].
    End,
    /// Records in columns: [`super::record`].
    Columns,
    /// A kind that this version does not know.
    Other(u8),
}

impl Kind {
    pub(super) fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Schema,
            2 => Self::Context,
            3 => Self::Records,
            4 => Self::End,
            5 => Self::Columns,
            other => Self::Other(other),
        }
    }

    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Schema => 1,
            Self::Context => 2,
            Self::Records => 3,
            Self::End => 4,
            Self::Columns => 5,
            Self::Other(byte) => byte,
        }
    }
}

/// A transformation of a block's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// One zstd frame.
    Zstd,
    /// AES-256-GCM.
    Aes256Gcm,
    /// HMAC-SHA-256 appended.
    HmacSha256,
}

impl Codec {
    /// The codec that this byte of a block header stands for.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Zstd),
            2 => Some(Self::Aes256Gcm),
            3 => Some(Self::HmacSha256),
            _ => None,
        }
    }

    /// The byte of a block header.
    pub fn byte(self) -> u8 {
        match self {
            Self::Zstd => 1,
            Self::Aes256Gcm => 2,
            Self::HmacSha256 => 3,
        }
    }
}

/// The fields of a block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// The kind of its content.
    pub kind: Kind,
    /// Bytes of the payload before the codecs.
    pub raw_len: u32,
    /// The codecs as stored, in the order in which they were applied.
    pub codecs: [u8; CODECS],
    /// Random number of the stream.
    pub serial: [u8; 16],
    /// Number of the block in the stream.
    pub sequence: u64,
    /// Records in the blocks before this one.
    pub records_before: u64,
    /// Records in this block.
    pub records: u32,
    /// Identifies the schema that describes the records.
    pub schema_id: u32,
    /// Time of the earliest record, in nanoseconds; 0 when there is none.
    pub first_ns: u64,
    /// Time of the latest record, in nanoseconds.
    pub last_ns: u64,
    /// Events that never became records, since the stream began.
    pub lost: u64,
}

/// A block header that was read, with the fields of the stored payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// The block.
    pub header: BlockHeader,
    /// Bytes of payload that follow the header.
    pub stored_len: u32,
    payload_crc: u32,
}

impl BlockHeader {
    /// Bytes of a stored header.
    pub const LEN: usize = 100;

    /// The codecs, or the first byte that stands for no known codec.
    pub fn codecs(&self) -> Result<Vec<Codec>, u8> {
        let used = self.codecs.iter().take_while(|&&byte| byte != 0);
        used.map(|&byte| Codec::from_byte(byte).ok_or(byte))
            .collect()
    }

    /// The bytes that authenticating codecs cover.
    pub fn identity(&self) -> [u8; IDENTITY_LEN] {
        let mut out = [0; IDENTITY_LEN];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            if let Some(slot) = out.get_mut(at..at + field.len()) {
                slot.copy_from_slice(field);
            }
            at += field.len();
        };
        put(&[self.kind.byte(), 0, 0, 0]);
        put(&self.raw_len.to_le_bytes());
        put(&self.codecs);
        put(&self.serial);
        put(&self.sequence.to_le_bytes());
        put(&self.records_before.to_le_bytes());
        put(&self.records.to_le_bytes());
        put(&self.schema_id.to_le_bytes());
        put(&self.first_ns.to_le_bytes());
        put(&self.last_ns.to_le_bytes());
        put(&self.lost.to_le_bytes());
        out
    }

    /// Appends header and payload to `out`.
    pub fn encode(&self, stored: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&SYNC);
        let start = out.len();
        out.extend_from_slice(&self.identity());
        out.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(stored).to_le_bytes());
        let sum = crc32c::crc32c(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&sum.to_le_bytes());
        out.extend_from_slice(stored);
    }
}

impl Stored {
    /// Reads the header at the start of `raw`.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("block header", raw);
        if reader.take(SYNC.len())? != SYNC {
            return Err(reader.error(0, "the sync marker is missing"));
        }
        let (kind, zeros) = (reader.u8()?, reader.bytes::<3>()?);
        let raw_len = reader.u32()?;
        let codecs = reader.bytes()?;
        let serial = reader.bytes()?;
        let (sequence, records_before) = (reader.u64()?, reader.u64()?);
        let (records, schema_id) = (reader.u32()?, reader.u32()?);
        let (first_ns, last_ns, lost) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (stored_len, payload_crc, header_crc) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let covered = raw.get(SYNC.len()..BlockHeader::LEN - 4);
        if crc32c::crc32c(covered.unwrap_or_default()) != header_crc {
            return Err(reader.error(BlockHeader::LEN - 4, "its checksum does not match"));
        }
        if zeros != [0; 3] {
            return Err(reader.error(9, "bytes that must be zero are not"));
        }
        if raw_len > MAX_BLOCK || stored_len > MAX_STORED {
            return Err(reader.error(12, "it is longer than blocks may be"));
        }
        let header = BlockHeader {
            kind: Kind::from_byte(kind),
            raw_len,
            codecs,
            serial,
            sequence,
            records_before,
            records,
            schema_id,
            first_ns,
            last_ns,
            lost,
        };
        Ok(Self {
            header,
            stored_len,
            payload_crc,
        })
    }

    /// Whether `stored` is the whole and undamaged payload of this block.
    pub fn matches(&self, stored: &[u8]) -> bool {
        stored.len() as u64 == u64::from(self.stored_len)
            && crc32c::crc32c(stored) == self.payload_crc
    }
}
