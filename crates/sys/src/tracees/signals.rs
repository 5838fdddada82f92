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
    let queued = Queued::of_monitor(libc::SIGSTOP, COOKIE);
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

/// Sends process `pid` the SIGCHLD for thread `tid`, which it traces and which has the status `raw`. Does nothing if the process
/// has ended, or would not get the signal.
pub fn send_of_child(pid: i32, tid: i32, raw: i32) {
    let is_wanted = procfs::status(pid).is_ok_and(|status| {
        let signals = status.signals;
        (signals.caught | signals.blocked) & 1 << (libc::SIGCHLD - 1) != 0
    });
    if !is_wanted {
        return;
    }
    let value = (raw.cast_unsigned() as usize) << 32 | tid.cast_unsigned() as usize;
    let queued = Queued::of_monitor(libc::SIGCHLD, value);
    // SAFETY: `queued` is live and has the size of a siginfo_t, as asserted above.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigqueueinfo,
            pid,
            libc::SIGCHLD,
            &raw const queued,
        )
    };
}

impl Queued {
    /// A signal of the monitor with this value.
    fn of_monitor(signal: i32, value: usize) -> Self {
        // SAFETY: no arguments.
        let sender = (own_pid(), unsafe { libc::getuid() });
        Self::new(signal, libc::SI_QUEUE, sender, value)
    }

    /// The SIGCHLD for thread `tid`, which is traced and has the status `raw` of waitpid(2).
    fn of_child(tid: i32, raw: i32) -> Self {
        let (code, status) = match raw {
            _ if libc::WIFEXITED(raw) => (libc::CLD_EXITED, libc::WEXITSTATUS(raw)),
            _ if libc::WIFSTOPPED(raw) => (libc::CLD_TRAPPED, raw >> 8),
            _ if libc::WCOREDUMP(raw) => (libc::CLD_DUMPED, libc::WTERMSIG(raw)),
            _ => (libc::CLD_KILLED, libc::WTERMSIG(raw)),
        };
        let uid = procfs::status(tid).map_or(0, |status| status.uid[0]);
        let status = status.cast_unsigned() as usize;
        Self::new(libc::SIGCHLD, code, (tid, uid), status)
    }
}

/// The `siginfo_t` of waitid(2) for thread `tid` with the status `raw` of waitpid(2).
pub fn of_child(tid: i32, raw: i32) -> [u8; size_of::<libc::siginfo_t>()] {
    // SAFETY: the two have the same size, as asserted above, and the first one has no padding.
    unsafe { std::mem::transmute(Queued::of_child(tid, raw)) }
}

/// What the kernel would say about a signal that the monitor has sent, if the tracee is stopped for one.
fn as_of_kernel(stopped: &Stopped, info: &libc::siginfo_t) -> Result<Option<Queued>, Errno> {
    let signal = info.si_signo;
    // SAFETY: signals of SI_TKILL and SI_QUEUE have a sender.
    let is_ours = || unsafe { info.si_pid() } == own_pid();
    match (signal, info.si_code) {
        (libc::SIGXFSZ | libc::SIGPIPE | libc::SIGTRAP, libc::SI_TKILL) if is_ours() => {
            let status = procfs::status(stopped.tid())?;
            let sender = (status.own_pid, status.uid[0]);
            Ok(Some(Queued::new(signal, libc::SI_USER, sender, 0)))
        }
        (libc::SIGCHLD, libc::SI_QUEUE) if is_ours() => {
            // SAFETY: a signal of SI_QUEUE has a value.
            let value = unsafe { info.si_value() }.sival_ptr as usize;
            let (tid, raw) = (value as i32, (value >> 32) as i32);
            Ok(Some(Queued::of_child(tid, raw)))
        }
        _ => Ok(None),
    }
}

/// If the tracee is stopped for a signal of [`send_for_call`] or [`send_of_child`], replaces what its handler learns by what the kernel
/// says: of the first, the sender is its own process.
pub fn set_sender(stopped: &Stopped, signal: i32) -> Result<(), Errno> {
    let may_be_ours = matches!(
        signal,
        libc::SIGXFSZ | libc::SIGPIPE | libc::SIGTRAP | libc::SIGCHLD
    );
    if !may_be_ours {
        return Ok(());
    }
    let info = stopped.signal_info()?;
    let Some(sent) = as_of_kernel(stopped, &info)? else {
        return Ok(());
    };
    // SAFETY: the two have the same size, as asserted above, and a siginfo_t is plain integers.
    let sent = unsafe { std::mem::transmute::<Queued, libc::siginfo_t>(sent) };
    stopped.set_signal(&Signal::from(sent))
}
