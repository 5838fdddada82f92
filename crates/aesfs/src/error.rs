//! The errors of volumes.

use std::io;

use goanna_vfs::{Errno, FsError};

use thiserror::Error;

/// Why a volume cannot be opened, made or changed, or why a part of it cannot be decrypted.
#[derive(Debug, Error)]
pub enum Error {
    /// The config file could not be read.
    #[error("gocryptfs.conf: {}", goanna_vfs::io_error_text(.0))]
    ReadConfig(#[source] io::Error),
    /// The config file could not be written.
    #[error("gocryptfs.conf: {}", goanna_vfs::io_error_text(.0))]
    WriteConfig(#[source] io::Error),
    /// The config file is not JSON, or fields are missing or out of bounds.
    #[error("gocryptfs.conf: {0}")]
    Config(String),
    /// The volume has another version of the format.
    #[error("gocryptfs.conf: format version {0}; only version 2 is supported")]
    Version(u64),
    /// The volume needs a feature that is not supported.
    #[error("gocryptfs.conf: the volume needs the feature {0}, which is not supported")]
    Feature(String),
    /// The password is wrong, or the encrypted master key was altered.
    #[error("the password is wrong")]
    Password,
    /// An empty password.
    #[error("the password is empty")]
    EmptyPassword,
    /// The password could not be read.
    #[error("cannot read the password: {0}")]
    ReadPassword(String),
    /// A master key is not 64 hexadecimal digits.
    #[error("the master key is not 64 hexadecimal digits, with or without dashes")]
    MasterKey,
    /// The directory could not be read.
    #[error("{}", goanna_vfs::io_error_text(.0))]
    NoDirectory(#[source] io::Error),
    /// A new volume's directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// A file of the volume could not be read or written.
    #[error("{}", goanna_vfs::io_error_text(.0))]
    Host(#[from] io::Error),
    /// The kernel does not lock memory for keys.
    #[error("cannot lock memory for keys: {0}")]
    Memory(io::Error),
    /// This many bytes of memory, which are needed to derive the key, are not available.
    #[error("not enough memory to derive the key from the password: it takes {} MiB", .0 >> 20)]
    NoMemory(u64),
    /// The kernel gives no random numbers.
    #[error("cannot get random numbers: {0}")]
    Random(String),
}

/// Why a part of a volume cannot be decrypted. A program gets EIO for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Damage {
    /// The header has another version, or is cut off.
    #[error("the header is cut off or of another version")]
    Header,
    /// The block's tag does not fit its content, number and file id, or it is cut off.
    #[error("block {0} is damaged, or belongs to another file or position")]
    Block(u64),
    /// The text is not base64, or does not decrypt to a valid name.
    #[error("the name is damaged, or belongs to another directory")]
    Name,
    /// A long name's file is missing, or has another name in it.
    #[error("the file with the long name is missing or damaged")]
    LongName,
    /// A directory's IV is missing or has another length.
    #[error("gocryptfs.diriv is missing or damaged")]
    DirIv,
    /// A symbolic link's text is not base64 or does not decrypt.
    #[error("the symbolic link is damaged")]
    Link,
    /// An extended attribute's value or name does not decrypt.
    #[error("an extended attribute is damaged")]
    Xattr,
}

/// Why an operation on a volume failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The error of the lower file system, or of the cache.
    Fs(FsError),
    /// A part of the volume is damaged: EIO, and a report with the plain path.
    Damage(Damage),
}

impl Failure {
    /// The errno; `None` for damage, and for an operation that a lock has blocked.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Fs(error) => error.errno(),
            Self::Damage(_) => None,
        }
    }

    /// The errno for the caller, where damage cannot be reported.
    pub fn unreported(self) -> FsError {
        match self {
            Self::Fs(error) => error,
            Self::Damage(_) => Errno::EIO.into(),
        }
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        Self::Fs(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Fs(errno.into())
    }
}

impl From<Damage> for Failure {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

impl From<Error> for Failure {
    /// A cipher fails only if the kernel returns no random numbers.
    fn from(_: Error) -> Self {
        Errno::EIO.into()
    }
}
