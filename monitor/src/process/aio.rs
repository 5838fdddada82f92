//! The threads of a process that wait for events of Linux AIO contexts (io_getevents(2)).
//!
//! The events themselves are in the ring of the context, which is memory of the process (`calls/content/aio/ring.rs`). The mutex of a context is held while its ring is read
//! or written. Both mutexes here are leaves. A process can make the monitor wait for its memory, and then only calls on the same context wait, too.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use goanna_vfs::Errno;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use parking_lot::Mutex;

use crate::errno::errno;

/// The contexts of a process. Processes that share their umask and working directory have them here together.
#[derive(Debug, Default)]
pub struct AioContexts(Mutex<HashMap<Id, Arc<Mutex<AioContext>>>>);

/// A process id, and the address of the ring in that process.
type Id = (i32, u64);

/// A context.
#[derive(Debug, Default)]
pub struct AioContext {
    /// How many requests are performed now: their events will need places in the ring.
    pub reserved: u32,
    /// The threads that wait for events, by thread id.
    pub waits: HashMap<i32, AioWait>,
}

impl AioContexts {
    /// The context of process `pid` whose ring is at `address`.
    pub fn get(&self, pid: i32, address: u64) -> Arc<Mutex<AioContext>> {
        Arc::clone(self.0.lock().entry((pid, address)).or_default())
    }

    /// The context is destroyed.
    pub fn remove(&self, pid: i32, address: u64) {
        self.0.lock().remove(&(pid, address));
    }
}

/// The wait of a thread.
#[derive(Debug)]
pub struct AioWait {
    deadline: Option<Instant>,
    /// Expires at the deadline, or when there are new events: the thread waits for one descriptor.
    timer: TimerFd,
}

impl AioWait {
    /// A wait that begins now, and ends after `limit` if there is one.
    pub fn begin(limit: Option<Duration>) -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        Ok(Self {
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            timer: TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?,
        })
    }

    /// Whether its time is over.
    pub fn is_over(&self) -> bool {
        let deadline = self.deadline;
        deadline.is_some_and(|deadline| deadline <= Instant::now())
    }

    /// A descriptor that can be read when the time is over, or at the next [`AioWait::wake`].
    pub fn descriptor(&self) -> Result<OwnedFd, Errno> {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        self.expire_after(self.deadline.map(left))?;
        self.timer.as_fd().try_clone_to_owned().map_err(errno)
    }

    /// There are new events.
    pub fn wake(&self) {
        // It fails for invalid times only.
        let _ = self.expire_after(Some(Duration::ZERO));
    }

    /// `None`: never.
    fn expire_after(&self, time: Option<Duration>) -> Result<(), Errno> {
        let Some(time) = time else {
            return self.timer.unset();
        };
        // The time 0 would stand for never.
        let once = Expiration::OneShot(time.max(Duration::from_nanos(1)).into());
        self.timer.set(once, TimerSetTimeFlags::empty())
    }
}
