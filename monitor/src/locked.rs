//! Calls that met a lock of a transaction: they wait with no lock held, and are then made again from the start.

use std::time::{Duration, Instant};

use goanna_sys::interrupt::is_interrupted;
use goanna_vfs::{LOCKED, Result};

use crate::Monitor;
use crate::call::Answer;

/// How often a waiting call looks whether its caller still waits.
const SLICE: Duration = Duration::from_millis(10);

/// Waits for the lock that the last call of `tid` met; false when a signal, or death, ends the wait. EDEADLK, ETIMEDOUT.
pub fn wait(monitor: &Monitor, tid: i32, since: Instant) -> Result<bool> {
    let transactions = monitor.members.transactions()?;
    loop {
        if is_interrupted(tid).unwrap_or(true) {
            return Ok(false);
        }
        if transactions.wait(tid, since.elapsed(), SLICE)? {
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
    let since = Instant::now();
    loop {
        if !wait(monitor, tid, since)? {
            return Ok(Answer::Again);
        }
        match attempt() {
            Err(LOCKED) => {}
            Ok(Answer::Block(work)) => return work(),
            other => return other,
        }
    }
}
