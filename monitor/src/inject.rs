//! Making a tracee call seccomp(2) that did not ask for it: a shell in which `amino txn begin` begins a transaction waits
//! for that command, and must have the filter of members when it goes on.
//!
//! The tracee is interrupted (`PTRACE_INTERRUPT`), made to map memory for the filter and to install it, by a syscall
//! instruction of its vDSO, and then goes on where it was; a call that the interruption ended is made again.

use std::collections::HashMap;

use goanna_sys::{procfs, ptrace, tracee};
use goanna_vfs::{Errno, Result};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::filter::compile_member;
use crate::rewrite::{Registers, filter_image};

/// Where an injection stands.
enum Stage {
    /// The tracee was told to stop.
    Interrupted,
    /// It runs mmap(2): before its entry stop, or between that and its exit stop.
    Mapping { entered: bool },
    /// It runs seccomp(2).
    Installing { entered: bool },
}

struct Injection {
    stage: Stage,
    saved: Option<Registers>,
    instruction: u64,
    /// Signals that came meanwhile, to be sent again.
    signals: Vec<i32>,
    /// Who waits for it.
    waiting: Vec<i32>,
}

/// What a stop of a tracee with an injection was.
pub enum Stop {
    /// Nothing of ours.
    Foreign,
    /// The injection goes on.
    Taken,
    /// It is over, well or not; those who waited for it.
    Done(Result<()>, Vec<i32>),
}

/// All injections under way.
#[derive(Default)]
pub struct Injector {
    by_tid: HashMap<i32, Injection>,
}

const LEN: u64 = 16384;
/// The kernel's own results that restart a call.
const RESTARTED: [i64; 3] = [-512, -513, -514];
const RESTART_BLOCK: i64 = -516;

impl Injector {
    /// Begins to give `target` the filter, for `waiting`. ESRCH.
    pub fn start(&mut self, target: i32, waiting: i32) -> Result<()> {
        if let Some(injection) = self.by_tid.get_mut(&target) {
            injection.waiting.push(waiting);
            return Ok(());
        }
        let instruction = syscall_instruction(target)?;
        ptrace::interrupt(target)?;
        let injection = Injection {
            stage: Stage::Interrupted,
            saved: None,
            instruction,
            signals: Vec::new(),
            waiting: vec![waiting],
        };
        self.by_tid.insert(target, injection);
        Ok(())
    }

    /// The tracee has ended; who waits for it.
    pub fn forget(&mut self, tid: i32) -> Vec<i32> {
        self.by_tid
            .remove(&tid)
            .map(|injection| injection.waiting)
            .unwrap_or_default()
    }

    /// The tracee has stopped as it was told to, or for a group stop.
    pub fn event_stop(&mut self, tid: i32) -> Stop {
        let Some(injection) = self.by_tid.get_mut(&tid) else {
            return Stop::Foreign;
        };
        if !matches!(injection.stage, Stage::Interrupted) {
            return self.ended(tid, ptrace::cont_syscall(tid, 0).map(|()| false));
        }
        let begun = injection.begin(tid).map(|()| false);
        self.ended(tid, begun)
    }

    /// A signal is to be delivered: after the injection.
    pub fn signal(&mut self, tid: i32, signal: i32) -> Stop {
        let Some(injection) = self.by_tid.get_mut(&tid) else {
            return Stop::Foreign;
        };
        if matches!(injection.stage, Stage::Interrupted) {
            // It has not begun; the interruption follows.
            return Stop::Foreign;
        }
        injection.signals.push(signal);
        self.ended(tid, ptrace::cont_syscall(tid, 0).map(|()| false))
    }

    /// A call of ours begins or ends.
    pub fn syscall_stop(&mut self, tid: i32) -> Stop {
        let Some(injection) = self.by_tid.get_mut(&tid) else {
            return Stop::Foreign;
        };
        if matches!(injection.stage, Stage::Interrupted) {
            return Stop::Foreign;
        }
        let stepped = injection.step(tid);
        self.ended(tid, stepped)
    }

    fn ended(&mut self, tid: i32, outcome: Result<bool>) -> Stop {
        if outcome == Ok(false) {
            return Stop::Taken;
        }
        let Some(injection) = self.by_tid.remove(&tid) else {
            return Stop::Foreign;
        };
        for signal in injection.signals {
            let signal = Signal::try_from(signal).ok();
            let _ = nix::sys::signal::kill(Pid::from_raw(tid), signal);
        }
        Stop::Done(outcome.map(drop), injection.waiting)
    }
}

impl Injection {
    fn begin(&mut self, tid: i32) -> Result<()> {
        let saved = ptrace::get_regs(tid)?;
        self.saved = Some(saved);
        self.stage = Stage::Mapping { entered: false };
        let args = [
            0,
            LEN,
            (libc::PROT_READ | libc::PROT_WRITE) as u64,
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64,
            u64::MAX,
            0,
        ];
        self.call(tid, libc::SYS_mmap, args)
    }

    /// Sets the tracee on the way to a call.
    fn call(&self, tid: i32, nr: i64, args: [u64; 6]) -> Result<()> {
        let saved = self.saved.ok_or(Errno::EIO)?;
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        let regs = Registers {
            rip: self.instruction,
            rax: nr as u64,
            // What it was in is not restarted by the kernel, but by us in the end.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..saved
        };
        ptrace::set_regs(tid, &regs)?;
        ptrace::cont_syscall(tid, 0)
    }

    /// One syscall stop further; true at the end.
    fn step(&mut self, tid: i32) -> Result<bool> {
        match &mut self.stage {
            Stage::Interrupted => Ok(false),
            Stage::Mapping { entered } | Stage::Installing { entered } if !*entered => {
                *entered = true;
                ptrace::cont_syscall(tid, 0)?;
                Ok(false)
            }
            Stage::Mapping { .. } => {
                let address = ptrace::get_regs(tid)?.rax;
                let program = compile_member(false);
                let image = filter_image(&program, address);
                if tracee::write_all(tid, address, &image).is_err() {
                    self.go_back(tid)?;
                    return Err(Errno::ENOMEM);
                }
                self.stage = Stage::Installing { entered: false };
                let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
                let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
                self.call(tid, libc::SYS_seccomp, [mode, flags, address, 0, 0, 0])?;
                Ok(false)
            }
            Stage::Installing { .. } => {
                let result = ptrace::get_regs(tid)?.rax;
                self.go_back(tid)?;
                // A thread's number: it has filters of its own.
                if result == 0 {
                    Ok(true)
                } else {
                    Err(Errno::EAGAIN)
                }
            }
        }
    }

    fn go_back(&self, tid: i32) -> Result<()> {
        let saved = self.saved.ok_or(Errno::EIO)?;
        let result = saved.rax.cast_signed();
        let in_call = saved.orig_rax != u64::MAX;
        let again = |nr: u64| Registers {
            // The syscall instruction is two bytes long.
            rip: saved.rip - 2,
            rax: nr,
            orig_rax: u64::MAX,
            ..saved
        };
        let regs = match result {
            _ if !in_call => saved,
            result if RESTARTED.contains(&result) => again(saved.orig_rax),
            RESTART_BLOCK => again(libc::SYS_restart_syscall as u64),
            _ => Registers {
                orig_rax: u64::MAX,
                ..saved
            },
        };
        ptrace::set_regs(tid, &regs)?;
        ptrace::cont(tid, 0)
    }
}

/// A syscall instruction in the tracee's vDSO.
fn syscall_instruction(tid: i32) -> Result<u64> {
    let (start, end) = procfs::vdso(tid)?;
    let mut code = vec![0; usize::try_from(end - start).map_err(|_| Errno::ENOMEM)?];
    tracee::read_exact(tid, start, &mut code)?;
    let at = code.windows(2).position(|pair| pair == [0x0f, 0x05]);
    at.map(|at| start + at as u64).ok_or(Errno::EOPNOTSUPP)
}
