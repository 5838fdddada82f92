//! Injects system calls: makes a stopped thread perform a call for the tracer.

use goanna_sys::ptrace::{self, CallStop, Status};
use goanna_sys::{Errno, tracee};

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// What became of an injected call.
#[derive(Debug, PartialEq, Eq)]
pub enum Injected {
    /// It was performed, and the thread is stopped as before. The number is the result register.
    Done(i64),
    /// It was not performed: another stop came first, or the thread has ended. The caller must handle that.
    Preempted(Status),
}

/// Makes thread `tid` perform call `nr`. The thread must be stopped just after the instruction of its last call: at the exit of that call, or at the
/// first stop of a new process. `EINVAL`: it is stopped elsewhere.
pub fn perform(tid: i32, nr: i64, args: [u64; 6]) -> Result<Injected, Errno> {
    let saved = ptrace::get_regs(tid)?;
    let at = saved.rip.wrapping_sub(SYSCALL.len() as u64);
    let mut instruction = [0; SYSCALL.len()];
    if tracee::read(tid, at, &mut instruction) != Ok(SYSCALL.len()) || instruction != SYSCALL {
        return Err(Errno::EINVAL);
    }
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    let injected = libc::user_regs_struct {
        rip: at,
        rax: nr.cast_unsigned(),
        // The thread is in no call that the kernel could restart.
        orig_rax: u64::MAX,
        rdi,
        rsi,
        rdx,
        r10,
        r8,
        r9,
        ..saved
    };
    ptrace::set_regs(tid, &injected)?;
    let mut has_begun = false;
    loop {
        ptrace::cont_syscall(tid, 0)?;
        // A thread without a report was killed; its end is reported to the next wait for any thread.
        let status = ptrace::wait_for(tid)?.ok_or(Errno::ESRCH)?;
        let stop = match status {
            Status::SyscallStop | Status::Seccomp => ptrace::call_stop(tid)?,
            _ => CallStop::Other,
        };
        match stop {
            CallStop::Entry { .. } => has_begun = true,
            CallStop::Exit { result } if has_begun => {
                ptrace::set_regs(tid, &saved)?;
                return Ok(Injected::Done(result));
            }
            _ => {
                if !status.is_end() {
                    ptrace::set_regs(tid, &saved)?;
                }
                return Ok(Injected::Preempted(status));
            }
        }
    }
}
