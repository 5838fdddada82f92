//! The errors that end a listing or a copy. [`crate::copy::CopyError`] is the error of a single name, after which a copy continues.

use std::io;
use std::path::{Path, PathBuf};

use goanna_vfs::{Errno, escape, escape_path, io_error_text};
use thiserror::Error as ThisError;

/// An error of a listing or a copy.
#[derive(Debug, ThisError)]
pub enum Error {
    /// An operation on a path of the tree failed.
    #[error("{}: {why}", escape(.path))]
    InTree {
        /// The path within the tree.
        path: Vec<u8>,
        /// The error of the file system.
        errno: Errno,
        /// The reason: the errno's description, or a more detailed one.
        why: String,
    },
    /// A directory was already visited under another path, as can happen in a damaged image.
    #[error("{}: {TWO_PLACES}", escape(.0))]
    TwoPlaces(Vec<u8>),
    /// An operation on a host path failed.
    #[error("{}: {}", escape_path(.path), io_error_text(.why))]
    Host {
        /// The path.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The target directory of an export is not empty.
    #[error("{}: the directory is not empty", escape_path(.0))]
    NotEmpty(PathBuf),
}

/// The reason why a directory that was already visited is not entered again.
pub(crate) const TWO_PLACES: &str = "the directory appears in two places";

impl Error {
    /// An error of an operation on a host path.
    pub(crate) fn host(path: &Path, why: impl Into<io::Error>) -> Self {
        Self::Host {
            path: path.to_owned(),
            why: why.into(),
        }
    }

    /// Whether it concerns one path of the tree only, so that other paths may still be worked on.
    pub fn is_in_tree(&self) -> bool {
        matches!(self, Self::InTree { .. } | Self::TwoPlaces(_))
    }
}
