//! Captures calls at ptrace stops.
//!
//! A traced command runs under a seccomp filter that stops the calls which are wanted, at their entry; only those are stopped again at their exit.
//! A thread whose calls the filter cannot stop, because another filter decides first or because it was attached to, is stopped at the entry and exit of
//! each call (`PTRACE_SYSCALL`). Read `follow.rs` first: it has the loop over stops. `thread.rs` has the state of a thread, `files.rs`
//! determines the files that a call names, `mapping/` the pages of mapped files that programs touch. `ring/` records calls inside of programs, which then do not stop for them, `restart.rs` restarts interrupted waits, `command.rs` starts a command, `attach.rs` attaches to processes and detaches from them.

mod attach;
mod command;
mod files;
mod follow;
mod inject;
mod mapping;
mod own;
mod perform;
mod restart;
mod ring;
mod signals;
mod snapshot;
mod thread;

pub use signals::Signals;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::{CaptureEnd, CaptureError, Source, Wanted};
use crate::Sink;

/// The programs to follow.
#[derive(Debug, Clone)]
pub enum Target {
    /// A command with its arguments, and all its descendants.
    Command(Vec<OsString>),
    /// Processes that run already, with all their threads, and the descendants that they will have.
    Processes(Vec<i32>),
}

/// Which processes of a command get code that records their calls, so that most calls need no stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Recorded {
    /// None.
    Never,
    /// Those that make many calls.
    #[default]
    Often,
    /// All of them, at their first call: for tests.
    AtOnce,
}

/// The source that uses ptrace(2). The thread that calls [`capture`](Source::capture) does all the tracing.
#[derive(Debug)]
pub struct Ptrace {
    target: Target,
    filtered: bool,
    recorded: Recorded,
    signals: Option<Signals>,
    ends: Arc<AtomicBool>,
}

impl Ptrace {
    /// Follows `target`.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            filtered: true,
            recorded: Recorded::default(),
            signals: None,
            ends: Arc::default(),
        }
    }

    /// Sends held signals on to the command, or ends the attachment at the first one.
    #[must_use]
    pub fn with_signals(mut self, signals: Signals) -> Self {
        self.signals = Some(signals);
        self
    }

    /// Set to end an attachment at the next stop of a thread.
    pub fn ends(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ends)
    }

    /// Records calls inside these processes, if they are a command's.
    #[must_use]
    pub fn recorded(mut self, recorded: Recorded) -> Self {
        self.recorded = recorded;
        self
    }

    /// Uses no seccomp filter.
    #[must_use]
    pub fn without_filter(mut self) -> Self {
        self.filtered = false;
        self
    }
}

impl Source for Ptrace {
    fn capture(&mut self, wanted: &Wanted, sink: &dyn Sink) -> Result<CaptureEnd, CaptureError> {
        match &self.target {
            Target::Command(command) => {
                let intercepted = self.filtered.then_some(self.recorded);
                command::run(command, intercepted, self.signals.as_ref(), wanted, sink)
            }
            Target::Processes(pids) => {
                let ends = Arc::clone(&self.ends);
                attach::run(pids, self.signals.as_ref(), ends, wanted, sink)
            }
        }
    }
}
