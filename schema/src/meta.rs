//! File metadata, as stored inside path, data and orphan records.
//!
//! Layout (little-endian), 102 bytes and the inline content; 86 in records of version 1, which lack generation and version:
//!
//! | offset | field                                                             |
//! |--------|-------------------------------------------------------------------|
//! | 0      | mode u32: `S_IFMT` type bits and the twelve permission bits       |
//! | 4      | nlink u32                                                         |
//! | 8      | uid u32                                                           |
//! | 12     | gid u32                                                           |
//! | 16     | rdev u64: device number as in `st_rdev`, 0 unless a device        |
//! | 24     | size u64, bytes, at most 2^63 - 1                                 |
//! | 32     | atime: seconds i64, nanoseconds u32 (below 10^9)                  |
//! | 44     | mtime, 56 ctime, 68 btime: likewise                               |
//! | 80     | flags u32, [`MetaFlags`]                                          |
//! | 84     | generation u64                                                    |
//! | 92     | version u64                                                       |
//! | 100    | inline length u16; 0xffff: no inline content                      |
//! | 102    | inline content                                                    |

use bytes::Bytes;

use crate::wire::{Reader, share};
use crate::{DecodeError, SIZE_MAX, SYMLINK_MAX};

const NO_INLINE: u16 = 0xffff;
const NANOS_PER_SEC: u32 = 1_000_000_000;

/// Bytes of an encoded [`Meta`] without its inline content.
pub const META_FIXED_LEN: usize = 102;

/// The version of records whose metadata has neither generation nor version.
const WITHOUT_VERSION: u8 = 1;

const S_IFMT: u32 = 0o170_000;

/// The type of a file. The codes are those of `d_type` in a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// `DT_FIFO`
    Fifo = 1,
    /// `DT_CHR`
    CharDevice = 2,
    /// `DT_DIR`
    Directory = 4,
    /// `DT_BLK`
    BlockDevice = 6,
    /// `DT_REG`
    Regular = 8,
    /// `DT_LNK`
    Symlink = 10,
    /// `DT_SOCK`
    Socket = 12,
}

impl FileKind {
    /// The kind with this `d_type` code.
    pub const fn from_d_type(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Fifo,
            2 => Self::CharDevice,
            4 => Self::Directory,
            6 => Self::BlockDevice,
            8 => Self::Regular,
            10 => Self::Symlink,
            12 => Self::Socket,
            _ => return None,
        })
    }

    /// The `d_type` code.
    pub const fn d_type(self) -> u8 {
        self as u8
    }

    /// The kind that the type bits of `mode` name.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        // The type bits are the d_type code shifted: IFTODT in <dirent.h>.
        Self::from_d_type(((mode & S_IFMT) >> 12) as u8)
    }

    /// The `S_IFMT` bits of this kind.
    pub const fn type_bits(self) -> u32 {
        (self as u32) << 12
    }
}

/// A point in time: seconds since 1970 and nanoseconds below 10^9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds, 0 to 999 999 999.
    pub nanos: u32,
}

/// Bits of [`Meta::flags`]. Bits without a name are kept as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MetaFlags(pub u32);

impl MetaFlags {
    /// The file has at least one extended attribute; without it no look-up is needed.
    pub const HAS_XATTR: Self = Self(1);
    /// One of the attributes is an access control list.
    pub const HAS_ACL: Self = Self(2);
    /// One of the attributes is the list that new entries of a directory inherit.
    pub const HAS_DEFAULT_ACL: Self = Self(4);
    /// One of the attributes is, or was, `security.capability`, which a change of content or owner removes.
    pub const HAS_CAPABILITY: Self = Self(8);
    /// The flags of chattr(1), which have the values of linux/fs.h: immutable, append-only, no dump, no access time.
    pub const FILE_FLAGS: Self = Self(0xf0);

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The set flags of [`MetaFlags::FILE_FLAGS`].
    pub const fn file_flags(self) -> u32 {
        self.0 & Self::FILE_FLAGS.0
    }

    /// Replaces the flags of [`MetaFlags::FILE_FLAGS`].
    pub const fn set_file_flags(&mut self, flags: u32) {
        self.0 = self.0 & !Self::FILE_FLAGS.0 | flags & Self::FILE_FLAGS.0;
    }

    /// Sets or clears the bits of `other`.
    pub const fn set(&mut self, other: Self, on: bool) {
        if on {
            self.0 |= other.0;
        } else {
            self.0 &= !other.0;
        }
    }
}

/// The attributes of a file, and the content of small files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Type (`S_IFMT`) and permission bits.
    pub mode: u32,
    /// Number of names; of a directory, 2 and the number of its subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last read.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change of content or metadata.
    pub ctime: Timestamp,
    /// Creation.
    pub btime: Timestamp,
    /// The flags of the file.
    pub flags: MetaFlags,
    /// Distinguishes files that had the same inode number one after the other. 0 for a file that was made before generations
    /// were stored.
    pub generation: u64,
    /// Grows with each change of content, metadata or, of a directory, names. 0 for a file that has not changed since
    /// versions are stored.
    pub version: u64,
    /// Target of a symbolic link, or the whole of a regular file of at most [`crate::INLINE_MAX`] bytes.
    pub inline: Option<Bytes>,
}

impl Meta {
    /// The file's type; `None` when the type bits of `mode` name none, which decoded metadata never has.
    pub const fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    pub(crate) fn encoded_len(&self) -> usize {
        META_FIXED_LEN + self.inline.as_ref().map_or(0, Bytes::len)
    }

    pub(crate) fn encode_into(&self, out: &mut Vec<u8>) {
        debug_assert!(
            self.inline
                .as_ref()
                .is_none_or(|inline| inline.len() <= SYMLINK_MAX)
        );
        for field in [self.mode, self.nlink, self.uid, self.gid] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.rdev.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.extend_from_slice(&time.secs.to_le_bytes());
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
        out.extend_from_slice(&self.flags.0.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        match &self.inline {
            Some(inline) => {
                out.extend_from_slice(&(inline.len() as u16).to_le_bytes());
                out.extend_from_slice(inline);
            }
            None => out.extend_from_slice(&NO_INLINE.to_le_bytes()),
        }
    }

    /// Reads the metadata of a record of version `record_version`.
    pub(crate) fn decode_from(
        raw: &Bytes,
        reader: &mut Reader<'_>,
        record_version: u8,
    ) -> Result<Self, DecodeError> {
        let number = |reader: &mut Reader<'_>| match record_version {
            WITHOUT_VERSION => Ok(0),
            _ => reader.u64(),
        };
        let start = reader.at();
        let mode = reader.u32()?;
        if FileKind::from_mode(mode).is_none() {
            return Err(reader.error(start, "the mode names no file type"));
        }
        Ok(Self {
            mode,
            nlink: reader.u32()?,
            uid: reader.u32()?,
            gid: reader.u32()?,
            rdev: reader.u64()?,
            size: size(reader)?,
            atime: time(reader)?,
            mtime: time(reader)?,
            ctime: time(reader)?,
            btime: time(reader)?,
            flags: MetaFlags(reader.u32()?),
            generation: number(reader)?,
            version: number(reader)?,
            inline: inline(raw, reader)?,
        })
    }
}

fn size(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let start = reader.at();
    match reader.u64()? {
        size if size <= SIZE_MAX => Ok(size),
        _ => Err(reader.error(start, "the size is larger than any offset")),
    }
}

fn time(reader: &mut Reader<'_>) -> Result<Timestamp, DecodeError> {
    let start = reader.at();
    let (secs, nanos) = (reader.i64()?, reader.u32()?);
    if nanos >= NANOS_PER_SEC {
        return Err(reader.error(start, "a time has more than 999999999 nanoseconds"));
    }
    Ok(Timestamp { secs, nanos })
}

fn inline(raw: &Bytes, reader: &mut Reader<'_>) -> Result<Option<Bytes>, DecodeError> {
    let start = reader.at();
    match reader.u16()? {
        NO_INLINE => Ok(None),
        len if usize::from(len) > SYMLINK_MAX => {
            Err(reader.error(start, "the inline content is too long"))
        }
        len => Ok(Some(share(raw, reader.take(usize::from(len))?))),
    }
}
