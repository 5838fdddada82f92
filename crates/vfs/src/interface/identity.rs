//! Ids of files that outlive a process, and reports of changes, for caches outside of a back end.
//!
//! Such a cache keeps copies by [`FileId`], each with the [`crate::Attr::version`] it belongs to, and [subscribes](Identity::subscribe) before
//! it makes the first one. It asks for the version, reads, and asks again: what was read between two equal versions is that version's
//! content, or a directory's list of names. It serves reads from a copy until a [`Change`] with another version is reported for the
//! file.

use std::sync::Weak;

use serde::{Deserialize, Serialize};

use crate::{Caller, Errno, Node, Result};

/// The id of a file. It is the same in every process, on every machine, and after the file system was opened again. A file
/// that gets the inode number of a removed one has another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FileId {
    /// The file system.
    pub fs: u128,
    /// Inode number.
    pub inode: u64,
    /// Distinguishes files that had this inode number one after the other.
    pub generation: u64,
}

/// A file has changed: its content, its metadata or, of a directory, its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file.
    pub file: FileId,
    /// The version of its present state, [`crate::Attr::version`].
    pub version: u64,
}

/// Receives reports of changes.
pub trait Subscriber: Send + Sync {
    /// These files have changed. The call that changed them waits for this method and returns afterwards, so the method should
    /// be short. It may read the file system for a caller without a transaction. A read for a participant of the transaction whose commit is
    /// reported would wait for that commit, and never return. Reports of two calls that run at the same time may come in any order; the larger
    /// version is the later one.
    fn changed(&self, changes: &[Change]);

    /// No further reports follow: the back end is in another process, which has ended or has stopped waiting for this subscriber. A cache
    /// drops all its copies, and subscribes again before it makes new ones.
    fn lost(&self);
}

/// A back end's ids of files, and its reports of changes.
///
/// # Order
///
/// A change is visible first, then it is reported to all subscribers, then the call that made it returns. So a cache that drops
/// its copy when it receives a report never serves an older version after the changing call has returned. Between the two moments another
/// reader may already see the change in the file system itself.
///
/// What a transaction changes is reported when it has committed, before the commit returns, under versions that are given
/// then. What an aborted transaction changed is never reported, and no version that it gave is seen again.
pub trait Identity: Send + Sync {
    /// The id of an inode.
    fn file_id(&self, caller: &Caller, node: &Node) -> Result<FileId>;

    /// Reports all changes to `subscriber`, from the return of this method on, until the subscriber is dropped or
    /// [lost](Subscriber::lost). EOPNOTSUPP where the back end does
    /// not learn of all changes: a cache then has to compare versions before it serves a copy.
    fn subscribe(&self, subscriber: Weak<dyn Subscriber>) -> Result<()> {
        let _ = subscriber;
        Err(Errno::EOPNOTSUPP.into())
    }
}
