//! Stops for the delivery of signals, and syscall stops.

use std::sync::Arc;

use goanna_sys::ptrace::{self, SignalOrigin};
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, Result};

use super::Supervisor;
use super::calls::call_of;
use super::undisturbed::{self, Deadline, Instead};
use crate::inprocess::Left;
use crate::ptracer::inject::{Receive, Stop};
use crate::ptracer::mailbox::Message;
use crate::ptracer::restart;
use crate::ptracer::rewrite::Boundary;

impl Supervisor {
    /// Lets a signal be delivered, but for the stop that a commit asks for. A call that it took back from us unseen is made
    /// again afterwards.
    pub(super) fn deliver(&mut self, tid: i32, signal: i32) -> Result<(), Errno> {
        let is_ours = signal == libc::SIGSTOP && goanna_sys::pause::is_ours(tid)?;
        if is_ours && self.injector.is_calling(tid) {
            return ptrace::cont_syscall(tid, 0);
        }
        if !is_ours {
            match self.injector.signal(tid, signal) {
                Stop::Foreign => {}
                stop => return self.injected(tid, stop),
            }
            let monitor = &self.monitor;
            monitor.ending.deliver(tid, signal, &monitor.alive);
            // Without it the file is lost, and nothing else.
            let _ = self.core_files.signal(monitor, tid, signal);
        }
        if self.parking.has(tid) {
            return self.parked_signal(tid, signal, is_ours);
        }
        let delivered = if is_ours { 0 } else { signal };
        let mut regs = ptrace::get_regs(tid)?;
        let left = self.monitor.in_process.leave(tid, signal, &mut regs);
        if let Some(left) = left {
            ptrace::set_regs(tid, &regs)?;
            let is_own = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGSYS)
                && left == Left::Before
                && !matches!(ptrace::signal_origin(tid)?, SignalOrigin::Process(_));
            if is_own {
                // The stub's own: the call itself says what is wrong with its arguments, or is the one that the program has dispatched to its
                // handler (PR_SET_SYSCALL_USER_DISPATCH).
                return ptrace::cont(tid, 0);
            }
        }
        // Outside of a call the number is -1, which is none of the table.
        let (nr, args) = call_of(&regs);
        let result = regs.rax.cast_signed();
        let instead = if is_ours {
            self.waits.stop(tid, (nr, args), result)
        } else {
            self.waits.signal(tid, signal, (nr, args), result)
        };
        match instead {
            Some(Instead::Over(result)) => {
                self.observe_end(tid, result, Treatment::Kernel);
                regs.rax = result.cast_unsigned();
                ptrace::set_regs(tid, &regs)?;
                return ptrace::cont(tid, delivered);
            }
            Some(Instead::Restart(result, deadline)) => {
                self.interrupted_call_goes_on(tid);
                regs.rax = result.cast_unsigned();
                ptrace::set_regs(tid, &regs)?;
                if let Some(deadline) = deadline {
                    self.wake_at(tid, deadline);
                }
                return ptrace::cont_syscall(tid, delivered);
            }
            None if !is_ours => self.interrupted(tid, signal),
            None => {}
        }
        let is_stopped = self.monitor.observers.interest().contains(nr);
        if is_ours || !self.notified || left.is_some() || is_stopped {
            return ptrace::cont(tid, delivered);
        }
        let received = || {
            let monitor = &self.monitor;
            let is_repeated = monitor.waiting.has(tid);
            (!is_repeated)
                .then(|| monitor.tasks.left_to_wait(tid))
                .flatten()
        };
        if let Some(instead) = restart::instead(nr, args, self.shadow_files, result, received) {
            regs.rax = instead.cast_unsigned();
            ptrace::set_regs(tid, &regs)?;
        }
        ptrace::cont(tid, signal)
    }

    /// Has the supervisor get [`Message::Due`] at `deadline`. Where the clock cannot be started the wait lasts longer.
    fn wake_at(&self, tid: i32, deadline: Deadline) {
        let monitor = Arc::downgrade(&self.monitor);
        let wake = Box::new(move || {
            if let Some(monitor) = monitor.upgrade() {
                monitor.mailbox.post(Message::Due(tid, deadline.number));
            }
        });
        let _ = self.monitor.executor.at(deadline.at, wake);
    }

    pub(super) fn syscall_stop(&mut self, tid: i32) -> Result<(), Errno> {
        match self.injector.syscall_stop(tid) {
            Stop::Foreign => {}
            stop => return self.injected(tid, stop),
        }
        if self.parking.has(tid) {
            return self.parked_syscall(tid);
        }
        let mut regs = ptrace::get_regs(tid)?;
        // A rewritten call first gets its registers back.
        let is_rewritten = self.rewriter.is_running(tid);
        let boundary = (!is_rewritten)
            .then(|| self.waits.syscall_stop(tid, regs.rax.cast_signed()))
            .flatten();
        match boundary {
            Some(undisturbed::Boundary::Begins { is_over }) => {
                if is_over {
                    ptrace::interrupt(tid)?;
                }
                return ptrace::cont_syscall(tid, 0);
            }
            Some(undisturbed::Boundary::Ends(over)) => {
                if let Some(over) = over {
                    regs.rax = over.cast_unsigned();
                    ptrace::set_regs(tid, &regs)?;
                    self.observe_end(tid, over, Treatment::Kernel);
                }
                return self.left(tid, regs.rax.cast_signed());
            }
            None => {}
        }
        let refused = match self.rewriter.syscall_stop(tid)? {
            Boundary::Foreign => return self.left(tid, regs.rax.cast_signed()),
            Boundary::Again => return ptrace::cont(tid, 0),
            Boundary::Returned { result, answered } => {
                if answered {
                    self.observe_end(tid, result, Treatment::Monitor);
                }
                let ends = self.waits.syscall_stop(tid, result);
                if let Some(undisturbed::Boundary::Ends(Some(over))) = ends {
                    regs = ptrace::get_regs(tid)?;
                    regs.rax = over.cast_unsigned();
                    ptrace::set_regs(tid, &regs)?;
                    self.observe_end(tid, over, Treatment::Kernel);
                    return self.left(tid, over);
                }
                return self.left(tid, result);
            }
            Boundary::Refused(refused) => refused,
        };
        let Ok(task) = self.monitor.tasks.get(tid) else {
            return ptrace::cont(tid, 0);
        };
        let (Ok(caller), Ok(descriptor_inbox)) = (task.caller(), self.descriptor_inbox()) else {
            return ptrace::cont(tid, 0);
        };
        let script = Receive::new(task, refused, caller.pid, descriptor_inbox);
        match self.injector.receive(tid, ptrace::get_regs(tid)?, script) {
            Ok(stop) => self.injected(tid, stop),
            Err(_) => ptrace::cont(tid, 0),
        }
    }

    /// Thread `tid` is at the exit stop of its own call, which has this result. The stop has taken the place of one that the thread
    /// was told to make, if it was.
    fn left(&mut self, tid: i32, result: i64) -> Result<(), Errno> {
        self.observe_exit(tid, result);
        self.seen(tid);
        if self.injector.has(tid) {
            ptrace::interrupt(tid)?;
        }
        ptrace::cont(tid, 0)
    }
}
