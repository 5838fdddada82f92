//! Errors of images: the kind of record, its position, and the kind of error.

use std::borrow::Cow;
use std::{fmt, io};

use goanna_vfs::Errno;

/// The kind of record that an error concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// A volume descriptor.
    VolumeDescriptor,
    /// The El Torito boot catalogue.
    BootCatalogue,
    /// A directory's extent as a whole.
    Directory,
    /// A directory record.
    DirectoryRecord,
    /// A field of a System Use area, by its signature.
    SystemUse([u8; 2]),
    /// A continuation area of a System Use area.
    Continuation,
    /// An extended attribute record.
    ExtendedAttributes,
    /// A file's content.
    FileData,
    /// The header of a zisofs file.
    ZisofsHeader,
    /// The block pointers of a zisofs file.
    ZisofsPointers,
    /// A compressed block of a zisofs file.
    ZisofsBlock,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VolumeDescriptor => "volume descriptor",
            Self::BootCatalogue => "boot catalogue",
            Self::Directory => "directory",
            Self::DirectoryRecord => "directory record",
            Self::SystemUse(signature) => {
                return write!(f, "System Use field {}", signature.escape_ascii());
            }
            Self::Continuation => "continuation area",
            Self::ExtendedAttributes => "extended attribute record",
            Self::FileData => "file data",
            Self::ZisofsHeader => "zisofs header",
            Self::ZisofsPointers => "zisofs block pointers",
            Self::ZisofsBlock => "zisofs block",
        })
    }
}

/// Why an image, or a part of it, cannot be read. Offsets are in bytes from the start of the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source failed.
    #[error("reading at byte {offset}: {source}")]
    Read {
        /// Where.
        offset: u64,
        /// The error of the source.
        source: io::Error,
    },
    /// There is no primary volume descriptor where one is required.
    #[error("not an ISO 9660 image: no primary volume descriptor from byte {offset}")]
    NotIso {
        /// The required position of the first descriptor.
        offset: u64,
    },
    /// The image contains an impossible value.
    #[error("{record} at byte {offset}: {why}")]
    Damaged {
        /// The damaged record.
        record: Record,
        /// Where it begins.
        offset: u64,
        /// The kind of damage.
        why: Cow<'static, str>,
    },
    /// The image uses a feature that this reader does not support.
    #[error("{record} at byte {offset}: {what} cannot be read")]
    Unsupported {
        /// The record that uses it.
        record: Record,
        /// Where it begins.
        offset: u64,
        /// The feature.
        what: &'static str,
    },
    /// The image lacks the name space that was asked for.
    #[error("the image has no {0} names")]
    NoNamespace(crate::Namespace),
    /// The image lacks the session that was asked for.
    #[error("no session {asked}: the image has {found}")]
    NoSession {
        /// The number asked for; sessions count from 1.
        asked: u32,
        /// The number of sessions.
        found: usize,
    },
    /// An operation on something of the wrong kind: EISDIR, ENOTDIR or EINVAL.
    #[error("{}", .0.desc())]
    Kind(Errno),
}

impl Error {
    /// The errno that a program gets: that of the source, EUCLEAN for damage, EOPNOTSUPP for unsupported
    /// features.
    pub fn errno(&self) -> Errno {
        match self {
            Self::Read { source, .. } => source.raw_os_error().map_or(Errno::EIO, Errno::from_raw),
            Self::NotIso { .. } | Self::NoNamespace(_) | Self::NoSession { .. } => Errno::EINVAL,
            Self::Damaged { .. } => Errno::EUCLEAN,
            Self::Unsupported { .. } => Errno::EOPNOTSUPP,
            Self::Kind(errno) => *errno,
        }
    }

    /// The user's remedy.
    pub fn hint(&self) -> Option<&'static str> {
        let is_choice = matches!(self, Self::NoNamespace(_) | Self::NoSession { .. });
        is_choice.then_some("goanna iso info lists the name spaces and sessions of an image")
    }

    pub(crate) fn damaged(record: Record, offset: u64, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Damaged {
            record,
            offset,
            why: why.into(),
        }
    }
}

/// The result of the functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;
