//! Signals that the monitor sends to single threads of tracees, and how it recognises them when they are delivered.
//!
//! A pause is a SIGSTOP, which cannot be blocked, ignored or consumed: a tracee that receives one stops and reports it to its tracer,
//! which alone can continue it. It carries a value by which the tracer recognises it, so that it is not delivered.
//!
//! The other signals are those that the kernel would have sent the thread because of a call (SIGXFSZ, SIGPIPE). The kernel names the
//! thread's own process as the sender.
#![allow(
    unsafe_code,
    reason = "rt_tgsigqueueinfo(2) and tkill(2) have no safe interface, and siginfo_t is a union"
)]

use crate::Errno;
use crate::procfs;
use crate::ptrace::{Signal, Stopped};

/// The value of a pause.
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

impl Queued {
    /// A signal of process `pid` of user `uid`.
    fn new(signal: i32, code: i32, (pid, uid): (i32, u32), value: usize) -> Self {
        Self {
            signal,
            errno: 0,
            code,
            padding: 0,
            pid,
            uid,
            value,
            rest: [0; 12],
        }
    }
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}

/// Pauses thread `tid` of process `pid`. A thread in the kernel stops before it returns to its program. `ESRCH`: the thread has ended.
pub fn pause(pid: i32, tid: i32) -> Result<(), Errno> {
    // SAFETY: no arguments.
    let sender = (own_pid(), unsafe { libc::getuid() });
    let queued = Queued::new(libc::SIGSTOP, libc::SI_QUEUE, sender, COOKIE);
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

/// Whether the tracee is stopped for a pause.
pub fn is_pause(stopped: &Stopped) -> Result<bool, Errno> {
    let info = stopped.signal_info()?;
    if info.si_signo != libc::SIGSTOP || info.si_code != libc::SI_QUEUE {
        return Ok(false);
    }
    // SAFETY: a signal of SI_QUEUE has a value.
    Ok(unsafe { info.si_value() }.sival_ptr as usize == COOKIE)
}

/// Sends thread `tid` a signal because of its call. Does nothing for a thread that has ended.
pub fn send_for_call(tid: i32, signal: i32) {
    // SAFETY: integers only.
    unsafe { libc::syscall(libc::SYS_tkill, tid, signal) };
}

/// If the tracee is stopped for a signal of [`send_for_call`], makes its own process the sender, as it is of the kernel's.
pub fn set_sender_of_call(stopped: &Stopped, signal: i32) -> Result<(), Errno> {
    if !matches!(signal, libc::SIGXFSZ | libc::SIGPIPE) {
        return Ok(());
    }
    let info = stopped.signal_info()?;
    // SAFETY: a signal of SI_TKILL has a sender.
    if info.si_code != libc::SI_TKILL || unsafe { info.si_pid() } != own_pid() {
        return Ok(());
    }
    let status = procfs::status(stopped.tid())?;
    let sender = (status.own_pid, status.uid[0]);
    let sent = Queued::new(signal, libc::SI_USER, sender, 0);
    // SAFETY: the two have the same size, as asserted above, and a siginfo_t is plain integers.
    let sent = unsafe { std::mem::transmute::<Queued, libc::siginfo_t>(sent) };
    stopped.set_signal(&Signal::from(sent))
}
