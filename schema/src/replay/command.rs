//! A command: one operation of a lane, and the commands that must be done before it.
//!
//! ```text
//! call u8 | flags u8 | order - that before | start - that before (zigzag) | duration | expected (zigzag), if flag 2
//! waits:    number | for each: lane | order - the order waited for
//! targets:  number in bits 5 and 6 of the flags; for each:  0 | slot   or   1 | directory | name
//! numbers:  number | for each: value
//! result slot, if flag 16 | text, if flag 8 | data, if flag 4
//! data:     length | 0 unknown   or   1 | number | for each: offset, length, CRC-32C u32   or   2 | number | for each: hash, 16 bytes
//! ```
//!
//! Everything without a size is LEB128; names and texts have their length before them. Flag 1: the call overlapped another one that it
//! conflicts with.

use super::{Call, MAX_LANES, MAX_NAME, MAX_PATH, MAX_SLOTS};
use crate::DecodeError;
use crate::wire::{Reader, put_varint};

/// One operation of a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// Its operation.
    pub call: Call,
    /// Its number in the whole replay. It grows within a lane, and commands wait for smaller ones only.
    pub order: u64,
    /// When the call began, in nanoseconds since the trace did.
    pub start_ns: u64,
    /// How long the call took.
    pub duration_ns: u64,
    /// The result register of the call; `None` when the trace does not have it.
    pub expected: Option<i64>,
    /// The call overlapped another one that it conflicts with, so that its result may differ.
    pub is_racy: bool,
    /// Commands of other lanes that must be done before.
    pub waits: Vec<Wait>,
    /// The files that it operates on; at most two.
    pub targets: Vec<Target>,
    /// Further operands, as [`Call`] lists them; at most 8.
    pub numbers: Vec<u64>,
    /// The slot that gets the new descriptor.
    pub result: Option<u32>,
    /// A text other than the name of a file, such as a link's target.
    pub text: Option<Vec<u8>>,
    /// The data that are written, or were read.
    pub data: Option<Data>,
}

/// Another lane's command that must be done before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The lane.
    pub lane: u32,
    /// It must have done its commands up to this order.
    pub order: u64,
}

/// A file that a command operates on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A descriptor in this slot.
    Slot(u32),
    /// A name in a directory.
    Place(Place),
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Number of the directory in the index.
    pub directory: u32,
    /// One component: not `..`, without a slash but perhaps one at its end. `.` is the directory itself.
    pub name: Vec<u8>,
}

/// Data that is read or written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data {
    /// Number of requested bytes.
    pub length: u64,
    /// Their content, as far as it is known.
    pub content: Content,
}

/// The known content of data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Nothing.
    Unknown,
    /// Its position in the file: offset, length in bytes and CRC-32C.
    Buffers(Vec<(u64, u32, u32)>),
    /// The first half of the SHA-256 sum of each 64 KiB.
    Hashes(Vec<[u8; 16]>),
}

/// Maximum number of numbers of a command.
const MAX_NUMBERS: u64 = 8;
/// Maximum number of pieces of a command's data.
const MAX_PIECES: u64 = 1 << 16;

const RACY: u8 = 1;
const EXPECTED: u8 = 2;
const DATA: u8 = 4;
const TEXT: u8 = 8;
const RESULT: u8 = 16;
const TARGETS: u8 = 5;

impl Default for Command {
    /// A command that does nothing, for [`Commands::read`](super::Commands::read) to read into.
    fn default() -> Self {
        Self {
            call: Call::Begin,
            order: 0,
            start_ns: 0,
            duration_ns: 0,
            expected: None,
            is_racy: false,
            waits: Vec::new(),
            targets: Vec::new(),
            numbers: Vec::new(),
            result: None,
            text: None,
            data: None,
        }
    }
}

impl Command {
    /// Appends the command. `before` is the one before it in the block: its order and start.
    pub(super) fn encode(&self, before: (u64, u64), out: &mut Vec<u8>) {
        let flags = [
            (self.is_racy, RACY),
            (self.expected.is_some(), EXPECTED),
            (self.data.is_some(), DATA),
            (self.text.is_some(), TEXT),
            (self.result.is_some(), RESULT),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit);
        let targets = (self.targets.len().min(2) as u8) << TARGETS;
        out.push(self.call.byte());
        out.push(flags.fold(targets, |all, bit| all | bit));
        put_varint(out, self.order.wrapping_sub(before.0));
        put_varint(out, zigzag(self.start_ns.wrapping_sub(before.1)));
        put_varint(out, self.duration_ns);
        if let Some(expected) = self.expected {
            put_varint(out, zigzag(expected as u64));
        }
        put_varint(out, self.waits.len() as u64);
        for wait in &self.waits {
            put_varint(out, wait.lane.into());
            put_varint(out, self.order.wrapping_sub(wait.order));
        }
        for target in self.targets.iter().take(2) {
            match target {
                Target::Slot(slot) => {
                    out.push(0);
                    put_varint(out, (*slot).into());
                }
                Target::Place(place) => {
                    out.push(1);
                    put_varint(out, place.directory.into());
                    put_bytes(out, &place.name);
                }
            }
        }
        put_varint(out, self.numbers.len() as u64);
        for number in &self.numbers {
            put_varint(out, *number);
        }
        if let Some(slot) = self.result {
            put_varint(out, slot.into());
        }
        if let Some(text) = &self.text {
            put_bytes(out, text);
        }
        if let Some(data) = &self.data {
            data.encode(out);
        }
    }

    /// Reads a command into this one, whose memory is reused; `lane` is its own lane. After an error, the command has no meaning.
    pub(super) fn decode(
        &mut self,
        reader: &mut Reader<'_>,
        before: (u64, u64),
        lane: u32,
    ) -> Result<(), DecodeError> {
        let at = reader.at();
        let call = Call::from_byte(reader.u8()?);
        let call =
            call.ok_or_else(|| reader.error(at, "the call is not one this program knows"))?;
        let flags = reader.u8()?;
        let order = match reader.varint()? {
            0 => return Err(reader.error(at, "the order does not grow")),
            step => before.0.checked_add(step),
        };
        let order = order.ok_or_else(|| reader.error(at, "the order is too large"))?;
        self.call = call;
        self.order = order;
        self.start_ns = before.1.wrapping_add(unzigzag(reader.varint()?));
        self.duration_ns = reader.varint()?;
        self.expected = match flags & EXPECTED {
            0 => None,
            _ => Some(unzigzag(reader.varint()?) as i64),
        };
        waits(reader, order, lane, &mut self.waits)?;
        self.targets.clear();
        for _ in 0..flags >> TARGETS & 3 {
            self.targets.push(target(reader)?);
        }
        self.numbers.clear();
        for _ in 0..bounded(reader, MAX_NUMBERS)? {
            self.numbers.push(reader.varint()?);
        }
        self.result = match flags & RESULT {
            0 => None,
            _ => Some(slot(reader)?),
        };
        self.text = match flags & TEXT {
            0 => None,
            _ => Some(bytes(reader, MAX_PATH)?.to_vec()),
        };
        self.data = match flags & DATA {
            0 => None,
            _ => Some(Data::decode(reader)?),
        };
        self.is_racy = flags & RACY != 0;
        Ok(())
    }

    /// Whether the call failed, and with which error number.
    pub fn expected_error(&self) -> Option<i64> {
        self.expected.filter(|it| (-4095..0).contains(it))
    }
}

impl Data {
    fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.length);
        match &self.content {
            Content::Unknown => out.push(0),
            Content::Buffers(buffers) => {
                out.push(1);
                put_varint(out, buffers.len() as u64);
                for (offset, length, sum) in buffers {
                    put_varint(out, *offset);
                    put_varint(out, (*length).into());
                    out.extend_from_slice(&sum.to_le_bytes());
                }
            }
            Content::Hashes(hashes) => {
                out.push(2);
                put_varint(out, hashes.len() as u64);
                out.extend(hashes.iter().flatten());
            }
        }
    }

    #[inline]
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let length = reader.varint()?;
        let at = reader.at();
        let content = match reader.u8()? {
            0 => Content::Unknown,
            1 => {
                let count = bounded(reader, MAX_PIECES)?;
                let pieces = (0..count).map(|_| buffer(reader));
                Content::Buffers(pieces.collect::<Result<_, _>>()?)
            }
            2 => {
                let count = bounded(reader, MAX_PIECES)?;
                let hashes = (0..count).map(|_| reader.bytes());
                Content::Hashes(hashes.collect::<Result<_, _>>()?)
            }
            _ => return Err(reader.error(at, "the content is of no known sort")),
        };
        Ok(Self { length, content })
    }
}

#[inline]
fn waits(
    reader: &mut Reader<'_>,
    order: u64,
    lane: u32,
    waits: &mut Vec<Wait>,
) -> Result<(), DecodeError> {
    let count = bounded(reader, MAX_LANES.into())?;
    waits.clear();
    for _ in 0..count {
        let at = reader.at();
        let other = index(reader, MAX_LANES)?;
        let back = reader.varint()?;
        // Without this, commands could wait for each other.
        let order = match back {
            0 => None,
            back => order.checked_sub(back),
        };
        let order =
            order.ok_or_else(|| reader.error(at, "it waits for itself or a later command"))?;
        if other == lane {
            return Err(reader.error(at, "it waits for its own lane"));
        }
        waits.push(Wait { lane: other, order });
    }
    Ok(())
}

#[inline]
fn target(reader: &mut Reader<'_>) -> Result<Target, DecodeError> {
    let at = reader.at();
    match reader.u8()? {
        0 => Ok(Target::Slot(slot(reader)?)),
        1 => {
            let directory = index(reader, u32::MAX)?;
            let at = reader.at();
            let name = bytes(reader, MAX_NAME + 1)?;
            if !is_component(name) {
                return Err(reader.error(at, "a name is not one component of a path"));
            }
            let name = name.to_vec();
            Ok(Target::Place(Place { directory, name }))
        }
        _ => Err(reader.error(at, "a target is of no known sort")),
    }
}

/// Whether `name` names an entry of a directory, or the directory itself, and cannot lead out of it.
pub(super) fn is_component(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"/").unwrap_or(name);
    let is_clean = name.iter().all(|byte| !matches!(byte, 0 | b'/'));
    is_clean && !name.is_empty() && name.len() <= MAX_NAME && name != b".."
}

fn buffer(reader: &mut Reader<'_>) -> Result<(u64, u32, u32), DecodeError> {
    let offset = reader.varint()?;
    Ok((offset, index(reader, u32::MAX)?, reader.u32()?))
}

#[inline]
fn slot(reader: &mut Reader<'_>) -> Result<u32, DecodeError> {
    index(reader, MAX_SLOTS)
}

/// A number below `end`.
#[inline]
pub(super) fn index(reader: &mut Reader<'_>, end: u32) -> Result<u32, DecodeError> {
    let at = reader.at();
    match reader.varint()? {
        index if index < end.into() => Ok(index as u32),
        _ => Err(reader.error(at, "a number is too large")),
    }
}

#[inline]
pub(super) fn bounded(reader: &mut Reader<'_>, most: u64) -> Result<u64, DecodeError> {
    let at = reader.at();
    match reader.varint()? {
        count if count <= most => Ok(count),
        _ => Err(reader.error(at, "there are more than may be")),
    }
}

#[inline]
pub(super) fn bytes<'a>(reader: &mut Reader<'a>, most: usize) -> Result<&'a [u8], DecodeError> {
    let len = bounded(reader, most as u64)?;
    reader.take(len as usize)
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn zigzag(difference: u64) -> u64 {
    (difference << 1) ^ ((difference as i64 >> 63) as u64)
}

fn unzigzag(coded: u64) -> u64 {
    (coded >> 1) ^ (coded & 1).wrapping_neg()
}
