//! Parking: makes a thread whose call waits ([`crate::intercept::waiting`]) sleep in futex(2).
//!
//! While a thread is in a call that was received as a notification, or at a ptrace stop, an arriving signal stays pending, and
//! the supervisor gets no report. So the supervisor makes the thread leave that call and sleep in futex(2) instead. The kernel
//! wakes it for a signal, and the supervisor sees the stop for the signal's delivery. The thread executes its own syscall
//! instruction for this, and the futex is the four bytes of code there, so that nothing in its memory changes. When the answer
//! is known, the supervisor restores the thread's registers. The thread then returns the result, or repeats its call to get a
//! descriptor.
//!
//! A thread that cannot sleep there (a filter of the program refuses futex(2)) stays in its stop: then a signal is delivered
//! only after the answer. See docs/decisions/0036.

use std::collections::HashMap;
use std::sync::Arc;

use goanna_sys::arch::Registers;
use goanna_sys::interrupt::has_effect;
use goanna_sys::ptrace::{self, Stopped};
use goanna_sys::restarts::{ERESTARTNOINTR, ERESTARTSYS, is_restart};
use goanna_sys::tracee;
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, FsError, Result};

use super::calls::restart;
use super::{Supervisor, assert_lives_or_ended};
use crate::call::Answer;
use crate::intercept::waiting::Waiting;
use crate::ptracer::mailbox::Park;

/// Threads whose calls wait.
#[derive(Default)]
pub struct Parking {
    by_tid: HashMap<i32, Parked>,
}

struct Parked {
    waiting: Arc<Waiting>,
    stage: Stage,
    /// The registers at its own call.
    saved: Option<Registers>,
    /// Number of times it was put to sleep.
    attempts: u32,
}

enum Stage {
    /// It leaves its call, and will then stop.
    Leaving,
    /// It sleeps: before the entry stop of futex(2), or between that and the exit stop.
    Asleep { entered: bool },
    /// It stays in its stop until the answer is known, and then continues with this signal (0: none).
    Held { stopped: Stopped, signal: i32 },
}

/// Maximum number of attempts to put a thread to sleep, if its sleep ends without a signal.
const ATTEMPTS: u32 = 3;

impl Parking {
    /// Whether the thread is parked, or about to be.
    pub fn has(&self, tid: i32) -> bool {
        self.by_tid.contains_key(&tid)
    }

    fn is_asleep(&self, tid: i32) -> bool {
        let parked = self.by_tid.get(&tid);
        parked.is_some_and(|parked| matches!(parked.stage, Stage::Asleep { .. }))
    }

    /// The registers of the thread at its call, if they are known.
    pub fn saved(&self, tid: i32) -> Option<Registers> {
        self.by_tid.get(&tid).and_then(|parked| parked.saved)
    }

    /// The thread, if it is held in a stop, and the signal that it continues with, because its answer is known.
    fn release(&mut self, tid: i32) -> Option<(Stopped, i32)> {
        let parked = self.by_tid.get_mut(&tid)?;
        match std::mem::replace(&mut parked.stage, Stage::Leaving) {
            Stage::Held { stopped, signal } => Some((stopped, signal)),
            other => {
                parked.stage = other;
                None
            }
        }
    }

    /// The thread has ended, or executes another program.
    pub fn forget(&mut self, tid: i32) {
        self.by_tid.remove(&tid);
    }
}

impl Supervisor {
    /// Parks a thread.
    pub(super) fn park(&mut self, park: Park) {
        let Park { waiting, at_stop } = park;
        let tid = waiting.tid;
        let outcome = match at_stop {
            Some((number, regs)) => match self.take_late(tid, number) {
                Some(stopped) => self.park_at_call(stopped, waiting, regs),
                None => return,
            },
            // The thread has ended.
            None if !self.known.contains(&tid) => return,
            None => {
                let parked = Parked {
                    waiting,
                    stage: Stage::Leaving,
                    saved: None,
                    attempts: 0,
                };
                self.parking.by_tid.insert(tid, parked);
                ptrace::interrupt(tid)
            }
        };
        assert_lives_or_ended(tid, outcome);
    }

    /// Parks a thread that is at the seccomp stop of its call, with the registers `regs`.
    pub(super) fn park_at_call(
        &mut self,
        stopped: Stopped,
        waiting: Arc<Waiting>,
        regs: Registers,
    ) -> Result<(), Errno> {
        let parked = Parked {
            waiting,
            stage: Stage::Leaving,
            saved: Some(regs),
            attempts: 0,
        };
        self.parking.by_tid.insert(stopped.tid(), parked);
        self.sleep(stopped, true)
    }

    /// The answer to the call of `tid` is known.
    pub(super) fn ready(&mut self, tid: i32) {
        let outcome = match self.parking.release(tid) {
            Some((stopped, signal)) => self.leave(stopped, signal),
            // The handler of its stop decides how it continues.
            None if self.parking.is_asleep(tid) => ptrace::interrupt(tid),
            None => Ok(()),
        };
        assert_lives_or_ended(tid, outcome);
    }

    /// Puts the stopped thread to sleep, or continues it with its answer if that is known. `at_call`: it is at the seccomp
    /// stop.
    fn sleep(&mut self, stopped: Stopped, at_call: bool) -> Result<(), Errno> {
        let tid = stopped.tid();
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return stopped.cont(0);
        };
        parked.attempts += 1;
        let Some(saved) = parked.saved else {
            parked.stage = Stage::Leaving;
            return stopped.cont(0);
        };
        // This check comes before the sleep: for a later answer there is a report.
        if parked.waiting.is_done() {
            return self.leave(stopped, 0);
        }
        let may_sleep = parked.attempts <= ATTEMPTS;
        let Some(regs) = sleeping(tid, &saved, at_call).ok().filter(|_| may_sleep) else {
            parked.stage = Stage::Held { stopped, signal: 0 };
            return Ok(());
        };
        parked.stage = Stage::Asleep { entered: at_call };
        stopped.set_regs(&regs)?;
        stopped.cont_syscall(0)
    }

    /// The thread has stopped because of the interrupt.
    pub(super) fn parked_stop(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return stopped.cont(0);
        };
        match &mut parked.stage {
            Stage::Leaving => {
                let regs = stopped.regs()?;
                if regs.result() != ERESTARTNOINTR {
                    // It was not in a call.
                    self.parking.forget(tid);
                    return stopped.cont(0);
                }
                parked.saved = Some(regs);
                self.sleep(stopped, false)
            }
            Stage::Asleep { .. } if parked.waiting.is_done() => self.leave(stopped, 0),
            Stage::Asleep { entered } => {
                *entered = false;
                stopped.cont_syscall(0)
            }
            Stage::Held { stopped: held, .. } => {
                *held = stopped;
                Ok(())
            }
        }
    }

    /// futex(2) begins or ends. A stop replaces the one that PTRACE_INTERRUPT asked for (`ptrace_stop` in the kernel).
    pub(super) fn parked_syscall(&mut self, stopped: Stopped) -> Result<(), Errno> {
        let tid = stopped.tid();
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return stopped.cont(0);
        };
        let Stage::Asleep { entered } = &mut parked.stage else {
            return stopped.cont_syscall(0);
        };
        *entered = !*entered;
        let (has_begun, is_done) = (*entered, parked.waiting.is_done());
        if !has_begun && is_done {
            return self.leave(stopped, 0);
        }
        if !has_begun && !is_restart(stopped.regs()?.result()) {
            return self.sleep(stopped, false);
        }
        if is_done || self.injector.has(tid) {
            stopped.interrupt()?;
        }
        stopped.cont_syscall(0)
    }

    /// `signal` is about to be delivered to the thread; `is_ours`: it is the stop that a commit asks for.
    pub(super) fn parked_signal(
        &mut self,
        stopped: Stopped,
        signal: i32,
        is_ours: bool,
    ) -> Result<(), Errno> {
        let tid = stopped.tid();
        let delivered = if is_ours { 0 } else { signal };
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return stopped.cont(signal);
        };
        let Stage::Asleep { entered } = &mut parked.stage else {
            // It is not asleep yet: the kernel restarts its call.
            self.parking.forget(tid);
            return stopped.cont(delivered);
        };
        if parked.waiting.is_done() {
            return self.leave(stopped, delivered);
        }
        // The kernel restarts futex(2) where no handler runs.
        if is_ours || !has_effect(tid, signal).unwrap_or(true) {
            *entered = false;
            return stopped.cont_syscall(delivered);
        }
        let waiting = Arc::clone(&parked.waiting);
        waiting.interrupt();
        if waiting.is_done() {
            return self.leave(stopped, signal);
        }
        // The end of the work is reported.
        parked.stage = Stage::Held { stopped, signal };
        Ok(())
    }

    /// Continues the stopped thread with its answer and `signal`.
    fn leave(&mut self, stopped: Stopped, signal: i32) -> Result<(), Errno> {
        let tid = stopped.tid();
        let Some(Parked { waiting, saved, .. }) = self.parking.by_tid.remove(&tid) else {
            return stopped.cont(signal);
        };
        let Some(saved) = saved else {
            return stopped.cont(signal);
        };
        let outcome = self.parked_outcome(tid, &waiting, &saved);
        // Only a call has an exit, where its tracer waits for it.
        let needs_exit = signal == 0 && self.tracees.is_in_call(tid);
        let result = match &outcome {
            _ if needs_exit => Err(ERESTARTNOINTR),
            Ok(Answer::Value(value)) => Ok(*value),
            Err(FsError::Errno(errno)) => Ok(-(*errno as i64)),
            Ok(Answer::Interrupted) => Err(ERESTARTSYS),
            _ => Err(ERESTARTNOINTR),
        };
        if (needs_exit || !is_final(&outcome))
            && !matches!(outcome, Ok(Answer::Restart) | Err(FsError::Blocked(_)))
        {
            // The restarted call will get this answer.
            self.monitor.waiting.put_back(&waiting, outcome);
        }
        if !needs_exit {
            self.tracees.has_left_call(tid);
        }
        match result {
            Ok(value) => {
                self.observe_end(tid, value, Treatment::Monitor);
                stopped.set_regs(&saved.with_result(value).outside_of_call())?;
            }
            // The kernel handles such a result only before a signal.
            Err(_) if signal == 0 => restart(&stopped, saved)?,
            Err(result) => {
                self.observe_exit(tid, result);
                self.interrupted_call_is_over(tid);
                stopped.set_regs(&saved.with_result(result))?;
            }
        }
        stopped.cont(signal)
    }

    /// The outcome of the waiting call of thread `tid`. Counts the call in the figures if it is over.
    fn parked_outcome(
        &self,
        tid: i32,
        waiting: &Arc<Waiting>,
        saved: &Registers,
    ) -> Result<Answer> {
        let task = self.monitor.tasks.get(tid);
        let needs_descriptor = task.as_ref().is_ok_and(|task| task.wanted().is_some());
        let outcome = match self.monitor.waiting.take(waiting) {
            // The call is restarted, and requests that descriptor.
            Some(_) if needs_descriptor => Ok(Answer::Restart),
            Some(outcome) => self.monitor.report_shortage(outcome),
            None => Ok(Answer::Restart),
        };
        if is_final(&outcome) {
            self.monitor
                .observers
                .handled(saved.number() as u32, &outcome);
            if let Ok(task) = task {
                task.forget_fetched();
            }
        }
        outcome
    }

    /// Unparks the stopped thread for another purpose; afterwards it makes its call again.
    pub(super) fn leave_parking(&mut self, stopped: &Stopped) -> Result<(), Errno> {
        let Some(Parked { saved, .. }) = self.parking.by_tid.remove(&stopped.tid()) else {
            return Ok(());
        };
        let Some(saved) = saved else {
            return Ok(());
        };
        stopped.set_regs(&saved.with_result(ERESTARTNOINTR))
    }
}

/// Whether this is the final result of the program's call.
fn is_final(outcome: &Result<Answer>) -> bool {
    matches!(
        outcome,
        Ok(Answer::Value(_) | Answer::Interrupted) | Err(FsError::Errno(_))
    )
}

/// The registers with which a thread sleeps in futex(2); `saved` are those of its own call. EFAULT.
fn sleeping(tid: i32, saved: &Registers, at_call: bool) -> Result<Registers, Errno> {
    let instruction = saved.call_instruction();
    let word = instruction & !3;
    let mut expected = [0; 4];
    tracee::read_exact(tid, word, &mut expected)?;
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64;
    let args = [
        word,
        operation,
        u32::from_ne_bytes(expected).into(),
        0,
        0,
        0,
    ];
    Ok(if at_call {
        saved.with_call(libc::SYS_futex, args)
    } else {
        saved.calling(instruction, libc::SYS_futex, args)
    })
}
