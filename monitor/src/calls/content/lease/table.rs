//! The leases of cache objects.
//!
//! A lease for reading is the kernel's, on the cache object: the descriptor of a program is one of it. A lease for writing cannot be, because the monitor itself has the object open. So this table has it,
//! and does what fs/locks.c of Linux does: an open that conflicts with it begins to *break* it. The owner of the open file description gets the signal, and after
//! `lease-break-time` the lease ends by itself. The table has those for reading, too, as far as a writer that waits for one must be known.
//!
//! There is one table for all runs of this process: they have stores in common. Its lock is a leaf in the lock order.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use goanna_sys::descriptor_tables::{OfThread, have_common_description};
use goanna_sys::lease::{self, Owner};
use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::procfs;
use goanna_vfs::Errno;
use parking_lot::{Condvar, Mutex};

/// The interval at which a waiting open looks whether the descriptors of a lease have been closed, which comes to no handler.
const POLL: Duration = Duration::from_millis(20);

static TABLE: Mutex<Vec<Lease>> = Mutex::new(Vec::new());
/// Signalled when a lease ends.
static ENDED: Condvar = Condvar::new();
static IN_USE: AtomicBool = AtomicBool::new(false);

/// What a lease allows its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Others may read the file: the kernel has the lease.
    OfKernel,
    /// Others may read the file. What is left of a lease for writing that the holder did not give back in time.
    Read,
    /// Nobody else has the file open.
    Write,
}

struct Lease {
    /// The file's inode number, which others may have, too.
    ino: u64,
    handle: Weak<ObjectHandle>,
    /// The descriptor by which it was set: process ID and number.
    holder: OfThread,
    /// The owner of the description when it was set.
    owner: Option<Owner>,
    kind: Kind,
    breaking: Option<Breaking>,
}

/// Another open waits until the lease is only this.
struct Breaking {
    /// `F_RDLCK` or `F_UNLCK`.
    to: i32,
    /// When the wait ends.
    until: Option<Instant>,
}

/// Whether a program has a lease of a cache object, or asks for one.
pub fn in_use() -> bool {
    IN_USE.load(Ordering::SeqCst)
}

/// Removes the leases whose descriptors are closed. Called regularly.
pub fn sweep() {
    if !in_use() {
        return;
    }
    let mut table = TABLE.lock();
    table.retain_mut(Lease::is_held);
    if table.is_empty() {
        IN_USE.store(false, Ordering::SeqCst);
    }
}

/// Whether a file with this inode number may have a lease of a cache object.
pub fn may_have(ino: u64) -> bool {
    in_use() && TABLE.lock().iter().any(|lease| lease.ino == ino)
}

/// A program asks for one. [`sweep`] may end this before it has one.
pub fn set_in_use() {
    IN_USE.store(true, Ordering::SeqCst);
}

impl Lease {
    /// What fcntl(2) with `F_GETLEASE` returns.
    fn target(&self) -> i32 {
        match (&self.breaking, self.kind) {
            (Some(breaking), _) => breaking.to,
            (None, Kind::Write) => libc::F_WRLCK,
            (None, Kind::Read | Kind::OfKernel) => libc::F_RDLCK,
        }
    }

    /// Ends what its time is over of. Whether there still is a lease: a description of the holder.
    fn is_held(&mut self) -> bool {
        let Some(handle) = self.handle.upgrade() else {
            return false;
        };
        if let Some(Breaking {
            to,
            until: Some(until),
        }) = self.breaking
            && until <= Instant::now()
        {
            if to == libc::F_UNLCK {
                return false;
            }
            (self.kind, self.breaking) = (Kind::Read, None);
        }
        let (process, fd) = self.holder;
        let is_open = || procfs::fd_identity(process, fd) == Ok(handle.identity());
        !handle.sole_opener() && (self.kind != Kind::Read || is_open())
    }

    /// Whether another open, for writing or not, must wait for its end.
    fn conflicts(&self, writes: bool) -> bool {
        writes || self.kind == Kind::Write
    }

    /// Begins to break the lease for an open that conflicts with it. False if there is no such lease any more.
    fn begin_to_break(&mut self, writes: bool) -> bool {
        if self.kind == Kind::OfKernel {
            // The kernel breaks the lease if it is still there.
            let flags = libc::O_WRONLY | libc::O_NONBLOCK;
            let attempt = || self.handle.upgrade()?.open(flags).err();
            let is_there = attempt() == Some(Errno::EAGAIN);
            if is_there {
                let (to, until) = (libc::F_UNLCK, None);
                self.breaking = Some(Breaking { to, until });
            }
            return is_there;
        }
        let to = if writes { libc::F_UNLCK } else { libc::F_RDLCK };
        let before = self.breaking.as_ref();
        if before.is_none_or(|before| writes && before.to != to) {
            let until = lease::break_time().map(|secs| Instant::now() + Duration::from_secs(secs));
            self.breaking = Some(Breaking { to, until });
            lease::signal_owner(self.holder, self.owner);
        }
        true
    }

    fn is_on(&self, object: (u64, u64)) -> bool {
        let handle = self.handle.upgrade();
        handle.is_some_and(|handle| handle.identity() == object)
    }

    /// Whether `by` is a descriptor of it. Where that of the holder is closed, there may be copies of it: nobody else has a file with a lease for writing open.
    fn is_of(&self, by: OfThread) -> bool {
        let is_exclusive = self.kind == Kind::Write;
        self.holder == by || have_common_description(self.holder, by).unwrap_or(is_exclusive)
    }
}

/// Whether an open of a cache object, for writing or not, may have to wait for a lease: [`is_in_the_way`] tells, when nothing of the monitor counts as an open of the object.
pub fn may_be_in_the_way(object: (u64, u64), writes: bool) -> bool {
    let is_one = |lease: &Lease| lease.is_on(object) && lease.conflicts(writes);
    TABLE.lock().iter().any(is_one)
}

/// Whether an open of a cache object, for writing or not, must wait for a lease of another open. If so, the holder has got a signal.
pub fn is_in_the_way(object: (u64, u64), writes: bool) -> bool {
    let mut is_one = false;
    TABLE.lock().retain_mut(|lease| {
        if !lease.is_on(object) {
            return true;
        }
        let is_held = lease.is_held();
        if !is_held || !lease.conflicts(writes) {
            return is_held;
        }
        // The holder of each lease gets a signal.
        let is_there = lease.begin_to_break(writes);
        is_one |= is_there;
        is_there
    });
    is_one
}

/// Waits until a lease may have ended.
pub fn wait() {
    let mut table = TABLE.lock();
    ENDED.wait_for(&mut table, POLL);
}

/// A request for a lease of the cache object `handle`, or about one, by a descriptor of it.
pub struct Request<'a> {
    /// The file's inode number.
    pub ino: u64,
    pub handle: &'a Arc<ObjectHandle>,
    /// Process ID and number.
    pub by: OfThread,
    /// The monitor's copy of the descriptor.
    pub description: BorrowedFd<'a>,
}

impl Request<'_> {
    fn find(&self, table: &mut Vec<Lease>) -> Option<usize> {
        let object = self.handle.identity();
        // A description that was opened since has no owner, and perhaps the number of one with a lease that the kernel has ended.
        let has_owner = matches!(Owner::of(self.description), Ok(Some(_)));
        let find = |is_of_kernel: bool| {
            table.iter().position(|lease| {
                let is_such = (lease.kind == Kind::OfKernel) == is_of_kernel;
                is_such && lease.is_on(object) && lease.is_of(self.by)
            })
        };
        let own = find(false).or_else(|| find(true).filter(|_| has_owner))?;
        let lease = table.get_mut(own)?;
        if lease.is_held() {
            lease.holder = self.by;
            return Some(own);
        }
        table.swap_remove(own);
        None
    }

    /// The lease that the descriptor has, or is to have when it has been broken. `None` if the kernel knows.
    pub fn target(&self) -> Option<i32> {
        let mut table = TABLE.lock();
        let own = self.find(&mut table)?;
        let lease = table
            .get(own)
            .filter(|lease| lease.kind != Kind::OfKernel)?;
        Some(lease.target())
    }

    /// Ends the lease. Returns whether it was one that the kernel does not know.
    pub fn unlock(&self) -> bool {
        let mut table = TABLE.lock();
        let Some(own) = self.find(&mut table) else {
            return false;
        };
        let lease = table.swap_remove(own);
        ENDED.notify_all();
        lease.kind != Kind::OfKernel
    }

    /// A lease for reading, which the kernel then grants. EAGAIN if another open waits for the end of the present one.
    pub fn share(&self) -> Result<(), Errno> {
        let mut table = TABLE.lock();
        match self.find(&mut table) {
            Some(own)
                if table
                    .get(own)
                    .is_some_and(|it| it.target() == libc::F_UNLCK) =>
            {
                return Err(Errno::EAGAIN);
            }
            Some(own) => drop(table.swap_remove(own)),
            None => {}
        }
        table.push(self.lease(Kind::OfKernel, None));
        set_in_use();
        ENDED.notify_all();
        Ok(())
    }

    /// A lease for writing, if `is_alone` finds no other open. EAGAIN if it does, or if another open waits for the end of the present lease.
    pub fn exclude(
        &self,
        owner: Option<Owner>,
        is_alone: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        let mut table = TABLE.lock();
        // What is shared from here on is withdrawn, and what was shared before is found.
        set_in_use();
        let own = self.find(&mut table);
        let is_broken = |own: usize| table.get(own).is_some_and(|it| it.breaking.is_some());
        if own.is_some_and(is_broken) || !is_alone() {
            return Err(Errno::EAGAIN);
        }
        if let Some(own) = own {
            table.swap_remove(own);
        }
        table.push(self.lease(Kind::Write, owner));
        Ok(())
    }

    fn lease(&self, kind: Kind, owner: Option<Owner>) -> Lease {
        Lease {
            ino: self.ino,
            handle: Arc::downgrade(self.handle),
            holder: self.by,
            owner,
            kind,
            breaking: None,
        }
    }
}
