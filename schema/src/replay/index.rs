//! The index: everything of a compiled replay that is in memory while it runs.
//!
//! ```text
//! context:      pairs, as in a trace, after their length
//! start u64 | end u64: times of the trace | slots | mapping slots
//! directories:  number | for each: path
//! lanes:        number | for each: number of blocks | for each: offset - end of that before , length
//! initial:      number | for each: path | sort u8, its fields | permission bits | owner | group | size | extents | attributes
//! extents:      number | for each: offset in the file | offset, length, CRC-32C u32 of the buffer
//! attributes:   number | for each: name | length | 0   or   1 | offset, length, CRC-32C u32 of the buffer
//! counts:       number | for each: name, number
//! ```
//!
//! Sorts of initial files: 1 regular, 2 directory, 3 symbolic link with its target, 4 another name of the file with this number, 5 FIFO.

use super::command::{bounded, bytes, index, put_bytes};
use super::{MAX_BLOCK, MAX_LANES, MAX_NAME, MAX_PATH, MAX_SLOTS};
use crate::DecodeError;
use crate::trace::pairs::{self, Pairs};
use crate::wire::{Reader, put_varint};

/// Everything but commands and buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// The context of the trace.
    pub context: Pairs,
    /// The begin of the first call and the end of the last one, in nanoseconds of the trace's clock.
    pub times: (u64, u64),
    /// Number of slots for descriptors.
    pub slots: u32,
    /// Number of slots for mappings.
    pub mappings: u32,
    /// Paths of directories, relative to the root. A path is repeated when another directory replaces the first one.
    pub directories: Vec<Vec<u8>>,
    /// The lanes.
    pub lanes: Vec<Lane>,
    /// Files that must be there before the replay, parents first.
    pub initial: Vec<Initial>,
    /// Counts of calls: those that became commands, and those that did not, by reason.
    pub counts: Counts,
}

/// Names with numbers.
pub type Counts = Vec<(String, u64)>;

/// A lane: the positions of its commands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lane {
    /// Its blocks, in their order.
    pub blocks: Vec<Located>,
}

/// A position in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Located {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u32,
}

/// A file that must be there before the replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Initial {
    /// Its path, relative to the root.
    pub path: Vec<u8>,
    /// Its kind.
    pub what: What,
    /// Permission bits; `None` when not known.
    pub mode: Option<u32>,
    /// Owner and group; `None` when not known.
    pub owner: Option<(u32, u32)>,
    /// Bytes of a regular file.
    pub size: u64,
    /// Content that is known.
    pub extents: Vec<Extent>,
    /// Extended attributes that are known.
    pub attributes: Vec<Attribute>,
}

/// The kind of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// Another name of the file with this number.
    Link(u32),
    /// A FIFO.
    Fifo,
}

/// Content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in the initial file, in bytes.
    pub at: u64,
    /// Its position in the compiled replay: offset, length, CRC-32C.
    pub buffer: (u64, u32, u32),
}

/// An extended attribute of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name, without NUL bytes.
    pub name: Vec<u8>,
    /// Bytes of its value, at most [`MAX_VALUE`].
    pub length: u32,
    /// Its value in the compiled replay: offset, length, CRC-32C. `None` when not known.
    pub buffer: Option<(u64, u32, u32)>,
}

/// Longest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`).
pub const MAX_VALUE: u32 = 64 << 10;
const MAX_ENTRIES: u64 = 1 << 28;

impl Index {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_bytes(&mut out, &pairs::encode(&self.context));
        out.extend_from_slice(&self.times.0.to_le_bytes());
        out.extend_from_slice(&self.times.1.to_le_bytes());
        for number in [self.slots, self.mappings] {
            put_varint(&mut out, number.into());
        }
        put_varint(&mut out, self.directories.len() as u64);
        for path in &self.directories {
            put_bytes(&mut out, path);
        }
        put_varint(&mut out, self.lanes.len() as u64);
        for lane in &self.lanes {
            put_varint(&mut out, lane.blocks.len() as u64);
            let mut end = 0u64;
            for block in &lane.blocks {
                put_varint(&mut out, block.offset.wrapping_sub(end));
                put_varint(&mut out, block.length.into());
                end = block.offset.wrapping_add(block.length.into());
            }
        }
        put_varint(&mut out, self.initial.len() as u64);
        for file in &self.initial {
            file.encode(&mut out);
        }
        put_varint(&mut out, self.counts.len() as u64);
        for (name, number) in &self.counts {
            put_bytes(&mut out, name.as_bytes());
            put_varint(&mut out, *number);
        }
        out
    }

    /// Reads an index. `end` is where it starts in the file: all blocks and buffers must end before it.
    pub fn decode(raw: &[u8], end: u64) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("replay index", raw);
        let context = pairs::decode(bytes(&mut reader, raw.len())?)?;
        let times = (reader.u64()?, reader.u64()?);
        let slots = index(&mut reader, MAX_SLOTS + 1)?;
        let mappings = index(&mut reader, MAX_SLOTS + 1)?;
        let count = bounded(&mut reader, MAX_ENTRIES)?;
        let directories = (0..count).map(|_| path(&mut reader));
        let directories = directories.collect::<Result<_, _>>()?;
        let count = bounded(&mut reader, MAX_LANES.into())?;
        let lanes = (0..count).map(|_| lane(&mut reader, end));
        let lanes = lanes.collect::<Result<_, _>>()?;
        let count = bounded(&mut reader, MAX_ENTRIES)?;
        let initial = (0..count).map(|number| Initial::decode(&mut reader, number, end));
        let initial = initial.collect::<Result<_, _>>()?;
        let count = bounded(&mut reader, MAX_ENTRIES)?;
        let counts = (0..count).map(|_| {
            let name = String::from_utf8_lossy(bytes(&mut reader, MAX_PATH)?).into_owned();
            Ok((name, reader.varint()?))
        });
        let counts = counts.collect::<Result<_, _>>()?;
        reader.end()?;
        Ok(Self {
            context,
            times,
            slots,
            mappings,
            directories,
            lanes,
            initial,
            counts,
        })
    }

    /// The count of this name.
    pub fn count(&self, name: &str) -> u64 {
        let found = self.counts.iter().find(|(it, _)| it == name);
        found.map_or(0, |(_, number)| *number)
    }
}

impl Initial {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.path);
        match &self.what {
            What::Regular => out.push(1),
            What::Directory => out.push(2),
            What::Symlink(target) => {
                out.push(3);
                put_bytes(out, target);
            }
            What::Link(number) => {
                out.push(4);
                put_varint(out, (*number).into());
            }
            What::Fifo => out.push(5),
        }
        put_varint(out, self.mode.map_or(0, |mode| u64::from(mode) + 1));
        for id in [self.owner.map(|it| it.0), self.owner.map(|it| it.1)] {
            put_varint(out, id.map_or(0, |id| u64::from(id) + 1));
        }
        put_varint(out, self.size);
        put_varint(out, self.extents.len() as u64);
        for extent in &self.extents {
            put_varint(out, extent.at);
            put_varint(out, extent.buffer.0);
            put_varint(out, extent.buffer.1.into());
            out.extend_from_slice(&extent.buffer.2.to_le_bytes());
        }
        put_varint(out, self.attributes.len() as u64);
        for attribute in &self.attributes {
            put_bytes(out, &attribute.name);
            put_varint(out, attribute.length.into());
            out.push(attribute.buffer.is_some().into());
            if let Some((offset, length, sum)) = attribute.buffer {
                put_varint(out, offset);
                put_varint(out, length.into());
                out.extend_from_slice(&sum.to_le_bytes());
            }
        }
    }

    fn decode(reader: &mut Reader<'_>, number: u64, end: u64) -> Result<Self, DecodeError> {
        let path = path(reader)?;
        let at = reader.at();
        let what = match reader.u8()? {
            1 => What::Regular,
            2 => What::Directory,
            3 => What::Symlink(bytes(reader, MAX_PATH)?.to_vec()),
            4 => match reader.varint()? {
                earlier if earlier < number => What::Link(earlier as u32),
                _ => return Err(reader.error(at, "it is another name of a later file")),
            },
            5 => What::Fifo,
            _ => return Err(reader.error(at, "a file is of no known sort")),
        };
        let mode = index(reader, 0o10001)?.checked_sub(1);
        let mut id = || Ok(reader.varint()?.checked_sub(1).map(|id| id as u32));
        let owner = match (id()?, id()?) {
            (Some(owner), Some(group)) => Some((owner, group)),
            _ => None,
        };
        let size = reader.varint()?;
        let count = bounded(reader, MAX_ENTRIES)?;
        let mut extents = Vec::new();
        for _ in 0..count {
            let at = reader.varint()?;
            let buffer = buffer(reader, end)?;
            extents.push(Extent { at, buffer });
        }
        let count = bounded(reader, MAX_ENTRIES)?;
        let attributes = (0..count).map(|_| Attribute::decode(reader, end));
        let attributes = attributes.collect::<Result<_, _>>()?;
        Ok(Self {
            path,
            what,
            mode,
            owner,
            size,
            extents,
            attributes,
        })
    }
}

impl Attribute {
    fn decode(reader: &mut Reader<'_>, end: u64) -> Result<Self, DecodeError> {
        let at = reader.at();
        let name = bytes(reader, MAX_NAME)?.to_vec();
        if name.is_empty() || name.contains(&0) {
            return Err(reader.error(at, "an attribute has no name, or a NUL byte in it"));
        }
        let length = index(reader, MAX_VALUE + 1)?;
        let at = reader.at();
        let buffer = match reader.u8()? {
            0 => None,
            1 => Some(buffer(reader, end)?),
            _ => return Err(reader.error(at, "a value is of no known sort")),
        };
        if buffer.is_some_and(|it| it.1 > MAX_VALUE) {
            return Err(reader.error(at, "a value is too long"));
        }
        Ok(Self {
            name,
            length,
            buffer,
        })
    }
}

/// The position of a buffer, which ends before `end`.
fn buffer(reader: &mut Reader<'_>, end: u64) -> Result<(u64, u32, u32), DecodeError> {
    let at = reader.at();
    let buffer = (reader.varint()?, index(reader, u32::MAX)?, reader.u32()?);
    let fits = buffer.0.checked_add(buffer.1.into());
    match fits {
        Some(last) if last <= end => Ok(buffer),
        _ => Err(reader.error(at, "a buffer extends beyond the start of the index")),
    }
}

/// A path that starts in the root: without empty components, `.` and `..`. The root itself is empty.
fn path(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let at = reader.at();
    let path = bytes(reader, MAX_PATH)?;
    let mut components = path.split(|&byte| byte == b'/');
    let is_plain = |name: &[u8]| super::command::is_component(name) && name != b".";
    if !path.is_empty() && !components.all(is_plain) {
        return Err(reader.error(
            at,
            "a path leaves its directory, or is not in its shortest form",
        ));
    }
    Ok(path.to_vec())
}

fn lane(reader: &mut Reader<'_>, end: u64) -> Result<Lane, DecodeError> {
    let count = bounded(reader, MAX_ENTRIES)?;
    let mut blocks = Vec::new();
    let mut before = 0u64;
    for _ in 0..count {
        let at = reader.at();
        let offset = before.checked_add(reader.varint()?);
        let length = index(reader, MAX_BLOCK + 1)?;
        let next = offset.and_then(|offset| offset.checked_add(length.into()));
        match (offset, next) {
            (Some(offset), Some(next)) if next <= end => {
                blocks.push(Located { offset, length });
                before = next;
            }
            _ => return Err(reader.error(at, "a block extends beyond the start of the index")),
        }
    }
    Ok(Lane { blocks })
}
