//! Where a thread sleeps whose call waits ([`crate::intercept::waiting`]).
//!
//! In a call that was received as a notification, or at a ptrace stop, a signal that arrives is pending, and nothing reports it.
//! So the supervisor makes the thread leave that call and sleep in futex(2) instead. The kernel wakes it for a signal,
//! and the supervisor sees the stop for the signal's delivery. The thread executes its own syscall instruction for this, and the
//! futex is the four bytes of code there, so that nothing in its memory changes. When the answer is there the thread
//! gets its registers back, and returns the result, or makes its call again to be given a descriptor.
//!
//! A thread that cannot sleep there (a filter of the program refuses futex(2)) stays in its stop: then a signal waits for the
//! answer, too. See docs/decisions/0036.

use std::collections::HashMap;
use std::sync::Arc;

use goanna_sys::interrupt::has_effect;
use goanna_sys::{ptrace, tracee};
use goanna_syscalls::Treatment;
use goanna_vfs::{Errno, FsError, Result};

use super::Supervisor;
use super::calls::make_again;
use crate::call::Answer;
use crate::intercept::waiting::Waiting;
use crate::ptracer::mailbox::Park;
use crate::ptracer::rewrite::Registers;

/// Threads whose calls wait.
#[derive(Default)]
pub struct Parking {
    by_tid: HashMap<i32, Parked>,
}

struct Parked {
    waiting: Arc<Waiting>,
    stage: Stage,
    /// Of its own call.
    saved: Option<Registers>,
    /// How often it has been put to sleep.
    attempts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It leaves its call, and stops then.
    Leaving,
    /// It sleeps: before the entry stop of futex(2), or between that and the exit stop.
    Asleep { entered: bool },
    /// It stays in its stop until the answer is there, and continues with this signal (0: none).
    Held { signal: i32 },
}

/// How often a thread is put to sleep again whose sleep has ended without a signal.
const ATTEMPTS: u32 = 3;

const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
/// The kernel's own results by which it restarts calls.
const RESTARTS: std::ops::RangeInclusive<i64> = -516..=-512;

impl Parking {
    /// Whether the thread is here, or on its way.
    pub fn has(&self, tid: i32) -> bool {
        self.by_tid.contains_key(&tid)
    }

    /// The registers of the thread at its call, if they are known.
    pub fn saved(&self, tid: i32) -> Option<Registers> {
        self.by_tid.get(&tid).and_then(|parked| parked.saved)
    }

    /// The thread has ended, or executes another program.
    pub fn forget(&mut self, tid: i32) {
        self.by_tid.remove(&tid);
    }
}

impl Supervisor {
    /// Parks a thread.
    pub(super) fn park(&mut self, park: Park) {
        let Park { waiting, stopped } = park;
        let tid = waiting.tid;
        let outcome = match stopped {
            Some((number, _)) if self.late.get(&tid) != Some(&number) => return,
            Some((_, regs)) => {
                self.late.remove(&tid);
                self.park_at_call(waiting, regs)
            }
            // It has ended.
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
        // Its end is reported next.
        debug_assert!(matches!(outcome, Ok(()) | Err(Errno::ESRCH)));
    }

    /// Parks a thread that is at the seccomp stop of its call, with the registers `regs`.
    pub(super) fn park_at_call(
        &mut self,
        waiting: Arc<Waiting>,
        regs: Registers,
    ) -> Result<(), Errno> {
        let tid = waiting.tid;
        let parked = Parked {
            waiting,
            stage: Stage::Held { signal: 0 },
            saved: Some(regs),
            attempts: 0,
        };
        self.parking.by_tid.insert(tid, parked);
        self.sleep(tid, true)
    }

    /// The answer to the call of `tid` is there.
    pub(super) fn ready(&mut self, tid: i32) {
        let outcome = match self.parking.by_tid.get(&tid).map(|parked| parked.stage) {
            Some(Stage::Held { signal }) => self.leave(tid, signal),
            // What it has to do is seen at its stop.
            Some(Stage::Asleep { .. }) => ptrace::interrupt(tid),
            Some(Stage::Leaving) | None => Ok(()),
        };
        debug_assert!(matches!(outcome, Ok(()) | Err(Errno::ESRCH)));
    }

    /// The thread, which is stopped, goes to sleep; at once on, if its answer is there. `at_call`: it is at the seccomp stop.
    fn sleep(&mut self, tid: i32, at_call: bool) -> Result<(), Errno> {
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return ptrace::cont(tid, 0);
        };
        parked.attempts += 1;
        parked.stage = Stage::Held { signal: 0 };
        let Some(saved) = parked.saved else {
            return ptrace::cont(tid, 0);
        };
        // Asked before it sleeps: an answer that comes later is reported.
        if parked.waiting.is_done() {
            return self.leave(tid, 0);
        }
        let Ok(regs) = sleeping(tid, &saved, at_call) else {
            return Ok(());
        };
        if parked.attempts > ATTEMPTS {
            return Ok(());
        }
        parked.stage = Stage::Asleep { entered: at_call };
        ptrace::set_regs(tid, &regs)?;
        ptrace::cont_syscall(tid, 0)
    }

    /// The thread has stopped because of the interrupt.
    pub(super) fn parked_stop(&mut self, tid: i32) -> Result<(), Errno> {
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return ptrace::cont(tid, 0);
        };
        match &mut parked.stage {
            Stage::Leaving => {
                let regs = ptrace::get_regs(tid)?;
                if regs.rax.cast_signed() != ERESTARTNOINTR {
                    // It has not left a call.
                    self.parking.forget(tid);
                    return ptrace::cont(tid, 0);
                }
                parked.saved = Some(regs);
                self.sleep(tid, false)
            }
            Stage::Asleep { .. } if parked.waiting.is_done() => self.leave(tid, 0),
            Stage::Asleep { entered } => {
                *entered = false;
                ptrace::cont_syscall(tid, 0)
            }
            Stage::Held { .. } => Ok(()),
        }
    }

    /// futex(2) begins or ends. A stop replaces the one that PTRACE_INTERRUPT asked for (`ptrace_stop` in the kernel).
    pub(super) fn parked_syscall(&mut self, tid: i32) -> Result<(), Errno> {
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return ptrace::cont(tid, 0);
        };
        let Stage::Asleep { entered } = &mut parked.stage else {
            return ptrace::cont_syscall(tid, 0);
        };
        *entered = !*entered;
        let (has_begun, is_done) = (*entered, parked.waiting.is_done());
        if !has_begun && is_done {
            return self.leave(tid, 0);
        }
        if !has_begun && !RESTARTS.contains(&ptrace::get_regs(tid)?.rax.cast_signed()) {
            return self.sleep(tid, false);
        }
        if is_done || self.injector.has(tid) {
            ptrace::interrupt(tid)?;
        }
        ptrace::cont_syscall(tid, 0)
    }

    /// `signal` is about to be delivered to the thread; `is_ours`: it is the stop that a commit asks for.
    pub(super) fn parked_signal(
        &mut self,
        tid: i32,
        signal: i32,
        is_ours: bool,
    ) -> Result<(), Errno> {
        let Some(parked) = self.parking.by_tid.get_mut(&tid) else {
            return ptrace::cont(tid, signal);
        };
        let Stage::Asleep { entered } = &mut parked.stage else {
            // It has not been put to sleep: the kernel restarts its call.
            self.parking.forget(tid);
            return ptrace::cont(tid, if is_ours { 0 } else { signal });
        };
        if parked.waiting.is_done() {
            return self.leave(tid, if is_ours { 0 } else { signal });
        }
        // The kernel restarts futex(2) where no handler runs.
        if is_ours || !has_effect(tid, signal).unwrap_or(true) {
            *entered = false;
            return ptrace::cont_syscall(tid, if is_ours { 0 } else { signal });
        }
        parked.stage = Stage::Held { signal };
        let waiting = Arc::clone(&parked.waiting);
        waiting.interrupt();
        // If it is not done yet, its end is reported.
        if waiting.is_done() {
            return self.leave(tid, signal);
        }
        Ok(())
    }

    /// The thread, which is stopped, continues with its answer and `signal`.
    fn leave(&mut self, tid: i32, signal: i32) -> Result<(), Errno> {
        let Some(Parked { waiting, saved, .. }) = self.parking.by_tid.remove(&tid) else {
            return ptrace::cont(tid, signal);
        };
        let Some(saved) = saved else {
            return ptrace::cont(tid, signal);
        };
        let task = self.monitor.tasks.get(tid);
        let needs_descriptor = task.as_ref().is_ok_and(|task| task.wanted().is_some());
        let outcome = match self.monitor.waiting.take(&waiting) {
            // Its call is restarted, and asks for that descriptor.
            Some(_) if needs_descriptor => Ok(Answer::Again),
            Some(outcome) => self.monitor.judge_shortage(outcome),
            None => Ok(Answer::Again),
        };
        let result = match &outcome {
            Ok(Answer::Value(value)) => Ok(*value),
            Err(FsError::Errno(errno)) => Ok(-(*errno as i64)),
            Ok(Answer::Interrupted) => Err(ERESTARTSYS),
            _ => Err(ERESTARTNOINTR),
        };
        match outcome {
            Ok(Answer::Again) | Err(FsError::Blocked(_)) => {}
            Ok(Answer::Value(_) | Answer::Interrupted) | Err(FsError::Errno(_)) => {
                self.monitor.stats.count(saved.orig_rax as u32, &outcome);
                if let Ok(task) = task {
                    task.forget_brought();
                }
            }
            // Given to the call that is restarted.
            other => self.monitor.waiting.put_back(&waiting, other),
        }
        match result {
            Ok(value) => {
                self.observe_end(tid, value, Treatment::Monitor);
                let regs = Registers {
                    rax: value.cast_unsigned(),
                    orig_rax: u64::MAX,
                    ..saved
                };
                ptrace::set_regs(tid, &regs)?;
            }
            // The kernel looks at such a result only before a signal.
            Err(_) if signal == 0 => make_again(tid, saved)?,
            Err(result) => {
                self.observe_exit(tid, result);
                self.interrupted_call_is_over(tid);
                let regs = Registers {
                    rax: result.cast_unsigned(),
                    ..saved
                };
                ptrace::set_regs(tid, &regs)?;
            }
        }
        ptrace::cont(tid, signal)
    }

    /// The thread, which is stopped, is to do something else; then it makes its call again.
    pub(super) fn leave_parking(&mut self, tid: i32) -> Result<(), Errno> {
        let Some(Parked { saved, .. }) = self.parking.by_tid.remove(&tid) else {
            return Ok(());
        };
        let Some(saved) = saved else {
            return Ok(());
        };
        let restarted = Registers {
            rax: ERESTARTNOINTR.cast_unsigned(),
            ..saved
        };
        ptrace::set_regs(tid, &restarted)
    }
}

/// The registers to sleep with, of a thread that has the registers `saved` in its own call. EFAULT.
fn sleeping(tid: i32, saved: &Registers, at_call: bool) -> Result<Registers, Errno> {
    // The syscall instruction is two bytes long.
    let instruction = saved.rip.checked_sub(2).ok_or(Errno::EFAULT)?;
    let word = instruction & !3;
    let mut expected = [0; 4];
    tracee::read_exact(tid, word, &mut expected)?;
    let args = Registers {
        rdi: word,
        rsi: (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as u64,
        rdx: u32::from_ne_bytes(expected).into(),
        r10: 0,
        r8: 0,
        r9: 0,
        ..*saved
    };
    Ok(if at_call {
        Registers {
            orig_rax: libc::SYS_futex as u64,
            ..args
        }
    } else {
        Registers {
            rip: instruction,
            rax: libc::SYS_futex as u64,
            orig_rax: u64::MAX,
            ..args
        }
    })
}
