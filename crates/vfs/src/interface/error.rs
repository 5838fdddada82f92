//! Errors of file-system operations, and the wait for a lock that blocked an operation.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Errno;

/// The result of an operation of a file system. Functions that never meet a lock name [`Errno`] as their error.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why an operation failed.
///
/// `?` turns an [`Errno`] into it. There is no way back: code that answers with an errno must decide what happens to an
/// operation that was [`FsError::Blocked`].
///
/// ```
/// use goanna_vfs::{Errno, FsError, Result};
///
/// fn size(digits: &str) -> Result<u64> {
///     Ok(digits.parse().map_err(|_| Errno::EINVAL)?)
/// }
///
/// assert_eq!(size("x"), Err(FsError::Errno(Errno::EINVAL)));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub enum FsError {
    /// The traced program gets this errno.
    Errno(Errno),
    /// The operation needs a lock that another transaction holds. Nothing has changed; wait, then restart the operation.
    Blocked(Wait),
}

impl FsError {
    /// The errno; `None` for an operation that was blocked.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Errno(errno) => Some(*errno),
            Self::Blocked(_) => None,
        }
    }
}

impl From<Errno> for FsError {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl PartialEq<Errno> for FsError {
    fn eq(&self, errno: &Errno) -> bool {
        self.errno() == Some(*errno)
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => errno.fmt(f),
            Self::Blocked(_) => f.write_str("another transaction holds a lock"),
        }
    }
}

/// An errno is shown by its name alone, as [`Errno`] shows itself.
impl fmt::Debug for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => fmt::Debug::fmt(errno, f),
            Self::Blocked(wait) => f.debug_tuple("Blocked").field(wait).finish(),
        }
    }
}

impl std::error::Error for FsError {}

/// The wait for the lock that an operation met. Clones are the same wait; it compares equal to its clones only.
#[derive(Clone)]
pub struct Wait(Arc<dyn Blocker>);

/// Receives the outcome of a wait that blocks no thread.
pub type Done = Box<dyn FnOnce(Result<bool, Errno>) + Send>;

/// A lock that blocked one operation. Back ends with transactions implement it, so that callers can wait.
pub trait Blocker: Send + Sync {
    /// Implements [`Wait::wait`].
    fn wait(&self, waited: Duration, slice: Duration) -> Result<bool, Errno>;

    /// Implements [`Wait::notify`].
    fn notify(&self, done: Done);

    /// Implements [`Wait::limit`].
    fn limit(&self) -> Duration;

    /// Implements [`Wait::cancel`].
    fn cancel(&self);
}

impl Wait {
    /// The wait for the lock that `blocker` stands for.
    pub fn new(blocker: impl Blocker + 'static) -> Self {
        Self(Arc::new(blocker))
    }

    /// Blocks the calling thread, at most for `slice`, until the lock may be free. Returns true when the caller should restart the
    /// operation, false when the time has passed or the wait was cancelled. `waited` is how long the operation has waited so far, in all
    /// its attempts.
    ///
    /// EDEADLK when the lock will never be free without the end of the caller's transaction, ETIMEDOUT when the operation has
    /// waited longer than the limit.
    pub fn wait(&self, waited: Duration, slice: Duration) -> Result<bool, Errno> {
        self.0.wait(waited, slice)
    }

    /// Begins a wait that blocks no thread: calls `done` once, with the result of [`Wait::wait`]. No time limit ends this wait: the caller
    /// calls [`Wait::cancel`] when the operation has waited for [`Wait::limit`].
    ///
    /// `done` is called by the thread that ends the wait, which may hold locks of the file system, or by this one before `notify` returns.
    /// It must not block, nor use the file system.
    pub fn notify(&self, done: impl FnOnce(Result<bool, Errno>) + Send + 'static) {
        self.0.notify(Box::new(done));
    }

    /// How long an operation may wait, in all its attempts.
    pub fn limit(&self) -> Duration {
        self.0.limit()
    }

    /// Ends the wait: a [`Wait::wait`] or [`Wait::notify`] that has begun, or begins later, has the outcome false.
    pub fn cancel(&self) {
        self.0.cancel();
    }
}

/// Restarts `attempt` until no lock blocks it; the calling thread waits meanwhile. EDEADLK, ETIMEDOUT as [`Wait::wait`].
pub fn wait_for_locks<T>(mut attempt: impl FnMut() -> Result<T>) -> Result<T, Errno> {
    let since = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(FsError::Errno(errno)) => return Err(errno),
            Err(FsError::Blocked(lock)) => while !lock.wait(since.elapsed(), Duration::MAX)? {},
        }
    }
}

/// Maximum number of attempts of [`look_up_again`], if the file found is removed each time.
const LOOKUPS: usize = 8;

/// Repeats `attempt`, which looks a file up and then opens or reads it, when the file was removed between these steps (ESTALE). So a
/// program that opens a file always finds the old file or the new one while another program replaces it by rename(2), as on Linux.
pub fn look_up_again<T, E: PartialEq<Errno>>(
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    for _ in 1..LOOKUPS {
        match attempt() {
            Err(error) if error == Errno::ESTALE => {}
            outcome => return outcome,
        }
    }
    attempt()
}

impl PartialEq for Wait {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Wait {}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wait")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that opened a file while another one replaced it got ENOENT, although the name was there all the time.
    #[test]
    fn a_file_that_was_replaced_after_its_lookup_is_looked_up_again() {
        let mut lookups = 0;
        let mut open = |stale: usize| {
            lookups = 0;
            look_up_again(|| {
                lookups += 1;
                if lookups <= stale {
                    Err(FsError::from(Errno::ESTALE))
                } else {
                    Ok(lookups)
                }
            })
        };
        assert_eq!(open(0).unwrap(), 1);
        assert_eq!(open(3).unwrap(), 4);
        assert_eq!(open(LOOKUPS).unwrap_err(), Errno::ESTALE, "not forever");
    }
}
