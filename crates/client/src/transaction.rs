//! A transaction as a value: dropping it aborts. Retries after conflicts are here, too.

use std::fmt::Display;
use std::marker::PhantomData;
use std::thread;
use std::time::Duration;

use crate::{Error, Id, Target};

/// The longest pause before the first retry; it doubles with each, up to [`PAUSE_MAX_MS`].
const PAUSE_MS: u64 = 5;
const PAUSE_MAX_MS: u64 = 640;

/// A transaction of this thread that is aborted when it is dropped, unless it was committed.
///
/// It belongs to its thread, as the transaction does. Transactions inside it that have not ended are aborted with it.
#[derive(Debug)]
#[must_use = "a transaction that is dropped is aborted"]
pub struct Transaction {
    id: Id,
    open: bool,
    /// Makes the type neither Send nor Sync.
    thread: PhantomData<*const ()>,
}

impl Transaction {
    /// Begins a transaction in this thread. Errors: see [`Target::begin`].
    pub fn begin() -> Result<Self, Error> {
        Ok(Self {
            id: Target::Me.begin()?,
            open: true,
            thread: PhantomData,
        })
    }

    /// Its identifier, by which other processes attach.
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Commits the transaction. After an error nothing was committed and the transaction is aborted.
    ///
    /// Errors: see [`Target::commit`]; [`Error::NotInnermost`] when a transaction that was begun inside has not ended:
    /// committing that one instead would lose this one silently.
    pub fn commit(mut self) -> Result<(), Error> {
        self.try_commit()
    }

    /// Aborts the transaction, and those inside it. [`Error::NoTransaction`] when it ended already.
    pub fn abort(mut self) -> Result<(), Error> {
        self.open = false;
        self.end()
    }

    fn try_commit(&mut self) -> Result<(), Error> {
        let stack = Target::Me.status()?.current;
        match stack.iter().position(|open| open.id == self.id) {
            None => return Err(Error::NoTransaction),
            Some(at) if at + 1 < stack.len() => return Err(Error::NotInnermost),
            Some(_) => {}
        }
        Target::Me.commit()?;
        self.open = false;
        Ok(())
    }

    /// Whether an operation in it failed because of locks of other transactions.
    fn met_conflict(&self) -> bool {
        let stack = Target::Me
            .status()
            .map_or_else(|_| Vec::new(), |s| s.current);
        let from = stack.iter().position(|open| open.id == self.id);
        from.is_some_and(|from| stack.iter().skip(from).any(|open| open.conflicts > 0))
    }

    /// Aborts the innermost transactions, one after the other, up to this one.
    fn end(&self) -> Result<(), Error> {
        let stack = Target::Me.status()?.current;
        let from = stack.iter().position(|open| open.id == self.id);
        let levels = from.map_or(0, |from| stack.len() - from);
        if levels == 0 {
            return Err(Error::NoTransaction);
        }
        (0..levels).try_for_each(|_| Target::Me.abort())
    }
}

impl Drop for Transaction {
    /// An error cannot be returned here; [`abort`](Transaction::abort) returns it.
    fn drop(&mut self) {
        if self.open {
            let _ = self.end();
        }
    }
}

/// Runs `work` in a transaction and commits. When `work` or the commit fails because of locks of other transactions, aborts
/// and tries again, up to `retries` times, after a short random pause. Aborts when `work` panics.
///
/// Errors: the error of `work`; [`Error`] as of [`Target::begin`] and [`Transaction::commit`], in which case nothing is
/// committed; [`Error::NotAborted`].
pub fn transaction<T, E: From<Error> + Display>(
    retries: u32,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut pause_ms = PAUSE_MS;
    let mut left = retries;
    loop {
        let failure = match attempt(&mut work) {
            Ok(value) => return Ok(value),
            Err(failure) => failure,
        };
        if left == 0 || !failure.conflict {
            return Err(failure.error);
        }
        left -= 1;
        // Random: two transactions that conflicted would conflict again after equal pauses.
        thread::sleep(Duration::from_millis(fastrand::u64(1..=pause_ms)));
        pause_ms = (pause_ms * 2).min(PAUSE_MAX_MS);
    }
}

/// An attempt that failed and was aborted.
struct Failure<E> {
    error: E,
    conflict: bool,
}

impl<E: From<Error>> From<Error> for Failure<E> {
    fn from(error: Error) -> Self {
        let conflict = error.is_conflict();
        Self {
            error: error.into(),
            conflict,
        }
    }
}

fn attempt<T, E: From<Error> + Display>(
    work: &mut impl FnMut() -> Result<T, E>,
) -> Result<T, Failure<E>> {
    let mut transaction = Transaction::begin()?;
    let mut failure = match work() {
        Ok(value) => match transaction.try_commit() {
            Ok(()) => return Ok(value),
            Err(error) => Failure::from(error),
        },
        Err(error) => Failure {
            error,
            conflict: false,
        },
    };
    failure.conflict |= transaction.met_conflict();
    match transaction.abort() {
        // The failed commit, or the work itself, has ended it.
        Ok(()) | Err(Error::NoTransaction) => Err(failure),
        Err(why) => Err(Failure {
            conflict: false,
            error: E::from(Error::NotAborted {
                work: failure.error.to_string(),
                why: Box::new(why),
            }),
        }),
    }
}

#[cfg(test)]
mod tests {
    use goanna_sys::Errno;
    use goanna_sys::txncall::Op;

    use super::*;
    use crate::fake;

    type Outcome = Result<u32, Error>;

    #[test]
    fn a_guard_that_is_dropped_aborts() {
        fake::reset();
        drop(Transaction::begin().unwrap());
        assert_eq!((fake::count(Op::Abort), fake::depth()), (1, 0));
    }

    #[test]
    fn a_guard_that_was_committed_aborts_nothing() {
        fake::reset();
        let outer = Transaction::begin().unwrap();
        Transaction::begin().unwrap().commit().unwrap();
        assert_eq!((fake::count(Op::Abort), fake::depth()), (0, 1));
        outer.abort().unwrap();
        assert_eq!((fake::count(Op::Abort), fake::depth()), (1, 0));
    }

    #[test]
    fn a_commit_never_takes_what_was_begun_inside_for_itself() {
        fake::reset();
        let outer = Transaction::begin().unwrap();
        crate::begin().unwrap();
        assert_eq!(outer.commit(), Err(Error::NotInnermost));
        assert_eq!((fake::count(Op::Commit), fake::depth()), (0, 0));
        let ended = Transaction::begin().unwrap();
        crate::abort().unwrap();
        assert_eq!(ended.commit(), Err(Error::NoTransaction));
        assert_eq!(fake::count(Op::Commit), 0);
    }

    #[test]
    fn a_commit_that_fails_is_an_error_and_leaves_nothing_open() {
        for errno in [Errno::ENOSPC, Errno::EIO, Errno::EBUSY] {
            fake::reset();
            fake::fail(Op::Commit, errno);
            let outcome = Transaction::begin().unwrap().commit();
            assert_eq!(outcome, Err(Error::of(Op::Commit, errno)));
            assert_eq!(fake::depth(), 0);
        }
    }

    #[test]
    fn work_is_done_again_after_conflicts_only_so_often() {
        fake::reset();
        let mut done = 0;
        let outcome: Outcome = transaction(5, || {
            done += 1;
            if done < 3 {
                fake::conflict();
                return Err(Error::Deadlock);
            }
            Ok(done)
        });
        assert_eq!(outcome, Ok(3));
        assert_eq!((fake::count(Op::Begin), fake::count(Op::Commit)), (3, 1));
        assert_eq!((fake::count(Op::Abort), fake::depth()), (2, 0));

        fake::reset();
        let outcome: Outcome = transaction(2, || {
            fake::conflict();
            Err(Error::Other(Errno::EDEADLK))
        });
        assert_eq!(outcome, Err(Error::Other(Errno::EDEADLK)));
        assert_eq!((fake::count(Op::Begin), fake::depth()), (3, 0));
        assert_eq!(fake::count(Op::Commit), 0);
    }

    #[test]
    fn work_that_fails_by_itself_is_not_done_again() {
        fake::reset();
        let outcome: Outcome = transaction(5, || Err(Error::Other(Errno::EISDIR)));
        assert_eq!(outcome, Err(Error::Other(Errno::EISDIR)));
        assert_eq!((fake::count(Op::Begin), fake::depth()), (1, 0));
    }

    #[test]
    fn conflicts_of_what_was_left_open_inside_count() {
        fake::reset();
        let mut done = 0;
        let outcome: Outcome = transaction(1, || {
            done += 1;
            if done == 1 {
                crate::begin()?;
                fake::conflict();
                return Err(Error::Other(Errno::EDEADLK));
            }
            Ok(done)
        });
        assert_eq!(outcome, Ok(2));
        assert_eq!(fake::depth(), 0);
    }

    #[test]
    fn commits_are_tried_again_after_conflicts() {
        fake::reset();
        fake::fail(Op::Commit, Errno::EDEADLK);
        let outcome: Outcome = transaction(1, || Ok(7));
        assert_eq!(outcome, Ok(7));
        assert_eq!((fake::count(Op::Commit), fake::depth()), (2, 0));

        fake::reset();
        fake::fail(Op::Commit, Errno::ENOSPC);
        let outcome: Outcome = transaction(5, || Ok(7));
        assert_eq!(outcome, Err(Error::NoSpace));
        assert_eq!((fake::count(Op::Begin), fake::depth()), (1, 0));
    }

    #[test]
    fn an_abort_that_fails_hides_nothing() {
        fake::reset();
        fake::fail(Op::Abort, Errno::ESRCH);
        let outcome: Outcome = transaction(5, || Err(Error::Other(Errno::EISDIR)));
        let error = outcome.unwrap_err();
        assert_eq!(
            error.to_string(),
            "Is a directory; and the transaction could not be aborted: the process does not belong to this run"
        );
        assert_eq!(error.errno(), Errno::ESRCH);
        assert_eq!(fake::count(Op::Begin), 1);
    }

    #[test]
    fn work_that_panics_is_aborted() {
        fake::reset();
        let caught = std::panic::catch_unwind(|| transaction(1, || -> Outcome { panic!("work") }));
        assert!(caught.is_err());
        assert_eq!((fake::count(Op::Abort), fake::depth()), (1, 0));
    }
}
