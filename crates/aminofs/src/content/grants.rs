//! Grants: a process writes to an open file without the monitor, while no operation runs (docs/decisions/0121).
//!
//! A grant allows one process to write to a file's cache object between two offsets. The space for that range is reserved. The process records in
//! its [`WriteArea`] where it writes. The next operation of any program first ends all grants: the written range becomes part of the
//! file's state, as after one write. So an operation sees every write that was made before it, and so does the committer when it collects changes. No grant
//! exists while one of them runs.
//!
//! # Order
//!
//! An operation first counts itself and then looks for grants. A thread that makes a grant first publishes it and then looks for operations. At least one
//! of them sees the other. In the lock order [`Grants::held`] comes between the store's operation barrier and the state of an inode.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use amino_schema::{INLINE_MAX, MetaFlags, Timestamp};
use amino_txn::Actor;
use goanna_sys::stub::writes::{Moment, WriteArea, Written};
use goanna_vfs::{Caller, GRANTED_GROWTH, Node};
use nix::sys::stat::{FileStat, fstat};
use parking_lot::{Mutex, MutexGuard};

use super::cost::PAGE_COST;
use super::write::{MAX_FILE, pages_of};
use crate::inode::{Inode, MetaLocation, PAGE, State, now};
use crate::{AminoFs, Durability, Volume};

/// A grant does not cross a multiple of this, bytes.
const WINDOW: u64 = 1 << 20;

/// How far behind the end of a small file a grant reaches, bytes. The space for it is reserved, and returned if it is not used.
const GROWTH_MIN: u64 = 64 << 10;

/// How long an operation waits for a process that is in the middle of a write. A write of at most a MiB that takes longer waits for a page of the program's
/// buffer.
const WRITE_WAIT_MAX: Duration = Duration::from_millis(20);

/// The grants of a volume.
#[derive(Default)]
pub(crate) struct Grants {
    held: Mutex<Vec<Grant>>,
    /// How many are held.
    count: AtomicUsize,
    /// Operations in progress.
    operations: AtomicUsize,
}

struct Grant {
    area: Arc<WriteArea>,
    inode: Arc<Inode>,
    /// The inode number of the cache object.
    object: u64,
    offsets: Range<u64>,
    /// Bytes of log space that are reserved for the grant.
    reserved: usize,
    actor: Actor,
    moment: Moment,
    /// When the grant was made. All writes under it came later.
    since: Timestamp,
    /// An operation has waited for [`WRITE_WAIT_MAX`], and the process was still in its write.
    is_late: bool,
}

/// While this exists there are no grants.
pub(crate) struct Operation<'a>(&'a Volume);

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        self.0.grants.operations.fetch_sub(1, SeqCst);
    }
}

impl Volume {
    /// Begins an operation. The caller holds no lock.
    pub(crate) fn operation(&self) -> Operation<'_> {
        self.grants.operations.fetch_add(1, SeqCst);
        let operation = Operation(self);
        self.end_grants();
        operation
    }

    /// Ends all grants. The caller holds no lock.
    pub(crate) fn end_grants(&self) {
        self.end_some_grants(|_| true);
    }

    /// Ends the grants of a file and locks its state. `None` if a process does not finish its write. The caller holds no lock. A file that
    /// no program has open gets no new grants, so housekeeping of such files needs no [`Volume::operation`].
    pub(crate) fn lock_without_grant<'i>(
        &self,
        inode: &'i Arc<Inode>,
    ) -> Option<MutexGuard<'i, State>> {
        // As long as the file is open, another thread may make a grant in between.
        for _ in 0..3 {
            self.end_some_grants(|grant| Arc::ptr_eq(&grant.inode, inode));
            let state = inode.state.lock();
            if !state.is_granted {
                return Some(state);
            }
        }
        None
    }

    fn end_some_grants(&self, which: impl Fn(&Grant) -> bool) {
        if self.grants.count.load(SeqCst) > 0 {
            let _guard = self.store.enter();
            self.end_grants_inside(which);
        }
    }

    /// Ends all grants before the committer collects changes. No operation is in progress.
    pub(crate) fn end_grants_to_collect(&self) {
        self.end_grants_inside(|_| true);
    }

    /// The caller is inside the store's operation barrier.
    fn end_grants_inside(&self, which: impl Fn(&Grant) -> bool) {
        if self.grants.count.load(SeqCst) == 0 {
            return;
        }
        let mut held = self.grants.held.lock();
        for grant in held.iter().filter(|grant| which(grant)) {
            grant.area.revoke(grant.object);
        }
        held.retain_mut(|grant| {
            if !which(grant) {
                return true;
            }
            let is_over = if grant.is_late {
                !grant.area.is_busy()
            } else {
                becomes_idle(&grant.area)
            };
            let mut state = grant.inode.state.lock();
            let needed = self.take_over(grant, &mut state);
            if !grant.is_late {
                self.release_reserved(grant.reserved.saturating_sub(needed));
            }
            state.is_granted = !is_over;
            // The next operation checks again.
            grant.is_late = !is_over;
            !is_over
        });
        self.grants.count.store(held.len(), SeqCst);
    }

    /// Makes the range that was written under a grant part of the file's state. Returns how much of the reservation that takes.
    fn take_over(&self, grant: &Grant, state: &mut State) -> usize {
        let written = grant.area.written(grant.object);
        grant
            .area
            .record_use(grant.moment, written != Written::Nothing);
        if written == Written::Nothing {
            return 0;
        }
        if !grant.is_late
            && let Some(before) = grant.area.size_before_end(grant.object)
            && let Some(cache) = &state.cache
            && self
                .object(state, grant.object)
                .is_some_and(|found| u64::try_from(found.st_size).unwrap_or(0) > before)
        {
            // The process was killed in the middle of its write. If this fails, a part of the write stays.
            let _ = cache.resize(before.max(state.meta.size));
        }
        let Some(found) = self.object(state, grant.object) else {
            return 0;
        };
        // All of it where it is not known how many pages have changed.
        let mut needed = grant.reserved;
        let mut size = u64::try_from(found.st_size).unwrap_or(0);
        size = size.clamp(state.meta.size, MAX_FILE);
        match written {
            Written::Within(range) => {
                // The process may have recorded anything. Space was reserved only for the offsets of the grant.
                size = size.min(state.meta.size.max(grant.offsets.end));
                let start = range.start.max(grant.offsets.start);
                let end = range.end.min(grant.offsets.end).min(size);
                let (first, last) = pages_of(start, end.saturating_sub(start));
                let pages = state
                    .cache
                    .as_ref()
                    .map_or(0, |cache| cache.pages().changed().missing(first, last));
                // The first page, too, which may have been inline before.
                needed = (pages as usize + 1).saturating_mul(PAGE_COST) + state.meta_cost();
                if grant.is_late {
                    // The reservation has gone with a flush point since. Without space the changes stay in memory.
                    let _ = self.reserve_removal(needed);
                }
                self.dirty_pages(state, first, last);
            }
            _ => {
                if let Some(cache) = &mut state.cache
                    && cache.map_shared()
                {
                    self.watch_mapped(&grant.inode);
                }
            }
        }
        state.meta.size = size;
        // The kernel stamps files by a coarse clock, which may be some milliseconds behind that of operations.
        let stamped = Timestamp {
            secs: found.st_mtime,
            nanos: u32::try_from(found.st_mtime_nsec).unwrap_or(0),
        };
        state.touch(stamped.max(grant.since));
        self.store.note_author(grant.actor);
        self.mark_dirty(&grant.inode, state);
        needed
    }

    /// The result of fstat(2) for the cache object with this inode number, if it still holds the content.
    fn object(&self, state: &State, ino: u64) -> Option<FileStat> {
        let cache = state.cache.as_ref()?;
        let handle = cache.handle();
        (handle.identity().1 == ino).then(|| handle.with(|fd| fstat(fd)).ok())?
    }

    /// See [`goanna_vfs::SharedAttributes::grant_writes`].
    pub(crate) fn do_grant_writes(
        &self,
        caller: &Caller,
        node: &Node,
        (moment, offset): (Moment, Option<u64>),
        area: &Arc<WriteArea>,
    ) -> Option<()> {
        let inode = node.pin_arc::<Inode>()?;
        // A write under a grant is not reported to subscribers.
        let is_alone = || self.grants.operations.load(SeqCst) == 0 && !self.subscribers.any();
        if self.is_snapshot || caller.txn.is_some() || !is_alone() {
            return None;
        }
        let _guard = self.store.enter();
        // No transaction begins until the grant is published.
        let _closing = self.lock_map();
        let mut held = self.grants.held.lock();
        if self.transactions.count.load(SeqCst) > 0 {
            return None;
        }
        let mut state = inode.state.lock();
        let object = state.object_to_grant()?;
        let slot = WriteArea::slot_of(object);
        let is_taken = |grant: &Grant| {
            grant.object == object
                || Arc::ptr_eq(&grant.area, area) && WriteArea::slot_of(grant.object) == slot
        };
        if held.iter().any(is_taken) {
            return None;
        }
        let offsets = window(offset.unwrap_or(state.meta.size), state.meta.size);
        let (first, last) = pages_of(offsets.start, offsets.end - offsets.start);
        let changed = state.cache.as_ref()?.pages().changed();
        // Content that was inline until now is stored as a page, too.
        let was_inline = state.meta.size <= INLINE_MAX as u64;
        let pages = changed.missing(first, last) + u64::from(was_inline);
        let pages = usize::try_from(pages).ok()?.checked_mul(PAGE_COST)?;
        let reserved = pages + state.meta_cost();
        self.reserve(reserved).ok()?;
        self.unshare(inode.ino);
        state.is_granted = true;
        let stat = inode.attr(&state, self.dev).to_stat();
        drop(state);
        area.grant(object, offsets.clone(), &stat);
        held.push(Grant {
            area: Arc::clone(area),
            inode,
            object,
            offsets,
            reserved,
            actor: Actor {
                uid: caller.uid,
                pid: caller.pid.unsigned_abs(),
            },
            moment,
            since: now(),
            is_late: false,
        });
        self.grants.count.store(held.len(), SeqCst);
        if is_alone() {
            return Some(());
        }
        // The process still waits in its call, so it has not written under the grant.
        area.revoke(object);
        if let Some(grant) = held.pop() {
            grant.inode.state.lock().is_granted = false;
            self.release_reserved(grant.reserved);
        }
        self.grants.count.store(held.len(), SeqCst);
        None
    }
}

impl AminoFs {
    /// Whether this durability level allows grants.
    pub(crate) fn grants_writes(&self) -> bool {
        self.durability != Durability::Acid
    }
}

impl State {
    /// The inode number of the cache object, if a process may get a grant for it: a write changes nothing but content, size and times, and the object, which
    /// is in memory, is the file's only content.
    fn object_to_grant(&self) -> Option<u64> {
        let cache = self.cache.as_ref()?;
        let is_plain = self.meta.mode & (libc::S_ISUID | libc::S_ISGID) == 0
            && !self.meta.flags.contains(MetaFlags::HAS_XATTR)
            && self.meta.flags.file_flags() == 0;
        let is_usual = self.copy.is_none()
            && !self.gone
            && !self.uncommitted
            && !self.doomed
            && self.home != MetaLocation::Orphan;
        let is_in_memory = !cache.is_on_disk() && !cache.is_mapped() && cache.is_in_use();
        (is_plain && is_usual && is_in_memory).then(|| cache.handle().identity().1)
    }
}

/// The offsets of a grant for writes from `offset` on, in a file of `size` bytes.
fn window(offset: u64, size: u64) -> Range<u64> {
    let start = offset - offset % WINDOW;
    let growth = size
        .next_multiple_of(PAGE)
        .clamp(GROWTH_MIN, GRANTED_GROWTH);
    let end = size.max(offset).next_multiple_of(PAGE) + growth;
    start..end.min(start + WINDOW)
}

/// Waits until the process of the area is in no write; false if [`WRITE_WAIT_MAX`] is over before.
fn becomes_idle(area: &WriteArea) -> bool {
    let mut attempts = 0;
    let mut begun = None;
    while area.is_busy() {
        attempts += 1;
        if attempts < 1000 {
            std::hint::spin_loop();
            continue;
        }
        if begun.get_or_insert_with(Instant::now).elapsed() > WRITE_WAIT_MAX {
            return false;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_has_a_bound() {
        assert_eq!(window(0, 0), 0..GROWTH_MIN);
        assert_eq!(window(5000, 5000), 0..PAGE + GROWTH_MIN);
        assert_eq!(window(100_000, 100_000), 0..2 * 7 * PAGE);
        assert_eq!(window(WINDOW - 1, WINDOW - 1), 0..WINDOW);
        assert_eq!(window(WINDOW, WINDOW), WINDOW..WINDOW + GRANTED_GROWTH);
        assert_eq!(window(WINDOW + 1, 1 << 40), WINDOW..2 * WINDOW);
    }
}
