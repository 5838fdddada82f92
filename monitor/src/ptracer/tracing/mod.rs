//! ptrace(2) of programs in a run. A thread has at most one tracer, and the monitor is that of all. So the supervisor performs the requests of
//! programs, and passes stops of the threads that they trace on to them (`docs/decisions/0147-programs-attach-to-threads.md` and
//! `docs/decisions/0148-programs-trace-threads.md`).
//!
//! A traced thread is held at a stop before the supervisor has looked at that ([`Then::Handle`]). The stop is handled when the tracer
//! continues the thread. Only at events that the supervisor has asked for, too, it does its own work first.
//!
//! The kernel does not know of these stops, so wait4(2) and waitid(2) of a tracer must be answered here. While a tracer has not waited for
//! the state change of a thread, its threads stop at the entry of each call; otherwise its waits are the kernel's alone (`waits.rs`).

mod requests;
mod rights;
mod stops;
mod waits;
mod wanted;

use std::collections::HashMap;

use goanna_sys::arch::Registers;
use goanna_sys::procfs;
use goanna_sys::ptrace::{Status, Stopped, Until};
use goanna_vfs::Errno;

use waits::TracerWaits;

/// The traced threads.
#[derive(Default)]
pub struct Tracees {
    by_tid: HashMap<i32, Tracee>,
    /// The processes of the threads that were looked at.
    processes: HashMap<i32, i32>,
    waits: TracerWaits,
}

/// A thread that a program traces.
struct Tracee {
    tracer: Tracer,
    /// It is the first thread of a child of the tracer: the kernel reports its end to that.
    is_child: bool,
    /// `PTRACE_O_*`
    options: u64,
    /// The kernel does not have these yet, since the thread has not stopped.
    has_new_options: bool,
    /// By PTRACE_SEIZE: its first stop, and those of job control, are events.
    is_seized: bool,
    /// The tracer is to see the next event stop, because of PTRACE_INTERRUPT or PTRACE_LISTEN.
    awaits_stop: bool,
    /// The call that it is in, if its tracer has seen the entry.
    call: Option<Entered>,
    state: State,
}

/// A call, by its number and the address behind its instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entered {
    nr: u64,
    ip: u64,
}

/// The process that traces a thread, and its thread that makes the requests. A child that asks to be traced does not name that: any thread
/// of its parent is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tracer {
    pid: i32,
    tid: Option<i32>,
}

impl Tracer {
    /// Whether this thread is the one, of which `pid` is the process.
    fn is(self, (pid, tid): (i32, i32)) -> bool {
        self.pid == pid && self.tid.is_none_or(|own| own == tid)
    }
}

impl Tracee {
    /// Whether no wait has reported its last state.
    fn has_changed(&self) -> bool {
        match &self.state {
            State::Stopped(stop) => !stop.is_reported,
            State::Ended(_) => true,
            _ => false,
        }
    }
}

enum State {
    /// It has been interrupted, or has just begun. `caller` is the thread that waits at the stop of its PTRACE_ATTACH.
    Stopping {
        caller: Option<Stopped>,
    },
    Running(Until),
    Stopped(Box<Stop>),
    /// It has ended.
    Ended(Status),
}

/// A stop that its tracer can see.
struct Stop {
    stopped: Stopped,
    then: Then,
    /// As wait4(2) reports it.
    raw: i32,
    /// The answer of PTRACE_GETEVENTMSG.
    message: u64,
    is_reported: bool,
    /// Its registers, where those of the call that it waits in are shown instead.
    parked: Option<Registers>,
}

impl Stop {
    /// Gives the thread its own registers back, where others were shown.
    fn restore(&self) {
        if let Some(parked) = &self.parked {
            // It may have been killed.
            let _ = self.stopped.set_regs(parked);
        }
    }
}

/// What the supervisor does when the tracer continues the thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// It handles this stop.
    Handle(Status),
    /// It has done that, and resumes the thread.
    Resume,
    /// The thread is at the entry of its call.
    EnterKernel,
    /// It reports this stop. The thread is not at the exit of its call, but has left that for a signal: the kernel would have reported the exit first.
    Report(Status),
}

/// The status of a stop by `signal`, as wait4(2) reports it.
const fn by_signal(signal: i32) -> i32 {
    (signal << 8) | 0x7f
}

/// The options of ptrace(2), without PTRACE_O_TRACESECCOMP: the kernel prefers a notification of the run's filter to the stop that a program's filter
/// asks for.
const OPTIONS: u64 = 0x7f | libc::PTRACE_O_EXITKILL as u64;

impl Tracees {
    /// Whether the thread is traced, and this holds.
    fn is(&self, tid: i32, holds: impl FnOnce(&Tracee) -> bool) -> bool {
        self.by_tid.get(&tid).is_some_and(holds)
    }

    fn has_tracer(&self, tid: i32) -> bool {
        self.is(tid, |tracee| !matches!(tracee.state, State::Ended(_)))
    }

    fn is_stopping(&self, tid: i32) -> bool {
        self.is(tid, |tracee| matches!(tracee.state, State::Stopping { .. }))
    }

    /// Whether a program traces the thread, and has let it run.
    pub fn is_running(&self, tid: i32) -> bool {
        self.is(tid, |tracee| matches!(tracee.state, State::Running(_)))
    }

    /// The stop of thread `tid`. ESRCH if thread `by` does not trace it.
    fn stop_of(&mut self, tid: i32, by: (i32, i32)) -> Result<&mut Stop, Errno> {
        match self.by_tid.get_mut(&tid) {
            Some(Tracee {
                tracer,
                state: State::Stopped(stop),
                ..
            }) if tracer.is(by) => Ok(stop),
            _ => Err(Errno::ESRCH),
        }
    }

    /// The process of a thread.
    fn process_of(&mut self, tid: i32) -> Result<i32, Errno> {
        if let Some(pid) = self.processes.get(&tid) {
            return Ok(*pid);
        }
        let pid = procfs::status(tid)?.tgid;
        self.processes.insert(tid, pid);
        Ok(pid)
    }

    fn add(&mut self, tid: i32, tracer: Tracer, state: State) -> &mut Tracee {
        let is_child =
            procfs::status(tid).is_ok_and(|status| status.tgid == tid && status.ppid == tracer.pid);
        let tracee = Tracee {
            tracer,
            is_child,
            options: 0,
            has_new_options: false,
            is_seized: false,
            awaits_stop: false,
            call: None,
            state,
        };
        self.by_tid.entry(tid).insert_entry(tracee).into_mut()
    }

    /// Whether the tracer of thread `tid` has asked for the stops of this event.
    fn wants(&self, tid: i32, event: i32) -> bool {
        event > 0 && self.has_option(tid, 1 << event)
    }

    /// The thread, if it runs to the next entry or exit of a call.
    fn by_call(&mut self, tid: i32) -> Option<&mut Tracee> {
        let tracee = self.by_tid.get_mut(&tid)?;
        matches!(tracee.state, State::Running(Until::Call)).then_some(tracee)
    }

    /// Whether the tracer of the thread has seen the entry of its call, and waits for the exit.
    pub fn is_in_call(&self, tid: i32) -> bool {
        self.is(tid, |tracee| tracee.call.is_some())
    }

    /// Thread `tid` leaves its call without a stop at its exit.
    pub fn has_left_call(&mut self, tid: i32) {
        if let Some(tracee) = self.by_tid.get_mut(&tid) {
            tracee.call = None;
        }
    }

    /// How far thread `tid` may run when it is continued.
    fn until(&mut self, tid: i32) -> Until {
        let by_call = self.stops_at_calls(tid);
        self.waits.note(tid, by_call);
        if by_call {
            return Until::Call;
        }
        match self.by_tid.get(&tid) {
            Some(Tracee {
                state: State::Running(until),
                ..
            }) => *until,
            _ => Until::Event,
        }
    }

    /// Thread `tid` has started `child`, which this event reports. Returns whether `child` is traced, too: then it has the same tracer, and is not
    /// stopped yet.
    pub fn passes_on(&mut self, tid: i32, child: i32, event: i32) -> bool {
        let is_wanted = self.wants(tid, event);
        let tracee = self.by_tid.get(&tid).filter(|_| is_wanted);
        let Some(tracee) = tracee else {
            return false;
        };
        let (tracer, options, is_seized) = (tracee.tracer, tracee.options, tracee.is_seized);
        let state = State::Stopping { caller: None };
        let tracee = self.add(child, tracer, state);
        (tracee.options, tracee.is_seized) = (options, is_seized);
        true
    }

    fn is_seized(&self, tid: i32) -> bool {
        self.is(tid, |tracee| tracee.is_seized)
    }

    fn awaits_stop(&self, tid: i32) -> bool {
        self.is(tid, |tracee| tracee.awaits_stop)
    }

    fn has_option(&self, tid: i32, option: i32) -> bool {
        self.is(tid, |tracee| tracee.options & option as u64 != 0)
    }

    /// The threads that are traced by thread `tid`, or by the process with this number.
    fn of(&self, tid: i32) -> Vec<i32> {
        let is_own = |tracer: &Tracer| tracer.tid == Some(tid) || tracer.pid == tid;
        let all = self.by_tid.iter();
        all.filter(|(_, tracee)| is_own(&tracee.tracer))
            .map(|(tid, _)| *tid)
            .collect()
    }

    /// Whether no thread is traced, and no thread stops because of that.
    fn are_none(&self) -> bool {
        self.by_tid.is_empty() && self.waits.are_none()
    }
}
