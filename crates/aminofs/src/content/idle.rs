//! Files whose content no program uses: it is kept for the next open, within bounds of memory and descriptors.

use std::sync::Arc;

use goanna_vfs::{Errno, Result};

use crate::Volume;
use crate::inode::{Inode, MetaLocation};

/// Entries of the idle list that one release looks at: more than it adds, so that the list shrinks to its bound.
const EVICT_MAX: usize = 4;

impl Volume {
    /// Puts the content of an unused file into the idle list. The caller holds no lock.
    pub(crate) fn add_idle(&self, inode: &Arc<Inode>) {
        if inode.under.is_some() {
            return;
        }
        {
            let mut state = inode.state.lock();
            let (size, orphan) = (state.meta.size, state.home == MetaLocation::Orphan);
            let Some(cache) = &mut state.cache else {
                return;
            };
            if cache.is_in_use() || orphan {
                return;
            }
            if cache.set_idle(true) {
                self.idle.lock().put(inode.ino, Arc::clone(inode), size);
            }
        }
        self.shrink_idle(self.options.idle_files, self.options.idle_bytes, EVICT_MAX);
    }

    /// Drops the content of unused files, oldest first, until at most this many are left or `limit` were looked at. No
    /// lock is held.
    pub(crate) fn shrink_idle(&self, max_files: usize, max_bytes: u64, limit: usize) {
        // Each entry at most once: what cannot be stored is put back.
        let limit = limit.min(self.idle.lock().len());
        for _ in 0..limit {
            let inode = {
                let mut idle = self.idle.lock();
                if idle.len() <= max_files && idle.bytes() <= max_bytes {
                    return;
                }
                idle.take_oldest()
            };
            let Some(inode) = inode else { return };
            if self.evict(&inode).is_err() {
                // What could not be stored stays.
                self.add_idle_again(&inode);
            }
        }
    }

    fn add_idle_again(&self, inode: &Arc<Inode>) {
        let mut state = inode.state.lock();
        let (size, orphan) = (state.meta.size, state.home == MetaLocation::Orphan);
        // The last name may have gone meanwhile; an orphan is removed when no process has it open.
        if let Some(cache) = state.cache.as_mut().filter(|_| !orphan) {
            cache.set_idle(true);
            self.idle.lock().put(inode.ino, Arc::clone(inode), size);
        }
    }

    /// Drops the content of an unused file. Stores unstored changes first.
    fn evict(&self, inode: &Arc<Inode>) -> Result<(), Errno> {
        if !self.is_snapshot {
            self.store.throttle();
        }
        let guard = self.store.enter();
        let _names = self.names.read();
        let mut state = inode.state.lock();
        let Some(cache) = &mut state.cache else {
            return Ok(());
        };
        cache.set_idle(false);
        if cache.is_in_use() || state.home == MetaLocation::Orphan {
            return Ok(());
        }
        if state.dirty {
            self.submit_named_file(&guard, inode, &mut state)?;
        }
        self.unshare(inode.ino);
        state.cache = None;
        Ok(())
    }
}
