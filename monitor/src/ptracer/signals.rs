//! Stops for the delivery of signals, and syscall stops.

use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::ptrace::{SignalOrigin, Stopped};
use goanna_sys::signals;
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, Result};

use super::Supervisor;
use super::calls::call_of;
use super::undisturbed::{self, Deadline, Instead};
use crate::inprocess::StubPosition;
use crate::ptracer::inject::{Receive, Stop};
use crate::ptracer::mailbox::Message;
use crate::ptracer::restart;
use crate::ptracer::rewrite::Boundary;

/// Whether a stub has caused the signal, at a check before its call. The program must not get it: the thread makes the call again.
/// That call reports the error in its arguments, or is dispatched to the program's handler (PR_SET_SYSCALL_USER_DISPATCH).
pub(super) fn is_of_stub(stopped: &Stopped, signal: i32) -> Result<bool, Errno> {
    let can_be = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGSYS);
    Ok(can_be && !matches!(stopped.signal_origin()?, SignalOrigin::Process(_)))
}

impl Supervisor {
    /// Delivers a signal, unless it is the SIGSTOP of a commit, or 0: then the thread's tracer has withdrawn it. If the signal has
    /// interrupted a call before the monitor received it, the call is restarted afterwards.
    pub(super) fn deliver(&mut self, mut stopped: Stopped, signal: i32) -> Result<(), Errno> {
        let tid = stopped.tid();
        let is_ours = signal == 0 || signal == libc::SIGSTOP && signals::is_pause(&stopped)?;
        if is_ours && self.injector.is_calling(tid) {
            return stopped.cont_syscall(0);
        }
        if !is_ours {
            // After an error here the monitor stays the sender.
            let _ = signals::set_sender(&stopped, signal);
            stopped = match self.injector.signal(stopped, signal) {
                Stop::Foreign(stopped) => stopped,
                stop => return self.injected(tid, stop),
            };
            let monitor = &self.monitor;
            monitor.run_end.deliver(&stopped, signal, &monitor.alive);
            // After an error here only the core file is lost.
            let _ = self.core_files.signal(monitor, &stopped, signal);
        }
        if self.parking.has(tid) {
            return self.parked_signal(stopped, signal, is_ours);
        }
        let delivered = if is_ours { 0 } else { signal };
        let mut regs = stopped.regs()?;
        let left = self.monitor.in_process.leave(tid, signal, &mut regs);
        if let Some(left) = left {
            stopped.set_regs(&regs)?;
            if left == StubPosition::Before && is_of_stub(&stopped, signal)? {
                return stopped.cont(0);
            }
        }
        // A call that notifies from a stub is interrupted as one from the site.
        let left = left.filter(|left| *left != StubPosition::Notified);
        // Outside of a call the number is -1, which is not in the table.
        let (nr, args) = call_of(&regs);
        let result = regs.result();
        let instead = match signal {
            libc::SIGSTOP if is_ours => self.waits.stop(tid, (nr, args), result),
            // Its tracer has seen the stop, and the kernel has ended the call because of that.
            _ if self.tracees.is_running(tid) => {
                self.waits.forget(tid);
                None
            }
            _ => self.waits.signal(tid, signal, (nr, args), result),
        };
        match instead {
            Some(Instead::Over(result)) => {
                self.observe_end(tid, result, Treatment::Kernel);
                regs.set_result(result);
                stopped.set_regs(&regs)?;
                return stopped.cont(delivered);
            }
            Some(Instead::Restart(result, deadline)) => {
                self.interrupted_call_continues(tid);
                regs.set_result(result);
                stopped.set_regs(&regs)?;
                if let Some(deadline) = deadline {
                    self.wake_at(tid, deadline);
                }
                return stopped.cont_syscall(delivered);
            }
            None if !is_ours => self.interrupted(tid, signal),
            None => {}
        }
        let is_stopped = self.monitor.observers.interest().contains(nr);
        if is_ours || !self.notified || left.is_some() || is_stopped {
            return stopped.cont(delivered);
        }
        self.restart(stopped, signal, regs)
    }

    /// Delivers a signal that has interrupted a notified call, and makes the kernel restart the call where it would otherwise
    /// return EINTR without the monitor.
    fn restart(&self, stopped: Stopped, signal: i32, mut regs: Registers) -> Result<(), Errno> {
        let tid = stopped.tid();
        let (nr, args) = call_of(&regs);
        let received = || {
            let monitor = &self.monitor;
            let is_repeated = monitor.waiting.has(tid);
            (!is_repeated)
                .then(|| monitor.tasks.left_to_wait(tid))
                .flatten()
        };
        let result = regs.result();
        if let Some(instead) = restart::instead(nr, args, self.shadow_files, result, received) {
            regs.set_result(instead);
            stopped.set_regs(&regs)?;
        }
        stopped.cont(signal)
    }

    /// Sends the supervisor [`Message::Due`] at `deadline`. If the clock cannot be started, the wait lasts longer.
    fn wake_at(&self, tid: i32, deadline: Deadline) {
        let monitor = Arc::downgrade(&self.monitor);
        let wake = Box::new(move || {
            if let Some(monitor) = monitor.upgrade() {
                monitor.mailbox.post(Message::Due(tid, deadline.number));
            }
        });
        let _ = self.monitor.executor.at(deadline.at, wake);
    }

    pub(super) fn syscall_stop(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        let stopped = match self.injector.syscall_stop(stopped) {
            Stop::Foreign(stopped) => stopped,
            stop => return self.injected(tid, stop),
        };
        if self.parking.has(tid) {
            return self.parked_syscall(stopped);
        }
        let mut regs = stopped.regs()?;
        // For a rewritten call, the registers must be restored first.
        let is_rewritten = self.rewriter.is_running(tid);
        let boundary = (!is_rewritten)
            .then(|| self.waits.syscall_stop(tid, regs.result()))
            .flatten();
        match boundary {
            Some(undisturbed::Boundary::Begins { is_over }) => {
                if is_over {
                    stopped.interrupt()?;
                }
                return stopped.cont_syscall(0);
            }
            Some(undisturbed::Boundary::Ends(over)) => {
                if let Some(over) = over {
                    regs.set_result(over);
                    stopped.set_regs(&regs)?;
                    self.observe_end(tid, over, Treatment::Kernel);
                }
                return self.left(stopped, regs.result());
            }
            None => {}
        }
        let refused = match self.rewriter.syscall_stop(&stopped)? {
            Boundary::Foreign => return self.left(stopped, regs.result()),
            Boundary::Again => return stopped.cont(0),
            Boundary::Returned { result, answered } => {
                if answered {
                    self.observe_end(tid, result, Treatment::Monitor);
                }
                let ends = self.waits.syscall_stop(tid, result);
                if let Some(undisturbed::Boundary::Ends(Some(over))) = ends {
                    regs = stopped.regs()?;
                    regs.set_result(over);
                    stopped.set_regs(&regs)?;
                    self.observe_end(tid, over, Treatment::Kernel);
                    return self.left(stopped, over);
                }
                return self.left(stopped, result);
            }
            Boundary::Refused(refused) => refused,
        };
        let Ok(task) = self.monitor.tasks.get(tid) else {
            return stopped.cont(0);
        };
        let (Ok(caller), Ok(descriptor_inbox)) = (task.caller(), self.descriptor_inbox()) else {
            return stopped.cont(0);
        };
        let script = Receive::new(task, refused, caller.pid, descriptor_inbox);
        let regs = stopped.regs()?;
        match self.injector.receive(stopped, regs, script) {
            Stop::Foreign(stopped) => stopped.cont(0),
            stop => self.injected(tid, stop),
        }
    }

    /// The thread is at the exit stop of its own call, which has this result. It has replaced the stop that PTRACE_INTERRUPT asked
    /// for, if any.
    pub(super) fn left(&mut self, stopped: Stopped, result: i64) -> Result<(), Errno> {
        let tid = stopped.tid();
        self.observe_exit(tid, result);
        self.cloned(tid, result);
        self.seen(&stopped);
        if self.injector.has(tid) {
            stopped.interrupt()?;
        }
        self.leave_call(stopped, result)
    }
}
