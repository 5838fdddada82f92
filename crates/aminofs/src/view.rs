//! Views: the state that one operation sees and changes. It is the committed state, below the overlays of the operation's transaction.
//!
//! Every operation of the file system runs in a view. Reads come by [`View::inode`] and [`View::find`], which give a
//! transaction's copy of an inode where it has one; before an inode changes, [`View::for_change`] gives what may
//! be changed. So the operations themselves are the same within transactions and outside of them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Deref};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_schema::{DecodeError, Meta, Timestamp};
use amino_txn::locks::{Mode, Owner, Resource};
use amino_txn::{Actor, Changes, OpGuard, Records, Visit};
use bytes::Bytes;
use goanna_vfs::{Caller, Errno, FileKind, FsError, Node, Result};

use crate::inode::{Inode, MetaLocation, State, now};
use crate::transaction::Txn;
use crate::transaction::level::DirDelta;
use crate::{AminoFs, Durability, Volume, errno, records};

/// The state that one operation sees and changes.
pub(crate) struct View<'a> {
    fs: &'a Volume,
    within: Option<&'a Arc<Txn>>,
    durability: Durability,
    actor: Actor,
    /// Transactions are open, so that this single operation must lock what it changes.
    locking: Cell<bool>,
    /// The single operation, once it has locked something.
    alone: Cell<Option<Owner>>,
    /// The inodes that this operation has changed, where it waits for the disk or reports changes.
    touched: Cell<Vec<Arc<Inode>>>,
}

impl Deref for View<'_> {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        self.fs
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        if let Some(owner) = self.alone.get() {
            self.fs.transactions.locks.end(owner);
        }
        // Also of an operation that has failed midway.
        self.fs.report(&self.touched.take());
    }
}

impl AminoFs {
    /// Runs `op` in the view of `caller`. ECANCELED when its transaction has ended.
    pub(crate) fn view<T>(
        &self,
        caller: &Caller,
        op: impl FnOnce(&View<'_>) -> Result<T>,
    ) -> Result<T> {
        let _operation = self.operation();
        let txn = self.transactions.of_call(caller.txn)?;
        // Recursively: a sink that readdir calls may call the file system.
        let _using = txn.as_ref().map(|txn| txn.using.read_recursive());
        if txn.as_ref().is_some_and(|txn| txn.ended.load(SeqCst)) {
            return Err(Errno::ECANCELED.into());
        }
        op(&View {
            fs: &self.volume,
            durability: self.durability,
            within: txn.as_ref(),
            actor: Actor {
                uid: caller.uid,
                pid: caller.pid.unsigned_abs(),
            },
            locking: Cell::new(false),
            alone: Cell::new(None),
            touched: Cell::default(),
        })
    }
}

impl View<'_> {
    /// Runs `op`, which changes something, behind the operation barrier. Outside of transactions it waits for the disk
    /// afterwards if the durability level says so.
    ///
    /// If `op` fails with ENOSPC, it must have changed nothing. It runs again after the store has cleaned up.
    pub(crate) fn change<T>(&self, mut op: impl FnMut(&OpGuard<'_>) -> Result<T>) -> Result<T> {
        let is_full = |error: &FsError| *error == FsError::Errno(Errno::ENOSPC);
        let result = match self.within {
            // The space is for the commit to find.
            Some(_) => self.enter(op),
            None => self.fs.until_space(|| self.enter(&mut op), is_full),
        };
        self.settle(result)
    }

    /// As [`View::change`], of a small `op` that runs once only.
    pub(crate) fn change_once<T>(&self, op: impl FnOnce(&OpGuard<'_>) -> Result<T>) -> Result<T> {
        self.settle(self.enter(op))
    }

    fn enter<T>(&self, op: impl FnOnce(&OpGuard<'_>) -> Result<T>) -> Result<T> {
        if self.is_snapshot {
            return Err(Errno::EROFS.into());
        }
        self.begin_session()?;
        self.store.throttle();
        let guard = self.store.enter();
        self.locking.set(self.transactions.count.load(SeqCst) > 0);
        op(&guard)
    }

    fn settle<T>(&self, result: Result<T>) -> Result<T> {
        let result = result?;
        let touched = self.touched.take();
        self.report(&touched);
        if self.durability == Durability::Acid && self.within.is_none() {
            self.flush()?;
            for inode in touched {
                self.failures.check(inode.ino)?;
            }
        }
        Ok(result)
    }

    /// The caller is about to change something: in its transaction, or in the store.
    fn note_author(&self) {
        match self.within {
            Some(txn) => txn.authors.note(self.actor),
            None => self.store.note_author(self.actor),
        }
    }

    /// As [`Volume::mark_dirty`], of an inode that this operation changes.
    pub(crate) fn mark_dirty(&self, inode: &Arc<Inode>, state: &mut State) {
        self.note_author();
        let is_wanted = self.durability == Durability::Acid || self.subscribers.any();
        if is_wanted && self.within.is_none() {
            let mut touched = self.touched.take();
            touched.push(Arc::clone(inode));
            self.touched.set(touched);
        }
        self.fs.mark_dirty(inode, state);
    }

    /// The transaction that this operation is part of.
    pub(crate) fn within(&self) -> Option<&Arc<Txn>> {
        self.within
    }

    /// How durable the caller wants its changes to be.
    pub(crate) fn durability(&self) -> Durability {
        self.durability
    }

    /// Whether this is an operation of a transaction.
    pub(crate) fn in_transaction(&self) -> bool {
        self.within.is_some()
    }

    fn lock(&self, owner: Owner, resource: &Resource, mode: Mode) -> Result<()> {
        let locks = &self.transactions.locks;
        locks.acquire(owner, resource, mode).map_err(|conflict| {
            let txn = self.within.map(|txn| txn.id);
            FsError::Blocked(self.transactions.wait_for(conflict, txn))
        })
    }

    /// Locks what is read, until the transaction ends. A single operation reads without.
    pub(crate) fn lock_read(&self, resource: impl FnOnce() -> Resource) -> Result<()> {
        match self.within {
            Some(txn) => self.lock(txn.owner, &resource(), Mode::Shared),
            None => Ok(()),
        }
    }

    /// Locks what is about to change: until the transaction ends, or the single operation.
    pub(crate) fn lock_change(
        &self,
        resource: impl FnOnce() -> Resource,
        mode: Mode,
    ) -> Result<()> {
        let owner = match (self.within, self.alone.get()) {
            (Some(txn), _) => txn.owner,
            (None, _) if !self.locking.get() => return Ok(()),
            (None, Some(owner)) => owner,
            (None, None) => {
                let owner = self.transactions.locks.begin(None);
                self.alone.set(Some(owner));
                owner
            }
        };
        self.lock(owner, &resource(), mode)
    }

    /// The inode as this operation sees it: the innermost copy of its transactions, else `base`.
    pub(crate) fn current(&self, base: Arc<Inode>) -> Arc<Inode> {
        let Some(txn) = self.within else { return base };
        let found = |txn: &Arc<Txn>| txn.level.lock().inodes.get(&base.ino).cloned();
        txn.chain().find_map(found).unwrap_or(base)
    }

    /// The inode behind a node of this file system. ESTALE if another transaction made the inode and has not committed, or if
    /// the transaction that made it was aborted.
    pub(crate) fn inode(&self, node: &Node) -> Result<Arc<Inode>> {
        let base = node.pin_arc::<Inode>().ok_or(Errno::ESTALE)?;
        let inode = self.current(base);
        if inode.under.is_none() && inode.state.lock().uncommitted {
            return Err(Errno::ESTALE.into());
        }
        Ok(inode)
    }

    /// As [`View::inode`], for one that is read: no other transaction changes it until this one ends.
    pub(crate) fn inode_to_read(&self, node: &Node) -> Result<Arc<Inode>> {
        self.lock_read(|| Resource::Inode(node.ino()))?;
        self.inode(node)
    }

    /// The inode behind a node that must be a directory.
    pub(crate) fn dir(&self, node: &Node) -> Result<Arc<Inode>> {
        let inode = self.inode(node)?;
        if inode.kind == FileKind::Directory {
            Ok(inode)
        } else {
            Err(Errno::ENOTDIR.into())
        }
    }

    /// What may be changed of an inode: itself, or the transaction's own copy. No inode's state is locked.
    pub(crate) fn for_change(&self, inode: &Arc<Inode>) -> Result<Arc<Inode>> {
        self.lock_change(|| Resource::Inode(inode.ino), Mode::Exclusive)?;
        let Some(txn) = self.within else {
            return Ok(Arc::clone(inode));
        };
        self.note_author();
        let under = self.current(Arc::clone(inode.base()));
        if let Some(own) = txn.level.lock().inodes.get(&under.ino) {
            own.changed.store(true, SeqCst);
            return Ok(Arc::clone(own));
        }
        let mut state = under.state.lock().forked();
        if under.kind == FileKind::Directory {
            let meta = self.dir_meta(&under, &state);
            (state.meta.mtime, state.meta.ctime) = (meta.mtime, meta.ctime);
        }
        let copy = Inode::copy(&under, state);
        let mut level = txn.level.lock();
        // Another thread of the transaction may have been first.
        let own = level.inodes.entry(copy.ino).or_insert(copy);
        own.changed.store(true, SeqCst);
        Ok(Arc::clone(own))
    }

    /// Whether this is a copy of the transaction itself, not of one around it.
    pub(crate) fn is_own(&self, inode: &Arc<Inode>) -> bool {
        self.within.is_some_and(|txn| {
            let level = txn.level.lock();
            let own = level.inodes.get(&inode.ino);
            own.is_some_and(|own| Arc::ptr_eq(own, inode))
        })
    }

    /// Brings in an inode that did not exist before; within a transaction only that sees it.
    pub(crate) fn new_inode(&self, ino: u64, kind: FileKind, state: State) -> Arc<Inode> {
        let Some(txn) = self.within else {
            return self.table.insert_new(ino, kind, state);
        };
        let base = self
            .table
            .insert_new(ino, kind, State::uncommitted(state.meta.clone()));
        let copy = Inode::copy(&base, state.made_inside());
        txn.level.lock().inodes.insert(ino, Arc::clone(&copy));
        copy
    }

    /// The transaction's change of `name` in a directory: `None` if there is none, `Some(None)` if the name was removed.
    pub(crate) fn overlaid(&self, dir: u64, name: &[u8]) -> Option<Option<Arc<Inode>>> {
        let (_, target) = self.overlaid_entry(dir, name)?;
        Some(target.map(|base| self.current(base)))
    }

    /// The same with its place in listings, and the table's inode.
    pub(crate) fn overlaid_entry(
        &self,
        dir: u64,
        name: &[u8],
    ) -> Option<(u64, Option<Arc<Inode>>)> {
        self.within?.chain().find_map(|txn| {
            let level = txn.level.lock();
            let entry = level.dirs.get(&dir)?.names().get(name)?;
            Some((entry.cookie, entry.target.clone()))
        })
    }

    /// Up to `most` names that the transaction has added or replaced in a directory, from cookie `start` on, for which `is_wanted` is true.
    pub(crate) fn names_made(
        &self,
        dir: u64,
        start: u64,
        most: usize,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Vec<(u64, Arc<[u8]>, Arc<Inode>)> {
        let mut made = Vec::new();
        for txn in self.within.into_iter().flat_map(|txn| txn.chain()) {
            let mut start = start;
            let mut left = most;
            while left > 0 {
                let level = txn.level.lock();
                let listed = level.dirs.get(&dir).map(|delta| delta.listed(start, left));
                drop(level);
                let listed = listed.unwrap_or_default();
                let Some((last, _)) = listed.last() else {
                    break;
                };
                start = last + 1;
                for (cookie, name) in listed.into_iter().filter(|(_, name)| is_wanted(name)) {
                    // A transaction inside that one may have changed the name, too.
                    match self.overlaid_entry(dir, &name) {
                        Some((at, Some(inode))) if at == cookie => made.push((cookie, name, inode)),
                        _ => continue,
                    }
                    left -= 1;
                }
            }
        }
        made.sort_unstable_by_key(|(cookie, ..)| *cookie);
        made.truncate(most);
        made
    }

    /// Notes in the transaction that a directory's entry changed; false outside of one, where the directory itself changes.
    pub(crate) fn overlay_entry(
        &self,
        dir: &Arc<Inode>,
        name: &Arc<[u8]>,
        target: Option<&Arc<Inode>>,
        (size, nlink): (i64, i64),
        time: Timestamp,
    ) -> bool {
        let Some(txn) = self.within else { return false };
        let target = target.map(|inode| Arc::clone(inode.base()));
        let mut level = txn.level.lock();
        let delta: &mut DirDelta = level.dir(dir.base());
        delta.size += size;
        delta.nlink += nlink;
        delta.time = Some(time);
        delta.version = self.versions.next();
        delta.set(name, target, || txn.next_cookie());
        true
    }

    /// A directory's times were set explicitly, in the transaction's own copy.
    pub(crate) fn forget_entry_time(&self, dir: u64) {
        if let Some(txn) = self.within
            && let Some(delta) = txn.level.lock().dirs.get_mut(&dir)
        {
            delta.time = None;
        }
    }

    /// The metadata of a directory, whose own part is `state`, with the entries that the transaction added and removed.
    pub(crate) fn dir_meta(&self, dir: &Arc<Inode>, state: &State) -> Meta {
        let mut meta = state.meta.clone();
        let Some(txn) = self.within else { return meta };
        let set = state.copy.as_ref().is_some_and(|copy| copy.times);
        if let Some(copy) = &state.copy {
            // The copy has the numbers of when it was made; others may have added entries since.
            let base = dir.base().state.lock();
            (meta.size, meta.nlink) = (base.meta.size, base.meta.nlink);
            meta.version = meta.version.max(base.meta.version);
            if !copy.times {
                meta.mtime = base.meta.mtime;
                meta.ctime = meta.ctime.max(base.meta.ctime);
            }
        }
        let mut time_known = false;
        // Sums first: an inner transaction may have removed more than there is without the outer ones.
        let (mut size, mut nlink) = (0_i64, i64::from(meta.nlink));
        for txn in txn.chain() {
            let level = txn.level.lock();
            if let Some(delta) = level.dirs.get(&dir.ino) {
                size += delta.size;
                nlink += delta.nlink;
                meta.version = meta.version.max(delta.version);
                if let Some(time) = delta.time.filter(|_| !time_known) {
                    // A time that lies ahead is not of entries that others have committed since: it was set before.
                    let by_others = !set && meta.mtime > time && meta.mtime <= now();
                    if !by_others {
                        meta.mtime = time;
                    }
                    meta.ctime = meta.ctime.max(time);
                    time_known = true;
                }
            }
            // An inner copy whose times were set hides what the outer ones say.
            let copy = level.inodes.get(&dir.ino);
            time_known |= set && copy.is_some();
        }
        meta.size = meta.size.saturating_add_signed(size);
        meta.nlink = u32::try_from(nlink).unwrap_or(0);
        if state.home == MetaLocation::Orphan {
            meta.nlink = 0;
        }
        meta
    }

    pub(crate) fn submit(&self, guard: &OpGuard<'_>, changes: Changes) -> Result<()> {
        self.note_author();
        match self.within {
            Some(txn) => {
                self.reserve(changes.byte_size())?;
                txn.level.lock().changes.merge(changes);
                Ok(())
            }
            None => Ok(self.store.submit(guard, changes).map_err(|e| errno(&e))?),
        }
    }

    /// Makes sure that this many bytes of changes that the next flush point, or the commit, collects can be logged.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<()> {
        let Some(txn) = self.within else {
            return Ok(self.fs.reserve(bytes)?);
        };
        if txn.total_bytes().saturating_add(bytes as u64) > self.options.transaction_bytes {
            let outermost = txn.chain().last().unwrap_or(txn);
            outermost.refused.store(true, SeqCst);
            return Err(Errno::ENOSPC.into());
        }
        txn.bytes.fetch_add(bytes as u64, SeqCst);
        Ok(())
    }

    /// As [`View::reserve`], for an operation that frees space in the end: possible when the disk is full for all others.
    pub(crate) fn reserve_removal(&self, bytes: usize) -> Result<()> {
        match self.within {
            Some(txn) => {
                txn.bytes.fetch_add(bytes as u64, SeqCst);
                Ok(())
            }
            None => Ok(self.fs.reserve_removal(bytes)?),
        }
    }

    /// The value of a record as this operation sees it.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(records::get(self, key)?)
    }

    /// The value of a record outside of this transaction.
    pub(crate) fn committed(&self, key: &[u8]) -> Result<Option<Bytes>, Errno> {
        self.fs.get(key)
    }

    /// Calls `visit` for all keys with `prefix` behind `from`, in order, until it returns false.
    pub(crate) fn scan_from(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> std::result::Result<bool, DecodeError>,
    ) -> Result<()> {
        Ok(records::scan(self, from, prefix, visit)?)
    }

    /// As [`View::scan_from`], from the first on.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> std::result::Result<bool, DecodeError>,
    ) -> Result<()> {
        self.scan_from(Bound::Unbounded, prefix, visit)
    }
}

/// The records as this operation sees them: as its transaction changed them, above the committed ones.
impl Records for View<'_> {
    fn get(&self, key: &[u8]) -> std::result::Result<Option<Bytes>, amino_txn::Error> {
        let changed = |txn: &Arc<Txn>| {
            let level = txn.level.lock();
            level.changes.get(key).map(Option::<&Bytes>::cloned)
        };
        match self.within.and_then(|txn| txn.chain().find_map(changed)) {
            Some(value) => Ok(value),
            None => self.fs.records.get(key),
        }
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        visit: &mut Visit<'_>,
    ) -> std::result::Result<(), amino_txn::Error> {
        let mut changed = BTreeMap::new();
        let chain: Vec<_> = self.within.into_iter().flat_map(Txn::chain).collect();
        for txn in chain.into_iter().rev() {
            txn.level.lock().overlay(from, prefix, &mut changed);
        }
        let mut seen = |key: &[u8], value: &Option<Bytes>| {
            let value = value.as_ref();
            value.map_or(ControlFlow::Continue(()), |value| visit(key, value))
        };
        let mut stopped = false;
        self.fs.records.scan(from, prefix, &mut |key, value| {
            let mut next = ControlFlow::Continue(());
            let mut replaced = false;
            while let Some(first) = changed.first_entry().filter(|first| **first.key() <= *key) {
                let (changed, new) = first.remove_entry();
                replaced |= *changed == *key;
                next = seen(&changed, &new);
                if next.is_break() {
                    break;
                }
            }
            if next.is_continue() && !replaced {
                next = seen(key, &Some(value.clone()));
            }
            stopped = next.is_break();
            next
        })?;
        if !stopped {
            let _ = changed.iter().try_for_each(|(key, value)| seen(key, value));
        }
        Ok(())
    }
}
