//! Commits: merges a transaction's changes into the enclosing transaction, or into the committed state.
//!
//! A commit of an outermost transaction is one transaction of the store, a frame of its log: it holds the barrier alone, and
//! the namespace lock, so a look at names finds all of it or nothing. All that can fail comes first: space in the log is
//! reserved, contents are brought into memory, space for the new pages is allocated.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_txn::Changes;
use goanna_vfs::{Errno, FileKind, Result, TxnId};
use parking_lot::Mutex;

use super::Txn;
use super::content::{PageRecords, Plan};
use super::level::{DirDelta, Level};
use crate::content::cost::{META_COST, PAGE_COST, REAP_PAGES, deletes};
use crate::inode::{Inode, MetaLocation, PAGE, State};
use crate::{Volume, errno};

impl Volume {
    /// Merges the changes of a nested transaction into the enclosing one.
    pub(super) fn merge_into(&self, txn: &Txn, parent: &Txn) -> Result<(), Errno> {
        let _names = self.names.write();
        let copies: Vec<_> = txn.level.lock().inodes.values().cloned().collect();
        let mut around = HashMap::new();
        // A copy's content is never stored before the outermost commit.
        let mut nothing = Changes::new();
        for copy in copies {
            let outer = parent.level.lock().inodes.get(&copy.ino).cloned();
            if let Some(outer) = outer {
                let plan = self.plan(&copy, &outer, &mut nothing)?;
                around.insert(copy.ino, (outer, plan));
            }
        }
        let plans = around.values().map(|(_, plan)| plan);
        let objects: Vec<_> = plans.filter_map(Plan::object).collect();
        let _paused = self.pause_readers(&objects);
        let Level {
            changes,
            inodes,
            dirs,
        } = std::mem::take(&mut *txn.level.lock());
        for (ino, copy) in inodes {
            match around.remove(&ino) {
                Some((outer, plan)) => self.merge(&copy, &outer, plan, None),
                None => {
                    parent.level.lock().inodes.insert(ino, copy);
                }
            }
        }
        parent.level.lock().take_over(changes, dirs);
        parent.bytes.fetch_add(txn.bytes.load(SeqCst), SeqCst);
        if let Some(by) = txn.authors.take() {
            parent.authors.add(by);
        }
        Ok(())
    }

    /// Merges the changes of an outermost transaction into the committed state. An error comes before the commit's record:
    /// nothing has changed then.
    pub(super) fn publish(&self, txn: &Txn) -> Result<(), Errno> {
        let level = Mutex::new(std::mem::take(&mut *txn.level.lock()));
        let attempt = || {
            self.with_descriptors(|| {
                self.store.throttle();
                let transaction = self.store.begin().map_err(|error| errno(&error))?;
                let names = self.names.write();
                let operation = transaction.operation();
                let touched = self.publish_level(operation, &mut level.lock(), txn.id)?;
                drop(names);
                transaction.end(txn.authors.take());
                Ok(touched)
            })
        };
        let published = self.until_space(attempt, |error| *error == Errno::ENOSPC);
        match published {
            Ok(ref touched) => {
                self.report(touched);
                touched.iter().for_each(|inode| self.add_idle(inode));
            }
            Err(_) => super::discard(&level.lock()),
        }
        published.map(drop)
    }

    /// Returns the inodes that have changed.
    fn publish_level(
        &self,
        guard: &amino_txn::OpGuard<'_>,
        level: &mut Level,
        id: TxnId,
    ) -> Result<Vec<Arc<Inode>>, Errno> {
        let mut plans = self.prepare_to_publish(guard, level)?;
        let objects: Vec<_> = plans.values().filter_map(Plan::object).collect();
        let paused = self.pause_readers(&objects);
        let mut touched = Vec::new();
        let mut pages = Changes::new();
        for (ino, copy) in std::mem::take(&mut level.inodes) {
            let base = Arc::clone(copy.base());
            let mut plan = plans.remove(&ino).unwrap_or(Plan::Keep);
            if let Some(object) = plan.object()
                && is_removed(&copy)
                && !paused.is_held_inside(object, id)
            {
                plan = Plan::Withhold;
            }
            self.merge(&copy, &base, plan, Some(&mut pages));
            touched.push(base);
        }
        for delta in std::mem::take(&mut level.dirs).into_values() {
            touched.push(Arc::clone(&delta.base));
            self.publish_entries(delta);
        }
        // Only a store that has failed meanwhile refuses them, and nothing of this commit reaches its log then.
        let submitted = self.store.submit_reserved(guard, pages);
        submitted.map_err(|error| errno(&error))?;
        Ok(touched)
    }

    /// Takes all that publishing needs, then submits the commit's record. Nothing fails afterwards, and nothing has
    /// changed when this fails.
    fn prepare_to_publish(
        &self,
        guard: &amino_txn::OpGuard<'_>,
        level: &mut Level,
    ) -> Result<HashMap<u64, Plan>, Errno> {
        level.inodes.retain(|_, copy| copy.changed.load(SeqCst));
        let mut stored = Changes::new();
        let mut plans = HashMap::new();
        for (ino, copy) in &level.inodes {
            let plan = self.plan(copy, copy.base(), &mut stored)?;
            plans.insert(*ino, plan);
        }
        let mut changes = std::mem::take(&mut level.changes);
        changes.merge(stored);
        if let Err(error) = self.reserve_all(&changes, level, &plans) {
            level.changes = changes;
            return Err(error);
        }
        let submitted = self.store.submit_reserved(guard, changes);
        submitted.map_err(|error| errno(&error))?;
        Ok(plans)
    }

    /// Reserves what the commit and the flush point after it put into the log. Nothing has changed yet.
    fn reserve_all(
        &self,
        changes: &Changes,
        level: &Level,
        plans: &HashMap<u64, Plan>,
    ) -> Result<(), Errno> {
        let (mut pages, mut rest) = (0_usize, changes.byte_size() + level.dirs.len() * META_COST);
        for (ino, copy) in &level.inodes {
            let state = copy.state.lock();
            let base = copy.base().state.lock();
            rest += state.meta_cost();
            if let Some(Plan::Stored(content)) = plans.get(ino) {
                rest += content.meta_cost();
            }
            if let Some(cache) = &state.cache {
                let dirty = usize::try_from(cache.pages().changed().len()).unwrap_or(usize::MAX);
                // The first page, if it was inline before, and the one that a truncation shortens.
                pages = pages.saturating_add(dirty).saturating_add(2);
            }
            // Pages that are truncated, or removed with the file, are deleted.
            rest += deletes(base.stored.len() + 1);
        }
        // The space for the changes themselves is reserved here, and not again when they are submitted.
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

    /// Gives `into` the state of its copy `from`, and by `plan` the content where that is another. The record `changes` of an outermost
    /// commit gets the pages that are copied.
    fn merge(&self, from: &Inode, into: &Arc<Inode>, plan: Plan, changes: Option<&mut Changes>) {
        let mut state = from.state.lock();
        let mut target = into.state.lock();
        if target.uncommitted {
            if let Plan::Stored(content) = plan {
                content.describe(&mut state);
            }
            self.materialise(&mut state, into, &mut target);
            return;
        }
        let record = changes.map(|changes| PageRecords {
            ino: into.ino,
            changes,
        });
        self.merge_content(plan, &mut state, &mut target, record);
        let is_orphan = state.home == MetaLocation::Orphan;
        let was_orphan = target.home == MetaLocation::Orphan;
        merge_meta(from.kind, &state, &mut target);
        into.changed.store(true, SeqCst);
        target.committed = true;
        if into.under.is_none() {
            if is_orphan && !was_orphan {
                target.reap_reserved = target.stored.len() <= REAP_PAGES;
                target.dir = None;
                if let Some(cache) = &mut target.cache {
                    cache.set_idle(false);
                }
            }
            self.mark_dirty(into, &mut target);
            drop(target);
            if is_orphan {
                self.forget_orphan(into);
            }
        }
    }

    /// Puts an inode that the transaction made into the table.
    fn materialise(&self, state: &mut State, into: &Arc<Inode>, target: &mut State) {
        let kind = into.kind;
        let seen = state.seen.clone();
        let mut made = State::stored(state.meta.clone(), state.home.clone(), seen);
        made.linkable = state.linkable;
        made.committed = true;
        made.cache = state.cache.take();
        if kind == FileKind::Directory {
            made.dir = Some(crate::directory::order::DirOrder::default());
        }
        made.stored = std::mem::take(&mut state.stored);
        made.stored_exact = true;
        if let Some(cache) = &mut made.cache {
            cache.refresh_use();
            if cache.is_mapped() {
                self.watch_mapped(into);
            }
            let bytes = cache.pages().changed().len().saturating_mul(PAGE);
            self.dirty_bytes.fetch_add(bytes, SeqCst);
        }
        *target = made;
        self.mark_dirty(into, target);
    }

    /// Merges the changed entries of a directory into the committed ones.
    fn publish_entries(&self, delta: DirDelta) {
        let dir = Arc::clone(&delta.base);
        let mut state = dir.state.lock();
        state.meta.size = state.meta.size.saturating_add_signed(delta.size);
        let removed = state.home == MetaLocation::Orphan;
        if !removed {
            let nlink = i64::from(state.meta.nlink) + delta.nlink;
            state.meta.nlink = u32::try_from(nlink).unwrap_or(0);
        }
        if let Some(time) = delta.time {
            state.meta.mtime = state.meta.mtime.max(time);
            state.meta.ctime = state.meta.ctime.max(time);
        }
        // Names in a directory that was removed itself would keep the directory in memory.
        for (name, target) in delta.into_names().filter(|_| !removed) {
            if let Some(order) = &mut state.dir {
                match &target {
                    Some(inode) => order.set(&name, inode.ino, inode.kind),
                    None => order.remove(&name),
                }
            }
            self.dentries.put(dir.ino, name, target);
        }
        if !state.gone {
            self.mark_dirty(&dir, &mut state);
        }
    }
}

/// Whether the transaction removed the last name of the file that this is a copy of.
fn is_removed(copy: &Arc<Inode>) -> bool {
    let was_orphan = copy.base().state.lock().home == MetaLocation::Orphan;
    copy.state.lock().home == MetaLocation::Orphan && !was_orphan
}

/// Everything but the content.
fn merge_meta(kind: FileKind, from: &State, into: &mut State) {
    let old = into.meta.clone();
    into.meta = from.meta.clone();
    match kind {
        // Whether the store has the content inline is for the inode that is stored to know.
        FileKind::Regular => into.meta.inline = old.inline,
        FileKind::Directory => {
            (into.meta.size, into.meta.nlink) = (old.size, old.nlink);
            if from.home == MetaLocation::Orphan {
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
