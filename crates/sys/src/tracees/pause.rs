//! Stops single threads of tracees for an instant, from any thread of the tracer's process.
//!
//! SIGSTOP cannot be blocked, ignored or consumed, and a tracee that receives one stops and reports it to its tracer; only the tracer
//! can continue the tracee. The SIGSTOP of this module carries a value by which the tracer recognises it, so that it continues the
//! tracee without delivering it.
#![allow(
    unsafe_code,
    reason = "rt_tgsigqueueinfo(2) has no safe interface, and siginfo_t is a union"
)]

use crate::Errno;
use crate::ptrace::Stopped;

/// The value of our own SIGSTOP.
const COOKIE: usize = 0x676f_616e_6e61;

/// `siginfo_t` as rt_tgsigqueueinfo(2) takes it for `SI_QUEUE`.
#[repr(C)]
struct Queued {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    pid: i32,
    uid: u32,
    value: usize,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// Sends our SIGSTOP to thread `tid` of process `pid`. A thread in the kernel stops before it returns to its program. `ESRCH`: the
/// thread has ended.
pub fn stop(pid: i32, tid: i32) -> Result<(), Errno> {
    let queued = Queued {
        signal: libc::SIGSTOP,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: std::process::id().cast_signed(),
        // SAFETY: no arguments.
        uid: unsafe { libc::getuid() },
        value: COOKIE,
        rest: [0; 12],
    };
    // SAFETY: `queued` is live and has the size of a siginfo_t, as asserted above.
    let r = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            pid,
            tid,
            libc::SIGSTOP,
            &raw const queued,
        )
    };
    Errno::result(r).map(drop)
}

/// Whether the tracee is stopped for the delivery of our SIGSTOP.
pub fn is_ours(stopped: &Stopped) -> Result<bool, Errno> {
    let info = stopped.signal_info()?;
    if info.si_signo != libc::SIGSTOP || info.si_code != libc::SI_QUEUE {
        return Ok(false);
    }
    // SAFETY: a signal of SI_QUEUE has a value.
    Ok(unsafe { info.si_value() }.sival_ptr as usize == COOKIE)
}
