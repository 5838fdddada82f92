//! The head of the file, and blocks of commands.
//!
//! Head, [`HEAD_LEN`] bytes. A writer fills it in last: a file whose compilation was interrupted has none.
//!
//! | offset | field                                          |
//! |--------|------------------------------------------------|
//! | 0      | magic, 8 bytes [`MAGIC`]                       |
//! | 8      | major version u16, minor version u16           |
//! | 12     | CRC-32C u32 of the index                       |
//! | 16     | offset u64 of the index, length u64 of it      |
//! | 32     | CRC-32C u32 of bytes 0..32                     |
//!
//! Block: number of commands u32, CRC-32C u32 of the payload, order u64 before the first command, then the payload: commands, one after
//! the other. The index has the positions of the blocks.

use super::{Command, VERSION};
use crate::DecodeError;
use crate::wire::Reader;

/// The first bytes of a compiled replay.
pub const MAGIC: [u8; 8] = *b"\x89GRP\r\n\x1a\n";
/// Bytes of a head.
pub const HEAD_LEN: usize = 36;
/// Longest block, in bytes.
pub const MAX_BLOCK: u32 = 4 << 20;
const MINOR: u16 = 0;

/// The position of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Its first byte.
    pub index_at: u64,
    /// Its length in bytes.
    pub index_len: u64,
    /// Its CRC-32C.
    pub index_sum: u32,
}

impl Head {
    /// The head's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&MINOR.to_le_bytes());
        out.extend_from_slice(&self.index_sum.to_le_bytes());
        out.extend_from_slice(&self.index_at.to_le_bytes());
        out.extend_from_slice(&self.index_len.to_le_bytes());
        let sum = crc32c::crc32c(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the start of a file.
    pub fn decode(raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("replay head", raw);
        let magic = reader.take(MAGIC.len())?;
        if magic == [0; MAGIC.len()] {
            return Err(reader.error(0, "its compilation did not end"));
        }
        if magic != MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let (major, _minor) = (reader.u16()?, reader.u16()?);
        let index_sum = reader.u32()?;
        let (index_at, index_len) = (reader.u64()?, reader.u64()?);
        let sum = reader.u32()?;
        if crc32c::crc32c(raw.get(..HEAD_LEN - 4).unwrap_or_default()) != sum {
            return Err(reader.error(HEAD_LEN - 4, "its checksum does not match"));
        }
        if major != VERSION {
            return Err(reader.error(8, "its version is not one this program knows"));
        }
        Ok(Self {
            index_at,
            index_len,
            index_sum,
        })
    }
}

/// Commands of a lane that are stored together.
#[derive(Debug, Clone, Default)]
pub struct Block {
    raw: Vec<u8>,
    commands: u32,
    first: u64,
    last: (u64, u64),
}

const BLOCK_HEAD: usize = 16;

impl Block {
    /// Adds a command, whose order is above that of the ones before.
    pub fn push(&mut self, command: &Command) {
        if self.commands == 0 {
            self.raw = vec![0; BLOCK_HEAD];
            self.first = command.order.saturating_sub(1);
            self.last = (self.first, 0);
        }
        command.encode(self.last, &mut self.raw);
        self.last = (command.order, command.start_ns);
        self.commands += 1;
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether it has no command.
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// The block's bytes. It is empty afterwards.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut raw = std::mem::take(&mut self.raw);
        let sum = crc32c::crc32c(raw.get(BLOCK_HEAD..).unwrap_or_default());
        let mut head = self.commands.to_le_bytes().to_vec();
        head.extend_from_slice(&sum.to_le_bytes());
        head.extend_from_slice(&self.first.to_le_bytes());
        for (slot, byte) in raw.iter_mut().zip(head) {
            *slot = byte;
        }
        self.commands = 0;
        raw
    }

    /// The commands of a block of `lane`. `after` is the order of the lane's last command in the blocks before.
    pub fn commands(raw: &[u8], lane: u32, after: u64) -> Result<Commands<'_>, DecodeError> {
        let mut reader = Reader::new("command block", raw);
        let (left, sum, first) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let payload = raw.get(BLOCK_HEAD..).unwrap_or_default();
        if crc32c::crc32c(payload) != sum {
            return Err(reader.error(4, "its checksum does not match"));
        }
        if first < after {
            return Err(reader.error(8, "its commands are not after those before"));
        }
        let before = (first, 0);
        Ok(Commands {
            reader,
            lane,
            left,
            before,
        })
    }
}

/// The commands of a block, one after the other.
#[derive(Debug)]
pub struct Commands<'a> {
    reader: Reader<'a>,
    lane: u32,
    left: u32,
    before: (u64, u64),
}

impl Commands<'_> {
    /// The next command; `None` at the end. After an error there is nothing further.
    #[allow(clippy::should_implement_trait)] // an iterator would have to end after an error
    pub fn next(&mut self) -> Result<Option<Command>, DecodeError> {
        let mut command = Command::default();
        let is_there = self.read(&mut command)?;
        Ok(is_there.then_some(command))
    }

    /// Reads the next command into `command`, whose memory is used again; false at the end. After an error there is nothing further, and
    /// `command` has no meaning.
    pub fn read(&mut self, command: &mut Command) -> Result<bool, DecodeError> {
        if self.left == 0 {
            return self.reader.end().map(|()| false);
        }
        command.decode(&mut self.reader, self.before, self.lane)?;
        self.before = (command.order, command.start_ns);
        self.left -= 1;
        Ok(true)
    }
}
