//! The uncommitted changes of one transaction: an overlay on those of its enclosing transactions, and on the committed state.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_schema::Timestamp;
use amino_schema::key::prefix_end;
use amino_txn::Changes;
use bytes::Bytes;

use crate::inode::Inode;

/// The changes of one transaction.
#[derive(Default)]
pub(crate) struct Level {
    /// Changes to the store's records.
    pub changes: Changes,
    /// Copies of the inodes whose state or content differs from the enclosing state; in a run transaction, also of those that
    /// are open.
    pub inodes: HashMap<u64, Arc<Inode>>,
    /// Directories whose entries changed.
    pub dirs: HashMap<u64, DirDelta>,
}

/// The differences of a directory's entries from the enclosing state. Only differences are kept, because other transactions
/// may add other entries at the same time.
pub(crate) struct DirDelta {
    /// The inode of the directory in the table.
    pub base: Arc<Inode>,
    /// The change of the number of entries.
    pub size: i64,
    /// The change of the number of subdirectories.
    pub nlink: i64,
    /// The time of the last change of entries; `None` when the times were set explicitly since.
    pub time: Option<Timestamp>,
    /// The last change's version.
    pub version: u64,
    names: HashMap<Arc<[u8]>, Entry>,
    /// The changed names in the order of their cookies.
    order: BTreeMap<u64, Arc<[u8]>>,
}

impl DirDelta {
    /// The names that changed.
    pub fn names(&self) -> &HashMap<Arc<[u8]>, Entry> {
        &self.names
    }

    /// The changed names, in the order of their cookies, with their new entries.
    pub fn into_names(mut self) -> impl Iterator<Item = (Arc<[u8]>, Option<Arc<Inode>>)> {
        let names = self.order.into_values();
        names.filter_map(move |name| {
            let entry = self.names.remove(&name)?;
            Some((name, entry.target))
        })
    }

    /// Up to `most` of the names that changed, from cookie `start` on.
    pub fn listed(&self, start: u64, most: usize) -> Vec<(u64, Arc<[u8]>)> {
        let names = self.order.range(start..).take(most);
        names
            .map(|(&cookie, name)| (cookie, Arc::clone(name)))
            .collect()
    }

    /// Changes the entry of `name` to `target`. A name that has not changed before gets `new_cookie`.
    pub fn set(
        &mut self,
        name: &Arc<[u8]>,
        target: Option<Arc<Inode>>,
        new_cookie: impl FnOnce() -> u64,
    ) {
        if let Some(entry) = self.names.get_mut(name) {
            entry.target = target;
            return;
        }
        let cookie = new_cookie();
        self.order.insert(cookie, Arc::clone(name));
        self.names
            .insert(Arc::clone(name), Entry { target, cookie });
    }
}

/// The new entry of a changed name.
pub(crate) struct Entry {
    /// The inode in the table; `None` if the name was removed.
    pub target: Option<Arc<Inode>>,
    /// The place in listings of this transaction, for a name that the committed directory does not have.
    pub cookie: u64,
}

impl Level {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.changed().next().is_none() && self.dirs.is_empty()
    }

    /// The copies that differ from the enclosing state.
    pub fn changed(&self) -> impl Iterator<Item = &Arc<Inode>> {
        let copies = self.inodes.values();
        copies.filter(|copy| copy.changed.load(SeqCst))
    }

    /// The delta of directory `base`, for changes.
    pub fn dir(&mut self, base: &Arc<Inode>) -> &mut DirDelta {
        self.dirs.entry(base.ino).or_insert_with(|| DirDelta {
            base: Arc::clone(base),
            size: 0,
            nlink: 0,
            time: None,
            version: 0,
            names: HashMap::new(),
            order: BTreeMap::new(),
        })
    }

    /// Adds the changes to keys with `prefix` behind `from` to `out`. They replace existing values there.
    pub fn overlay(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        out: &mut BTreeMap<Bytes, Option<Bytes>>,
    ) {
        let end = prefix_end(prefix);
        let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let start = match from {
            Bound::Included(key) | Bound::Excluded(key) if key >= prefix => from,
            _ => Bound::Included(prefix),
        };
        for (key, value) in self.changes.range(start, end) {
            out.insert(key.clone(), value.cloned());
        }
    }

    /// Merges the records and the directory entries of a nested transaction into this one.
    pub fn take_over(&mut self, changes: Changes, dirs: HashMap<u64, DirDelta>) {
        self.changes.merge(changes);
        for (ino, inner) in dirs {
            let Some(outer) = self.dirs.get_mut(&ino) else {
                self.dirs.insert(ino, inner);
                continue;
            };
            outer.size += inner.size;
            outer.nlink += inner.nlink;
            outer.time = inner.time.or(outer.time);
            outer.version = outer.version.max(inner.version);
            for (name, entry) in inner.names {
                outer.set(&name, entry.target, || entry.cookie);
            }
        }
    }
}
