//! The errors of a store's owner and of its clients.

use std::io;
use std::path::PathBuf;

use goanna_offline::dump::DumpError;
use goanna_session::Report;
use goanna_session::mounts::MountTypes;
use goanna_vfs::{escape_path, io_error_text};
use thiserror::Error as ThisError;

/// An error of `aminod` or of a client.
#[derive(Debug, ThisError)]
pub enum Error {
    /// The run or the store failed in this process.
    #[error(transparent)]
    Session(#[from] goanna_session::Error),
    /// The run or the store failed in the store's owner, which has sent its report.
    #[error("{}", .0.text)]
    Reported(Report),
    /// Signals could not be blocked.
    #[error("cannot block signals: {0}")]
    Signals(#[source] io::Error),
    /// No process could be started that owns the store.
    #[error("cannot start aminod, which owns the store: {}", io_error_text(.0))]
    NotStarted(#[source] io::Error),
    /// `aminod` was not started by `amino`.
    #[error("aminod is started by amino when it is needed")]
    StartedByHand,
    /// The store's owner is another user's process.
    #[error("{}: in use by a process of user {}", escape_path(.0), .1)]
    OtherUser(PathBuf, u32),
    /// The store's owner speaks another version of the protocol.
    #[error("{}: in use by process {}, aminod of another version", escape_path(.0), .1)]
    OtherVersion(PathBuf, i32),
    /// The store's owner has other namespaces or another root.
    #[error(
        "the store is in use by process {0} (aminod), which is in other namespaces of mounts, processes or users"
    )]
    OtherNamespaces(i32),
    /// The store's owner has ended.
    #[error(
        "process {0} (aminod), which owned the store, has ended; the programs that it ran were killed"
    )]
    OwnerEnded(i32),
    /// The store could not be dumped.
    #[error("{}: {}", escape_path(.0), .1)]
    Dump(PathBuf, #[source] DumpError),
    /// Commands use the store.
    #[error("{}: in use by {}", escape_path(.0), commands(*.1))]
    Busy(PathBuf, usize),
}

impl From<goanna_monitor::Error> for Error {
    fn from(error: goanna_monitor::Error) -> Self {
        Self::Session(error.into())
    }
}

fn commands(count: usize) -> String {
    match count {
        1 => "one command".to_owned(),
        count => format!("{count} commands"),
    }
}

/// The parts of the program that `aminod` needs: it is the same executable.
#[derive(Clone, Copy)]
pub struct Program {
    /// Turns an error into the report for the user of a client.
    pub describe: fn(&Error) -> Report,
    /// The available types of mounts.
    pub types: MountTypes,
}
