//! Catches panics in the supervisor. See `defect.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use goanna_sys::arch::Registers;
use goanna_sys::ptrace::{self, Stopped};
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, Result};

use super::Supervisor;
use super::calls::{call_of, skip};
use crate::{Monitor, defect};

/// Runs `f` for thread `tid`, which is about to be reaped.
pub fn catch_at_exit(monitor: &Monitor, tid: i32, f: impl FnOnce()) {
    defect::contained(monitor, &format!("the end of thread {tid}"), f);
}

impl Supervisor {
    /// Handles a stop of thread `tid`, or its end, by `f`.
    pub(super) fn catch_at_stop(
        &mut self,
        tid: i32,
        event: ptrace::Status,
        f: impl FnOnce(&mut Self) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let panic = match catch_unwind(AssertUnwindSafe(|| f(self))) {
            Ok(outcome) => return outcome,
            Err(panic) => panic,
        };
        let stopped = Stopped::recover(tid);
        let regs = stopped.regs().ok();
        let is_call = event == ptrace::Status::Seccomp;
        let what = match regs.filter(|_| is_call) {
            Some(regs) => name_of(tid, &regs),
            None => format!("a stop of thread {tid} ({event:?})"),
        };
        defect::report(&self.monitor, &what, &*panic);
        self.give_up(tid);
        match event {
            ptrace::Status::Seccomp => self.fail(stopped, regs),
            ptrace::Status::SignalDelivery(signal) => stopped.cont(signal),
            ptrace::Status::GroupStop(_) => stopped.listen(),
            ptrace::Status::NewChild { child, .. } => {
                self.known.insert(child);
                self.monitor.alive.add(child);
                if let Some(child) = self.early.remove(&child) {
                    let _ = child.cont(0);
                }
                stopped.cont(0)
            }
            ptrace::Status::Exited(_) | ptrace::Status::Signaled { .. } => Ok(()),
            _ => stopped.cont(0),
        }
    }

    /// Answers a call of thread `tid` by `f`. `regs` are its registers at the call, where it is stopped.
    pub(super) fn catch_at_call(
        &mut self,
        tid: i32,
        regs: Option<Registers>,
        f: impl FnOnce(&mut Self),
    ) {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| f(self))) else {
            return;
        };
        let what = match &regs {
            Some(regs) => name_of(tid, regs),
            None => format!("a call of thread {tid}"),
        };
        defect::report(&self.monitor, &what, &*panic);
        self.give_up(tid);
        // The thread may have been killed, or may already run again.
        let _ = self.fail(Stopped::recover(tid), regs);
    }

    /// Forgets the operations in progress for thread `tid`.
    fn give_up(&mut self, tid: i32) {
        self.late.remove(&tid);
        self.parking.forget(tid);
        self.waits.forget(tid);
        self.rewriter.forget(tid);
        self.joining.remove(&tid);
        let joining = self.injector.forget(tid);
        let answered = catch_unwind(AssertUnwindSafe(|| {
            self.monitor.waiting.abandon(tid);
            self.joined(&joining, Err(Errno::EIO));
        }));
        if let Err(panic) = answered {
            defect::report(
                &self.monitor,
                &format!("calls that wait for thread {tid}"),
                &*panic,
            );
        }
    }

    /// Makes the call of a stopped thread fail.
    fn fail(&mut self, stopped: Stopped, regs: Option<Registers>) -> Result<(), Errno> {
        if let Some(regs) = regs {
            self.observe_end(stopped.tid(), -(Errno::EIO as i64), Treatment::Monitor);
            skip(&stopped, regs, -(Errno::EIO as i64))?;
        }
        stopped.cont(0)
    }
}

fn name_of(tid: i32, regs: &Registers) -> String {
    defect::of_call(call_of(regs).0, tid)
}
