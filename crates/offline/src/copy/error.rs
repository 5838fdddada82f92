//! The error of a single name that was not copied; the copy continues.

use std::borrow::Cow;

use goanna_vfs::{Errno, io_error_text};
use thiserror::Error;

/// Why a single name was not copied.
#[derive(Debug, Error)]
pub enum CopyError {
    /// An operation on the host failed.
    #[error("on the host: {}", io_error_text(&(*.0).into()))]
    Host(rustix::io::Errno),
    /// An operation on the tree's file system failed.
    #[error("in the store: {}", .0.desc())]
    Tree(Errno),
    /// A reason that is not an errno.
    #[error("{0}")]
    Other(Cow<'static, str>),
}

impl CopyError {
    /// A reason that is not an errno.
    pub const fn text(why: &'static str) -> Self {
        Self::Other(Cow::Borrowed(why))
    }
}

impl PartialEq<Errno> for CopyError {
    fn eq(&self, errno: &Errno) -> bool {
        matches!(self, Self::Tree(found) if found == errno)
    }
}

impl From<rustix::io::Errno> for CopyError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Host(errno)
    }
}

impl From<Errno> for CopyError {
    fn from(errno: Errno) -> Self {
        Self::Tree(errno)
    }
}
