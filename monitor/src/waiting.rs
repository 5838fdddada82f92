//! Calls that wait for something that programs control, such as the other end of a pipe: each on threads of its own, so that
//! no thread that answers other calls waits with it. A signal for the caller ends the wait, as in the kernel.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use goanna_sys::cred;
use goanna_sys::interrupt::{Waiter, is_interrupted};
use goanna_vfs::{Errno, LOCKED, Result};

use crate::call::Answer;
use crate::{Monitor, locked};

/// What is to be done on a thread that may wait.
pub type Work = Box<dyn FnOnce() -> Result<Answer> + Send>;

/// How often a call that waits looks whether its tracee still does.
const LOOK: Duration = Duration::from_millis(10);

/// The work of a call of `tid` that could not be answered at once, where `attempt` answers it on a thread that may wait.
pub fn again(
    monitor: &Arc<Monitor>,
    tid: i32,
    is_locked: bool,
    attempt: impl Fn() -> Result<Answer> + Send + 'static,
) -> Answer {
    let monitor = Arc::clone(monitor);
    Answer::Block(Box::new(move || {
        if is_locked {
            return locked::until_free(&monitor, tid, &attempt);
        }
        match attempt() {
            Err(LOCKED) => locked::until_free(&monitor, tid, &attempt),
            other => other,
        }
    }))
}

/// Performs `work` on a further thread until it has an answer. A signal for `tid`, or `is_awaited` being false, makes the wait
/// that the thread is in fail with EINTR, which becomes [`Answer::Interrupted`].
pub fn perform(tid: i32, is_awaited: impl Fn() -> bool, work: Work) -> Result<Answer> {
    let (started, waiter) = channel();
    let (done, outcome) = channel();
    let spawned = thread::Builder::new()
        .name("waiting".into())
        .spawn(move || {
            let _ = cred::thread_owns_fs();
            let waiter = Waiter::this_thread();
            let failed = waiter.is_err();
            if started.send(waiter).is_err() || failed {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(Errno::EIO));
            let _ = done.send(outcome);
        });
    let (Ok(_), Ok(Ok(waiter))) = (spawned, waiter.recv()) else {
        return Err(Errno::EAGAIN);
    };
    let mut cancelled = false;
    loop {
        match outcome.recv_timeout(LOOK) {
            Ok(Err(Errno::EINTR)) if cancelled => return Ok(Answer::Interrupted),
            Ok(outcome) => return outcome,
            Err(RecvTimeoutError::Disconnected) => return Err(Errno::EIO),
            Err(RecvTimeoutError::Timeout) => {
                cancelled |= is_interrupted(tid).unwrap_or(true) || !is_awaited();
                if cancelled {
                    let _ = waiter.poke();
                }
            }
        }
    }
}
