//! Directory order: entries in the order of their cookies.
//!
//! A directory that was read since it came into memory, or that was made since, has its whole order in memory: each
//! entry a cookie that never changes, new entries at the end. So a program that creates and removes while it reads
//! sees each lasting entry exactly once. The order also answers that a name does not exist.

use std::sync::Arc;

use amino_schema::{ParsedKey, PathRecord, key};
use amino_txn::locks::Resource;
use goanna_vfs::{DirEntry, Errno, Node, Result};

use crate::Volume;
use crate::directory::order::{DirOrder, Entry};
use crate::inode::{Inode, State, kind_of};
use crate::view::View;

/// Entries that one locked step of readdir takes; the sink is called without locks. As many as fit into the 32 KiB that C
/// libraries request, so that one call shows a directory's state at one moment.
const BATCH: usize = 1366;

impl Volume {
    /// The directory's order, read from the store if necessary. The caller holds the namespace lock.
    fn load_order(&self, dir: &Inode, state: &mut State) -> Result<(), Errno> {
        if state.dir.is_some() {
            return Ok(());
        }
        let mut order = DirOrder::default();
        self.scan(&key::path_prefix(dir.ino), |raw, value| {
            if let ParsedKey::Path { name, .. } = ParsedKey::parse(raw)? {
                let record = PathRecord::decode(value)?;
                order.set(&Arc::from(name), record.ino, kind_of(record.kind));
            }
            Ok(true)
        })?;
        state.dir = Some(order);
        Ok(())
    }
}

impl View<'_> {
    pub(crate) fn do_readdir(
        &self,
        dir: &Node,
        mut cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.dir(dir)?;
        self.lock_read(|| Resource::Entries(dir.ino))?;
        loop {
            let mut batch = Vec::with_capacity(BATCH);
            {
                let _names = self.names.read();
                // A removed directory reads as empty in getdents64(2) on Linux: ENOENT comes from the VFS above.
                dir.state.lock().check_alive()?;
                let base = dir.base();
                let mut state = base.state.lock();
                self.load_order(base, &mut state)?;
                if let Some(order) = &state.dir
                    && let Some(start) = cookie.checked_add(1)
                {
                    self.fill_batch(dir.ino, order, start, &mut batch);
                }
            }
            let full = batch.len() == BATCH;
            for (at, found) in batch {
                let entry = DirEntry {
                    name: &found.name,
                    ino: found.ino,
                    kind: found.kind,
                    cookie: at,
                };
                if !sink(entry) {
                    return Ok(());
                }
                cookie = at;
            }
            if !full {
                return Ok(());
            }
        }
    }

    /// The next entries from cookie `start` on, up to [`BATCH`]: the committed ones, with the changes of the transaction.
    fn fill_batch(&self, dir: u64, order: &DirOrder, start: u64, batch: &mut Vec<(u64, Entry)>) {
        let committed = order.entries.range(start..).filter_map(|(&cookie, entry)| {
            let (ino, kind) = match self.overlaid_entry(dir, &entry.name) {
                None => (entry.ino, entry.kind),
                Some((_, target)) => target.map(|inode| (inode.ino, inode.kind))?,
            };
            let name = Arc::clone(&entry.name);
            Some((cookie, Entry { name, ino, kind }))
        });
        batch.extend(committed.take(BATCH));
        let made = self.names_made(dir, start, BATCH - batch.len(), |name| !order.has(name));
        batch.extend(made.into_iter().map(|(cookie, name, inode)| {
            let (ino, kind) = (inode.ino, inode.kind);
            (cookie, Entry { name, ino, kind })
        }));
    }
}
