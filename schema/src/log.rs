//! The redo log: segment files, each a header and frames one after the other. A frame is one transaction.
//!
//! Segment header, [`SEGMENT_HEADER_LEN`] bytes (only the first 56 are used, the rest is zero so that no frame shares
//! a disk block with it):
//!
//! | offset | field                                                               |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `AMINOLOG`                                                    |
//! | 8      | format version u32 = 2                                              |
//! | 12     | zero u32                                                            |
//! | 16     | store id, 16 bytes                                                  |
//! | 32     | segment number u64                                                  |
//! | 40     | created u64, nanoseconds since 1970                                 |
//! | 48     | zero u32                                                            |
//! | 52     | CRC-32C of bytes 0..52                                              |
//!
//! Frame, at an offset that is a multiple of [`FRAME_ALIGN`]: a header of [`FRAME_HEADER_LEN`] bytes, the payload,
//! zeros to the next multiple:
//!
//! | offset | field                                                               |
//! |--------|---------------------------------------------------------------------|
//! | 0      | magic `AREC`                                                        |
//! | 4      | version u8 = 2, flags u8, two zero bytes                            |
//! | 8      | payload length u64, bytes                                           |
//! | 16     | sequence number u64                                                 |
//! | 24     | durable u64: every frame up to this one was on disk when this one was written |
//! | 32     | time of the commit u64, nanoseconds since 1970                      |
//! | 40     | uid u32, pid u32 of the author                                      |
//! | 48     | number of changes u32, zero u32                                     |
//! | 56     | parent u64: the sequence number of the transaction that this one follows |
//! | 64     | program of the author, 16 bytes: the name in `/proc/PID/comm`, zeros behind it |
//! | 80     | zero u64                                                            |
//! | 88     | header CRC-32C: of bytes 16..48 of the segment header (store id, number, creation) and bytes 0..88 |
//! | 92     | payload CRC-32C: the header CRC continued over the payload          |
//!
//! Flags: 1, an explicit transaction; without it, single operations that were committed together. 2, other processes than the
//! author made changes, too. The author is the process that made the first change.
//!
//! The checksum covers what identifies the segment, and the frame does not contain it. So the old frames in a recycled
//! file are not valid. `durable` distinguishes a torn tail from damage: several frames that were never synced
//! can reach the disk in any order, so a hole before a valid frame is damage only if that frame, or a later one,
//! records that the hole had been on disk.
//!
//! Payload: for each change, in key order, key length (LEB128), key, then 0 for a deletion or the value's length plus
//! one (LEB128) and the value.
//!
//! Format 1, which is read and not written: a frame's header ends with the two checksums at byte 56, has version 1 and
//! no flags. Its author is the process that had the store open.

use bytes::Bytes;

use crate::DecodeError;
use crate::wire::{Reader, put_varint, share};

/// Bytes before the first frame of a segment.
pub const SEGMENT_HEADER_LEN: usize = 4096;
/// Frames start at multiples of this many bytes.
pub const FRAME_ALIGN: usize = 64;
/// Bytes of a frame's header.
pub const FRAME_HEADER_LEN: usize = 96;
/// The log format that this program writes.
pub const LOG_FORMAT: u32 = 2;
/// The oldest log format that this program reads.
pub const LOG_FORMAT_OLDEST: u32 = 1;
/// Bytes of a program's name, as the kernel keeps it (`TASK_COMM_LEN`).
pub const PROGRAM_LEN: usize = 16;

const SEGMENT_MAGIC: &[u8; 8] = b"AMINOLOG";
const FRAME_MAGIC: &[u8; 4] = b"AREC";
const SEGMENT_CRC_AT: usize = 52;
const FRAME_CRC_AT: usize = 88;
const FLAG_TRANSACTION: u8 = 1;
const FLAG_OTHERS: u8 = 2;

/// Bytes of a frame's header in format 1, and where its checksums are.
const FRAME_HEADER_LEN_1: usize = 64;
const FRAME_CRC_AT_1: usize = 56;

/// The header of a segment file. The checksums of its frames start with parts of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Random id of the store.
    pub store_id: [u8; 16],
    /// Number of the segment; grows by one, never reused within a store.
    pub number: u64,
    /// Creation, nanoseconds since 1970.
    pub created_ns: u64,
    /// The format of its frames; [`LOG_FORMAT`] in new ones.
    pub format: u32,
}

impl SegmentHeader {
    const NAME: &'static str = "log segment header";

    /// The header's bytes, zeros included.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_LEN);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
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
            format,
        };
        reader.u32()?;
        let sum = reader.u32()?;
        if crc32c::crc32c(raw.get(..SEGMENT_CRC_AT).unwrap_or_default()) != sum {
            return Err(reader.error(SEGMENT_CRC_AT, "its checksum does not match"));
        }
        if !(LOG_FORMAT_OLDEST..=LOG_FORMAT).contains(&format) {
            return Err(reader.error(8, "its version is not one this program knows"));
        }
        Ok(header)
    }

    /// The checksum that those of this segment's frames continue.
    fn seed(&self) -> u32 {
        let numbered =
            crc32c::crc32c_append(crc32c::crc32c(&self.store_id), &self.number.to_le_bytes());
        crc32c::crc32c_append(numbered, &self.created_ns.to_le_bytes())
    }
}

/// The process that made a transaction's first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Author {
    /// File-system user id.
    pub uid: u32,
    /// Process id, in the process namespace of the store's owner.
    pub pid: u32,
    /// Name of the program, zeros behind it; all zeros if it is not known.
    pub program: [u8; PROGRAM_LEN],
}

impl Author {
    /// The name of the program; empty if it is not known.
    pub fn program(&self) -> &[u8] {
        let end = self.program.iter().position(|&byte| byte == 0);
        self.program
            .get(..end.unwrap_or(PROGRAM_LEN))
            .unwrap_or_default()
    }
}

/// The header of a frame, without magic and checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of payload.
    pub payload_len: u64,
    /// Sequence number; grows by one from frame to frame.
    pub seq: u64,
    /// The transaction that this one follows: it changes the result of that one.
    pub parent: u64,
    /// Every frame up to this sequence number was on disk when this one was written.
    pub durable: u64,
    /// Time of the commit, nanoseconds since 1970.
    pub time_ns: u64,
    /// The process that made the first change.
    pub author: Author,
    /// Whether other processes made changes, too.
    pub others: bool,
    /// Whether it is an explicit transaction; else single operations, committed together.
    pub transaction: bool,
    /// Number of changes in the payload.
    pub changes: u32,
}

impl FrameHeader {
    fn encode(&self) -> [u8; FRAME_CRC_AT] {
        let mut flags = 0;
        if self.transaction {
            flags |= FLAG_TRANSACTION;
        }
        if self.others {
            flags |= FLAG_OTHERS;
        }
        let Author { uid, pid, program } = &self.author;
        let mut head = [0; FRAME_CRC_AT];
        let mut rest = &mut head[..];
        let fields: [&[u8]; 13] = [
            FRAME_MAGIC,
            &[LOG_FORMAT as u8, flags, 0, 0],
            &self.payload_len.to_le_bytes(),
            &self.seq.to_le_bytes(),
            &self.durable.to_le_bytes(),
            &self.time_ns.to_le_bytes(),
            &uid.to_le_bytes(),
            &pid.to_le_bytes(),
            &self.changes.to_le_bytes(),
            &[0; 4],
            &self.parent.to_le_bytes(),
            program,
            &[0; 8],
        ];
        for field in fields {
            let (to, behind) = rest.split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = behind;
        }
        head
    }
}

/// A frame's header found in a segment, and the checksum that its payload must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFrame {
    /// The header.
    pub header: FrameHeader,
    /// Bytes of the header in the segment; the payload follows.
    pub header_len: usize,
    header_crc: u32,
    payload_crc: u32,
}

impl FoundFrame {
    /// Reads a frame's header, which starts at `raw[0]`, and checks that it belongs to `segment`.
    pub fn decode(segment: &SegmentHeader, raw: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("log frame header", raw);
        if reader.take(4)? != FRAME_MAGIC {
            return Err(reader.error(0, "the magic number is missing"));
        }
        let (version, flags) = (reader.u8()?, reader.u8()?);
        reader.take(2)?;
        let payload_len = reader.u64()?;
        let (seq, durable, time_ns) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (uid, pid, changes) = (reader.u32()?, reader.u32()?, reader.u32()?);
        reader.u32()?;
        let (mut parent, mut program) = (seq.saturating_sub(1), [0; PROGRAM_LEN]);
        let (mut header_len, mut crc_at) = (FRAME_HEADER_LEN_1, FRAME_CRC_AT_1);
        if segment.format > 1 {
            parent = reader.u64()?;
            program = reader.bytes()?;
            reader.u64()?;
            (header_len, crc_at) = (FRAME_HEADER_LEN, FRAME_CRC_AT);
        }
        let (header_crc, payload_crc) = (reader.u32()?, reader.u32()?);
        let covered = raw.get(..crc_at).unwrap_or_default();
        if crc32c::crc32c_append(segment.seed(), covered) != header_crc {
            return Err(reader.error(crc_at, "its checksum does not match"));
        }
        if u32::from(version) != segment.format {
            return Err(reader.error(4, "its version is not that of its segment"));
        }
        let header = FrameHeader {
            payload_len,
            seq,
            parent,
            durable,
            time_ns,
            author: Author { uid, pid, program },
            others: flags & FLAG_OTHERS != 0,
            transaction: flags & FLAG_TRANSACTION != 0,
            changes,
        };
        Ok(Self {
            header,
            header_len,
            header_crc,
            payload_crc,
        })
    }

    /// Whether `payload` is the whole and undamaged payload of this frame.
    pub fn matches(&self, payload: &[u8]) -> bool {
        payload.len() as u64 == self.header.payload_len
            && crc32c::crc32c_append(self.header_crc, payload) == self.payload_crc
    }

    /// Bytes of the frame in its segment, with the zeros behind it; `None` on overflow.
    pub fn padded_len(&self) -> Option<u64> {
        let end = self
            .header
            .payload_len
            .checked_add(self.header_len as u64)?;
        end.checked_next_multiple_of(FRAME_ALIGN as u64)
    }
}

/// Frames being built, one after the other, to be written in one go.
#[derive(Debug, Default)]
pub struct Frames {
    raw: Vec<u8>,
    /// The start of each frame, and the length of its payload.
    frames: Vec<(usize, usize)>,
}

impl Frames {
    /// Removes all frames, but keeps the memory.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.frames.clear();
    }

    /// Allocates memory for this many bytes of frames.
    pub fn reserve(&mut self, bytes: usize) {
        self.raw.reserve(bytes);
    }

    /// Begins the next frame; its changes follow by [`Frames::put_change`].
    pub fn begin(&mut self) {
        self.frames.push((self.raw.len(), 0));
        self.raw.resize(self.raw.len() + FRAME_HEADER_LEN, 0);
    }

    /// Adds one change to the frame that was begun last; `None` deletes the key.
    pub fn put_change(&mut self, key: &[u8], value: Option<&[u8]>) {
        put_change(&mut self.raw, key, value);
    }

    /// Ends the frame that was begun last.
    pub fn end(&mut self) {
        if let Some((start, payload_len)) = self.frames.last_mut() {
            *payload_len = self.raw.len() - *start - FRAME_HEADER_LEN;
        }
        self.raw
            .resize(self.raw.len().next_multiple_of(FRAME_ALIGN), 0);
    }

    /// Bytes of all frames.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Fills in the headers, in the order of the frames, for frames in `segment`, and returns the bytes to write there. The
    /// payload lengths come from the frames, not from `headers`.
    pub fn seal(
        &mut self,
        segment: &SegmentHeader,
        headers: impl IntoIterator<Item = FrameHeader>,
    ) -> &[u8] {
        for (&(start, payload_len), mut header) in self.frames.iter().zip(headers) {
            header.payload_len = payload_len as u64;
            let head = header.encode();
            let Some(frame) = self.raw.get_mut(start..) else {
                break;
            };
            let Some((reserved, payload)) = frame.split_at_mut_checked(FRAME_HEADER_LEN) else {
                break;
            };
            let payload = payload.get(..payload_len).unwrap_or_default();
            let header_crc = crc32c::crc32c_append(segment.seed(), &head);
            let payload_crc = crc32c::crc32c_append(header_crc, payload);
            let (fields, sums) = reserved.split_at_mut(FRAME_CRC_AT);
            fields.copy_from_slice(&head);
            let (first, second) = sums.split_at_mut(4);
            first.copy_from_slice(&header_crc.to_le_bytes());
            second.copy_from_slice(&payload_crc.to_le_bytes());
        }
        &self.raw
    }
}

/// An upper bound of the bytes [`Frames::put_change`] writes for a key and a value of these lengths.
pub const fn change_len_max(key_len: usize, value_len: usize) -> usize {
    20 + key_len + value_len
}

pub(crate) fn put_change(out: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
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

/// Parses a payload; keys and values share memory with `payload`.
pub fn read_changes(payload: &Bytes, count: u32) -> Result<Vec<Change>, DecodeError> {
    let mut reader = Reader::new("log frame payload", payload);
    // Each change takes at least two bytes, which limits the memory that a damaged count can make us allocate.
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
