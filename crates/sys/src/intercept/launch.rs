//! Starts a program under a seccomp filter whose listener this process holds, from the program's first instruction on.
//!
//! fork; the child installs the filter and waits at a gate; the parent takes the listener, seizes the child, starts
//! to answer and opens the gate; the child executes the program. Once the filter is installed, it may trap every call of the child (read(2) on
//! the gate it may only stop by ptrace), so the child reports through shared memory and not through a descriptor.
#![allow(
    unsafe_code,
    reason = "fork(2), seccomp(2) and what may run between fork and execve"
)]

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::filter::Insn;
use crate::process::child;
use crate::{limits, pidfd};

/// What to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Path given to execve, already looked up in PATH.
    pub path: CString,
    /// Arguments, the program's name first.
    pub argv: Vec<CString>,
    /// Environment, `NAME=value` each.
    pub env: Vec<CString>,
    /// The filter; empty for none. It must let read(2) through or stop it by ptrace, unless it is installed
    /// [late](Self::filter_behind_gate).
    pub filter: Vec<Insn>,
    /// Whether the child installs the filter only when the gate is open, because the filter stops calls that the child makes before. The child
    /// must be seized before that.
    pub filter_behind_gate: bool,
    /// Whether set-uid programs keep their effect (no `PR_SET_NO_NEW_PRIVS`). A filter then needs `CAP_SYS_ADMIN`.
    pub privileges: bool,
    /// Whether the filter gets a listener (a filter that uses `SECCOMP_RET_USER_NOTIF` needs one).
    pub listener: bool,
    /// Signals that the caller has blocked, and that are unblocked in the program.
    pub unblock: Vec<i32>,
    /// The process that is to trace the program, when it is not the caller: with Yama's ptrace_scope 1, a program must
    /// ask for it to be traced by a process other than its ancestors.
    pub tracer: Option<i32>,
}

/// Why a program could not be brought to its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// `EBUSY`: an outer filter has a listener already (that of another monitor).
    #[error("another seccomp listener is in place")]
    ListenerBusy,
    /// `EINVAL`: the kernel knows the call but not an action or a flag of the filter (Linux before 5.19), or the filter is malformed.
    #[error("the kernel refuses the seccomp filter or its flags")]
    FilterInvalid,
    /// `ENOSYS`: no seccomp filters in this kernel, or an outer filter hides them.
    #[error("the kernel has no seccomp filters")]
    FilterUnsupported,
    /// `EPERM` or `EACCES`: filters are forbidden here.
    #[error("seccomp filters are not permitted here")]
    FilterForbidden,
    /// Any other errno of seccomp(2).
    #[error("cannot install the seccomp filter: {0}")]
    Filter(Errno),
    /// The listener could not be taken from the child.
    #[error("cannot take over the seccomp listener: {0}")]
    TakeListener(Errno),
    /// The child died before it reached its gate.
    #[error("the child ended before it could be seized")]
    ChildEnded,
    /// Pipe, mapping, fork or wait.
    #[error("cannot start a process: {0}")]
    Process(Errno),
}

impl LaunchError {
    fn of_filter(errno: Errno) -> Self {
        match errno {
            Errno::EBUSY => Self::ListenerBusy,
            Errno::EINVAL => Self::FilterInvalid,
            Errno::ENOSYS => Self::FilterUnsupported,
            Errno::EPERM | Errno::EACCES => Self::FilterForbidden,
            other => Self::Filter(other),
        }
    }
}

/// A child that waits at its gate with its filter installed. Dropped without [`go`](Launched::go), it exits with
/// status 125.
#[derive(Debug)]
#[must_use = "the child waits until it is let go"]
pub struct Launched {
    /// Process id.
    pub pid: i32,
    /// The filter's listener, if one was asked for.
    pub listener: Option<OwnedFd>,
    /// The gate that holds the child.
    pub gate: Gate,
}

/// The parent's end of the gate.
#[derive(Debug)]
pub struct Gate {
    pipe: OwnedFd,
    report: ExecReport,
}

/// The memory in which the child stores the errno of a failed execve.
#[derive(Debug)]
pub struct ExecReport {
    shared: Mapping,
}

impl Launched {
    /// Lets the child execute its program. Seize it and answer its notifications first. `EPIPE`: it was killed.
    pub fn go(self) -> Result<ExecReport, Errno> {
        self.gate.open()
    }
}

impl Gate {
    /// Opens the gate; see [`Launched::go`].
    pub fn open(self) -> Result<ExecReport, Errno> {
        let byte = [1u8];
        // For a killed child the call must fail with EPIPE, without SIGPIPE. Only sockets have a flag for that, so the gate is a socket pair.
        // SAFETY: `byte` is live and one byte long.
        let r = unsafe {
            libc::send(
                self.pipe.as_raw_fd(),
                byte.as_ptr().cast(),
                byte.len(),
                libc::MSG_NOSIGNAL,
            )
        };
        Errno::result(r)?;
        Ok(self.report)
    }
}

impl ExecReport {
    /// The error of installing the filter [behind the gate](Launch::filter_behind_gate), after which the child exits with status 125. `None` if
    /// there was none so far.
    pub fn filter_error(&self) -> Option<LaunchError> {
        match self.shared.get().filter_errno.load(Ordering::Acquire) {
            0 => None,
            errno => Some(LaunchError::of_filter(Errno::from_raw(errno))),
        }
    }

    /// The error of execve; `None` if it has not failed. Call this when the child has exited with status 127 (`ENOENT`) or 126 (any other
    /// errno): programs exit with these statuses, too.
    pub fn exec_errno(&self) -> Option<Errno> {
        match self.shared.get().exec_errno.load(Ordering::Acquire) {
            0 => None,
            errno => Some(Errno::from_raw(errno)),
        }
    }
}

const STATE_STARTED: u32 = 0;
const STATE_FILTERED: u32 = 1;
const STATE_FAILED: u32 = 2;

/// The child's reports, in memory shared with it.
struct Shared {
    /// `STATE_*`; a futex.
    state: AtomicU32,
    /// Number of the listener in the child, or -1.
    listener: AtomicI32,
    filter_errno: AtomicI32,
    exec_errno: AtomicI32,
}

/// A page shared between parent and child, holding one [`Shared`].
#[derive(Debug)]
struct Mapping(NonNull<Shared>);

// SAFETY: the page holds atomics only and is unmapped once, by the owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; shared references give access to atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new() -> Result<Self, Errno> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        NonNull::new(page.cast::<Shared>())
            .map(Self)
            .ok_or(Errno::ENOMEM)
    }

    fn get(&self) -> &Shared {
        // SAFETY: page-aligned, as large as Shared, zero-filled (a value of every atomic), mapped until drop.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; no reference outlives self.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Shared>()) };
    }
}

/// All data that the child needs. They are made before fork, because the child must not allocate.
struct Prepared<'a> {
    launch: &'a Launch,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    /// The caller's signal mask.
    mask: libc::sigset_t,
    /// The program's.
    child_mask: libc::sigset_t,
    nofile: Option<libc::rlimit64>,
    gate_child: RawFd,
    gate_parent: RawFd,
    shared: &'a Shared,
}

/// Forks a child and brings it to its gate. Its signal mask is the caller's without [`Launch::unblock`]; handlers are reset, SIGINT, SIGQUIT and
/// SIGPIPE to their default even if they are ignored here.
pub fn launch(launch: &Launch) -> Result<Launched, LaunchError> {
    let shared = Mapping::new().map_err(LaunchError::Process)?;
    let (gate_parent, gate_child) = gate_pair().map_err(LaunchError::Process)?;
    let mut prepared = Prepared {
        launch,
        argv: pointers(&launch.argv),
        env: pointers(&launch.env),
        // SAFETY: a sigset_t is plain integers; pthread_sigmask fills it below.
        mask: unsafe { std::mem::zeroed() },
        // SAFETY: as above; it is made of `mask`.
        child_mask: unsafe { std::mem::zeroed() },
        nofile: limits::inherited_nofile(),
        gate_child: gate_child.as_raw_fd(),
        gate_parent: gate_parent.as_raw_fd(),
        shared: shared.get(),
    };
    let pid = fork_blocked(&mut prepared).map_err(LaunchError::Process)?;
    drop(prepared);
    drop(gate_child);
    match await_filter(pid, &shared, launch.listener && !launch.filter.is_empty()) {
        Ok(listener) => Ok(Launched {
            pid,
            listener,
            gate: Gate {
                pipe: gate_parent,
                report: ExecReport { shared },
            },
        }),
        Err(error) => {
            child::reap(pid);
            Err(error)
        }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain(std::iter::once(std::ptr::null()))
        .collect()
}

fn gate_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut pair = [-1; 2];
    // SAFETY: `pair` has space for two descriptors.
    let r = unsafe {
        libc::socketpair(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_CLOEXEC,
            0,
            pair.as_mut_ptr(),
        )
    };
    Errno::result(r)?;
    // SAFETY: the kernel has just made both descriptors, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) })
}

/// Forks with all signals blocked, so that no handler of ours runs in the child.
fn fork_blocked(prepared: &mut Prepared<'_>) -> Result<i32, Errno> {
    // SAFETY: a sigset_t is plain integers, and sigfillset sets them all.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are live.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut prepared.mask);
    }
    prepared.child_mask = prepared.mask;
    for &signal in &prepared.launch.unblock {
        // SAFETY: the set is live; a number that is not a signal is refused.
        unsafe { libc::sigdelset(&raw mut prepared.child_mask, signal) };
    }
    // SAFETY: the child runs `child`, which makes async-signal-safe calls only and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child(prepared);
    }
    let pid = Errno::result(pid);
    // SAFETY: `mask` is the set that pthread_sigmask stored above.
    unsafe {
        libc::pthread_sigmask(
            libc::SIG_SETMASK,
            &raw const prepared.mask,
            std::ptr::null_mut(),
        )
    };
    pid
}

/// How long a child whose filter stops read(2) waits to be traced, and the pause between its attempts.
const UNTRACED_MAX: Duration = Duration::from_secs(60);
static UNTRACED_STEP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 200_000,
};

/// Everything that the child does before execve. It must not allocate, lock or panic.
fn child(prepared: &Prepared<'_>) -> ! {
    let shared = prepared.shared;
    reset_signals();
    // SAFETY: integers and a live rlimit64 only; the parent's end must be closed here, so that the parent's death ends our read.
    unsafe {
        libc::close(prepared.gate_parent);
        if let Some(nofile) = prepared.nofile.as_ref() {
            libc::setrlimit64(libc::RLIMIT_NOFILE, nofile);
        }
    }
    if let Some(tracer) = prepared.launch.tracer {
        // SAFETY: integers only. EINVAL where Yama is not enabled.
        unsafe { libc::prctl(libc::PR_SET_PTRACER, tracer, 0, 0, 0) };
    }
    // The parent may have made itself unreadable (`secret::forbid_reading`), which a child inherits until its execve: then no
    // process could trace it. The child has no copy of the memory that the parent protects.
    // SAFETY: integers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0) };
    let installed = if prepared.launch.filter_behind_gate {
        Ok(-1)
    } else {
        install(prepared.launch)
    };
    match installed {
        Ok(listener) => {
            shared.listener.store(listener, Ordering::Relaxed);
            set_state(shared, STATE_FILTERED);
        }
        Err(errno) => {
            shared.filter_errno.store(errno as i32, Ordering::Relaxed);
            set_state(shared, STATE_FAILED);
            exit_now(125);
        }
    }
    wait_at_gate(prepared.gate_child);
    if prepared.launch.filter_behind_gate
        && let Err(errno) = install(prepared.launch)
    {
        shared.filter_errno.store(errno as i32, Ordering::Release);
        exit_now(125);
    }
    let listener = shared.listener.load(Ordering::Relaxed);
    // SAFETY: integers, live sets and null-terminated arrays of null-terminated strings, all made before fork.
    unsafe {
        if listener >= 0 {
            libc::close(listener);
        }
        libc::close(prepared.gate_child);
        libc::pthread_sigmask(
            libc::SIG_SETMASK,
            &raw const prepared.child_mask,
            std::ptr::null_mut(),
        );
        libc::execve(
            prepared.launch.path.as_ptr(),
            prepared.argv.as_ptr(),
            prepared.env.as_ptr(),
        );
    }
    let errno = Errno::last();
    shared.exec_errno.store(errno as i32, Ordering::Release);
    exit_now(if errno == Errno::ENOENT { 127 } else { 126 });
}

/// Waits until the parent lets the child go on. As [`child`], it must not allocate, lock or panic.
fn wait_at_gate(gate: RawFd) {
    let mut byte = [0u8];
    let begun = Instant::now();
    loop {
        // SAFETY: `byte` is live and one byte long.
        let n = unsafe { libc::read(gate, byte.as_mut_ptr().cast(), 1) };
        match n {
            1 => return,
            -1 if Errno::last() == Errno::EINTR => {}
            // The filter has read(2) stopped, and nobody traces us yet.
            -1 if Errno::last() == Errno::ENOSYS && begun.elapsed() < UNTRACED_MAX => {
                // SAFETY: a live timespec. Where the filter stops this call, too, we try again at once.
                unsafe { libc::nanosleep(&raw const UNTRACED_STEP, std::ptr::null_mut()) };
            }
            _ => exit_now(125),
        }
    }
}

fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process without running anything of the parent's.
    unsafe { libc::_exit(status) }
}

/// Resets every handler (they are the monitor's code). Ignored signals stay ignored (nohup), except those that the monitor and the Rust runtime
/// ignore for themselves.
fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: sigaction is plain integers, for which zero is a value; signals that may not be changed give EINVAL.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
                continue;
            }
            let ours = matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGPIPE);
            if action.sa_sigaction == libc::SIG_DFL
                || (action.sa_sigaction == libc::SIG_IGN && !ours)
            {
                continue;
            }
            action = std::mem::zeroed();
            action.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Installs the filter; returns the listener's number, or -1 without one.
fn install(launch: &Launch) -> Result<i32, Errno> {
    if !launch.privileges {
        // Also without a filter: a tracee behaves the same, whichever way it is traced.
        // SAFETY: integers only.
        Errno::result(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    }
    if launch.filter.is_empty() {
        return Ok(-1);
    }
    let program = libc::sock_fprog {
        len: u16::try_from(launch.filter.len()).map_err(|_| Errno::EINVAL)?,
        filter: launch.filter.as_ptr().cast_mut().cast(),
    };
    // WAIT_KILLABLE_RECV: once we have received a call, only a fatal signal ends it, so none is performed twice.
    let flags = if launch.listener {
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
    } else {
        0
    };
    // SAFETY: `program` points at `len` instructions laid out as sock_filter.
    let r = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    let r = Errno::result(r)?;
    Ok(if launch.listener { r as i32 } else { -1 })
}

fn set_state(shared: &Shared, state: u32) {
    shared.state.store(state, Ordering::Release);
    // The filter may trap or refuse even this call, so the parent also checks from time to time.
    // SAFETY: the futex word is live shared memory.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const shared.state,
            libc::FUTEX_WAKE,
            1,
        )
    };
}

fn await_filter(
    pid: i32,
    shared: &Mapping,
    wants_listener: bool,
) -> Result<Option<OwnedFd>, LaunchError> {
    let shared = shared.get();
    loop {
        match shared.state.load(Ordering::Acquire) {
            STATE_STARTED => {}
            STATE_FILTERED => break,
            _ => {
                let errno = shared.filter_errno.load(Ordering::Relaxed);
                return Err(LaunchError::of_filter(Errno::from_raw(errno)));
            }
        }
        if has_ended(pid).map_err(LaunchError::Process)? {
            return Err(LaunchError::ChildEnded);
        }
        let step = libc::timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        // Woken, timed out, interrupted or too late: in each case the caller checks again.
        // SAFETY: the futex word is live shared memory, `step` a live timespec.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                &raw const shared.state,
                libc::FUTEX_WAIT,
                STATE_STARTED,
                &raw const step,
            )
        };
    }
    if !wants_listener {
        return Ok(None);
    }
    let number = shared.listener.load(Ordering::Relaxed);
    pidfd::open(pid)
        .and_then(|process| pidfd::getfd(process.as_fd(), number))
        .map(Some)
        .map_err(LaunchError::TakeListener)
}

/// Whether the child is a zombie; it stays one.
fn has_ended(pid: i32) -> Result<bool, Errno> {
    // SAFETY: siginfo_t is plain data that waitid fills; zero means that nothing was reported.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is live.
    let r = unsafe {
        libc::waitid(
            libc::P_PID,
            pid.cast_unsigned(),
            &raw mut info,
            libc::WEXITED | libc::WNOHANG | libc::WNOWAIT,
        )
    };
    Errno::result(r)?;
    // SAFETY: waitid has filled the fields of a child's report, or left zeroes.
    Ok(unsafe { info.si_pid() } != 0)
}
