//! Answers: how the monitor ends a call.

use std::os::fd::OwnedFd;

use goanna_vfs::{Result, Wait};

use crate::process::deliveries::Delivery;

/// A closure that answers a call on a thread that may wait. If the result is a lock or [`Answer::Readable`], it is called again after that wait.
pub type Attempt = Box<dyn FnMut() -> Result<Answer> + Send>;

/// The work of a call that could not be answered at once.
pub struct Work {
    /// The lock to wait for; `None` to attempt the call at once.
    pub lock: Option<Wait>,
    /// The closure that answers the call.
    pub attempt: Attempt,
}

impl Work {
    /// Work that calls `attempt` at once.
    pub fn new(attempt: impl FnMut() -> Result<Answer> + Send + 'static) -> Self {
        Self {
            lock: None,
            attempt: Box::new(attempt),
        }
    }

    /// Work that calls `attempt` when the lock is free.
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
    /// The kernel performs it unchanged. If it succeeds, it has changed this path outside of the caller's transaction.
    Watched(Vec<u8>),
    /// It returns a new descriptor.
    Install {
        /// The descriptor that the tracee gets a copy of.
        fd: OwnedFd,
        /// Close-on-exec.
        cloexec: bool,
        /// The monitor's descriptor must be closed before the tracee continues: it would count as a reader or writer, or inotify(7) would report
        /// its close.
        counts: bool,
        /// For a file's object: records, until it is dropped, that the tracee is about to get the descriptor.
        delivery: Option<Delivery>,
    },
    /// The tracee opens this host path itself. Only for calls that did not come as notifications: the tracee would open a descriptor of ours a
    /// second time, and each open of a fifo counts.
    OpenHost {
        /// The path.
        path: Vec<u8>,
        /// Flags of open(2).
        flags: i32,
    },
    /// The tracee maps a private copy of this content instead of the file. Only at a ptrace stop.
    MapCopy(Vec<u8>),
    /// The call is restarted after the signal that interrupted its wait for a lock.
    Again,
    /// A signal has ended its wait: the call fails with EINTR or is restarted, depending on the flags of the signal's handler.
    Interrupted,
    /// The handler would wait for something that a program controls, or work for long. It has changed nothing, and runs again on a thread that
    /// may wait ([`crate::call::Call::may_wait`]).
    Wait,
    /// As [`Answer::Wait`], but the handler runs again when this descriptor can be read. Only where the call may wait.
    Readable(OwnedFd),
    /// The answer may take long (the other end of a fifo): a thread that may wait determines it.
    Block(Work),
}

impl Answer {
    /// The call returns 0.
    pub const DONE: Self = Self::Value(0);
}
