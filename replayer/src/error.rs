//! Errors of the replayer.

use std::io;
use std::path::PathBuf;

use amino_schema::DecodeError;
use goanna_sys::Errno;
use goanna_sys::escape::escape;

/// An error of compiling, preparing or replaying.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read.
    #[error("{path}: {why}", path = path.display())]
    Trace {
        /// The trace.
        path: PathBuf,
        /// Why.
        why: goanna_tracer::Error,
    },
    /// A file cannot be read or written.
    #[error("{path}: {why}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The text of another tracer cannot be read.
    #[error("{path}:{line}:{column}: {why}", path = path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: u64,
        /// Number of the byte in the line, from 1.
        column: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The text of another tracer shows no working directory.
    #[error(
        "no line shows the working directory of the command: record with strace -y, or give --directory"
    )]
    NoDirectory,
    /// The log of another program names no file.
    #[error("{path}: no line names a file", path = path.display())]
    NoFiles {
        /// The log.
        path: PathBuf,
    },
    /// A compiled replay is damaged, or made to do harm.
    #[error("{path}: {why}", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: DecodeError,
    },
    /// A file below the root cannot be made or examined.
    #[error("{path}: {why}", path = escape(path))]
    Place {
        /// Its path relative to the root.
        path: Vec<u8>,
        /// Why.
        why: Errno,
    },
    /// Files that the replay needs are missing.
    #[error(
        "files that the replay needs are missing: {}; replayer prepare makes them",
        list(missing)
    )]
    Missing {
        /// Their paths relative to the root, with what is wrong.
        missing: Vec<String>,
    },
    /// A snapshot does not have files that the replay needs.
    #[error(
        "{directory}: the snapshot does not have what the replay needs: {}",
        list(missing),
        directory = directory.display()
    )]
    Snapshot {
        /// The snapshot.
        directory: PathBuf,
        /// Paths relative to it, with what is wrong.
        missing: Vec<String>,
    },
    /// Below the root are files where the initial state has files of other types.
    #[error(
        "files below the root have other types than the replay needs: {}",
        list(conflicts)
    )]
    Conflict {
        /// Their paths relative to the root, with what is wrong.
        conflicts: Vec<String>,
    },
    /// The initial state exceeds the free space.
    #[error("the initial state has {needed} bytes, and there is space for {free}")]
    Space {
        /// Its bytes.
        needed: u64,
        /// Bytes that are free where the root is.
        free: u64,
    },
    /// The kernel refused a resource.
    #[error("{what}: {why}")]
    System {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        why: Errno,
    },
}

/// Maximum number of names in a message.
const SHOWN: usize = 10;

fn list(names: &[String]) -> String {
    let mut text = names
        .iter()
        .take(SHOWN)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more) = names.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        text.push_str(&format!(", and {more} more"));
    }
    text
}

impl Error {
    /// A file error.
    pub fn file(path: &std::path::Path, why: io::Error) -> Self {
        let path = path.to_owned();
        Self::File { path, why }
    }
}
