//! Errors of opening, closing and checking a store. Operations of the file system fail with an errno.

use std::io;
use std::path::PathBuf;

use goanna_vfs::Errno;

/// Why a store could not be opened, closed or checked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store itself.
    #[error(transparent)]
    Store(#[from] amino_txn::Error),
    /// A record that cannot be read.
    #[error("the store is damaged: {0}")]
    Damaged(#[from] amino_schema::DecodeError),
    /// A store written with other parameters than this program supports.
    #[error("the store has {what} {found}; this program supports {supported}")]
    Unsupported {
        /// The parameter.
        what: &'static str,
        /// The store's value.
        found: u64,
        /// This program's value.
        supported: u64,
    },
    /// An operation on the host's file system failed in the store's directory.
    #[error("cannot {what} {path}", path = path.display())]
    Host {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// An operation of the file system failed.
    #[error("{what}: {errno}")]
    Operation {
        /// The operation.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
}
