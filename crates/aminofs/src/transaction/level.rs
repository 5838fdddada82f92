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

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Level {
    /// Changes to the store's records.
    pub changes: Changes,
    /// Copies of the inodes whose state or content differs from what lies below, and of a run transaction those that it has
    /// open.
    pub inodes: HashMap<u64, Arc<Inode>>,
    /// Directories whose entries changed.
    pub dirs: HashMap<u64, DirDelta>,
}

/// How a directory's entries differ from what lies below. Only differences are kept: other transactions may add other
/// entries at the same time.
pub(crate) struct DirDelta {
    /// The table's inode.
    pub base: Arc<Inode>,
    /// Entries more, or less.
    pub size: i64,
    /// Subdirectories more, or less.
    pub nlink: i64,
    /// When they changed last; `None` when the times were set explicitly since.
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

    /// The names that changed, in the order of their cookies, and what each stands for.
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

    /// Has `name` stand for `target`. A name that has not changed before gets `new_cookie`.
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

/// What a changed name stands for.
pub(crate) struct Entry {
    /// The table's inode; `None` for nothing.
    pub target: Option<Arc<Inode>>,
    /// Place in listings of this transaction, for a name that has none in the committed directory.
    pub cookie: u64,
}

impl Level {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.changed().next().is_none() && self.dirs.is_empty()
    }

    /// The copies that differ from what lies below.
    pub fn changed(&self) -> impl Iterator<Item = &Arc<Inode>> {
        let copies = self.inodes.values();
        copies.filter(|copy| copy.changed.load(SeqCst))
    }

    /// The delta of directory `base`, to be changed.
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

    /// Adds the changes to keys with `prefix` behind `from` to `out`, where they win.
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

    /// Takes over the store's records and the entries of a transaction inside this one.
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
