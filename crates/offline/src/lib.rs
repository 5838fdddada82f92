//! Work on a file system without a monitor: list, read, copy in and out, measure and salvage.
//!
//! The functions here return data and report events; the caller renders them. They work on a [`Tree`], which is any
//! [`goanna_vfs::FileSystem`] together with the credentials of its user. Start with [`Tree`].
//!
//! * [`list`] has the entries of directories and the contents of files (`ls`, `cat`, `stat`, `tree`).
//! * [`copy`] has `import` and `export`.
//! * [`check`], [`facts`], [`salvage`] and [`mod@dump`] look below the file system, at the store (`fsck`, `info`, `--salvage`, `dump`,
//!   `load`).

pub mod check;
pub mod copy;
pub mod dump;
mod error;
pub mod facts;
pub mod list;
pub mod salvage;
mod tree;

pub use error::Error;
pub use tree::{Entry, ErrorDetails, Source, Tree, absolute, join};
