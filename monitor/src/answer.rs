//! Answers: how the monitor has a call end.

use std::os::fd::OwnedFd;

use goanna_vfs::{Result, Wait};

use crate::process::deliveries::Delivery;

/// A closure that answers a call on a thread that may wait. Where the result is a lock or [`Answer::Readable`], it is called again after the wait.
pub type Attempt = Box<dyn FnMut() -> Result<Answer> + Send>;

/// The work of a call that could not be answered at once.
pub struct Work {
    /// The lock that it met; `None` to attempt it at once.
    pub lock: Option<Wait>,
    /// What answers it.
    pub attempt: Attempt,
}

impl Work {
    /// Work that `attempt` does, at once.
    pub fn new(attempt: impl FnMut() -> Result<Answer> + Send + 'static) -> Self {
        Self {
            lock: None,
            attempt: Box::new(attempt),
        }
    }

    /// Work that `attempt` does when the lock is free.
    pub fn after(lock: Wait, attempt: impl FnMut() -> Result<Answer> + Send + 'static) -> Self {
        Self {
            lock: Some(lock),
            attempt: Box::new(attempt),
        }
    }
}

/// How a call ends.
pub enum Answer {
    /// It returns this value.
    Value(i64),
    /// The kernel performs it unchanged.
    PassOn,
    /// As [`Answer::PassOn`]; when it succeeds it has changed this path outside of the caller's transaction.
    Watched(Vec<u8>),
    /// It returns a new descriptor.
    Install {
        /// The descriptor that the tracee gets a copy of.
        fd: OwnedFd,
        /// Close-on-exec.
        cloexec: bool,
        /// The monitor's descriptor must be closed before the tracee continues: it counts as a reader or writer, or its close is reported.
        counts: bool,
        /// For a file's object: it is on its way until this is dropped.
        delivery: Option<Delivery>,
    },
    /// The tracee opens this host path itself. Only where there is no notification: a descriptor of ours would be opened
    /// a second time there, and a fifo counts.
    OpenHost {
        /// The path.
        path: Vec<u8>,
        /// Flags of open(2).
        flags: i32,
    },
    /// It maps a private copy of this content instead of the file. Only at a ptrace stop.
    MapCopy(Vec<u8>),
    /// It is restarted from the start, after the signal that interrupted its wait for a lock.
    Again,
    /// A signal has ended its wait: EINTR, or restarted from the start, as the signal's handler was installed.
    Interrupted,
    /// The handler would wait for something that a program controls, or work for long: it runs again on a thread that may wait,
    /// where [`crate::call::Call::may_wait`] says so. Nothing has changed.
    Wait,
    /// As [`Answer::Wait`], when this can be read. Only where the call may wait.
    Readable(OwnedFd),
    /// The answer may take long (the other end of a fifo): it is worked out on a thread that may wait.
    Block(Work),
}

impl Answer {
    /// The call returns 0.
    pub const DONE: Self = Self::Value(0);
}
