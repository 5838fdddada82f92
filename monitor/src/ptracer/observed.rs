//! The calls that observers see, from entry to end.
//!
//! A call of interest begins at its seccomp stop. It ends there when the monitor answers it; else the thread is continued to its
//! syscall-exit stop, where the kernel's result is. Observers do not see the monitor's own steps: a call that is restarted, or made
//! with other arguments, is one call. A call that a signal ends has two ends: the kernel's result at the exit stop, and the final
//! result after the delivery of the signal. So such a result is kept until then.

use std::collections::HashMap;
use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::interrupt::has_effect;
use goanna_sys::procfs;
use goanna_sys::ptrace::{self, Stopped};
use goanna_sys::restarts::{self, is_restart};
use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value, decode};
use goanna_vfs::{Errno, Result};
use nix::unistd::Pid;

use super::Supervisor;
use super::calls::{Next, call_of};
use crate::call::Call;
use crate::observe::{Ended, Files, TaskFiles, TaskNames, TraceeMemory};
use crate::process::memory::{ArgumentMemory, Decoding};
use crate::table::filter::{OBSERVED, OBSERVED_REFUSAL};
use crate::table::{Rule, entry};

/// A call that has begun.
struct Open {
    subject: Subject,
    call: DecodedCall,
    /// The memory from which it was decoded, for its handler.
    memory: ArgumentMemory,
    entered_ns: u64,
    /// A signal has ended it, with this result, unless it is restarted.
    interrupted: Option<(i64, u64)>,
}

/// All calls in progress, and the threads as they were last seen.
#[derive(Default)]
pub(super) struct Observed {
    open: HashMap<i32, Open>,
    threads: HashMap<i32, Subject>,
    /// The process that will execute the run's command. Its calls before that are the monitor's.
    gate: Option<i32>,
}

impl Supervisor {
    /// The thread is at the seccomp stop of a call. If the stop is only for observers, returns how the call continues.
    pub(super) fn observe_entry(
        &mut self,
        stopped: &Stopped,
        regs: &Registers,
    ) -> Option<Result<Next>> {
        let (nr, args) = call_of(regs);
        let asks = asks_for_cpus(nr);
        if self.monitor.observers.is_empty() && !asks {
            return None;
        }
        let tid = stopped.tid();
        let message = stopped.event_message().unwrap_or(0).cast_unsigned();
        let is_ours = self.observed.gate == Some(tid) && i64::from(nr) != libc::SYS_execve;
        let interest = self.monitor.observers.interest();
        if !is_ours && (asks || interest.contains(nr)) {
            self.enter(tid, nr, args);
        }
        match message {
            OBSERVED => Some(Ok(Next::Run)),
            OBSERVED_REFUSAL => {
                let errno = match entry(nr).map(|entry| &entry.rule) {
                    Some(Rule::Refuse(errno)) => *errno,
                    _ => Errno::ENOSYS,
                };
                Some(Err(errno.into()))
            }
            _ => None,
        }
    }

    fn enter(&mut self, tid: i32, nr: u32, args: [u64; 6]) {
        if let Some(open) = self.observed.open.get_mut(&tid) {
            let is_same = open.call.nr == nr && open.call.raw == args;
            let is_restarted = open
                .interrupted
                .is_none_or(|(result, _)| is_restart(result));
            if is_same && is_restarted {
                // The handler of a signal may have changed what the arguments point to.
                if open.interrupted.take().is_some() {
                    open.memory = ArgumentMemory::of(tid);
                }
                return;
            }
            if open.interrupted.is_some() {
                self.interrupted_call_is_over(tid);
            }
        }
        let monitor = Arc::clone(&self.monitor);
        let entered_ns = monotonic_ns();
        let Ok(task) = monitor.tasks.get(tid) else {
            return;
        };
        let Some(subject) = self.subject(tid) else {
            return;
        };
        let decoding = Decoding::of(tid);
        let mut call = decode(nr, args, &decoding, monitor.observers.limits());
        call.name(&TaskNames(&Call::new(&monitor, task, nr, args)));
        for observer in monitor.observers.of_call(nr) {
            observer.enter(&call, &subject);
        }
        if asks_for_cpus(nr) {
            self.kept_threads.asks(tid);
        }
        let open = Open {
            subject,
            call,
            memory: decoding.finish(),
            entered_ns,
            interrupted: None,
        };
        self.observed.open.insert(tid, open);
    }

    /// The memory of the arguments of the call `(nr, args)` of `tid`.
    pub(super) fn memory(&self, tid: i32, (nr, args): (u32, [u64; 6])) -> ArgumentMemory {
        match self.observed.open.get(&tid) {
            Some(open) if open.call.nr == nr && open.call.raw == args => open.memory.clone(),
            _ => ArgumentMemory::of(tid),
        }
    }

    /// Whether the thread must be continued to the exit stop of its call.
    pub(super) fn is_observed(&self, tid: i32) -> bool {
        self.observed.open.contains_key(&tid)
    }

    /// Continues a thread in the call at which it is stopped.
    pub(super) fn resume(&self, stopped: Stopped) -> Result<(), Errno> {
        if self.is_observed(stopped.tid()) || self.clones.contains(stopped.tid()) {
            stopped.cont_syscall(0)
        } else {
            stopped.cont(0)
        }
    }

    /// Thread `tid` is at the exit stop of its own call, which has this result.
    pub(super) fn observe_exit(&mut self, tid: i32, result: i64) {
        let is_interrupted = restarts::is_interrupted(result);
        match self.observed.open.get_mut(&tid) {
            Some(open) if is_interrupted => open.interrupted = Some((result, monotonic_ns())),
            Some(_) => self.observe_end(tid, result, Treatment::Kernel),
            None => {}
        }
    }

    /// The call of `tid` has ended with this result.
    pub(super) fn observe_end(&mut self, tid: i32, result: i64, treatment: Treatment) {
        if let Some(open) = self.observed.open.remove(&tid) {
            self.end(tid, open, Some((result, monotonic_ns())), treatment);
        }
    }

    /// `signal` is delivered to the thread, and we do not restart its call. The kernel does if the signal is ignored.
    pub(super) fn interrupted(&mut self, tid: i32, signal: i32) {
        let interrupted = self
            .observed
            .open
            .get(&tid)
            .and_then(|open| open.interrupted);
        let Some((result, _)) = interrupted else {
            return;
        };
        // A thread that has died meanwhile needs no result.
        if !is_restart(result) || has_effect(tid, signal).unwrap_or(true) {
            self.interrupted_call_is_over(tid);
        }
    }

    /// Ends the call of the thread that a signal has interrupted. If it is restarted later, that is a new call.
    pub(super) fn interrupted_call_is_over(&mut self, tid: i32) {
        let is_over = |open: &Open| open.interrupted.is_some();
        if self.observed.open.get(&tid).is_some_and(is_over)
            && let Some(mut open) = self.observed.open.remove(&tid)
        {
            let end = open.interrupted.take();
            self.end(tid, open, end, Treatment::Kernel);
        }
    }

    /// The interrupted call of `tid` continues.
    pub(super) fn interrupted_call_continues(&mut self, tid: i32) {
        if let Some(open) = self.observed.open.get_mut(&tid) {
            open.interrupted = None;
        }
    }

    fn end(&mut self, tid: i32, mut open: Open, end: Option<(i64, u64)>, treatment: Treatment) {
        let monitor = Arc::clone(&self.monitor);
        let outcome = end.map(|(result, left_ns)| Outcome {
            result,
            left_ns,
            treatment,
        });
        let mut files = Vec::new();
        if let Some(outcome) = &outcome {
            open.call.complete(
                outcome.result,
                &TraceeMemory(tid),
                monitor.observers.limits(),
            );
            if let Ok(task) = monitor.tasks.get(tid) {
                let limits = monitor.observers.limits();
                open.call
                    .complete_copy(outcome.result, &TaskFiles(&task), limits);
                let call = Call::new(&monitor, task, open.call.nr, open.call.raw);
                files = Files(&call).of(&open.call, outcome.result);
            }
        }
        let ended = Ended {
            subject: &open.subject,
            call: &open.call,
            entered_ns: open.entered_ns,
            outcome: outcome.as_ref(),
            files: &files,
        };
        for observer in monitor.observers.of_call(open.call.nr) {
            observer.exit(&ended);
        }
        self.kept_threads.has_asked(tid);
        if may_rename(&open.call) {
            self.observed.threads.remove(&tid);
        }
    }

    /// The thread as it is now. Its name is read once, because calls that change it are observed.
    fn subject(&mut self, tid: i32) -> Option<Subject> {
        let caller = self.monitor.tasks.get(tid).ok()?.caller().ok()?;
        let known = self.observed.threads.get(&tid);
        let comm = match known {
            Some(known) => Arc::clone(&known.comm),
            None => String::from_utf8_lossy(&procfs::comm(tid).ok()?).into(),
        };
        let subject = Subject {
            pid: caller.pid,
            tid,
            uid: caller.uid,
            gid: caller.gid,
            sid: nix::unistd::getsid(Some(Pid::from_raw(tid))).map_or(0, Pid::as_raw),
            comm,
        };
        self.observed.threads.insert(tid, subject.clone());
        Some(subject)
    }

    /// Process `pid` will execute the run's command.
    pub(super) fn observe_gate(&mut self, pid: i32) {
        self.observed.gate = Some(pid);
        self.observe_birth(0, pid);
    }

    /// Thread `child` of process or thread `parent` has begun.
    pub(super) fn observe_birth(&mut self, parent: i32, child: i32) {
        if self.monitor.observers.is_empty() {
            return;
        }
        let parent = self.subject(parent).map_or(0, |parent| parent.pid);
        let Some(subject) = self.subject(child) else {
            return;
        };
        let now = monotonic_ns();
        for observer in self.monitor.observers.iter() {
            observer.began(&subject, parent, now);
        }
    }

    /// Thread `former` has executed a program, and has the number `tid` from now on.
    pub(super) fn observe_exec(&mut self, tid: i32, former: i32) {
        self.observed.threads.remove(&tid);
        self.observed.gate = self.observed.gate.filter(|gate| *gate != tid);
        if former != tid {
            self.observed.threads.remove(&former);
            let call = self.observed.open.remove(&former);
            // The thread that had this id has ended, whatever call it was in.
            if let Some(gone) = self.observed.open.remove(&tid) {
                self.end(tid, gone, None, Treatment::Kernel);
            }
            self.observed.open.extend(call.map(|call| (tid, call)));
        }
        if self.monitor.observers.is_empty() {
            return;
        }
        let mut program = None;
        if let Some(open) = self.observed.open.get(&tid) {
            program = open.call.args.iter().find_map(|arg| match arg {
                Value::Path { given, resolved } => resolved.clone().or_else(|| Some(given.clone())),
                _ => None,
            });
        }
        let program = program.or_else(|| Some(procfs::exe(tid).ok()?.into()));
        let (Some(subject), Some(program)) = (self.subject(tid), program) else {
            return;
        };
        let now = monotonic_ns();
        for observer in self.monitor.observers.iter() {
            observer.executed(&subject, &program, now);
        }
    }

    /// Thread `tid` has ended.
    pub(super) fn observe_death(&mut self, tid: i32, status: ptrace::Status) {
        if let Some(open) = self.observed.open.remove(&tid) {
            self.end(tid, open, None, Treatment::Kernel);
        }
        let Some(subject) = self.observed.threads.remove(&tid) else {
            return;
        };
        let now = monotonic_ns();
        for observer in self.monitor.observers.iter() {
            observer.ended(&subject, status.raw(), now);
        }
    }
}

/// Whether call `nr` is one before which all threads must have their own CPUs.
fn asks_for_cpus(nr: u32) -> bool {
    entry(nr).is_some_and(|entry| matches!(entry.rule, Rule::Affinity))
}

/// Whether a call may change the name of its thread.
fn may_rename(call: &DecodedCall) -> bool {
    call.nr == libc::SYS_prctl as u32 && call.raw[0] as i32 == libc::PR_SET_NAME
}
