//! Injects system calls into a tracee: seccomp(2), when a shell waits for the `amino txn begin` that begins a transaction and
//! must have the filter of participants when it continues; or the calls that bring a descriptor to the tracee.
//!
//! The tracee is stopped, is made to run the calls of a script, by a syscall instruction of its vDSO, and then continues where
//! it was; a call that an interruption ended is restarted. Its signals are blocked meanwhile: a tracer cannot give back those that it
//! has received, since the kernel refuses to send signals in the name of others.

mod fetch;
mod filter;
pub mod map;
mod receive;

use std::collections::HashMap;

use goanna_sys::arch::{Registers, SYSCALL};
use goanna_sys::ptrace::{self, Stopped};
use goanna_sys::restarts::{ERESTART_RESTARTBLOCK, ERESTARTNOHAND, ERESTARTNOINTR, ERESTARTSYS};
use goanna_sys::{procfs, tracee};
use goanna_vfs::{Errno, Result};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

pub use fetch::Fetch;
use filter::InstallFilter;
use map::MapMemory;
pub use receive::Receive;

/// The next step of a script.
enum Step {
    /// This call, with these arguments.
    Call(i64, [u64; 6]),
    /// The script has ended.
    Done,
}

/// A script: the calls that a tracee is made to perform.
enum Script {
    /// Installs a filter in a thread that was interrupted anywhere.
    InstallFilter(InstallFilter),
    /// Maps memory in a thread whose call the monitor has answered.
    MapMemory(MapMemory),
    /// Receives a descriptor; the thread's failed call returns the script's result.
    Receive(Box<Receive>),
    /// Sends a descriptor to the monitor; the thread then makes its own call.
    Fetch(Box<Fetch>),
}

impl Script {
    /// What comes next, after the call before gave `result`; in the end the tracee continues with `saved`.
    fn next(
        &mut self,
        stopped: &Stopped,
        result: Option<i64>,
        saved: &mut Registers,
    ) -> Result<Step, Errno> {
        match self {
            Self::InstallFilter(script) => script.next(stopped, result),
            Self::MapMemory(script) => script.next(stopped, result),
            Self::Receive(script) => script.next(stopped, result, saved),
            Self::Fetch(script) => script.next(stopped, result),
        }
    }
}

/// The state of an injection.
#[derive(PartialEq, Eq)]
enum Stage {
    /// The supervisor has interrupted the tracee.
    Interrupted,
    /// It leaves the call that it was stopped in, which does not happen now.
    Leaving,
    /// It runs a call of the script: before its entry stop, or between that and its exit stop.
    Calling { entered: bool },
}

struct Injection {
    script: Script,
    stage: Stage,
    saved: Option<Registers>,
    instruction: u64,
    /// Its signal mask, from the first call on.
    mask: Option<u64>,
    /// Whether a SIGSTOP came meanwhile, which cannot be blocked.
    is_to_stop: bool,
    /// The threads that wait until it has the filter.
    waiting: Vec<i32>,
}

/// The effect of a stop on an injection.
pub enum Stop {
    /// The stop does not concern the injection; the thread is still stopped.
    Foreign(Stopped),
    /// The injection continues, or no call waits for its end.
    Taken,
    /// The thread has received its descriptor, or an error; and as what follows.
    Received(i64, Box<Self>),
    /// The filter was installed, or could not be; the threads that waited for it.
    Filtered(Result<(), Errno>, Vec<i32>),
}

/// All injections in progress.
#[derive(Default)]
pub struct Injector {
    by_tid: HashMap<i32, Injection>,
}

impl Injector {
    /// Begins to give `target` the filter of participants, for `waiting`. ESRCH.
    pub fn install_filter(&mut self, target: i32, waiting: i32) -> Result<(), Errno> {
        if let Some(injection) = self.by_tid.get_mut(&target) {
            injection.waiting.push(waiting);
            return Ok(());
        }
        self.interrupt_to_filter(target, vec![waiting])
    }

    /// Has `target` run `script` when it is about to return from its call. EBUSY while another script is pending, ESRCH if the thread has ended.
    pub fn map_memory(&mut self, target: i32, script: MapMemory) -> Result<(), Errno> {
        if self.by_tid.contains_key(&target) {
            return Err(Errno::EBUSY);
        }
        self.interrupt(target, Script::MapMemory(script), Vec::new())
    }

    fn interrupt_to_filter(&mut self, target: i32, waiting: Vec<i32>) -> Result<(), Errno> {
        let script = Script::InstallFilter(InstallFilter::default());
        self.interrupt(target, script, waiting)
    }

    fn interrupt(&mut self, target: i32, script: Script, waiting: Vec<i32>) -> Result<(), Errno> {
        let injection = Injection {
            script,
            stage: Stage::Interrupted,
            saved: None,
            instruction: syscall_instruction(target)?,
            mask: None,
            is_to_stop: false,
            waiting,
        };
        ptrace::interrupt(target)?;
        self.by_tid.insert(target, injection);
        Ok(())
    }

    /// Lets the thread, which is at the exit stop of a call, run `script` before it continues with `saved`, in which the result will be the
    /// script's result. If the vDSO has no syscall instruction, the thread is still stopped.
    pub fn receive(&mut self, stopped: Stopped, saved: Registers, script: Receive) -> Stop {
        let tid = stopped.tid();
        let Ok(instruction) = syscall_instruction(tid) else {
            return Stop::Foreign(stopped);
        };
        let mut injection = Injection {
            stage: Stage::Calling { entered: false },
            saved: Some(saved),
            script: Script::Receive(Box::new(script)),
            instruction,
            mask: None,
            is_to_stop: false,
            waiting: Vec::new(),
        };
        // The filter comes afterwards.
        if let Some(interrupted) = self.by_tid.remove(&tid) {
            injection.waiting = interrupted.waiting;
        }
        let begun = injection.advance(stopped, None);
        self.by_tid.insert(tid, injection);
        self.ended(tid, begun)
    }

    /// The tracee has ended. Returns the threads that wait for it.
    pub fn forget(&mut self, tid: i32) -> Vec<i32> {
        self.by_tid
            .remove(&tid)
            .map(|injection| injection.waiting)
            .unwrap_or_default()
    }

    /// Whether `tid` has an injection in progress, or was interrupted for one.
    pub fn has(&self, tid: i32) -> bool {
        self.by_tid.contains_key(&tid)
    }

    /// Whether a call that `tid` is making is of a script.
    pub fn is_calling(&self, tid: i32) -> bool {
        self.by_tid
            .get(&tid)
            .is_some_and(|injection| injection.stage != Stage::Interrupted)
    }

    /// The tracee has stopped because of the interrupt, or for a group stop.
    pub fn event_stop(&mut self, stopped: Stopped) -> Stop {
        let tid = stopped.tid();
        let Some(injection) = self.by_tid.get_mut(&tid) else {
            return Stop::Foreign(stopped);
        };
        let outcome = if injection.stage == Stage::Interrupted {
            injection.begin(stopped)
        } else {
            stopped.cont_syscall(0).map(|()| false)
        };
        self.ended(tid, outcome)
    }

    /// Lets the thread, which is at the seccomp stop of a call with the registers `regs`, run `script` before it makes that call.
    pub fn fetch(&mut self, stopped: Stopped, regs: Registers, script: Fetch) -> Result<(), Errno> {
        let tid = stopped.tid();
        let mut injection = Injection {
            stage: Stage::Leaving,
            saved: Some(regs.before_call()),
            script: Script::Fetch(Box::new(script)),
            instruction: syscall_instruction(tid)?,
            mask: None,
            is_to_stop: false,
            waiting: Vec::new(),
        };
        // The filter comes afterwards.
        if let Some(interrupted) = self.by_tid.remove(&tid) {
            injection.waiting = interrupted.waiting;
        }
        stopped.set_regs(&regs.outside_of_call())?;
        stopped.cont_syscall(0)?;
        self.by_tid.insert(tid, injection);
        Ok(())
    }

    /// A signal that comes before the injection has begun, or a SIGSTOP, which stops the process afterwards.
    pub fn signal(&mut self, stopped: Stopped, signal: i32) -> Stop {
        let tid = stopped.tid();
        // Before it begins, the stop for the interruption follows.
        let Some(injection) = self.begun(tid) else {
            return Stop::Foreign(stopped);
        };
        injection.is_to_stop |= signal == libc::SIGSTOP;
        self.ended(tid, stopped.cont_syscall(0).map(|()| false))
    }

    /// A call of ours begins or ends.
    pub fn syscall_stop(&mut self, stopped: Stopped) -> Stop {
        let tid = stopped.tid();
        let Some(injection) = self.begun(tid) else {
            return Stop::Foreign(stopped);
        };
        let stepped = injection.step(stopped);
        self.ended(tid, stepped)
    }

    /// The injection of `tid`, if its first call is on its way.
    fn begun(&mut self, tid: i32) -> Option<&mut Injection> {
        let injection = self.by_tid.get_mut(&tid);
        injection.filter(|injection| injection.stage != Stage::Interrupted)
    }

    fn ended(&mut self, tid: i32, outcome: Result<bool, Errno>) -> Stop {
        if outcome == Ok(false) {
            return Stop::Taken;
        }
        let Some(injection) = self.by_tid.remove(&tid) else {
            return Stop::Taken;
        };
        if injection.is_to_stop {
            let _ = nix::sys::signal::kill(Pid::from_raw(tid), Signal::SIGSTOP);
        }
        let waiting = injection.waiting;
        let received = match injection.script {
            Script::InstallFilter(_) => return Stop::Filtered(outcome.map(drop), waiting),
            Script::Receive(_) => injection.saved.map(|saved| saved.result()),
            Script::Fetch(_) | Script::MapMemory(_) => None,
        };
        let then = if waiting.is_empty() {
            Stop::Taken
        } else {
            match self.interrupt_to_filter(tid, waiting.clone()) {
                Ok(()) => Stop::Taken,
                Err(errno) => Stop::Filtered(Err(errno), waiting),
            }
        };
        match received {
            Some(result) => Stop::Received(result, Box::new(then)),
            None => then,
        }
    }
}

impl Injection {
    fn begin(&mut self, stopped: Stopped) -> Result<bool, Errno> {
        self.saved = Some(stopped.regs()?);
        self.advance(stopped, None)
    }

    /// Sets the tracee on the way to the script's next call; true at the end, when it continues where it was.
    fn advance(&mut self, stopped: Stopped, result: Option<i64>) -> Result<bool, Errno> {
        if self.mask.is_none() {
            self.mask = Some(stopped.signal_mask()?);
            stopped.set_signal_mask(u64::MAX)?;
        }
        let saved = self.saved.as_mut().ok_or(Errno::EIO)?;
        match self.script.next(&stopped, result, saved) {
            Ok(Step::Call(nr, args)) => {
                self.stage = Stage::Calling { entered: false };
                // What it was in is not restarted by the kernel, but by us in the end.
                stopped.set_regs(&saved.calling(self.instruction, nr, args))?;
                stopped.cont_syscall(0)?;
                Ok(false)
            }
            end => {
                self.go_back(stopped)?;
                end.map(|_| true)
            }
        }
    }

    /// One syscall stop further; true at the end.
    fn step(&mut self, stopped: Stopped) -> Result<bool, Errno> {
        match &mut self.stage {
            Stage::Leaving => return self.advance(stopped, None),
            Stage::Calling { entered } if !*entered => {
                *entered = true;
                stopped.cont_syscall(0)?;
                return Ok(false);
            }
            _ => {}
        }
        let result = stopped.regs()?.result();
        self.advance(stopped, Some(result))
    }

    fn go_back(&self, stopped: Stopped) -> Result<(), Errno> {
        if let Some(mask) = self.mask {
            stopped.set_signal_mask(mask)?;
        }
        let saved = self.saved.ok_or(Errno::EIO)?;
        let regs = match saved.result() {
            _ if saved.number() == -1 => saved,
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND => saved.before_call(),
            ERESTART_RESTARTBLOCK => {
                let args = saved.args();
                saved.calling(saved.call_instruction(), libc::SYS_restart_syscall, args)
            }
            _ => saved.outside_of_call(),
        };
        stopped.set_regs(&regs)?;
        stopped.cont(0)
    }
}

/// A syscall instruction in the tracee's vDSO.
fn syscall_instruction(tid: i32) -> Result<u64, Errno> {
    let (start, end) = procfs::vdso(tid)?;
    let mut code = vec![0; usize::try_from(end - start).map_err(|_| Errno::ENOMEM)?];
    tracee::read_exact(tid, start, &mut code)?;
    let at = code.windows(2).position(|pair| pair == SYSCALL);
    at.map(|at| start + at as u64).ok_or(Errno::EOPNOTSUPP)
}
