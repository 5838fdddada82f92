//! Linux AIO: io_submit(2), io_getevents(2), io_pgetevents(2), io_destroy(2).
//!
//! The kernel makes the context and its ring (`ring.rs`). It would perform requests without the monitor, so the monitor performs them (`request.rs`), as the kernel does for
//! files without O_DIRECT: before io_submit(2) returns. It puts their events into the ring, where programs find them with or without a call. In runs whose
//! mounts all give programs host files, the kernel does everything. See docs/decisions/0129.

mod host;
mod request;
mod ring;

use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use goanna_vfs::{Errno, FsError, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::write;
use parking_lot::Mutex;

use crate::call::{Answer, Call};
use crate::process::aio::{AioContext, AioWait};
use request::{Files, Performed, Request};
use ring::{EVENT, Ring};

/// Requests that are read, and whose events are put into the ring, together.
const BATCH: i64 = 256;

/// Why no more requests are performed.
enum Stop {
    /// The next one is not accepted, or has to wait for a lock of a transaction.
    Failed(FsError),
    /// The next one has to wait until this descriptor is readable.
    Waits(OwnedFd),
}

impl<E: Into<FsError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// io_submit(2). A request that has to wait ends the call, unless it is the first one.
pub fn submit(call: &mut Call<'_>) -> Result<Answer> {
    let ring = Ring::at(call.task.tid, call.arg(0))?;
    let count = i64::try_from(call.arg(1)).map_err(|_| Errno::EINVAL)?;
    let mut done = 0;
    while done < count {
        let list = call.arg(2).wrapping_add(done.unsigned_abs() * 8);
        let (accepted, outcome) = submit_batch(call, &ring, list, (count - done).min(BATCH));
        done += accepted;
        match outcome {
            Err(Stop::Failed(error)) if done == 0 => return Err(error),
            Err(Stop::Waits(ready)) if done == 0 => {
                return Ok(match call.may_wait {
                    true => Answer::Readable(ready),
                    false => Answer::Wait,
                });
            }
            Err(_) => {
                // The call is not made again for a descriptor that the thread must send us: it has had an effect.
                call.task.wanted();
                break;
            }
            Ok(()) => {}
        }
    }
    Ok(Answer::Value(done))
}

/// Performs up to `count` requests, and adds their events. Returns how many were accepted, and why no more.
fn submit_batch(call: &Call<'_>, ring: &Ring, list: u64, count: i64) -> (i64, Result<(), Stop>) {
    let context = match context(call) {
        Ok(context) => context,
        Err(errno) => return (0, Err(errno.into())),
    };
    let requests = request::read(call.task.tid, list, count);
    let places = {
        let mut context = context.lock();
        let used = ring.available().map(|events| events + context.reserved);
        let free = ring.capacity().saturating_sub(used.unwrap_or(u32::MAX));
        let places = free.min(count as u32);
        // Other threads perform requests at the same time.
        context.reserved += places;
        places
    };
    let (mut events, mut listeners, mut files) = (Vec::new(), Vec::new(), Files::default());
    let mut perform = |number: usize| {
        let request = requests.get(number).ok_or(Errno::EFAULT)?;
        request.check()?;
        if number >= places as usize {
            return Err(Errno::EAGAIN.into());
        }
        let listener = request.listener(call)?;
        match request.perform(call, &mut files)? {
            Performed::Done(result) => events.extend(event(request, result)),
            Performed::Waits(ready) => return Err(Stop::Waits(ready)),
        }
        listeners.extend(listener);
        Ok(())
    };
    let outcome = (0..count as usize).try_for_each(&mut perform);
    {
        let mut context = context.lock();
        context.reserved -= places;
        if let Err(errno) = ring.push(&events) {
            return (0, Err(errno.into()));
        }
        context.waits.values().for_each(AioWait::wake);
    }
    listeners.iter().for_each(notify);
    ((events.len() / EVENT) as i64, outcome)
}

/// A `struct io_event`.
fn event(request: &Request, result: i64) -> [u8; EVENT] {
    let mut event = [0; EVENT];
    let words = [request.data, request.address, result.cast_unsigned()];
    for (bytes, word) in event.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    event
}

/// Adds 1 to an eventfd(2), except where that would wait.
fn notify(listener: &OwnedFd) {
    let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut ready, PollTimeout::ZERO) == Ok(1) {
        let _ = write(listener, &1_u64.to_ne_bytes());
    }
}

/// io_getevents(2)
pub fn getevents(call: &mut Call<'_>) -> Result<Answer> {
    let limit = limit(call, call.arg(4))?;
    let ring = Ring::at(call.task.tid, call.arg(0))?;
    let (least, most) = (call.arg(1) as i64, call.arg(2) as i64);
    if least < 0 || most < least {
        return Err(Errno::EINVAL.into());
    }
    // What does not fit in the ring never comes at once.
    let least = u32::try_from(least)
        .unwrap_or(u32::MAX)
        .min(ring.capacity());
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let context = context(call)?;
    let mut context = context.lock();
    let tid = call.task.tid;
    if !call.may_wait {
        // Also ends a wait that a signal has interrupted.
        context.waits.remove(&tid);
    }
    let is_over = match context.waits.get(&tid) {
        Some(wait) => wait.is_over(),
        None => limit == Some(Duration::ZERO),
    };
    if is_over || ring.available()? >= least {
        context.waits.remove(&tid);
        return Ok(Answer::Value(ring.take(most, call.arg(3))?.into()));
    }
    let wait = match context.waits.entry(tid) {
        Entry::Occupied(wait) => wait.into_mut(),
        Entry::Vacant(none) => none.insert(AioWait::begin(limit)?),
    };
    if call.may_wait {
        Ok(Answer::Readable(wait.descriptor()?))
    } else {
        Ok(Answer::Wait)
    }
}

/// io_pgetevents(2): ENOSYS with a signal mask, which only the kernel can set for a wait. Programs then call io_getevents(2).
pub fn pgetevents(call: &mut Call<'_>) -> Result<Answer> {
    let mask = call.arg(5);
    if mask != 0 && call.read_u64(mask)? != 0 {
        return Err(Errno::ENOSYS.into());
    }
    getevents(call)
}

/// io_destroy(2): ends the waits for events of the context (EINVAL).
pub fn destroy(call: &mut Call<'_>) -> Result<Answer> {
    if let Ok(ring) = Ring::at(call.task.tid, call.arg(0)) {
        let context = context(call)?;
        call.task.aio().remove(call.caller()?.pid, call.arg(0));
        let context = context.lock();
        ring.end()?;
        context.waits.values().for_each(AioWait::wake);
    }
    Ok(Answer::PassOn)
}

fn context(call: &Call<'_>) -> Result<Arc<Mutex<AioContext>>, Errno> {
    Ok(call.task.aio().get(call.caller()?.pid, call.arg(0)))
}

/// The time that the `struct timespec` at `address` gives; `None` for a null pointer. EFAULT.
fn limit(call: &Call<'_>, address: u64) -> Result<Option<Duration>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let seconds = call.read_u64(address)?.cast_signed();
    let nanoseconds = call.read_u64(address.wrapping_add(8))?.cast_signed();
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    // A time that has passed is no time.
    let total = u64::try_from(total.max(0)).unwrap_or(u64::MAX);
    Ok(Some(Duration::from_nanos(total)))
}
