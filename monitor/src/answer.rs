//! Answers: how the monitor ends a call.

use std::os::fd::OwnedFd;

use goanna_vfs::{Description, Errno, Node, Result, Wait};
use nix::fcntl::{FcntlArg, fcntl};

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
        /// What the tracee gets a descriptor of.
        description: Description,
        /// Close-on-exec.
        cloexec: bool,
        /// The monitor's own descriptor must be closed before the tracee continues: it would count as a reader or writer, or inotify(7) would report
        /// its close.
        counts: bool,
        /// For a file's object: records, until it is dropped, that the tracee is about to get the descriptor.
        delivery: Option<Delivery>,
    },
    /// It returns a descriptor of this very description, which no path leads to. Only at a ptrace stop.
    Receive {
        /// The description.
        description: Description,
        /// Close-on-exec.
        cloexec: bool,
    },
    /// The tracee opens this host path itself. Only for calls that did not come as notifications: the tracee would open a descriptor of ours a
    /// second time, and each open of a fifo counts.
    OpenHost {
        /// The path.
        path: Vec<u8>,
        /// Flags of open(2).
        flags: i32,
    },
    /// The thread opens or creates a regular host file itself, with its own permissions. Only for calls of which [`crate::call::Call::opens_itself`] is true.
    OpenItself {
        /// Keeps the descriptor of the file ([`goanna_vfs::FileSystem::host_file`]), or of the directory for a new one.
        node: Node,
        /// The answer that names it ([`goanna_sys::stub::opens`]).
        value: i64,
    },
    /// The tracee makes the call with these arguments instead of its own, by their positions. Only at a ptrace stop.
    WithArguments(Vec<(usize, Argument)>),
    /// The tracee maps a private copy of this content instead of the file. Only at a ptrace stop.
    MapCopy(Vec<u8>),
    /// The call is restarted after the signal that interrupted its wait for a lock.
    Restart,
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

/// An argument instead of the program's.
#[derive(Debug)]
pub enum Argument {
    /// A number.
    Value(u64),
    /// A pointer to this text, which has no NUL bytes.
    Text(Vec<u8>),
}

impl Answer {
    /// The call returns 0.
    pub const DONE: Self = Self::Value(0);
}

/// The flags that matter when a program opens an object itself. The others are for the path walk, which the monitor has done.
const REOPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_PATH
    | libc::O_DIRECTORY
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_ASYNC
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_DIRECT
    | libc::O_NOATIME;

/// The status flags of a description.
pub fn status(fd: &OwnedFd) -> Result<i32, Errno> {
    fcntl(fd, FcntlArg::F_GETFL)
}

/// The flags for opening the object of a description with these status flags.
pub fn reopen_flags(status: i32, cloexec: bool) -> i32 {
    const UNNAMED: i32 = libc::O_TMPFILE & !libc::O_DIRECTORY;
    let cloexec = if cloexec { libc::O_CLOEXEC } else { 0 };
    // O_TMPFILE contains the bit of O_DIRECTORY, but the file is not a directory.
    let no_directory = if status & UNNAMED != 0 {
        libc::O_DIRECTORY
    } else {
        0
    };
    status & REOPEN_FLAGS & !no_directory | cloexec
}

/// Whether [`reopen_flags`] has all flags that fcntl(2) shows of the description.
pub fn reopens_alike(status: i32) -> bool {
    /// The kernel adds it to each open; libc's constant is 0 on x86-64.
    const O_LARGEFILE: i32 = 0o100_000;
    status & !(REOPEN_FLAGS | O_LARGEFILE) == 0
}
