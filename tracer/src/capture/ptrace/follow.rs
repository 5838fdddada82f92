//! The loop over the ptrace stops of all followed threads. Read `thread.rs` next.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use goanna_affinity::KeptThreads;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::interrupt::while_interruptible;
use goanna_sys::ptrace::{self, CallStop, Options, Status, Stopped};
use goanna_sys::reports::Reports;
use goanna_sys::{Errno, pidfd, procfs};
use goanna_syscalls::{DecodedCall, Outcome, Treatment, decode};

use super::files::{self, Remote, ThreadNames, Tracer};
use super::mapping::{self, Pages};
use super::own::TracerAction;
use super::restart::restart_undisturbed;
use super::ring::Rings;
use super::thread::{Mode, Pending, Recorded, Thread, subject, umask};
use crate::capture::{CaptureError, Wanted};
use crate::event::Call;
use crate::select::CallSet;
use crate::{Error, Event, Sink};

/// How often to look for the report of a new thread's parent, and the time between.
const PARENT_TRIES: u32 = 500;
const PARENT_PAUSE: Duration = Duration::from_micros(200);

/// Follows threads until none is left.
pub struct Follower<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) sink: &'a dyn Sink,
    pub(super) tracer: Tracer,
    /// The calls that the seccomp filter stops.
    pub(super) stopped_calls: CallSet,
    pub(super) threads: HashMap<i32, Thread>,
    /// New threads that wait in their first stop for their parent's report.
    pub(super) early: HashMap<i32, Stopped>,
    /// The command, and how it has ended.
    pub(super) command: Option<(i32, Option<i32>)>,
    /// Set to request the end of the capture.
    pub(super) ends: Arc<AtomicBool>,
    /// The mapped files, if their pages are wanted.
    pub(super) pages: Option<Pages>,
    /// The calls that are recorded inside the programs, where that is possible.
    pub(super) rings: Option<Rings<'a>>,
    /// The threads that share the tracer's CPU.
    pub(super) kept_threads: KeptThreads,
    /// Reports still to be handled, for example of stops that came while a thread was to perform a call for the tracer.
    pub(super) reports: Reports,
    /// The error with which the sink has refused an event.
    pub(super) failure: Option<Error>,
}

impl<'a> Follower<'a> {
    /// Makes the loop; it follows no thread yet.
    pub fn new(wanted: &'a Wanted, sink: &'a dyn Sink, ends: Arc<AtomicBool>) -> Self {
        let mut stopped_calls = *wanted.calls();
        stopped_calls.add(&super::own::calls());
        if wanted.wants_pages() {
            stopped_calls.add(&mapping::calls());
        }
        Self {
            wanted,
            sink,
            tracer: Tracer::this(),
            stopped_calls,
            threads: HashMap::new(),
            early: HashMap::new(),
            command: None,
            ends,
            pages: None,
            rings: None,
            kept_threads: KeptThreads::never(),
            reports: Reports::default(),
            failure: None,
        }
    }

    /// The ptrace options with which threads are seized.
    pub(super) fn options(&self) -> Options {
        match self.wanted.wants_pages() {
            true => Options::TRACER | Options::TRACEEXIT,
            false => Options::TRACER,
        }
    }

    /// Handles stops until no thread is left (`true`), the capture is to end, or the sink fails.
    pub fn run(&mut self) -> Result<bool, CaptureError> {
        while !self.has_failed() && !self.ends.load(Ordering::Acquire) {
            match self.wait() {
                Ok(Some(event)) => self.stop(event)?,
                Ok(None) => self.send_in_order(monotonic_ns()),
                Err(Errno::ECHILD) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(false)
    }

    fn has_failed(&self) -> bool {
        self.failure.is_some() || self.rings.as_ref().is_some_and(Rings::has_failed)
    }

    /// Waits for a report. The time is limited while a new thread waits for the report of its parent: a parent that was killed at the stop which
    /// announces the child does not report it.
    fn wait(&mut self) -> Result<Option<ptrace::Event>, Errno> {
        if let Some(report) = self.reports.take() {
            return Ok(Some(report));
        }
        let report = match self.early.is_empty() {
            true if self.rings.as_ref().is_some_and(Rings::is_ticking) => {
                while_interruptible(ptrace::wait_once)?
            }
            true => ptrace::wait_once()?,
            false => self.wait_for_parent()?,
        };
        Ok(match self.threads.len() {
            0 | 1 => report,
            _ => report.and_then(|report| {
                let next_end = || ptrace::wait_leaving(libc::WEXITED | libc::WNOHANG, |_, _| true);
                self.reports.gather(report, next_end)
            }),
        })
    }

    fn wait_for_parent(&mut self) -> Result<Option<ptrace::Event>, Errno> {
        for _ in 0..PARENT_TRIES {
            let report = ptrace::wait(libc::WNOHANG)?;
            if report.is_some() {
                return Ok(report);
            }
            std::thread::sleep(PARENT_PAUSE);
        }
        self.adopt();
        Ok(None)
    }

    /// Follows new threads whose parents have not reported them.
    fn adopt(&mut self) {
        for (tid, stopped) in std::mem::take(&mut self.early) {
            let parent = procfs::status(tid).map(|status| {
                if status.tgid == tid {
                    status.ppid
                } else {
                    status.tgid
                }
            });
            // Its filters are not known.
            self.add(tid, Mode::EachCall, parent.unwrap_or(0), monotonic_ns());
            self.recorder_is_unknown(tid);
            self.kept_threads.has_found(tid);
            // If the thread was killed, the kernel reports its end.
            let _ = self.keep(stopped).and_then(|()| self.resume(tid, 0));
        }
    }

    /// Handles one report. `ESRCH` means that the tracee was killed in its stop: the kernel reports its end next.
    pub(super) fn stop(&mut self, event: ptrace::Event) -> Result<(), CaptureError> {
        let now = monotonic_ns();
        let outcome = match event {
            ptrace::Event::Ended { tid, status } => {
                self.ended(tid, status, now);
                Ok(())
            }
            ptrace::Event::Stopped(stopped, status) => self.handle(stopped, status, now),
        };
        self.send_in_order(now);
        match outcome {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn handle(&mut self, stopped: Stopped, status: Status, now: u64) -> Result<(), Errno> {
        let tid = stopped.tid();
        if !self.threads.contains_key(&tid) && !matches!(status, Status::Exec { .. }) {
            // A child's first stop may be reported before the stop of its parent that identifies the child.
            self.early.insert(tid, stopped);
            return Ok(());
        }
        self.note(stopped, status, now)?;
        match status {
            Status::SignalDelivery(signal) => {
                let signal = self.leave_recorder(tid, signal)?;
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.has_handled |= signal != 0;
                }
                self.resume(tid, signal)
            }
            Status::GroupStop(_) => match self.take(tid) {
                Some(stopped) => stopped.listen(),
                None => Ok(()),
            },
            _ => self.resume(tid, 0),
        }
    }

    /// Updates the state of a thread at its stop.
    pub(super) fn note(&mut self, stopped: Stopped, status: Status, now: u64) -> Result<(), Errno> {
        let tid = stopped.tid();
        let call = match status {
            Status::Seccomp | Status::SyscallStop => stopped.call()?,
            _ => CallStop::Other,
        };
        if let Some(subject) = self.subject_of(tid) {
            self.kept_threads.stopped(tid, now);
            self.take_records(&subject);
        }
        let is_entry = matches!(call, CallStop::Entry { .. });
        // Any stop takes the place of a requested one. After a stop at a call's entry, the call is interrupted.
        let thread = self.threads.get_mut(&tid).filter(|_| !is_entry);
        if thread.is_some_and(|thread| std::mem::take(&mut thread.is_interrupted)) {
            restart_undisturbed(&stopped, None);
        }
        match status {
            Status::SignalDelivery(signal) => {
                restart_undisturbed(&stopped, Some(signal));
            }
            Status::Exec { former_tid } => self.renamed(tid, former_tid, now),
            _ => {}
        }
        self.keep(stopped)?;
        match status {
            Status::Seccomp | Status::SyscallStop => self.call_stop(tid, call, now),
            Status::NewChild { child, kind } => {
                if let Some(parent) = self.subject_of(tid) {
                    self.recorder_has_child(&parent, child, kind);
                }
                self.new_child(tid, child, now);
            }
            Status::Exec { .. } => self.executed(tid, now),
            Status::EventStop => self.watch_inherited(tid),
            Status::ExitEvent => self.exits(tid),
            _ => {}
        }
        Ok(())
    }

    /// Keeps a thread in its stop. A thread that is not known, because it was killed before, continues to its end.
    fn keep(&mut self, stopped: Stopped) -> Result<(), Errno> {
        match self.threads.get_mut(&stopped.tid()) {
            Some(thread) => {
                thread.stopped = Some(stopped);
                Ok(())
            }
            None => stopped.cont_syscall(0),
        }
    }

    /// Takes a thread that is kept in its stop, so that it can be continued. `None`: another stop of the thread must be handled before.
    pub(super) fn take(&mut self, tid: i32) -> Option<Stopped> {
        let thread = self.threads.get_mut(&tid)?;
        thread.stopped.take()
    }

    /// Handles the stop before a thread's end. The memory of a process ends with its last thread.
    fn exits(&mut self, tid: i32) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.is_exiting = true;
        let subject = thread.subject.clone();
        let mut others = self.threads.values();
        if others.all(|other| other.subject.pid != subject.pid || other.is_exiting) {
            self.look_at_pages(&subject);
        }
    }

    /// Lets a thread run to its next stop, unless another stop of the thread must be handled before.
    pub(super) fn resume(&mut self, tid: i32, signal: i32) -> Result<(), Errno> {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Ok(());
        };
        let Some(stopped) = thread.stopped.take() else {
            return Ok(());
        };
        let to_exit = thread.mode == Mode::EachCall || thread.pending.is_some();
        thread.is_inside &= to_exit;
        self.kept_threads.continues(tid);
        match to_exit {
            true => stopped.cont_syscall(signal),
            false => stopped.cont(signal),
        }
    }

    fn call_stop(&mut self, tid: i32, stop: CallStop, now: u64) {
        match stop {
            CallStop::Entry {
                nr,
                args,
                is_native,
                ip,
            } => {
                // A thread that stops at each call stops twice at the entry of a call that our filter stops.
                let thread = self.threads.get_mut(&tid);
                if let Some(thread) = thread
                    && !std::mem::replace(&mut thread.is_inside, true)
                {
                    thread.called_from = ip;
                    self.begin(tid, nr, args, is_native, now);
                }
            }
            CallStop::Exit { result } => self.finish(tid, result, now),
            CallStop::Other => {}
        }
    }

    fn begin(&mut self, tid: i32, nr: u64, args: [u64; 6], is_native: bool, now: u64) {
        let wanted = self.wanted;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if !is_native {
            if !std::mem::replace(&mut thread.has_foreign_calls, true) {
                let comm = thread.subject.comm.clone();
                self.foreign(tid, &comm, now);
            }
            return;
        }
        let nr = u32::try_from(nr).unwrap_or(u32::MAX);
        if thread.is_starting {
            if i64::from(nr) != libc::SYS_execve {
                return;
            }
            self.started(tid, now);
        }
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        if i64::from(nr) == libc::SYS_clone {
            // A thread that was killed makes no other.
            let _ = thread.clone_traced(args);
        }
        let own = TracerAction::of(nr, &args);
        if own == TracerAction::Cpus {
            self.kept_threads.asks(tid);
        }
        let recorded = wanted.may_want(nr, &thread.subject).then(|| {
            let call = decode(nr, args, &Remote(tid), &wanted.limits());
            let names = ThreadNames::new(&self.tracer, thread, wanted.details());
            let mut recorded = Recorded::new(thread.subject.clone(), call, now);
            files::before(&names, &mut recorded);
            recorded
        });
        let mapping = self.mapping_begins(tid, nr, args);
        if (recorded.is_some() || own != TracerAction::Nothing || mapping.is_some())
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.pending = Some(Pending {
                recorded,
                own,
                mapping,
            });
        }
    }

    /// The command's thread has left the tracer's code, at its first execve.
    fn started(&mut self, tid: i32, now: u64) {
        if let Some(thread) = self.threads.get_mut(&tid)
            && std::mem::take(&mut thread.is_starting)
        {
            let subject = thread.subject.clone();
            self.send(Event::Began {
                subject,
                parent: 0,
                umask: umask(tid),
                at_ns: now,
            });
        }
    }

    fn finish(&mut self, tid: i32, result: i64, now: u64) {
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.is_inside = false;
        self.kept_threads.has_asked(tid);
        let ip = thread.called_from;
        let Some(pending) = thread.pending.take() else {
            return;
        };
        let nr = pending.recorded.as_ref().map(|recorded| recorded.call.nr);
        if let Some(mut recorded) = pending.recorded {
            let limits = self.wanted.limits();
            recorded.call.complete(result, &Remote(tid), &limits);
            recorded.call.complete_copy(result, &Remote(tid), &limits);
            let names = ThreadNames::new(&self.tracer, thread, self.wanted.details());
            let files = files::after(&names, &mut recorded, result);
            let outcome = Outcome {
                result,
                left_ns: now,
                treatment: Treatment::Kernel,
            };
            self.send_call(recorded, Some(outcome), files);
        }
        if !(-4095..0).contains(&result) {
            self.succeeded(tid, pending.own);
            if let Some(change) = pending.mapping {
                self.mapping_changed(tid, change, result);
            }
        }
        if let Some(nr) = nr {
            self.consider_recording(tid, nr, ip);
        }
    }

    /// Performs the tracer's own work after a call.
    fn succeeded(&mut self, tid: i32, own: TracerAction) {
        let pid = self.threads.get(&tid).map(|thread| thread.subject.pid);
        let of_process = |thread: &Thread| Some(thread.subject.pid) == pid;
        match own {
            TracerAction::Nothing | TracerAction::Cpus => {}
            TracerAction::Subject => self.look_anew(tid),
            TracerAction::Namespaces => {
                self.look_anew(tid);
                self.forget_roots();
                self.stop_all_recording();
            }
            TracerAction::Root => {
                self.forget_roots();
                self.stop_all_recording();
            }
            TracerAction::Process => {
                let all = self.threads.iter();
                let all: Vec<i32> = all
                    .filter(|(_, thread)| of_process(thread))
                    .map(|(tid, _)| *tid)
                    .collect();
                all.into_iter().for_each(|tid| self.look_anew(tid));
            }
            TracerAction::Filtered => {
                self.stop_recording(pid.unwrap_or(tid));
                if let Some(thread) = self.threads.get_mut(&tid) {
                    thread.mode = Mode::EachCall;
                }
            }
            TracerAction::AllFiltered => {
                self.stop_recording(pid.unwrap_or(tid));
                for (&other, thread) in &mut self.threads {
                    if of_process(thread) && thread.mode == Mode::Filtered {
                        thread.mode = Mode::EachCall;
                        if other != tid {
                            // The thread runs; from its next stop on, it stops at each call. A thread that has ended needs nothing.
                            thread.is_interrupted = ptrace::interrupt(other).is_ok();
                        }
                    }
                }
            }
        }
    }

    fn forget_roots(&self) {
        for thread in self.threads.values() {
            thread.has_our_root.set(None);
        }
    }

    /// Reads again the user, session and name of a thread.
    fn look_anew(&mut self, tid: i32) {
        if let Some(thread) = self.threads.get_mut(&tid)
            && let Ok(now) = subject(tid)
        {
            thread.subject = now;
        }
    }

    fn new_child(&mut self, tid: i32, child: i32, now: u64) {
        let early = self.early.remove(&child);
        if let Some(parent) = self.threads.get(&tid)
            && !self.threads.contains_key(&child)
        {
            let (pid, mode, has_handled) = (parent.subject.pid, parent.mode, parent.has_handled);
            self.kept_threads.has_child(tid, child);
            self.add(child, mode, pid, now);
            // The parent may change its mappings before the child comes to its first stop.
            let inherited = self.mappings_for_copy(child, pid);
            if let Some(child) = self.threads.get_mut(&child) {
                child.inherited = inherited;
                child.has_handled = has_handled;
            }
        }
        if let Some(stopped) = early {
            // If the child was killed, the kernel reports its end.
            let _ = self.keep(stopped);
            self.watch_inherited(child);
            let _ = self.resume(child, 0);
        }
    }

    /// Follows a thread from now on.
    pub(super) fn add(&mut self, tid: i32, mode: Mode, parent: i32, now: u64) {
        // If the thread has been killed already, the kernel reports its end; nothing else is known of it.
        let Ok(subject) = subject(tid) else { return };
        self.send(Event::Began {
            subject: subject.clone(),
            parent,
            // Children inherit their parents' masks.
            umask: (parent == 0).then(|| umask(tid)).flatten(),
            at_ns: now,
        });
        self.threads.insert(tid, Thread::new(subject, mode));
    }

    /// Thread `former_tid` has executed a program, and has the number `tid` from now on.
    fn renamed(&mut self, tid: i32, former_tid: i32, now: u64) {
        if former_tid != tid {
            // The thread that called execve continues under its process's id; the former leader is gone without a report.
            if let Some(leader) = self.threads.remove(&tid) {
                self.abandon(leader.pending);
            }
            self.kept_threads.is_renamed(former_tid, tid);
            // Its call has succeeded; reported now, before the end of the thread that made it.
            self.finish(former_tid, 0, now);
            if let Some(thread) = self.threads.remove(&former_tid) {
                self.send(Event::Ended {
                    subject: thread.subject.clone(),
                    status: 0,
                    at_ns: now,
                });
                self.threads.insert(tid, thread);
            }
        }
    }

    /// Thread `tid` has executed a program.
    fn executed(&mut self, tid: i32, now: u64) {
        self.started(tid, now);
        self.look_anew(tid);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return;
        };
        thread.has_foreign_calls = false;
        thread.has_handled = false;
        thread.has_our_root.set(None);
        let subject = thread.subject.clone();
        self.recorder_is_gone(&subject);
        let program = procfs::exe(tid).unwrap_or_default().into();
        self.send(Event::Executed {
            subject,
            program,
            at_ns: now,
        });
    }

    fn ended(&mut self, tid: i32, status: Status, now: u64) {
        self.kept_threads.has_ended(tid);
        if let Some(thread) = self.threads.remove(&tid) {
            if thread.subject.pid == tid {
                self.mappings_are_gone(tid);
                self.recorder_is_gone(&thread.subject);
            }
            self.abandon(thread.pending);
            if !thread.is_starting {
                self.send(Event::Ended {
                    subject: thread.subject,
                    status: status.raw(),
                    at_ns: now,
                });
            }
        }
        self.early.remove(&tid);
        if let Some((command, end)) = &mut self.command
            && *command == tid
        {
            *end = Some(status.raw());
        }
    }

    /// Kills all followed threads, and waits for their ends.
    pub(super) fn kill_all(&mut self) {
        for tid in self.threads.keys().chain(self.early.keys()) {
            // A thread that has ended needs no signal.
            let _ = pidfd::open(*tid)
                .and_then(|thread| pidfd::send_signal(thread.as_fd(), libc::SIGKILL));
        }
        while let Ok(report) = ptrace::wait_once() {
            if let Some(ptrace::Event::Stopped(stopped, _)) = report {
                let _ = stopped.cont(0);
            }
        }
    }

    /// Reports a call that does not end.
    pub(super) fn abandon(&mut self, pending: Option<Pending>) {
        if let Some(recorded) = pending.and_then(|pending| pending.recorded) {
            self.send_call(recorded, None, Vec::new());
        }
    }

    fn send_call(
        &mut self,
        recorded: Recorded,
        outcome: Option<Outcome>,
        files: Vec<(u8, crate::event::File)>,
    ) {
        let call: DecodedCall = recorded.call;
        self.send(Event::Call(Box::new(Call {
            subject: recorded.subject,
            call,
            entered_ns: recorded.entered_ns,
            outcome,
            files,
        })));
    }

    fn foreign(&mut self, tid: i32, comm: &str, now: u64) {
        let reason = format!("calls of 32-bit code in thread {tid} ({comm}) are not recorded");
        self.send(Event::Lost {
            events: 0,
            reason: reason.into(),
            at_ns: now,
        });
    }

    pub(super) fn pass_on(&mut self, event: &Event) {
        if self.failure.is_none()
            && let Err(error) = self.sink.take(event)
        {
            self.failure = Some(error);
        }
    }
}
