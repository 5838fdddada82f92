//! The errors of a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_schema::DecodeError;
use nix::errno::Errno;

/// An error of a store.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory exists and is not a store; it was not changed.
    #[error("{path} is not an Amino store: {why}", path = path.display())]
    NotAStore {
        /// The directory.
        path: PathBuf,
        /// The object found instead.
        why: &'static str,
    },
    /// The store was written by a newer program.
    #[error("{path} has store format {found}; this program knows formats up to {supported}", path = path.display())]
    NewerVersion {
        /// The store's directory.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format this program knows.
        supported: u32,
    },
    /// Another process has the store open.
    #[error("{path} is in use by process {pid} ({command})", path = path.display())]
    Held {
        /// The store's directory.
        path: PathBuf,
        /// The holder's process id, 0 when it could not be read.
        pid: u32,
        /// The holder's command line.
        command: String,
    },
    /// The store uses another engine than the one asked for.
    #[error("{path} uses the engine {found}, not {wanted}", path = path.display())]
    EngineMismatch {
        /// The store's directory.
        path: PathBuf,
        /// The engine named in its marker.
        found: String,
        /// The engine asked for.
        wanted: &'static str,
    },
    /// The program was built without this engine.
    #[error("this program was built without the engine {engine}")]
    NotBuiltIn {
        /// The engine's name.
        engine: &'static str,
    },
    /// The log cannot grow: the host's file system is full or a limit is reached. Nothing was changed.
    #[error("no space left for the log")]
    NoSpace,
    /// The store is damaged: some bytes differ from those written.
    #[error("damaged: {place}: {why}")]
    Damaged {
        /// The file and offset, or the record.
        place: String,
        /// The kind of damage.
        why: String,
    },
    /// An operation on the host's file system failed.
    #[error("cannot {what} {path}", path = path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// An operation of the storage engine failed.
    #[error("the {engine} engine cannot {what}: {why}")]
    Engine {
        /// The engine's name.
        engine: &'static str,
        /// What was tried, as a verb.
        what: &'static str,
        /// The engine's message.
        why: String,
    },
    /// An earlier write or sync failed. Changes since the last successful sync may be lost; the store accepts no
    /// more changes and must be opened again.
    #[error("the store has stopped: {why}; open it again to see what reached the disk")]
    Stopped {
        /// The failure that stopped it.
        why: Arc<str>,
    },
}

impl Error {
    /// The errno that a system call fails with for this reason.
    pub fn errno(&self) -> i32 {
        let errno = match self {
            Self::NotAStore { .. }
            | Self::NewerVersion { .. }
            | Self::EngineMismatch { .. }
            | Self::NotBuiltIn { .. } => Errno::EINVAL,
            Self::Held { .. } => Errno::EBUSY,
            Self::NoSpace => Errno::ENOSPC,
            Self::Damaged { .. } => Errno::EUCLEAN,
            Self::Io { source, .. } => return source.raw_os_error().unwrap_or(Errno::EIO as i32),
            Self::Engine { .. } | Self::Stopped { .. } => Errno::EIO,
        };
        errno as i32
    }

    /// A closure for `map_err` on host calls.
    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }

    /// Whether the error means that the host's disk, or the user's quota, is full.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace => true,
            Self::Io { source, .. } => Self::is_full(source),
            _ => false,
        }
    }

    /// Whether `error` means that the disk, or the user's quota, is full.
    pub(crate) fn is_full(error: &io::Error) -> bool {
        // An engine may pass on a copy of the error without its number.
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        kinds.contains(&error.kind())
    }

    /// Whether the host has no such file.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        Self::Damaged {
            place: error.record.to_owned(),
            why: format!("{} at byte {}", error.why, error.offset),
        }
    }
}
