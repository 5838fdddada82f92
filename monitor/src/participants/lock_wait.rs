//! Calls that met a lock of a transaction: they wait with no lock held, and are then restarted from the start.

use std::time::{Duration, Instant};

use goanna_vfs::{BLOCKED, Result};

use crate::Monitor;
use crate::call::Answer;
use crate::intercept::waiting;

/// Waits, on a thread that works out a call of `tid`, for the lock that this call met; false when a signal, or death, ends the
/// wait. EDEADLK, ETIMEDOUT.
pub fn wait(monitor: &Monitor, tid: i32, since: Instant) -> Result<bool> {
    let transactions = monitor.participants.transactions()?;
    loop {
        // An interruption after this look cancels the wait.
        if waiting::is_interrupted() {
            return Ok(false);
        }
        if transactions.wait(tid, since.elapsed(), Duration::MAX)? {
            return Ok(true);
        }
    }
}

/// Makes a call of `tid` by `attempt` until it meets no lock.
pub fn until_free(
    monitor: &Monitor,
    tid: i32,
    mut attempt: impl FnMut() -> Result<Answer>,
) -> Result<Answer> {
    let since = waiting::since();
    loop {
        if !wait(monitor, tid, since)? {
            return Ok(Answer::Again);
        }
        match attempt() {
            Err(BLOCKED) => {}
            Ok(Answer::Block(work)) => return work(),
            other => return other,
        }
    }
}
