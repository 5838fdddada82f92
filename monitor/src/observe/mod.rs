//! Observers of a run: they see the calls of its programs, decoded, with their results.
//!
//! An observer selects the calls that it wants to see. Only these are treated differently: the filter stops them by ptrace, whether the
//! monitor answers them, the kernel performs them, or they are refused. A call that the monitor answers has its result at that stop; the
//! supervisor sees the end of a call that the kernel performs at its exit stop. So observers see each call once, on one thread, in the order
//! in which the calls begin and end. See docs/decisions/0044.
//!
//! Without an observer nothing is decoded, and the filter is as it would be. Next: `ptracer/observed.rs`, follows a call from its entry to
//! its end; `observe/names.rs`: finds the files that arguments name.

mod names;

use std::sync::Arc;

use goanna_sys::tracee;
use goanna_syscalls::{DecodedCall, File, Limits, Memory, Outcome, Subject, SysnoSet};
use goanna_vfs::Result;

use crate::answer::Answer;

pub(crate) use names::{Files, TaskFiles, TaskNames};

/// Receives the calls of a run. All methods except [`Observer::handled`] run on the supervisor's thread while the calling thread is stopped, so slow methods slow the
/// run.
pub trait Observer: Send + Sync {
    /// The calls that it wants to see. Called once, before the run begins. If there are none, only [`Observer::handled`] is called.
    fn interest(&self) -> SysnoSet;

    /// The monitor has handled call `nr` in this way. Called for every call that comes to the monitor, of interest or not, by the threads that answer calls: for several
    /// calls at the same time.
    fn handled(&self, nr: u32, handling: Handling) {
        let _ = (nr, handling);
    }

    /// Limits on the memory that is copied for a call.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// A call begins. Next comes [`Observer::exit`], or another `enter` of the same thread if a signal that came first has cancelled the call
    /// without effect.
    fn enter(&self, call: &DecodedCall, subject: &Subject) {
        let _ = (call, subject);
    }

    /// A call has ended.
    fn exit(&self, call: &Ended<'_>) {
        let _ = call;
    }

    /// A thread has begun, in a new process if thread and process id are the same. `parent` is the process that started it.
    fn began(&self, subject: &Subject, parent: i32, at_ns: u64) {
        let _ = (subject, parent, at_ns);
    }

    /// A process has executed the program with this path.
    fn executed(&self, subject: &Subject, program: &[u8], at_ns: u64) {
        let _ = (subject, program, at_ns);
    }

    /// A thread has ended, with the status that waitpid(2) gives.
    fn ended(&self, subject: &Subject, status: i32, at_ns: u64) {
        let _ = (subject, status, at_ns);
    }
}

/// How the monitor has handled a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handling {
    /// Answered it with a value.
    Answered,
    /// Answered it with an errno.
    Failed,
    /// Examined it and passed it on to the kernel.
    PassedOn,
}

impl Handling {
    fn of(outcome: &Result<Answer>) -> Self {
        match outcome {
            Ok(Answer::PassOn | Answer::Watched(_)) => Self::PassedOn,
            Ok(_) => Self::Answered,
            Err(_) => Self::Failed,
        }
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Ended<'a> {
    /// The thread that made it, as it was at the entry.
    pub subject: &'a Subject,
    /// The call.
    pub call: &'a DecodedCall,
    /// When the supervisor saw it begin, in nanoseconds of `CLOCK_MONOTONIC`.
    pub entered_ns: u64,
    /// Its outcome; `None` when the thread died in it.
    pub outcome: Option<&'a Outcome>,
    /// The files that arguments (by index) or the result (index 6) name, after the call.
    pub files: &'a [(u8, File)],
}

/// The observers of a run.
pub(crate) struct Observers {
    all: Vec<Arc<dyn Observer>>,
    /// Those that are interested in calls, with these calls.
    interested: Vec<(SysnoSet, Arc<dyn Observer>)>,
    limits: Limits,
    interest: SysnoSet,
}

/// The calls to be stopped for observers that want to see `wanted`. prctl(2) is always among them: it changes the name of a thread.
pub fn interest(wanted: SysnoSet) -> SysnoSet {
    let mut stopped = wanted;
    if !wanted.is_empty() {
        stopped.insert(libc::SYS_prctl as u32);
    }
    stopped
}

impl Observers {
    pub fn new(all: Vec<Arc<dyn Observer>>) -> Self {
        let most = |pick: fn(&Limits) -> usize| {
            let all = all.iter().map(|one| pick(&one.limits()));
            all.max().unwrap_or(0)
        };
        let limits = Limits {
            text: most(|limits| limits.text),
            texts: most(|limits| limits.texts),
            array: most(|limits| limits.array),
            data: most(|limits| limits.data),
        };
        let interested = all.iter().map(|one| (one.interest(), Arc::clone(one)));
        let interested: Vec<_> = interested
            .filter(|(wanted, _)| !wanted.is_empty())
            .collect();
        let wanted = interested.iter().map(|(wanted, _)| *wanted);
        Self {
            interest: interest(wanted.fold(SysnoSet::EMPTY, SysnoSet::union)),
            limits,
            interested,
            all,
        }
    }

    /// Whether no observer is interested in calls.
    pub fn is_empty(&self) -> bool {
        self.interested.is_empty()
    }

    /// Call number `nr` has come to the monitor, with this outcome.
    pub fn handled(&self, nr: u32, outcome: &Result<Answer>) {
        for observer in &self.all {
            observer.handled(nr, Handling::of(outcome));
        }
    }

    /// The calls that are stopped for the observers.
    pub fn interest(&self) -> SysnoSet {
        self.interest
    }

    /// The largest limits of all observers.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The observers that want to see call `nr`.
    pub fn of_call(&self, nr: u32) -> impl Iterator<Item = &dyn Observer> {
        let all = self.interested.iter();
        all.filter(move |(wanted, _)| wanted.contains(nr))
            .map(|(_, one)| &**one)
    }

    /// The observers that are interested in calls.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Observer> {
        self.interested.iter().map(|(_, one)| &**one)
    }
}

impl std::fmt::Debug for Observers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observers({})", self.all.len())
    }
}

/// The memory of a tracee.
pub(crate) struct TraceeMemory(pub i32);

impl Memory for TraceeMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        tracee::read(self.0, address, into).unwrap_or(0)
    }
}
