//! The state of a followed thread.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use goanna_sys::ptrace::Stopped;
use goanna_sys::{Errno, procfs};
use goanna_syscalls::{DecodedCall, Subject};
use nix::unistd::{Pid, getsid};

use super::mapping::{Change, Mapped};
use super::own::TracerAction;
use crate::event::File;

/// Which calls stop a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The calls that our seccomp filter stops, at their entry.
    Filtered,
    /// All of them.
    EachCall,
}

/// A call that has begun.
#[derive(Debug)]
pub struct Pending {
    /// The record of the call; `None` if the call concerns only the tracer itself.
    pub recorded: Option<Recorded>,
    /// The tracer's own work after the call has succeeded.
    pub own: TracerAction,
    /// How it changes mappings, where they are watched.
    pub mapping: Option<Change>,
}

/// A call that is recorded when it ends.
#[derive(Debug)]
pub struct Recorded {
    pub subject: Subject,
    pub call: DecodedCall,
    pub entered_ns: u64,
    /// The file that each path argument named at the entry, in order.
    pub paths: Vec<Option<OwnedFd>>,
    /// The files of descriptors that the call closes.
    pub closing: Vec<(u8, File)>,
}

impl Recorded {
    /// A call whose files are not known yet.
    pub fn new(subject: Subject, call: DecodedCall, entered_ns: u64) -> Self {
        Self {
            subject,
            call,
            entered_ns,
            paths: Vec::new(),
            closing: Vec::new(),
        }
    }
}

/// A thread that is followed.
#[derive(Debug)]
pub struct Thread {
    pub subject: Subject,
    pub mode: Mode,
    /// The handle of its stop, while it is stopped.
    pub stopped: Option<Stopped>,
    pub pending: Option<Pending>,
    /// The entry of a call has been seen, and its exit is still to come.
    pub is_inside: bool,
    /// The address behind the instruction that has made the last call that stopped.
    pub called_from: u64,
    /// The program has been sent a signal, whose handler may have interrupted any code.
    pub has_handled: bool,
    /// The tracer has requested a stop that has not come yet.
    pub is_interrupted: bool,
    /// The mappings that a new process has inherited from its parent, as they were at the fork; until its first stop.
    pub inherited: Vec<Mapped>,
    /// The thread has come to the stop before its end.
    pub is_exiting: bool,
    /// The calls up to the first execve are the tracer's.
    pub is_starting: bool,
    /// Whether it has the tracer's root directory and mount namespace; `None` until that is asked for.
    pub has_our_root: Cell<Option<bool>>,
    /// The tracer has reported that it does not record the thread's calls of another ABI.
    pub has_foreign_calls: bool,
}

impl Thread {
    /// A thread that runs as `subject`.
    pub fn new(subject: Subject, mode: Mode) -> Self {
        Self {
            subject,
            mode,
            stopped: None,
            pending: None,
            is_inside: false,
            called_from: 0,
            has_handled: false,
            is_interrupted: false,
            inherited: Vec::new(),
            is_exiting: false,
            is_starting: false,
            has_our_root: Cell::default(),
            has_foreign_calls: false,
        }
    }
}

impl Thread {
    /// Takes `CLONE_UNTRACED` from the flags of the clone(2) that the thread is about to make: without a tracer, calls of the new thread that the filter stops would
    /// fail with ENOSYS. LeakSanitizer makes such threads.
    pub fn clone_traced(&self, args: [u64; 6]) -> Result<(), Errno> {
        let [flags, ..] = args;
        let traced = flags & !(libc::CLONE_UNTRACED as u64);
        match &self.stopped {
            Some(stopped) if traced != flags => {
                let mut regs = stopped.regs()?;
                regs.set_first_args([traced]);
                stopped.set_regs(&regs)
            }
            _ => Ok(()),
        }
    }
}

/// The file mode creation mask of a thread; `None` if the thread is gone.
pub fn umask(tid: i32) -> Option<u32> {
    procfs::status(tid).ok().map(|status| status.umask)
}

/// Reads the user, session and name of a thread from /proc. `ESRCH`: the thread is gone.
pub fn subject(tid: i32) -> Result<Subject, Errno> {
    let status = procfs::status(tid)?;
    let comm = procfs::comm(status.tgid)?;
    // 0 where the session's leader is in an outer PID name space.
    let session = getsid(Some(Pid::from_raw(status.tgid)));
    Ok(Subject {
        pid: status.tgid,
        tid,
        uid: status.uid[1],
        gid: status.gid[1],
        sid: session.map_or(0, Pid::as_raw),
        comm: Arc::from(String::from_utf8_lossy(&comm)),
    })
}
