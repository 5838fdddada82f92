//! The lock manager of transactions: strict two-phase locking with nesting.
//!
//! Owners form a forest: the owner of a nested transaction is a child of its parent's owner. A lock blocks all owners but
//! its holder and the holder's descendants; so a child can lock resources that its ancestors hold, and a parent waits for its child.
//! When a child commits, its locks become its parent's.
//!
//! [`Locks::acquire`] never waits: it returns the conflict. The caller undoes its operation, releases everything that other operations
//! could need, and begins a wait ([`Locks::notify`], or [`Locks::wait`] for a thread that blocks). While a wait lasts, its owner depends on
//! the owners that hold the lock, and so do the owner's ancestors, which cannot end before it. When these dependencies form a cycle, none
//! of its transactions could continue, and the wait that completes the cycle fails with [`Deadlock`]. Dependencies are derived from the
//! locks held at that moment and never stored, so there are no stale ones.
//!
//! A thread that waits in slices has a wait only during a slice. If the gaps between slices are short, a deadlock is found nevertheless: by
//! the thread that returns while the others wait.
//!
//! There is no queue: the first waiting owner that returns gets the lock, and new readers are admitted while others read. So a
//! stream of overlapping readers can delay a writer up to the caller's limit. If a waiting writer stopped new readers instead, one
//! transaction that stays open for minutes, and one writer that waits for it, would stop all other reads. Moreover, a single operation has
//! a new owner after each wait, so it could not keep a place in a queue.
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

/// An object that can be locked.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resource {
    /// An inode's metadata and content. For a directory, its own attributes, but not its entries.
    Inode(u64),
    /// The set of entries of a directory: its listing, and whether it is empty.
    Entries(u64),
    /// A name in a directory, whether an entry exists or not, so that there are no phantoms.
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

/// A transaction, or a single operation, in the lock manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(u64);

/// A conflict: a lock that is not free. Pass it to [`Locks::wait`]. Clones are the same conflict.
#[derive(Debug, Clone)]
pub struct Conflict {
    owner: Owner,
    resource: Resource,
    mode: Mode,
    /// [`Locks::cancel`] has been called.
    cancelled: Arc<AtomicBool>,
}

/// A deadlock: owners wait for each other. One of them has to end without the lock that it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("deadlock: transactions wait for each other's locks")]
pub struct Deadlock;

/// Numbers of the resources that an owner has locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Resources that it only reads.
    pub shared: usize,
    /// The other resources: [`Mode::Exclusive`] and [`Mode::Intent`].
    pub exclusive: usize,
}

/// The locks of one file system.
#[derive(Default)]
pub struct Locks {
    state: Mutex<State>,
}

impl Locks {
    /// A new owner, without locks. It exists until [`Locks::end`] or [`Locks::pass_to_parent`].
    pub fn begin(&self, parent: Option<Owner>) -> Owner {
        self.state.lock().begin(parent)
    }

    /// Takes a lock, or returns the conflict; it never waits. The owner keeps the lock until it ends. Several modes of one
    /// owner on one resource add up: Shared and Intent together exclude both modes of other owners.
    ///
    /// Locks of the owner's ancestors do not conflict; those of its descendants do. An owner that has ended gets no lock.
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

    /// Begins a wait for the end of a conflict. Calls `done` once: with true when the caller should repeat [`Locks::acquire`], although
    /// another owner may be first; with false when the wait was cancelled; with [`Deadlock`] as soon as the owner waits in a cycle. The
    /// thread that ends the wait, which may be this one, calls it, and holds no mutex of the lock manager then.
    ///
    /// An owner that has ended, such as that of a single operation, can wait, too, and never in a cycle. If the owner ends during the
    /// wait, the wait is over.
    pub fn notify(
        &self,
        conflict: &Conflict,
        done: impl FnOnce(Result<bool, Deadlock>) + Send + 'static,
    ) {
        self.begin_wait(conflict, Box::new(done));
    }

    /// Waits for the outcome that [`Locks::notify`] describes, at most for `slice`: false when the time has passed.
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

    /// Changes the state; then reports the waits that this has ended.
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

    /// Ends the waits for this conflict, and all later ones.
    pub fn cancel(&self, conflict: &Conflict) {
        self.change(|state| {
            conflict.cancelled.store(true, Ordering::SeqCst);
            state.cancel(&conflict.cancelled);
        });
    }

    /// Ends an owner: releases its locks, and checks the waits for them. Its descendants must have ended before.
    pub fn end(&self, owner: Owner) {
        self.change(|state| state.end(owner));
    }

    /// Ends the owner of a nested transaction that has committed: its locks become its parent's. Without a parent they are released.
    pub fn pass_to_parent(&self, owner: Owner) {
        self.change(|state| state.pass_to_parent(owner));
    }

    /// How many locks an owner has itself, those of its ancestors not included.
    pub fn counts(&self, owner: Owner) -> Counts {
        self.state.lock().counts(owner)
    }
}

/// The outcome of a wait, for the thread that blocks until it is known.
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

    /// Waits for the outcome, at most for `limit`.
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
