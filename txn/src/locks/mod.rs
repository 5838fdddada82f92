//! The lock manager of transactions: strict two-phase locking with nesting (DESIGN 7).
//!
//! Owners form a forest: a nested transaction's owner has its parent's as parent. A lock is in the way of everybody but
//! its holder and the holder's descendants; so a child takes what its ancestors hold, and a parent waits for its child.
//! What a child holds becomes its parent's when it commits.
//!
//! Nothing waits while it takes a lock: [`Locks::acquire`] says what is in the way, the caller undoes its operation, lets go of
//! everything that others could need, and begins a wait ([`Locks::notify`], or [`Locks::wait`] for a thread that blocks). While a wait lasts, its
//! owner depends on those that hold what it waits for, and so do the owner's ancestors, which cannot end before it. When these
//! dependencies form a circle none of its transactions would ever continue, and the wait that completes it fails with [`Deadlock`].
//! Dependencies are derived from what is held at that moment and never stored, so there are no stale ones.
//!
//! A thread that waits in slices has a wait only within one. A circle is found all the same when the gaps are short
//! against the slices: by the thread that comes back when the others are there.
//!
//! There is no queue: of the waiting owners the one that comes back first gets the lock, and new readers get in while others read. A
//! stream of readers that overlap can so keep a writer waiting up to the caller's limit. The reverse, to stop new readers while a
//! writer waits, would let one transaction that stays open for minutes, and one writer behind it, stop everybody else's reads;
//! and a single operation comes back as another owner, so it could not keep a place in a queue.
//!
//! Lock order: the one mutex in here is a leaf; nothing else is taken while it is held. The thread that ends a wait reports it after it has
//! released the mutex.

mod state;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Condvar;
use state::{Done, State};
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
        if self.change(|state| state.acquire(owner, resource, mode)) {
            return Ok(());
        }
        Err(Conflict {
            owner,
            resource: resource.clone(),
            mode,
            cancelled: Arc::default(),
        })
    }

    /// Begins a wait until a conflict is gone. Calls `done` once, with true when another [`Locks::acquire`] is worth it, though
    /// somebody else may be first; with false when the wait was cancelled; with [`Deadlock`] as soon as the owner waits in a circle. The
    /// thread that ends the wait calls it, this one included, and holds no mutex of the lock manager then.
    ///
    /// The conflict of an owner that has ended, as that of a single operation, is waited for, too, and never in a circle; that of an owner
    /// that ends meanwhile is gone.
    pub fn notify(
        &self,
        conflict: &Conflict,
        done: impl FnOnce(Result<bool, Deadlock>) + Send + 'static,
    ) {
        self.begin_wait(conflict, Box::new(done));
    }

    /// Waits as [`Locks::notify`] describes it, at most for `slice`: false when the time has passed.
    pub fn wait(&self, conflict: &Conflict, slice: Duration) -> Result<bool, Deadlock> {
        let outcome = Arc::new(Outcome::default());
        let reported = Arc::clone(&outcome);
        let id = self.begin_wait(conflict, Box::new(move |outcome| reported.put(outcome)));
        if let Some(outcome) = outcome.get(Some(slice)) {
            return outcome;
        }
        if self.state.lock().remove_wait(id) {
            return Ok(false);
        }
        // Another thread is about to report it.
        outcome.get(None).unwrap_or(Ok(false))
    }

    fn begin_wait(&self, conflict: &Conflict, done: Done) -> u64 {
        self.change(|state| {
            let id = state.add_wait(conflict, done);
            state.settle(vec![id]);
            id
        })
    }

    /// Changes the state; then reports the waits that have ended by this.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        let completed = state.take_completed();
        drop(state);
        for wait in completed {
            wait.report();
        }
        result
    }

    /// Ends the waits for this conflict, those to come included.
    pub fn cancel(&self, conflict: &Conflict) {
        self.change(|state| {
            conflict.cancelled.store(true, Ordering::SeqCst);
            state.cancel(&conflict.cancelled);
        });
    }

    /// The owner has ended, and its descendants before it: its locks are released, and the waits for them looked at.
    pub fn end(&self, owner: Owner) {
        self.change(|state| state.end(owner));
    }

    /// A nested transaction has committed: its locks become its parent's, and its owner has ended. Of one without a
    /// parent they go.
    pub fn pass_to_parent(&self, owner: Owner) {
        self.change(|state| state.pass_to_parent(owner));
    }

    /// How many locks an owner has itself, those of its ancestors not included.
    pub fn counts(&self, owner: Owner) -> Counts {
        self.state.lock().counts(owner)
    }
}

/// The outcome of a wait, for the thread that blocks until it is there.
#[derive(Default)]
struct Outcome {
    reported: parking_lot::Mutex<Option<Result<bool, Deadlock>>>,
    is_there: Condvar,
}

impl Outcome {
    fn put(&self, outcome: Result<bool, Deadlock>) {
        *self.reported.lock() = Some(outcome);
        self.is_there.notify_one();
    }

    /// Waits for it, at most for `limit`.
    fn get(&self, limit: Option<Duration>) -> Option<Result<bool, Deadlock>> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut reported = self.reported.lock();
        loop {
            if let Some(outcome) = *reported {
                return Some(outcome);
            }
            match deadline {
                None => self.is_there.wait(&mut reported),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if self.is_there.wait_for(&mut reported, left).timed_out() {
                        return *reported;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
