//! Stops of traced threads: which ones their tracers see, and how the threads go on.

use goanna_sys::ptrace::{self, CallStop, Options, Status, Stopped, Until};
use goanna_sys::restarts::ERESTARTNOINTR;
use goanna_sys::signals::{is_pause, send_for_call};
use goanna_syscalls::Treatment;
use goanna_vfs::Errno;

use super::{Entered, State, Stop, Then, Tracee, by_signal};
use crate::inprocess::StubPosition;
use crate::ptracer::calls::skip;
use crate::ptracer::signals::is_of_stub;
use crate::ptracer::{Supervisor, assert_lives_or_ended};

/// The result of PTRACE_ATTACH for a thread that has ended meanwhile.
const GONE: i64 = -(Errno::ESRCH as i64);

impl Supervisor {
    /// Any stop of a thread, before the supervisor looks at it. Holds the thread if its tracer can see the stop.
    pub(in crate::ptracer) fn traced_stop(
        &mut self,
        stopped: Stopped,
        status: Status,
    ) -> Result<Option<Stopped>, Errno> {
        if self.tracees.are_none() {
            return Ok(Some(stopped));
        }
        let Some(stopped) = self.tracer_stop(stopped, status)? else {
            return Ok(None);
        };
        let until = self.tracees.until(stopped.tid());
        let stopped = stopped.until(until);
        self.prepare(&stopped, status)?;
        if status == Status::SyscallStop && !self.tracees.is_stopping(stopped.tid()) {
            return self.enter_call(stopped);
        }
        match self.visible(&stopped, status)? {
            // Events are within calls.
            Some(_) if status.event() == 0 && self.tracees.is_in_call(stopped.tid()) => {
                self.tracees.has_left_call(stopped.tid());
                self.hold_at_call(stopped, Then::Report(status))?;
                Ok(None)
            }
            Some((raw, message)) => {
                self.hold(stopped, Then::Handle(status), raw, message)?;
                Ok(None)
            }
            None => Ok(Some(stopped)),
        }
    }

    /// Whether the supervisor itself waits for the next entry or exit of the thread.
    pub(super) fn expects_syscall_stop(&self, tid: i32) -> bool {
        self.injector.is_calling(tid)
            || self.parking.has(tid)
            || self.waits.has(tid)
            || self.rewriter.is_running(tid)
    }

    /// Gives the kernel the options of the thread's tracer, and has the thread stop once more if this is not the stop which that awaits.
    fn prepare(&mut self, stopped: &Stopped, status: Status) -> Result<(), Errno> {
        let tid = stopped.tid();
        let Some(tracee) = self.tracees.by_tid.get_mut(&tid) else {
            return Ok(());
        };
        let awaits_stop = tracee.awaits_stop;
        if std::mem::take(&mut tracee.has_new_options) {
            stopped.set_options(self.options_of(tid))?;
        }
        match awaits_stop && !matches!(status, Status::EventStop | Status::GroupStop(_)) {
            true => stopped.interrupt(),
            false => Ok(()),
        }
    }

    /// The thread is at the entry or the exit of a call. Holds it at the entry of a call of its own.
    fn enter_call(&mut self, stopped: Stopped) -> Result<Option<Stopped>, Errno> {
        let tid = stopped.tid();
        let is_rewritten = self.rewriter.is_ready(tid);
        let at = stopped.call()?;
        if let CallStop::Exit { result } = at
            && is_rewritten
        {
            // A call of a signal handler that runs before the rewritten call.
            return self.left(stopped, result).map(|()| None);
        }
        let is_ours = self.expects_syscall_stop(tid);
        let Some(tracee) = self.tracees.by_call(tid).filter(|_| !is_ours) else {
            return Ok(Some(stopped));
        };
        let CallStop::Entry { nr, ip, .. } = at else {
            return Ok(Some(stopped));
        };
        let entered = Entered { nr, ip };
        let is_same = |seen: Entered| seen == entered || is_rewritten && seen.ip == ip;
        if tracee.call.is_some_and(is_same) {
            // The supervisor has restarted the call.
            return stopped.cont(0).map(|()| None);
        }
        tracee.call = Some(entered);
        self.hold_at_call(stopped, Then::EnterKernel).map(|()| None)
    }

    /// The thread is at the exit of its own call, which has this result. Holds it there if its tracer waits for that.
    pub(in crate::ptracer) fn leave_call(
        &mut self,
        stopped: Stopped,
        result: i64,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        let tracee = self.tracees.by_call(tid);
        let Some(entered) = tracee.and_then(|tracee| tracee.call) else {
            return stopped.cont(0);
        };
        let mut regs = stopped.regs()?;
        if result == ERESTARTNOINTR || regs.is_before_call(entered.ip) {
            return stopped.cont(0);
        }
        self.tracees.has_left_call(tid);
        if regs.number() == -1 {
            regs.set_number(entered.nr.cast_signed());
            stopped.set_regs(&regs)?;
        }
        self.hold_at_call(stopped, Then::Resume)
    }

    fn hold_at_call(&mut self, stopped: Stopped, then: Then) -> Result<(), Errno> {
        let is_marked = self
            .tracees
            .has_option(stopped.tid(), libc::PTRACE_O_TRACESYSGOOD);
        let signal = libc::SIGTRAP | if is_marked { 0x80 } else { 0 };
        self.hold(stopped, then, by_signal(signal), 0)
    }

    /// The status and the message of a stop, if the thread's tracer sees it.
    fn visible(&self, stopped: &Stopped, status: Status) -> Result<Option<(i32, u64)>, Errno> {
        let tid = stopped.tid();
        let is_calling = self.injector.is_calling(tid);
        if self.tracees.is_stopping(tid) {
            let is_interrupt = matches!(status, Status::EventStop | Status::GroupStop(_));
            if is_interrupt && !is_calling && self.known.contains(&tid) {
                let raw = match self.tracees.is_seized(tid) {
                    true => of_event(libc::PTRACE_EVENT_STOP),
                    false => by_signal(libc::SIGSTOP),
                };
                return Ok(Some((raw, 0)));
            }
            // This stop may have replaced the one that PTRACE_INTERRUPT asked for.
            stopped.interrupt()?;
            return Ok(None);
        }
        if is_calling || !self.tracees.is_running(tid) {
            return Ok(None);
        }
        Ok(match status {
            Status::SignalDelivery(libc::SIGSTOP) if is_pause(stopped)? => None,
            Status::SignalDelivery(signal) => {
                let mut regs = stopped.regs()?;
                let left = self.monitor.in_process.leave(tid, signal, &mut regs);
                let is_hidden = left == Some(StubPosition::Before) && is_of_stub(stopped, signal)?;
                (!is_hidden).then_some((by_signal(signal), 0))
            }
            Status::EventStop if self.tracees.awaits_stop(tid) => {
                Some((of_event(libc::PTRACE_EVENT_STOP), 0))
            }
            Status::GroupStop(signal) if self.tracees.is_seized(tid) => {
                Some((libc::PTRACE_EVENT_STOP << 16 | by_signal(signal), 0))
            }
            Status::GroupStop(signal) => Some((by_signal(signal), 0)),
            Status::VforkDone | Status::ExitEvent if self.tracees.wants(tid, status.event()) => {
                let message = stopped.event_message()?;
                Some((of_event(status.event()), message as u64))
            }
            _ => None,
        })
    }

    /// Holds a thread at a stop until its tracer lets it go on.
    fn hold(&mut self, stopped: Stopped, then: Then, raw: i32, message: u64) -> Result<(), Errno> {
        let tid = stopped.tid();
        let mut regs = stopped.regs()?;
        let waits = self.parking.saved(tid);
        let is_outside = !matches!(then, Then::Resume | Then::EnterKernel);
        if let Some(saved) = &waits {
            stopped.set_regs(saved)?;
        } else if is_outside && self.monitor.in_process.leave(tid, 0, &mut regs).is_some() {
            stopped.set_regs(&regs)?;
        }
        let stop = Stop {
            stopped,
            then,
            raw,
            message,
            is_reported: false,
            parked: waits.map(|_| regs),
        };
        let Some(tracee) = self.tracees.by_tid.get_mut(&tid) else {
            return Ok(());
        };
        let tracer = tracee.tracer;
        tracee.awaits_stop = false;
        let former = std::mem::replace(&mut tracee.state, State::Stopped(Box::new(stop)));
        let caller = match former {
            State::Stopping { caller } => caller,
            _ => None,
        };
        let by = caller.as_ref().map(Stopped::tid);
        self.notify_tracer(tracer.pid, tid, raw, by);
        self.end_attaching(caller, 0);
        Ok(())
    }

    /// If another thread waits in PTRACE_ATTACH for this one, that call returns `result`.
    fn end_attaching(&mut self, caller: Option<Stopped>, result: i64) {
        let Some(caller) = caller else {
            return;
        };
        let tid = caller.tid();
        self.observe_end(tid, result, Treatment::Monitor);
        // It may have been killed.
        let regs = caller.regs();
        let _ = regs.and_then(|regs| skip(&caller, regs, result));
        let until = self.tracees.until(tid);
        let _ = caller.until(until).cont(0);
    }

    /// Resumes a thread after an event that the supervisor has handled, or holds it there for its tracer.
    pub(in crate::ptracer) fn resume_after(
        &mut self,
        stopped: Stopped,
        event: i32,
        message: i32,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        if self.tracees.is_running(tid) {
            if self.tracees.wants(tid, event) {
                return self.hold(stopped, Then::Resume, of_event(event), message as u64);
            }
            if event == libc::PTRACE_EVENT_EXEC && !self.tracees.is_seized(tid) {
                send_for_call(tid, libc::SIGTRAP);
            }
        }
        self.resume(stopped)
    }

    /// Lets a stopped thread go on with `signal`; `None`: with the signal that it has stopped for.
    pub(super) fn go_on(&mut self, tid: i32, signal: Option<i32>, until: Until) {
        let Some(tracee) = self.tracees.by_tid.get_mut(&tid) else {
            return;
        };
        match until {
            // A call of a stub is none of the program.
            Until::Call => self.monitor.in_process.exclude(tid),
            _ => tracee.call = None,
        }
        let awaits_stop = tracee.awaits_stop;
        let state = State::Running(until);
        if let State::Stopped(stop) = std::mem::replace(&mut tracee.state, state) {
            self.leave_stop(*stop, signal, false);
        }
        if awaits_stop {
            // It may have been killed.
            let _ = ptrace::interrupt(tid);
        }
    }

    /// Ends the tracing of a thread, which goes on with `signal` if it is stopped; `None`: with the signal that it has stopped for.
    pub(super) fn release(&mut self, tid: i32, signal: Option<i32>) {
        let tracee = self.tracees.by_tid.remove(&tid);
        if let Some(State::Stopped(stop)) = tracee.map(|tracee| tracee.state) {
            self.leave_stop(*stop, signal, true);
        }
    }

    fn leave_stop(&mut self, stop: Stop, signal: Option<i32>, is_detached: bool) {
        let tid = stop.stopped.tid();
        stop.restore();
        let until = self.tracees.until(tid);
        let stopped = stop.stopped.until(until);
        let status = match stop.then {
            Then::Handle(status) | Then::Report(status) => status,
            Then::Resume | Then::EnterKernel => Status::EventStop,
        };
        let is_at_call =
            matches!(stop.then, Then::Resume | Then::EnterKernel) && stop.raw >> 16 == 0;
        if let Some(signal) = signal.filter(|signal| *signal != 0 && is_at_call) {
            send_for_call(tid, signal);
        }
        let outcome = self.catch_at_stop(tid, status, |this| match stop.then {
            Then::Resume => this.resume(stopped),
            Then::EnterKernel => this.enter_kernel(stopped),
            Then::Report(status) => this.stop(stopped, status),
            Then::Handle(Status::SignalDelivery(own)) => {
                this.deliver(stopped, signal.unwrap_or(own))
            }
            Then::Handle(Status::GroupStop(_)) if !is_detached => stopped.cont(0),
            Then::Handle(status) => {
                if let Some(signal) = signal.filter(|signal| *signal != 0) {
                    send_for_call(tid, signal);
                }
                this.handle(stopped, status)
            }
        });
        assert_lives_or_ended(tid, outcome);
    }

    /// The options of ptrace(2) that the kernel needs for thread `tid`.
    pub(in crate::ptracer) fn options_of(&self, tid: i32) -> Options {
        let wants = |event| self.tracees.wants(tid, event);
        let mut options = Options::MONITOR;
        options.set(
            Options::TRACEVFORKDONE,
            wants(libc::PTRACE_EVENT_VFORK_DONE),
        );
        let counts = self.monitor.in_process.counts();
        options.set(Options::TRACEEXIT, counts || wants(libc::PTRACE_EVENT_EXIT));
        options
    }

    /// Thread `former` has executed a program, and has the number `tid` from now on. The thread that had that is gone.
    pub(in crate::ptracer) fn traced_executed(&mut self, tid: i32, former: i32) {
        if tid == former {
            return;
        }
        self.tracees.waits.forget(former);
        self.tracees.processes.remove(&former);
        if let Some(Tracee {
            state: State::Stopping { caller },
            ..
        }) = self.tracees.by_tid.remove(&tid)
        {
            self.end_attaching(caller, GONE);
        }
        if let Some(tracee) = self.tracees.by_tid.remove(&former) {
            self.tracees.by_tid.insert(tid, tracee);
        }
        for tracee in self.tracees.by_tid.values_mut() {
            if tracee.tracer.tid == Some(former) {
                tracee.tracer.tid = Some(tid);
            }
        }
    }

    /// A thread has ended: those that it has traced are free.
    pub(in crate::ptracer) fn traced_ended(&mut self, tid: i32, status: Status) {
        self.tracees.waits.forget(tid);
        self.tracees.processes.remove(&tid);
        if let Some(mut tracee) = self.tracees.by_tid.remove(&tid) {
            match std::mem::replace(&mut tracee.state, State::Ended(status)) {
                State::Stopping { caller } => self.end_attaching(caller, GONE),
                _ if tracee.is_child => {}
                _ => {
                    let pid = tracee.tracer.pid;
                    self.tracees.by_tid.insert(tid, tracee);
                    self.notify_tracer(pid, tid, status.raw(), None);
                }
            }
        }
        for traced in self.tracees.of(tid) {
            if self.tracees.has_option(traced, libc::PTRACE_O_EXITKILL) {
                send_for_call(traced, libc::SIGKILL);
            }
            self.release(traced, None);
        }
    }
}

/// The status of a stop because of an event, as wait4(2) reports it.
const fn of_event(event: i32) -> i32 {
    event << 16 | by_signal(libc::SIGTRAP)
}
