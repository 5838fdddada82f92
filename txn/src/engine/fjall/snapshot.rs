//! Snapshots of the tree, which may outlive the database that they were taken of.

use std::mem;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use fjall::{AbstractTree, AnyTree, Snapshot as DatabaseSnapshot};
use lsm_tree::Guard;
use parking_lot::RwLock;

use super::error;
use crate::Error;
use crate::changes::is_empty_range;
use crate::engine::{Entry, Snapshot, visible_from};

/// The tree, without the database, which holds the lock on the directory: so `FjallEngine::reopen` does not wait for snapshots.
///
/// The tree that is opened again may delete a file that the snapshot has not opened yet. Then reading the snapshot fails.
pub(super) struct FjallSnapshot {
    /// Keeps fjall from dropping the versions of entries that the snapshot shows.
    pub(super) version: DatabaseSnapshot,
    /// `None` only while it is dropped.
    pub(super) tree: Option<AnyTree>,
    pub(super) reopened: Arc<RwLock<Reopened>>,
    /// [`Reopened::count`] at the time of the snapshot.
    pub(super) count: u64,
}

/// Tells snapshots of databases that have been closed whether they may delete files.
///
/// A snapshot that is the last to use a removed table deletes its file by its name, which is a number. The database that was opened
/// after that may have given the number again. Held shared while a snapshot is dropped, and exclusively while the database is opened
/// again, which fails when a file disappears meanwhile.
#[derive(Default)]
pub(super) struct Reopened {
    /// How often the database was opened again.
    pub(super) count: u64,
    /// Snapshots from before this count must delete no file.
    pub(super) numbers_given_again: u64,
}

impl Drop for FjallSnapshot {
    fn drop(&mut self) {
        let reopened = self.reopened.read();
        let tree = self.tree.take();
        if self.count < reopened.numbers_given_again {
            // The database has deleted the files, as it knows no tables with these numbers.
            mem::forget(tree);
        }
    }
}

impl Snapshot for FjallSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self
            .tree
            .as_ref()
            .map(|tree| tree.get(key, self.version.seqno()));
        let found = found.transpose().map_err(|why| error("read")(why.into()))?;
        Ok(found.flatten().map(Bytes::from))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let tree = self.tree.as_ref();
        let range = |tree: &AnyTree| tree.range::<&[u8], _>((from, to), self.version.seqno(), None);
        let entries = tree.map(range).into_iter().flatten();
        Box::new(entries.map(|guard| {
            let entry = guard.into_inner();
            let (key, value) = entry.map_err(|why| error("read a range")(why.into()))?;
            Ok((key.into(), value.into()))
        }))
    }
}
