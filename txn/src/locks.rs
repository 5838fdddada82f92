//! The lock manager of transactions: strict two-phase locking with nesting (DESIGN 7).
//!
//! Owners form a forest: a nested transaction's owner has its parent's as parent. A lock is in the way of everybody but
//! its holder and the holder's descendants; so a child takes what its ancestors hold, and a parent waits for its child.
//! What a child holds becomes its parent's when it commits.
//!
//! Nothing waits while it takes a lock: [`Locks::acquire`] says what is in the way, the caller undoes its operation, lets go of
//! everything that others could need, and calls [`Locks::wait`]. While a thread is in there its owner depends on those that hold
//! what it waits for, and so do the owner's ancestors, which cannot end before it. When these dependencies form a circle
//! none of its transactions would ever continue, and the thread that completes it gets [`Deadlock`]. Dependencies are derived from
//! what is held at that moment and never stored, so there are no stale ones.
//!
//! Threads that wait in slices are seen only while they are within one. A circle is found all the same when the gaps are short
//! against the slices: by the thread that comes back when the others are there.
//!
//! There is no queue: of the waiting owners the one that comes back first gets the lock, and new readers get in while others read. A
//! stream of readers that overlap can so keep a writer waiting up to the caller's limit. The reverse, to stop new readers while a
//! writer waits, would let one transaction that stays open for minutes, and one writer behind it, stop everybody else's reads;
//! and a single operation comes back as another owner, so it could not keep a place in a queue.
//!
//! Lock order: the one mutex in here is a leaf; nothing else is taken while it is held.

mod state;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use state::{State, Wait};
use sync::Mutex;

/// What is locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resource {
    /// An inode's metadata and content; of a directory its own attributes, not its entries.
    Inode(u64),
    /// The set of entries of a directory: its listing, and whether it is empty.
    Entries(u64),
    /// A name in a directory, whether there is an entry or not, so that there are no phantoms.
    Name(u64, Arc<[u8]>),
}

/// How a resource is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// To read. Compatible with itself only.
    Shared,
    /// To add or remove entries of one's own. Compatible with itself only.
    Intent,
    /// To change. Compatible with nothing.
    Exclusive,
}

/// A transaction, or a single operation, as the lock manager knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

/// A lock that was not to be had; [`Locks::wait`] takes it. Clones are the same conflict.
#[derive(Debug, Clone)]
pub struct Conflict {
    owner: Owner,
    resource: Resource,
    mode: Mode,
    /// [`Locks::cancel`] has been called.
    cancelled: Arc<AtomicBool>,
}

/// Owners wait for each other in a circle. One of them has to end without having got what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("transactions wait for each other in a circle")]
pub struct Deadlock;

/// How many resources an owner has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Those it only reads.
    pub shared: usize,
    /// The others: [`Mode::Exclusive`] and [`Mode::Intent`].
    pub exclusive: usize,
}

/// The locks of one file system.
#[derive(Default)]
pub struct Locks {
    state: Mutex<State>,
}

impl Locks {
    /// A new owner, which has no locks. It is there until [`Locks::end`] or [`Locks::pass_to_parent`].
    pub fn begin(&self, parent: Option<Owner>) -> Owner {
        self.state.lock().begin(parent)
    }

    /// Takes a lock, or says what is in the way; it never waits. The owner keeps it until it ends. Several modes of one
    /// owner on one resource add up: with Shared and Intent it keeps out both of others.
    ///
    /// Locks of the owner's ancestors are never in its way; those of its descendants are. An owner that has ended gets nothing.
    pub fn acquire(&self, owner: Owner, resource: &Resource, mode: Mode) -> Result<(), Conflict> {
        if self.state.lock().acquire(owner, resource, mode) {
            return Ok(());
        }
        Err(Conflict {
            owner,
            resource: resource.clone(),
            mode,
            cancelled: Arc::default(),
        })
    }

    /// Waits until a conflict is gone, at most for `slice`. True says that another [`Locks::acquire`] is worth it,
    /// though somebody else may be first; false that time has passed, or that the wait was cancelled. The conflict of an owner that has ended, as
    /// that of a single operation, is waited for, too; that of an owner that ends meanwhile is gone.
    ///
    /// Fails with [`Deadlock`] as soon as the owner waits in a circle. One that has ended never does.
    pub fn wait(&self, conflict: &Conflict, slice: Duration) -> Result<bool, Deadlock> {
        let began = Instant::now();
        let mut state = self.state.lock();
        let had_ended = !state.is_open(conflict.owner);
        let wait = Arc::new(Wait::new(conflict));
        state.add_wait(&wait);
        let mut in_time = true;
        let outcome = loop {
            let ended = !had_ended && !state.is_open(conflict.owner);
            if ended || !state.is_blocked(&wait) {
                break Ok(true);
            }
            if state.is_in_circle(&wait) {
                break Err(Deadlock);
            }
            if !in_time || conflict.cancelled.load(Ordering::SeqCst) {
                break Ok(false);
            }
            let left = slice.saturating_sub(began.elapsed());
            in_time = !wait.wake.wait_for(&mut state, left).timed_out();
        };
        state.remove_wait(&wait);
        outcome
    }

    /// Ends the waits for this conflict, those to come included.
    pub fn cancel(&self, conflict: &Conflict) {
        // The mutex keeps a wait from missing it between its look at the flag and its sleep.
        let state = self.state.lock();
        conflict.cancelled.store(true, Ordering::SeqCst);
        state.wake_owner(conflict.owner);
    }

    /// The owner has ended, and its descendants before it: its locks are released, and the owners that wait for them look again.
    pub fn end(&self, owner: Owner) {
        self.state.lock().end(owner);
    }

    /// A nested transaction has committed: its locks become its parent's, and its owner has ended. Of one without a
    /// parent they go.
    pub fn pass_to_parent(&self, owner: Owner) {
        self.state.lock().pass_to_parent(owner);
    }

    /// How many locks an owner has itself, those of its ancestors not included.
    pub fn counts(&self, owner: Owner) -> Counts {
        self.state.lock().counts(owner)
    }
}

#[cfg(test)]
mod tests;
