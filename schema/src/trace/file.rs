//! The file header, which precedes the first block, and the footer, which may follow the last one.
//!
//! File header, [`FILE_HEADER_LEN`] bytes:
//!
//! | offset | field                                                          |
//! |--------|----------------------------------------------------------------|
//! | 0      | magic, 8 bytes [`MAGIC`]: shows transfers as text, too          |
//! | 8      | major version u16, minor version u16                           |
//! | 12     | serial, 16 bytes: that of the blocks                           |
//! | 28     | CRC-32C u32 of bytes 0..28                                     |
//!
//! Footer: an index, so that a program need not read all block headers. It is optional, and only its checksum protects it.
//!
//! | field                                                                   |
//! |-------------------------------------------------------------------------|
//! | magic `GTRINDEX`                                                        |
//! | length u32 of the entries, in bytes                                     |
//! | entries: kind u8, then as LEB128 the differences to the previous entry of offset in the file, sequence number, first time |
//! | CRC-32C u32 of the entries                                              |
//! | offset of the footer in the file u64, magic `GTR-END\n`                 |

use super::{Kind, VERSION};
use crate::DecodeError;
use crate::wire::{Reader, put_varint};

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"\x89GTR\r\n\x1a\n";
/// Bytes of a file header.
pub const FILE_HEADER_LEN: usize = 32;
/// 1: arguments may be hidden. 2: blocks may have columns.
const MINOR: u16 = 2;

/// The file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileHeader {
    /// Random number of the stream, as in its blocks.
    pub serial: [u8; 16],
}

impl FileHeader {
    /// The header's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&MINOR.to_le_bytes());
        out.extend_from_slice(&self.serial);
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the start of a file. Later minor versions only add parts that older programs skip.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("file header", raw);
        if reader.take(MAGIC.len())? != MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let (major, _minor) = (reader.u16()?, reader.u16()?);
        let serial = reader.bytes()?;
        let sum = reader.u32()?;
        let covered = raw.get(..FILE_HEADER_LEN - 4).unwrap_or_default();
        if crc32c::crc32c(covered) != sum {
            return Err(reader.error(FILE_HEADER_LEN - 4, "its checksum does not match"));
        }
        if major != VERSION {
            return Err(reader.error(8, "its version is not one this program knows"));
        }
        Ok(Self { serial })
    }
}

/// The major and minor version that a file header claims, if its checksum is right; of any version.
pub fn claimed_version(raw: &[u8]) -> Option<(u16, u16)> {
    let mut reader = Reader::new("file header", raw);
    let magic = reader.take(MAGIC.len()).ok()? == MAGIC;
    let version = (reader.u16().ok()?, reader.u16().ok()?);
    reader.take(16).ok()?;
    let sum = reader.u32().ok()?;
    let intact = crc32c::crc32c(raw.get(..FILE_HEADER_LEN - 4)?) == sum;
    (magic && intact).then_some(version)
}

/// One block in the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indexed {
    /// The kind of its content.
    pub kind: Kind,
    /// Where its header starts in the file.
    pub offset: u64,
    /// Its number in the stream.
    pub sequence: u64,
    /// Time of its earliest record.
    pub first_ns: u64,
}

/// The index of a file's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Footer {
    /// The blocks, in their order.
    pub blocks: Vec<Indexed>,
}

impl Footer {
    /// The first bytes.
    pub const MAGIC: [u8; 8] = *b"GTRINDEX";
    /// The last bytes of a file that has one.
    pub const END: [u8; 8] = *b"GTR-END\n";
    /// Bytes before the entries.
    pub const HEAD: usize = 12;
    /// Bytes after the entries.
    pub const TAIL: usize = 20;
    /// Longest entries, in bytes.
    pub const MAX: u32 = 64 << 20;

    /// The footer's bytes, for a file in which it starts at `offset`.
    pub fn encode(&self, offset: u64) -> Vec<u8> {
        let mut entries = Vec::with_capacity(self.blocks.len() * 8);
        let mut last = (0u64, 0u64, 0u64);
        for block in &self.blocks {
            entries.push(block.kind.byte());
            put_varint(&mut entries, block.offset.wrapping_sub(last.0));
            put_varint(&mut entries, block.sequence.wrapping_sub(last.1));
            put_varint(&mut entries, block.first_ns.wrapping_sub(last.2));
            last = (block.offset, block.sequence, block.first_ns);
        }
        let mut out = Self::MAGIC.to_vec();
        out.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&entries);
        out.extend_from_slice(&crc32c::crc32c(&entries).to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&Self::END);
        out
    }

    /// The length of the footer that begins with `raw`; `None` if `raw` is not a footer.
    pub fn len(raw: &[u8]) -> Option<usize> {
        let mut reader = Reader::new("footer", raw);
        let found = reader.take(Self::MAGIC.len()).ok()? == Self::MAGIC;
        let len = reader.u32().ok()?;
        (found && len <= Self::MAX).then_some(Self::HEAD + len as usize + Self::TAIL)
    }

    /// Reads a whole footer. Also returns its offset in the file, as it records it.
    pub fn decode(raw: &[u8]) -> Result<(Self, u64), DecodeError> {
        let mut reader = Reader::new("footer", raw);
        if reader.take(Self::MAGIC.len())? != Self::MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let len = reader.u32()?;
        let entries = reader.take(len as usize)?;
        let (sum, offset) = (reader.u32()?, reader.u64()?);
        if reader.take(Self::END.len())? != Self::END {
            return Err(reader.error(reader.at() - 8, "the closing magic number is missing"));
        }
        reader.end()?;
        if crc32c::crc32c(entries) != sum {
            return Err(reader.error(8, "its checksum does not match"));
        }
        let mut reader = Reader::new("footer entries", entries);
        let mut blocks = Vec::new();
        let mut last = (0u64, 0u64, 0u64);
        while reader.at() < entries.len() {
            let kind = Kind::from_byte(reader.u8()?);
            let mut next = |last: u64| Ok(last.wrapping_add(reader.varint()?));
            last = (next(last.0)?, next(last.1)?, next(last.2)?);
            blocks.push(Indexed {
                kind,
                offset: last.0,
                sequence: last.1,
                first_ns: last.2,
            });
        }
        Ok((Self { blocks }, offset))
    }
}
