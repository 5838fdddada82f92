//! The housekeeper: a thread that deletes the content of files without names, and finds what programs have written through
//! mappings. It sleeps when there is no such work.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use amino_schema::{key, record};
use amino_txn::Changes;
use bytes::Bytes;
use goanna_cache::RangeSet;
use goanna_vfs::{Errno, Node, Result};

use crate::content::cost::{PAGE_COST, REAP_PAGES};
use crate::inode::{Inode, MetaLocation, PAGE, ReapJob, State, now};
use crate::{Volume, damaged};

/// How long to wait after a failure before the next attempt.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// Pages compared in one operation.
const COMPARE_PAGES: u64 = 256;

/// What one operation has removed for a job.
enum Reaped {
    All,
    /// The stored pages from this one on.
    PagesFrom(u64),
    /// Some pages; which are left, the store knows.
    Part,
}

pub(crate) fn start(fs: &Arc<Volume>) -> std::io::Result<JoinHandle<()>> {
    let (weak, table) = (Arc::downgrade(fs), Arc::clone(&fs.table));
    let interval = fs.options.flush_interval;
    let run = move || {
        loop {
            {
                let mut chores = table.chores.lock();
                while !chores.stop && chores.reap_jobs.is_empty() {
                    if !chores.mapped {
                        table.wake.wait(&mut chores);
                    } else if table.wake.wait_for(&mut chores, interval).timed_out() {
                        break;
                    }
                }
                if chores.stop {
                    return;
                }
            }
            let Some(fs) = Weak::upgrade(&weak) else {
                return;
            };
            // Failures: the store has stopped, or is full. Everything stays unchanged, and callers get the error. A panic is a defect, and must not
            // leave the store without a housekeeper.
            let done = catch_unwind(AssertUnwindSafe(|| {
                let reaped = fs.reap_queued();
                fs.find_all_mapped_writes().and(reaped)
            }));
            drop(fs);
            if !matches!(done, Ok(Ok(_))) {
                std::thread::sleep(RETRY_DELAY);
            }
        }
    };
    std::thread::Builder::new()
        .name("amino-chores".to_owned())
        .spawn(run)
}

/// Minimum and maximum number of clean-ups of the store that an operation without space waits for. The first one may have begun before the
/// removed data was deleted, so one is not enough; the maximum holds while there is progress.
const CLEAN_UPS: (usize, usize) = (2, 8);

impl Volume {
    /// Calls `attempt`, which has changed nothing when its error `is_full`, again after the store has cleaned up.
    pub(crate) fn until_space<T, E>(
        &self,
        mut attempt: impl FnMut() -> Result<T, E>,
        is_full: impl Fn(&E) -> bool,
    ) -> Result<T, E> {
        let mut result = attempt();
        let (mut available, mut reaped, mut has_deleted) = (0, 0, false);
        for number in 0..CLEAN_UPS.1 {
            if !result.as_ref().is_err_and(&is_full) {
                break;
            }
            let before = std::mem::replace(&mut available, self.store.available_bytes());
            if number >= CLEAN_UPS.0 && available <= before && !has_deleted {
                break;
            }
            // The clean-up after this one gives back the space of what is deleted now.
            let before = std::mem::replace(&mut reaped, self.reap_all());
            has_deleted = reaped != before;
            result = attempt();
        }
        result
    }

    /// Removes what files without names left in the store, as far as there is no failure. Returns the number of operations that
    /// have done so since the store was opened, those of the housekeeper included. No lock is held.
    pub(crate) fn reap_all(&self) -> u64 {
        while matches!(self.reap_queued(), Ok(true)) {}
        self.table.reaped.load(SeqCst)
    }

    /// Removes a part of the content of files without names. Returns whether more is left; a failure leaves all of it.
    pub(crate) fn reap_queued(&self) -> Result<bool, Errno> {
        // Another thread may have taken the jobs.
        let _reaping = self.table.reaping.lock();
        let mut reap_jobs = std::mem::take(&mut self.table.chores.lock().reap_jobs);
        if reap_jobs.is_empty() {
            return Ok(false);
        }
        let reaped = self.reap_some(&reap_jobs);
        if let Ok(reaped) = &reaped {
            let mut reaped = reaped.iter();
            reap_jobs.retain_mut(|job| match reaped.next() {
                Some(Reaped::All) => false,
                Some(&Reaped::PagesFrom(page)) => {
                    job.stored.remove(page, u64::MAX);
                    true
                }
                Some(Reaped::Part) | None => true,
            });
        }
        self.table.reaped.fetch_add(1, SeqCst);
        let more = !reap_jobs.is_empty();
        self.table.chores.lock().reap_jobs.append(&mut reap_jobs);
        reaped.map(|_| more)
    }

    /// Deletes content of the first jobs in one operation, perhaps only a part. Returns what was deleted of each.
    fn reap_some(&self, reap_jobs: &[ReapJob]) -> Result<Vec<Reaped>, Errno> {
        self.store.throttle();
        let guard = self.store.enter();
        let (mut changes, mut reaped) = (Changes::new(), Vec::new());
        for job in reap_jobs {
            if changes.len() as u64 >= REAP_PAGES {
                break;
            }
            reaped.push(self.reap_one(job, &mut changes)?);
        }
        self.submit(&guard, changes)?;
        Ok(reaped)
    }

    /// Adds to `changes` the deletion of what the store holds of one inode, or of part of it.
    fn reap_one(&self, job: &ReapJob, changes: &mut Changes) -> Result<Reaped, Errno> {
        let ino = job.ino;
        let known = job.stored_exact || !job.stored.is_empty() && job.stored.len() <= REAP_PAGES;
        if known {
            let from = job.stored.start_of_last(REAP_PAGES);
            for (start, end) in job.stored.intersect(from, u64::MAX) {
                (start..end).for_each(|page| changes.delete(key::page_key(ino, page)));
            }
            if job.stored.len() > REAP_PAGES {
                return Ok(Reaped::PagesFrom(from));
            }
        } else {
            let mut budget = REAP_PAGES;
            self.scan(&key::page_prefix(ino), |raw, _| {
                changes.delete(raw.to_vec());
                budget -= 1;
                Ok(budget > 0)
            })?;
            if budget == 0 {
                return Ok(Reaped::Part);
            }
        }
        if job.xattrs {
            self.scan(&key::xattr_prefix(ino), |raw, _| {
                changes.delete(raw.to_vec());
                Ok(true)
            })?;
        }
        changes.delete(key::orphan_key(ino));
        Ok(Reaped::All)
    }

    pub(crate) fn do_mapped_shared(&self, node: &Node) {
        let Ok(inode) = self.inode(node) else { return };
        let mut state = inode.state.lock();
        let Some(cache) = &mut state.cache else {
            return;
        };
        if cache.map_shared() {
            self.unshare(inode.ino);
            self.watch_mapped(&inode);
        }
    }

    /// Has the file's content checked from time to time.
    pub(crate) fn watch_mapped(&self, inode: &Arc<Inode>) {
        self.mapped.lock().insert(inode.ino, Arc::downgrade(inode));
        self.table.chores.lock().mapped = true;
        self.table.wake.notify_one();
    }

    /// Finds what was written through mappings of any file. No lock is held.
    pub(crate) fn find_all_mapped_writes(&self) -> Result<(), Errno> {
        let mapped: Vec<_> = self
            .mapped
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        let mut result = Ok(());
        for inode in mapped {
            result = result.and(self.find_mapped_writes(&inode));
        }
        self.report_stored();
        result
    }

    /// Finds what was written through mappings of the file. No lock is held.
    pub(crate) fn find_mapped_writes(&self, inode: &Arc<Inode>) -> Result<(), Errno> {
        self.find_writes_to_pages(inode, 0, u64::MAX)
    }

    /// [`Volume::find_mapped_writes`] of the pages from `page` to `end`.
    fn find_writes_to_pages(
        &self,
        inode: &Arc<Inode>,
        mut page: u64,
        end: u64,
    ) -> Result<(), Errno> {
        let is_mapped = |state: &State| {
            let mapped = state.cache.as_ref().is_some_and(|cache| cache.is_mapped());
            mapped && state.home != MetaLocation::Orphan
        };
        while is_mapped(&inode.state.lock()) {
            self.begin_session()?;
            self.store.throttle();
            let guard = self.store.enter();
            let mut state = inode.state.lock();
            if !is_mapped(&state) {
                return Ok(());
            }
            let end = end.min(state.meta.size.div_ceil(PAGE));
            let last = end.min(page.saturating_add(COMPARE_PAGES));
            let before = state.meta.version;
            let mut compared = self.compare(inode, &mut state, page, last);
            let pages = state.cache.as_ref().map(|cache| cache.pages().changed());
            if pages.is_some_and(|changed| changed.intersect(page, last).next().is_some()) {
                // Pages that differ from what is stored are not compared. They may have changed once more.
                compared = compared.and_then(|()| self.reserve(state.meta_cost()));
                self.mark_dirty(inode, &mut state);
            }
            let has_changed = state.meta.version != before;
            drop((state, guard));
            self.report_stored();
            if has_changed {
                self.report(&[Arc::clone(inode)]);
            }
            compared?;
            if last >= end {
                return Ok(());
            }
            page = last;
        }
        Ok(())
    }

    /// Marks those of the pages dirty that differ from what is stored.
    fn compare(
        &self,
        inode: &Arc<Inode>,
        state: &mut State,
        start: u64,
        end: u64,
    ) -> Result<(), Errno> {
        let mut found = Vec::new();
        let compared = self.find_changes(inode, state, start..end, &mut found);
        let mut changed = false;
        // Also of a comparison that failed midway: dirty pages are passed over the next time.
        let marked = found.iter().try_for_each(|&page| {
            self.reserve(PAGE_COST + state.meta_cost())?;
            self.dirty_pages(state, page, page + 1);
            changed = true;
            Ok(())
        });
        if changed {
            state.touch(now());
            self.mark_dirty(inode, state);
        }
        marked.and(compared)
    }

    fn find_changes(
        &self,
        inode: &Inode,
        state: &State,
        pages: Range<u64>,
        found: &mut Vec<u64>,
    ) -> Result<(), Errno> {
        let Some(cache) = &state.cache else {
            return Ok(());
        };
        let size = state.meta.size;
        if let Some(inline) = &state.meta.inline {
            let stored = RangeSet::up_to(1);
            return cache.find_mapped_changes(pages, size, &stored, |_| Ok(Some(inline)), found);
        }
        let read_stored = |page| {
            let raw = self.get(&key::page_key(inode.ino, page))?;
            let decode = |raw: Bytes| record::decode_page(&raw, amino_schema::PAGE_SIZE);
            raw.map(decode).transpose().map_err(damaged)
        };
        cache.find_mapped_changes(pages, size, &state.stored, read_stored, found)
    }

    pub(crate) fn do_released(&self, node: &Node) {
        let Ok(inode) = self.inode(node) else { return };
        self.release_copies(&inode);
        let unused = |state: &State| {
            let cache = state.cache.as_ref();
            (
                cache.is_some_and(|cache| cache.is_unused()),
                cache.is_some_and(|cache| cache.is_mapped()),
            )
        };
        let Some(mut state) = self.lock_without_grant(&inode) else {
            return;
        };
        let (mut is_unused, mapped) = unused(&state);
        if is_unused && mapped {
            drop(state);
            // With no open file description left there is no mapping left: this sees the last of them. Failing for
            // want of space, the content stays in use.
            if self.find_mapped_writes(&inode).is_err() {
                return;
            }
            state = match self.lock_without_grant(&inode) {
                Some(state) => state,
                None => return,
            };
            // Another thread may have opened it in the meantime.
            (is_unused, _) = unused(&state);
        }
        if !is_unused {
            return;
        }
        if let Some(cache) = &mut state.cache {
            cache.release();
        }
        if mapped {
            self.forget_mapped(inode.ino);
        }
        if state.home == MetaLocation::Orphan && !state.gone {
            if state.dirty {
                state.doomed = true;
            } else if let Some(job) = ReapJob::of(inode.ino, &mut state) {
                self.table.queue_reap(job);
            }
            return;
        }
        drop(state);
        self.add_idle(&inode);
    }

    fn forget_mapped(&self, ino: u64) {
        let mut mapped = self.mapped.lock();
        mapped.remove(&ino);
        let none = mapped.is_empty();
        drop(mapped);
        if none {
            self.table.chores.lock().mapped = false;
        }
    }

    pub(crate) fn do_sync(&self, node: Option<&Node>) -> Result<(), Errno> {
        if self.is_snapshot {
            return Ok(());
        }
        let _operation = self.operation();
        let Some(node) = node else {
            self.find_all_mapped_writes()?;
            self.flush()?;
            return self.failures.check_all();
        };
        let inode = self.inode(node)?;
        if inode.state.lock().uncommitted {
            return Err(Errno::ESTALE);
        }
        self.find_mapped_writes(&inode)?;
        self.flush()?;
        self.failures.check(inode.ino)
    }

    pub(crate) fn do_sync_mapped(
        &self,
        node: &Node,
        range: Range<u64>,
        durable: bool,
    ) -> Result<(), Errno> {
        let _operation = self.operation();
        let inode = self.inode(node)?;
        if inode.state.lock().uncommitted {
            return Err(Errno::ESTALE);
        }
        self.find_writes_to_pages(&inode, range.start / PAGE, range.end.div_ceil(PAGE))?;
        if !durable {
            return Ok(());
        }
        self.flush()?;
        self.failures.check(inode.ino)
    }
}
