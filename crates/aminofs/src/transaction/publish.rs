//! Commits: what a transaction changed goes to the one around it, or becomes everybody's.
//!
//! A commit of an outermost transaction is one operation: it holds the barrier and the namespace lock throughout, so a cut
//! of the store and a look at names find all of it or nothing. All that can fail comes first: space in the log is
//! reserved, contents are brought into memory, room for the new pages is allocated.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_txn::Changes;
use goanna_sys::memfile;
use goanna_vfs::{Errno, FileKind, Result};

use super::Txn;
use super::copies::{store_packed, take_mapped};
use super::level::{DirDelta, Level};
use crate::collect::REAP_PAGES;
use crate::data::{PAGE_COST, deletes};
use crate::inode::{Home, Inode, PAGE, State};
use crate::{META_COST, Volume, errno};

/// Bytes moved at once from one content to another.
const PIECE: usize = 1 << 20;

impl Volume {
    /// Gives what a nested transaction changed to the one around it.
    pub(super) fn pour_into(&self, txn: &Txn, parent: &Txn) -> Result<()> {
        let _names = self.names.write();
        let copies: Vec<_> = txn.level.lock().inodes.values().cloned().collect();
        let mut around = HashMap::new();
        for copy in copies {
            let outer = parent.level.lock().inodes.get(&copy.ino).cloned();
            if let Some(outer) = outer {
                let writer = self.writer_of(&copy, &outer)?;
                around.insert(copy.ino, (outer, writer));
            }
        }
        let Level {
            changes,
            inodes,
            dirs,
        } = std::mem::take(&mut *txn.level.lock());
        let mut result = Ok(());
        for (ino, copy) in inodes {
            match around.remove(&ino) {
                Some((outer, writer)) => {
                    let poured = self.pour(&copy, &outer, writer);
                    result = result.and(poured);
                }
                None => {
                    parent.level.lock().inodes.insert(ino, copy);
                }
            }
        }
        parent.level.lock().take_over(changes, dirs);
        parent.bytes.fetch_add(txn.bytes.load(SeqCst), SeqCst);
        result
    }

    /// Makes what an outermost transaction changed everybody's.
    pub(super) fn publish(&self, txn: &Txn) -> Result<()> {
        self.store.throttle();
        let guard = self.store.enter();
        let names = self.names.write();
        let level = std::mem::take(&mut *txn.level.lock());
        let result = self.publish_level(&guard, level);
        drop(names);
        drop(guard);
        for inode in result? {
            self.park(&inode);
        }
        Ok(())
    }

    /// Returns the files whose content may be idle.
    fn publish_level(
        &self,
        guard: &amino_txn::OpGuard<'_>,
        mut level: Level,
    ) -> Result<Vec<Arc<Inode>>> {
        let mut writers = match self.prepare_to_publish(guard, &mut level) {
            Ok(writers) => writers,
            Err(errno) => {
                super::discard(&level);
                return Err(errno);
            }
        };
        let Level { inodes, dirs, .. } = level;
        let mut touched = Vec::new();
        let mut result = Ok(());
        for (ino, copy) in inodes {
            let base = Arc::clone(copy.base());
            let writer = writers.remove(&ino).flatten();
            result = result.and(self.pour(&copy, &base, writer));
            touched.push(base);
        }
        for delta in dirs.into_values() {
            self.publish_entries(delta);
        }
        result.map(|()| touched)
    }

    /// Everything that can fail; nothing has changed when it does.
    fn prepare_to_publish(
        &self,
        guard: &amino_txn::OpGuard<'_>,
        level: &mut Level,
    ) -> Result<HashMap<u64, Option<OwnedFd>>> {
        level.inodes.retain(|_, copy| copy.changed.load(SeqCst));
        let mut writers = HashMap::new();
        for (ino, copy) in &level.inodes {
            if copy.base().state.lock().unborn {
                store_packed(copy, &mut copy.state.lock(), &mut level.changes);
            }
            let writer = self.writer_of(copy, copy.base())?;
            writers.insert(*ino, writer);
        }
        self.reserve_all(&level.changes, &level.inodes, &level.dirs)?;
        let submitted = self
            .store
            .submit_reserved(guard, std::mem::take(&mut level.changes));
        submitted.map_err(|error| errno(&error))?;
        Ok(writers)
    }

    /// Reserves what the commit and the cut after it put into the log. Nothing has changed yet.
    fn reserve_all(
        &self,
        changes: &Changes,
        inodes: &HashMap<u64, Arc<Inode>>,
        dirs: &HashMap<u64, DirDelta>,
    ) -> Result<()> {
        let (mut pages, mut rest) = (0_usize, changes.byte_size() + dirs.len() * META_COST);
        for copy in inodes.values() {
            let state = copy.state.lock();
            let base = copy.base().state.lock();
            rest += state.meta_cost();
            if let Some(cache) = &state.cache {
                let dirty = usize::try_from(cache.dirty.len()).unwrap_or(usize::MAX);
                // The first page, if it was inline before, and the one that a cut shortens.
                pages = pages.saturating_add(dirty).saturating_add(2);
            }
            // What is cut off, or removed with the file, is deleted.
            rest += deletes(base.stored.len() + 1);
        }
        // The changes themselves are claimed here, and not again when they are submitted.
        self.store
            .reserve_removal(changes.byte_size())
            .map_err(|error| errno(&error))?;
        let collected = rest - changes.byte_size() + pages.saturating_mul(PAGE_COST);
        if pages > 0 {
            self.reserve(collected)
        } else {
            self.reserve_removal(collected)
        }
    }

    /// A descriptor to change the content of `into` with, when `from` has another one; room for its pages is allocated.
    fn writer_of(&self, from: &Inode, into: &Arc<Inode>) -> Result<Option<OwnedFd>> {
        let mut from = from.state.lock();
        let mut into_state = into.state.lock();
        if !into_state.unborn {
            self.unpack(&mut from)?;
        }
        take_mapped(&mut from)?;
        let other = from.copy.as_ref().is_some_and(|copy| copy.content);
        let moves = into_state.unborn || into_state.copy.as_ref().is_some_and(|copy| !copy.content);
        let Some(content) = from.cache.as_ref().filter(|_| other && !moves) else {
            return Ok(None);
        };
        self.ensure_cache(into, &mut into_state)?;
        let cache = into_state.cache.as_ref().ok_or(Errno::EIO)?;
        let writer = cache.writer()?;
        for (start, end) in content.dirty.ranges() {
            memfile::allocate(writer.as_fd(), start * PAGE, (end - start) * PAGE)?;
        }
        Ok(Some(writer))
    }

    /// Gives `into` the state of its copy `from`, and the content where that is another.
    fn pour(&self, from: &Inode, into: &Arc<Inode>, writer: Option<OwnedFd>) -> Result<()> {
        let mut state = from.state.lock();
        let mut target = into.state.lock();
        if target.unborn {
            self.bear(&mut state, into, &mut target);
            return Ok(());
        }
        match writer {
            Some(writer) => self.pour_content(&state, &mut target, &writer)?,
            None => move_content(&mut state, &mut target),
        }
        let is_orphan = state.home == Home::Orphan;
        let was_orphan = target.home == Home::Orphan;
        pour_meta(from.kind, &state, &mut target);
        into.changed.store(true, SeqCst);
        if into.under.is_none() {
            if is_orphan && !was_orphan {
                target.reap_reserved = target.stored.len() <= REAP_PAGES;
                target.dir = None;
                if let Some(cache) = &mut target.cache {
                    cache.idle = false;
                }
            }
            self.mark_dirty(into, &mut target);
            drop(target);
            if is_orphan {
                self.forget_orphan(into);
            }
        }
        Ok(())
    }

    /// An inode that the transaction made comes into being.
    fn bear(&self, state: &mut State, into: &Arc<Inode>, target: &mut State) {
        let kind = into.kind;
        let seen = state.seen.clone();
        let mut born = State::stored(state.meta.clone(), state.home.clone(), seen);
        born.linkable = state.linkable;
        born.cache = state.cache.take();
        if kind == FileKind::Directory {
            born.dir = Some(crate::readdir::DirOrder::default());
        }
        born.stored = std::mem::take(&mut state.stored);
        born.stored_exact = true;
        if let Some(cache) = &mut born.cache {
            cache.in_use = !cache.is_unused();
            if cache.mapped {
                self.watch_mapped(into);
            }
            let bytes = cache.dirty.len().saturating_mul(PAGE);
            self.dirty_bytes.fetch_add(bytes, SeqCst);
        }
        *target = born;
        self.mark_dirty(into, target);
    }

    fn pour_content(&self, from: &State, into: &mut State, writer: &OwnedFd) -> Result<()> {
        let (Some(content), Some(copy)) = (&from.cache, &from.copy) else {
            return Ok(());
        };
        let low = copy.low.min(into.meta.size);
        self.set_content_size(into, low)?;
        self.set_content_size(into, from.meta.size)?;
        let mut piece = vec![0; PIECE];
        for (start, end) in content.dirty.ranges() {
            let (mut at, end) = (start * PAGE, (end * PAGE).min(from.meta.size));
            while at < end {
                let want = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
                let Some(buf) = piece.get_mut(..want) else {
                    break;
                };
                let got = content.read_at(at, buf)?;
                let Some(data) = buf.get(..got).filter(|data| !data.is_empty()) else {
                    break;
                };
                crate::cache::write_all_at(writer, at, data)?;
                at += got as u64;
            }
            self.dirty_pages(into, start, end.div_ceil(PAGE));
        }
        Ok(())
    }

    /// Entries that the transaction changed are everybody's.
    fn publish_entries(&self, delta: DirDelta) {
        let dir = &delta.base;
        let mut state = dir.state.lock();
        state.meta.size = state.meta.size.saturating_add_signed(delta.size);
        let removed = state.home == Home::Orphan;
        if !removed {
            let nlink = i64::from(state.meta.nlink) + delta.nlink;
            state.meta.nlink = u32::try_from(nlink).unwrap_or(0);
        }
        if let Some(time) = delta.time {
            state.meta.mtime = state.meta.mtime.max(time);
            state.meta.ctime = state.meta.ctime.max(time);
        }
        // Names in a directory that was removed itself would keep it from going.
        for (name, entry) in delta.names.into_iter().filter(|_| !removed) {
            if let Some(order) = &mut state.dir {
                match &entry.target {
                    Some(inode) => order.set(&name, inode.ino, inode.kind),
                    None => order.remove(&name),
                }
            }
            self.dentries.put(dir.ino, name, entry.target);
        }
        if !state.gone {
            self.mark_dirty(dir, &mut state);
        }
    }
}

/// A copy's content becomes that of another copy, which has none of its own.
fn move_content(from: &mut State, into: &mut State) {
    let (Some(copy), Some(outer)) = (&from.copy, &mut into.copy) else {
        return;
    };
    if copy.content && !outer.content {
        outer.content = true;
        outer.low = outer.low.min(copy.low);
        into.cache = from.cache.take();
    }
}

/// Everything but the content.
fn pour_meta(kind: FileKind, from: &State, into: &mut State) {
    let old = into.meta.clone();
    into.meta = from.meta.clone();
    match kind {
        // Whether the store has the content inline is for the inode that is stored to know.
        FileKind::Regular => into.meta.inline = old.inline,
        FileKind::Directory => {
            (into.meta.size, into.meta.nlink) = (old.size, old.nlink);
            if from.home == Home::Orphan {
                into.meta.nlink = 0;
            }
            let set = from.copy.as_ref().is_some_and(|copy| copy.times);
            if !set {
                into.meta.mtime = old.mtime;
                into.meta.ctime = into.meta.ctime.max(old.ctime);
            }
            if let Some(copy) = &mut into.copy {
                copy.times |= set;
            }
        }
        _ => {}
    }
    into.home = from.home.clone();
    into.seen = from.seen.clone();
    into.linkable = from.linkable;
}
