//! Injects system calls: makes a stopped thread perform a call for the tracer.

use goanna_sys::arch::{Registers, SYSCALL};
use goanna_sys::ptrace::{self, CallStop, Event, SignalOrigin, Status, Stopped};
use goanna_sys::{Errno, tracee};

/// The outcome of an injected call.
#[derive(Debug, PartialEq, Eq)]
pub enum Injected {
    /// The thread has performed it, and is stopped as before. The number is the result register.
    Done(Stopped, i64),
    /// The thread has not performed it: another stop came first, or the thread has ended. The caller must handle that.
    Preempted(Event),
}

/// The place at which a stopped thread can perform a call.
#[derive(Debug)]
pub struct Site {
    /// The registers that the thread continues with.
    saved: Registers,
    /// The address of the instruction.
    instruction: u64,
}

impl Site {
    /// Makes the thread run code of the tracer at `address`, up to its next `int3`; or on from the last one, if that is `None`. The result is that of the register rax.
    /// Afterwards the thread must be given its registers back ([`Site::restore`]).
    pub fn run(&self, stopped: Stopped, address: Option<u64>) -> Result<Injected, Errno> {
        let tid = stopped.tid();
        if let Some(address) = address {
            let mut regs = self.saved.outside_of_call();
            regs.user_mut().rip = address;
            stopped.set_regs(&regs)?;
        }
        stopped.cont(0)?;
        let (stopped, status) = match ptrace::wait_for(tid)?.ok_or(Errno::ESRCH)? {
            Event::Stopped(stopped, status) => (stopped, status),
            ended @ Event::Ended { .. } => return Ok(Injected::Preempted(ended)),
        };
        let is_trap = status == Status::SignalDelivery(libc::SIGTRAP);
        if is_trap && stopped.signal_origin()? == SignalOrigin::Kernel {
            let result = stopped.regs()?.result();
            return Ok(Injected::Done(stopped, result));
        }
        stopped.set_regs(&self.saved)?;
        Ok(Injected::Preempted(Event::Stopped(stopped, status)))
    }

    /// Gives the thread back the registers that it had.
    pub fn restore(&self, stopped: &Stopped) -> Result<(), Errno> {
        stopped.set_regs(&self.saved)
    }

    /// The instruction of the last call of a thread that is stopped just after it: at the exit of that call, or at the first stop of a
    /// new process. `EINVAL`: the thread is stopped elsewhere.
    pub fn of(stopped: &Stopped) -> Result<Self, Errno> {
        let saved = stopped.regs()?;
        let instruction = saved.call_instruction();
        let mut code = [0; SYSCALL.len()];
        if tracee::read(stopped.tid(), instruction, &mut code) != Ok(SYSCALL.len())
            || code != SYSCALL
        {
            return Err(Errno::EINVAL);
        }
        Ok(Self { saved, instruction })
    }

    /// Makes the thread perform call `nr`. `ESRCH`: the thread was killed.
    pub fn perform(
        &self,
        mut stopped: Stopped,
        nr: i64,
        args: [u64; 6],
    ) -> Result<Injected, Errno> {
        let tid = stopped.tid();
        stopped.set_regs(&self.saved.calling(self.instruction, nr, args))?;
        let mut has_begun = false;
        loop {
            stopped.cont_syscall(0)?;
            // A thread without a report was killed; the next wait for any thread reports its end.
            let status;
            (stopped, status) = match ptrace::wait_for(tid)?.ok_or(Errno::ESRCH)? {
                Event::Stopped(stopped, status) => (stopped, status),
                ended @ Event::Ended { .. } => return Ok(Injected::Preempted(ended)),
            };
            let stop = match status {
                Status::SyscallStop | Status::Seccomp => stopped.call()?,
                _ => CallStop::Other,
            };
            match stop {
                CallStop::Entry { .. } => has_begun = true,
                CallStop::Exit { result } if has_begun => {
                    stopped.set_regs(&self.saved)?;
                    return Ok(Injected::Done(stopped, result));
                }
                _ => {
                    stopped.set_regs(&self.saved)?;
                    return Ok(Injected::Preempted(Event::Stopped(stopped, status)));
                }
            }
        }
    }
}
