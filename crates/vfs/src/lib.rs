//! The file-system switch (Goanna paper, sections 3.4 and 3.7): the interface of the back ends, and the code that they share.
//!
//! * [`FileSystem`] is the operations vector. A read-only back end writes ten methods; every other method
//!   has a default that answers what Linux answers for a missing operation.
//! * [`CachedContent`] is the monitor's interface to a back end that keeps the content of open files in memory.
//! * [`Mounts`] maps canonical paths to mounted back ends; [`walk`] resolves a path through them.
//! * [`ops`] holds the rules Linux's VFS applies above any file system (permissions, sticky directories,
//!   set-id clearing, read-only mounts), so that back ends need not repeat them.
//!
//! An operation that fails says why in an [`FsError`]: the errno that a program would see from the kernel, or the lock to wait for.
//! This crate never prints.

mod acl;
mod caller;
mod interface;
mod mount;
pub mod mount_list;
mod mount_table;
mod mounting;
pub mod ops;
pub mod paths;
mod subtree;
mod userns;
pub mod walk;

pub use interface::layer;
use interface::{backend, content, error, fs, identity, linkfree, opened, synth, txn, types};

pub use acl::{Acl, AclEntry, Tag};
pub use backend::{Backend, MountOption, MountOptions, OpenError};
pub use caller::{Caller, caps};
pub use content::{CachedContent, GRANTED_GROWTH, NextFile, SharedAttributes};
pub use error::{Blocker, Done, FsError, Result, Wait, look_up_again, wait_for_locks};
pub use fs::FileSystem;
pub use goanna_sys::escape::{escape, escape_invalid, escape_message, escape_path, io_error_text};
pub use identity::{Change, FileId, Identity, Subscriber};
pub use linkfree::LinkFree;
pub use mount::{InKernel, KernelMount, Mount, MountFlags, MountParent, Mounts, Place, PlaceKey};
pub use mount_table::{HostDirectory, MountTable, OpenHostDirectory};
pub use mounting::MountError;
pub use opened::{Description, Native, OpenFile, Opened, WritePosition};
pub use subtree::Subtree;
pub use synth::SynthFs;
pub use txn::{Holder, Readers, Transactions, TxnId, TxnStatus};
pub use types::{
    Attr, DirEntry, FileKind, Node, OnHost, SetAttr, Stamp, StatFs, StatxAttributes, TimeSet,
    file_flags,
};
pub use userns::{IdMap, IdRange, UserNamespace};

pub use nix::errno::Errno;

/// Linux's limit on one path component, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Linux's limit on a path with its terminating NUL, in bytes (`PATH_MAX`).
pub const PATH_MAX: usize = 4096;
