//! The errors of dump and load.

use std::io;
use std::path::PathBuf;

use amino_schema::DecodeError;
use goanna_vfs::{escape_path, io_error_text};
use thiserror::Error;

/// Why a store was not dumped or not loaded.
#[derive(Debug, Error)]
pub enum DumpError {
    /// The stream cannot be written.
    #[error("cannot write the dump: {}", io_error_text(.0))]
    Write(#[source] io::Error),
    /// The stream cannot be read.
    #[error("cannot read the dump: {}", io_error_text(.0))]
    Read(#[source] io::Error),
    /// The stream does not start as a dump does.
    #[error("not a dump of a store")]
    NotADump,
    /// The stream ends in the middle.
    #[error("the dump ends early, in block {block} at byte {offset}")]
    EndsEarly {
        /// Number of the block, from 0.
        block: u64,
        /// Bytes of the stream before its end.
        offset: u64,
    },
    /// The stream's header is damaged.
    #[error(transparent)]
    Header(DecodeError),
    /// A block is damaged.
    #[error("block {block}, at byte {offset} of the dump, is damaged: {why}")]
    Block {
        /// Its number, from 0.
        block: u64,
        /// Where it starts in the stream, bytes.
        offset: u64,
        /// The kind of damage.
        why: String,
    },
    /// There is data behind the end of the dump.
    #[error("bytes follow the end of the dump, which has {0} records")]
    BytesBehind(u64),
    /// The path of the new store exists already.
    #[error("{}: exists and is not empty", escape_path(.0))]
    Exists(PathBuf),
    /// The directory of the new store cannot be made.
    #[error("{}: {}", escape_path(.path), io_error_text(.why))]
    Host {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: io::Error,
    },
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] amino_fs::Error),
}

impl From<amino_txn::Error> for DumpError {
    fn from(error: amino_txn::Error) -> Self {
        Self::Store(error.into())
    }
}
