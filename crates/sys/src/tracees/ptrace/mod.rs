//! ptrace(2) with `PTRACE_SEIZE`: options, stops and what they mean.
//!
//! Every request must come from the thread that seized the tracee; the kernel answers `ESRCH` to any other. `ESRCH`
//! from a request on a stopped tracee means that it was killed: its end is reported by a later wait.
#![allow(unsafe_code, reason = "ptrace(2) and waitpid(2)")]

mod requests;

use nix::errno::Errno;
pub use requests::Block;

use crate::arch::Registers;

bitflags::bitflags! {
    /// `PTRACE_O_*`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Options: i32 {
        /// Mark system-call stops, so that they differ from SIGTRAP.
        const TRACESYSGOOD = libc::PTRACE_O_TRACESYSGOOD;
        /// Stop at fork, and seize the child.
        const TRACEFORK = libc::PTRACE_O_TRACEFORK;
        /// Stop at vfork, and seize the child.
        const TRACEVFORK = libc::PTRACE_O_TRACEVFORK;
        /// Stop at clone, and seize the child.
        const TRACECLONE = libc::PTRACE_O_TRACECLONE;
        /// Stop when execve has succeeded, instead of a SIGTRAP.
        const TRACEEXEC = libc::PTRACE_O_TRACEEXEC;
        /// Stop when a vfork child has released its parent.
        const TRACEVFORKDONE = libc::PTRACE_O_TRACEVFORKDONE;
        /// Stop before exit, while memory and descriptors are still there.
        const TRACEEXIT = libc::PTRACE_O_TRACEEXIT;
        /// Stop at calls whose filter verdict is `SECCOMP_RET_TRACE`.
        const TRACESECCOMP = libc::PTRACE_O_TRACESECCOMP;
        /// Kill the tracee when the tracer ends.
        const EXITKILL = libc::PTRACE_O_EXITKILL;
        /// The options of a tracer that records calls and does not answer them.
        const TRACER = Self::TRACESYSGOOD.bits() | Self::TRACEFORK.bits() | Self::TRACEVFORK.bits()
            | Self::TRACECLONE.bits() | Self::TRACEEXEC.bits() | Self::TRACESECCOMP.bits();
        /// The options of the monitor.
        const MONITOR = Self::TRACESYSGOOD.bits() | Self::TRACEFORK.bits() | Self::TRACEVFORK.bits()
            | Self::TRACECLONE.bits() | Self::TRACEEXEC.bits() | Self::TRACESECCOMP.bits() | Self::EXITKILL.bits();
    }
}

/// The call that made a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloneKind {
    /// fork(2), or a clone with SIGCHLD as its exit signal.
    Fork,
    /// vfork(2), or a clone with CLONE_VFORK: the parent waits until the child executes or exits.
    Vfork,
    /// Any other clone; mostly threads.
    Clone,
}

/// The state of a tracee or child that a wait reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Exited with this status; the tid is free. A thread-group leader is reported when its last thread has gone.
    Exited(i32),
    /// Killed by a signal.
    Signaled {
        /// The signal.
        signal: i32,
        /// Whether a core was dumped.
        core: bool,
    },
    /// Before a call whose verdict is `SECCOMP_RET_TRACE`.
    Seccomp,
    /// execve has succeeded; the tracee now has its leader's tid, and every other thread is gone.
    Exec {
        /// The tid of the thread that called execve.
        former_tid: i32,
    },
    /// The tracee made a child, which is seized already and reports an [`EventStop`](Status::EventStop) of its own
    /// (that may come first).
    NewChild {
        /// The child's tid.
        child: i32,
        /// The call that made the child.
        kind: CloneKind,
    },
    /// Entry or exit of a call after [`Stopped::cont_syscall`].
    SyscallStop,
    /// A signal is about to be delivered; continue with it, another or none.
    SignalDelivery(i32),
    /// A stopping signal has stopped the group; [`Stopped::listen`] keeps it so until SIGCONT.
    GroupStop(i32),
    /// `PTRACE_EVENT_STOP` with SIGTRAP: a new child's first stop, the answer to [`interrupt`], or SIGCONT seen
    /// under [`Stopped::listen`].
    EventStop,
    /// A vfork child has released its parent.
    VforkDone,
    /// Before exit.
    ExitEvent,
}

impl Status {
    /// The status of an end, as waitpid(2) gives it; 0 for a stop.
    pub fn raw(&self) -> i32 {
        match *self {
            Self::Exited(status) => (status & 0xff) << 8,
            Self::Signaled { signal, core } => signal | if core { 0x80 } else { 0 },
            _ => 0,
        }
    }

    /// The number of the event of a stop (`PTRACE_EVENT_*`); 0 for all others.
    pub fn event(&self) -> i32 {
        match self {
            Self::NewChild { kind, .. } => match kind {
                CloneKind::Fork => libc::PTRACE_EVENT_FORK,
                CloneKind::Vfork => libc::PTRACE_EVENT_VFORK,
                CloneKind::Clone => libc::PTRACE_EVENT_CLONE,
            },
            Self::Exec { .. } => libc::PTRACE_EVENT_EXEC,
            Self::VforkDone => libc::PTRACE_EVENT_VFORK_DONE,
            Self::ExitEvent => libc::PTRACE_EVENT_EXIT,
            _ => 0,
        }
    }

    /// Whether the tracee is stopped by a stopping signal (then [`Stopped::listen`], not [`Stopped::cont`]).
    pub fn is_group_stop(&self) -> bool {
        matches!(self, Self::GroupStop(_))
    }

    /// Whether the task has ended; if not, it is stopped and waits for a request.
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Exited(_) | Self::Signaled { .. })
    }
}

/// A tracee that is stopped. All requests that the kernel answers for stopped tracees only are methods of it, and those
/// that let the tracee run consume it:
///
/// ```compile_fail,E0382
/// fn twice(stopped: goanna_sys::ptrace::Stopped) {
///     let _ = stopped.cont(0);
///     let _ = stopped.regs();
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a stopped tracee stays stopped until it is continued"]
pub struct Stopped {
    tid: i32,
    until: Until,
}

/// How far [`Stopped::cont`] lets a tracee run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Until {
    /// To its next stop of another kind.
    #[default]
    Event,
    /// To the end of one instruction: SIGTRAP (`PTRACE_SINGLESTEP`).
    Instruction,
    /// To the next entry to or exit from a call.
    Call,
}

impl Stopped {
    fn new(tid: i32) -> Self {
        let until = Until::default();
        Self { tid, until }
    }

    /// The same, but [`cont`](Self::cont) lets it run as far as `until`.
    pub fn until(self, until: Until) -> Self {
        Self { until, ..self }
    }

    /// A new value for a tracee, after a panic of its tracer has lost the first one. If the tracee runs, or has ended, each request
    /// answers `ESRCH`.
    pub fn recover(tid: i32) -> Self {
        Self::new(tid)
    }

    /// Thread id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Its registers.
    pub fn regs(&self) -> Result<Registers, Errno> {
        // SAFETY: user_regs_struct is plain integers, for which zero is a value.
        let mut regs: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        // SAFETY: `regs` is a live user_regs_struct, which is what this request fills.
        let r = unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.tid, 0usize, &raw mut regs) };
        Errno::result(r).map(|_| regs.into())
    }

    /// Replaces its registers. At a seccomp stop, no call ([`Registers::leave_call`]) skips the call, which then has the result in the registers;
    /// another call number is run through the filter again.
    pub fn set_regs(&self, regs: &Registers) -> Result<(), Errno> {
        let regs = std::ptr::from_ref(regs.user());
        // SAFETY: the request reads a user_regs_struct, and `regs` is one.
        let r = unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.tid, 0usize, regs) };
        Errno::result(r).map(drop)
    }

    /// The message of its event: the tid of a new child or of a thread that executed, the data of the filter's verdict
    /// at a seccomp stop, the exit status (as wait(2) gives it) before exit.
    pub fn event_message(&self) -> Result<i32, Errno> {
        event_message(self.tid)
    }

    /// The call that it is stopped in (`PTRACE_GET_SYSCALL_INFO`, Linux 5.3).
    pub fn call(&self) -> Result<CallStop, Errno> {
        // SAFETY: ptrace_syscall_info is plain integers, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let (request, size) = (libc::PTRACE_GET_SYSCALL_INFO, size_of_val(&info));
        // SAFETY: `info` is live and as large as the kernel is told.
        let r = unsafe { libc::ptrace(request, self.tid, size, &raw mut info) };
        Errno::result(r).map(|_| call_stop(&info))
    }

    /// The signal that it is stopped for.
    pub(crate) fn signal_info(&self) -> Result<libc::siginfo_t, Errno> {
        // SAFETY: a siginfo_t is plain integers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is a live siginfo_t, which is what this request fills.
        let r = unsafe { libc::ptrace(libc::PTRACE_GETSIGINFO, self.tid, 0usize, &raw mut info) };
        Errno::result(r).map(|_| info)
    }

    /// The signal that it is stopped for, with all that its handler learns.
    pub fn signal(&self) -> Result<Signal, Errno> {
        self.signal_info().map(Signal)
    }

    /// Changes the signal that it is stopped for. The number must be that with which it is continued.
    pub fn set_signal(&self, signal: &Signal) -> Result<(), Errno> {
        let info = &raw const signal.0;
        // SAFETY: `info` is a live siginfo_t, which is what this request reads.
        let r = unsafe { libc::ptrace(libc::PTRACE_SETSIGINFO, self.tid, 0usize, info) };
        Errno::result(r).map(drop)
    }

    /// The origin of the signal that it is stopped for.
    pub fn signal_origin(&self) -> Result<SignalOrigin, Errno> {
        let info = self.signal_info()?;
        Ok(match info.si_code {
            libc::SI_USER | libc::SI_TKILL | libc::SI_QUEUE => {
                // SAFETY: the kernel fills the sender's process id for these three.
                SignalOrigin::Process(unsafe { info.si_pid() })
            }
            libc::SI_KERNEL => SignalOrigin::Kernel,
            _ => SignalOrigin::Own,
        })
    }

    /// Changes the options that it was seized with.
    pub fn set_options(&self, options: Options) -> Result<(), Errno> {
        request(libc::PTRACE_SETOPTIONS, self.tid, options.bits())
    }

    /// Makes it stop again after it is continued, as [`interrupt`] does.
    pub fn interrupt(&self) -> Result<(), Errno> {
        interrupt(self.tid)
    }

    /// Lets it run as far as [`until`](Self::until) says, delivering `signal` (0: none) if it stopped for a signal.
    pub fn cont(self, signal: i32) -> Result<(), Errno> {
        let how = match self.until {
            Until::Event => libc::PTRACE_CONT,
            Until::Instruction => libc::PTRACE_SINGLESTEP,
            Until::Call => libc::PTRACE_SYSCALL,
        };
        request(how, self.tid, signal)
    }

    /// Like [`cont`](Self::cont), stopping at the next entry to or exit from a call.
    pub fn cont_syscall(self, signal: i32) -> Result<(), Errno> {
        request(libc::PTRACE_SYSCALL, self.tid, signal)
    }

    /// Leaves it in its group stop, reporting the SIGCONT that ends it.
    pub fn listen(self) -> Result<(), Errno> {
        request(libc::PTRACE_LISTEN, self.tid, 0)
    }

    /// Detaches from it, delivering `signal` (0: none).
    pub fn detach(self, signal: i32) -> Result<(), Errno> {
        request(libc::PTRACE_DETACH, self.tid, signal)
    }
}

/// A signal, with all that its handler learns.
#[derive(Clone, Copy)]
pub struct Signal(libc::siginfo_t);

impl std::fmt::Debug for Signal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "signal {}", self.number())
    }
}

impl From<libc::siginfo_t> for Signal {
    fn from(info: libc::siginfo_t) -> Self {
        Self(info)
    }
}

impl Signal {
    /// Its number.
    pub fn number(&self) -> i32 {
        self.0.si_signo
    }

    /// Whether the thread itself has caused it by an instruction that failed.
    pub fn is_fault(&self) -> bool {
        let is_of_instruction = matches!(
            self.0.si_signo,
            libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE
        );
        is_of_instruction && self.0.si_code > 0
    }

    /// Sends it to thread `tid` of process `pid` again. Of a signal of the kernel, the handler learns the number only.
    pub fn send(&self, pid: i32, tid: i32) -> Result<(), Errno> {
        // SAFETY: integers, and a live siginfo_t.
        let queued = unsafe {
            let info = &raw const self.0;
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, self.number(), info)
        };
        Errno::result(queued)
            .or_else(|_| {
                // SAFETY: integers.
                Errno::result(unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, self.number()) })
            })
            .map(drop)
    }
}

/// One report of a wait.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The task has ended.
    Ended {
        /// Its thread id.
        tid: i32,
        /// [`Status::Exited`] or [`Status::Signaled`].
        status: Status,
    },
    /// The tracee is stopped.
    Stopped(Stopped, Status),
}

impl Event {
    fn new(tid: i32, status: Status) -> Self {
        if status.is_end() {
            Self::Ended { tid, status }
        } else {
            Self::Stopped(Stopped::new(tid), status)
        }
    }

    /// The thread that the report is about.
    pub fn tid(&self) -> i32 {
        match self {
            Self::Ended { tid, .. } => *tid,
            Self::Stopped(stopped, _) => stopped.tid,
        }
    }

    /// The state that is reported.
    pub fn status(&self) -> Status {
        match self {
            Self::Ended { status, .. } | Self::Stopped(_, status) => *status,
        }
    }
}

/// Waits for the next report of any child or tracee of this thread. `flags` may hold `WNOHANG`, and then nothing new is
/// `None`. `ECHILD`: none is left. Interruptions by signals are not reported.
pub fn wait(flags: i32) -> Result<Option<Event>, Errno> {
    loop {
        let report = wait_leaving(flags | ANY, |_, _| true)?;
        if report.is_some() || flags & libc::WNOHANG != 0 {
            return Ok(report);
        }
    }
}

/// As [`wait`], but `None` also when a signal ends the wait. Before a task that has ended is reaped, `leaving` gets its id and status:
/// until the reaping no other process can see that the task has ended, not even its parent. If `leaving` returns false, the task is not
/// reaped, and the result is `None`; the caller must [`reap`] it later. Until then [`wait_stopped`] and [`ended`] report on other tasks.
/// `flags` select the events: `WEXITED`, `WSTOPPED`, or both.
pub fn wait_leaving(
    flags: i32,
    mut leaving: impl FnMut(i32, Status) -> bool,
) -> Result<Option<Event>, Errno> {
    loop {
        let Some(seen) = wait_id(None, libc::WNOWAIT | flags)? else {
            return Ok(None);
        };
        let kind = if seen.is_end {
            if let Some(status) = decode(seen.tid, seen.raw)?
                && !leaving(seen.tid, status)
            {
                return Ok(None);
            }
            libc::WEXITED
        } else {
            libc::WSTOPPED
        };
        // A stopped tracee may have been killed meanwhile; its end is reported next.
        let Some(report) = wait_id(Some(seen.tid), kind | libc::WNOHANG)? else {
            continue;
        };
        if let Some(status) = decode(report.tid, report.raw)? {
            return Ok(Some(Event::new(report.tid, status)));
        }
    }
}

/// The next stop of any tracee of this thread; ends are not reported. `flags` may hold `WNOHANG`. `None` also when a signal ends the wait.
/// `ECHILD`: all have ended.
pub fn wait_stopped(flags: i32) -> Result<Option<Event>, Errno> {
    decoded(wait_id(None, libc::WSTOPPED | flags)?)
}

/// Whether tracee `tid` has a report that was not taken yet: it has stopped again, or ended.
pub fn has_report(tid: i32) -> bool {
    let report = wait_id(Some(tid), ANY | libc::WNOWAIT | libc::WNOHANG);
    report.is_ok_and(|report| report.is_some())
}

/// The status of tracee `tid`, if it has ended and is not reaped yet.
pub fn ended(tid: i32) -> Result<Option<Status>, Errno> {
    let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
    match wait_id(Some(tid), flags)? {
        // The kernel reports stops of tracees to their tracer whatever the flags are.
        Some(report) if report.is_end => decode(report.tid, report.raw),
        _ => Ok(None),
    }
}

/// Reaps tracee `tid`, which has ended.
pub fn reap(tid: i32) -> Result<Option<Event>, Errno> {
    decoded(wait_id(Some(tid), libc::WEXITED | libc::WNOHANG)?)
}

fn decoded(report: Option<Report>) -> Result<Option<Event>, Errno> {
    let Some(report) = report else {
        return Ok(None);
    };
    let status = decode(report.tid, report.raw)?;
    Ok(status.map(|status| Event::new(report.tid, status)))
}

/// The next report of any child or tracee of this thread; a task that has ended is reaped. `None` also when a signal ends the wait. It
/// makes one call to the kernel, where [`wait`] needs two. `ECHILD`: none is left.
pub fn wait_once() -> Result<Option<Event>, Errno> {
    decoded(wait_id(None, ANY)?)
}

/// The next report of tracee `tid`, which is reaped if it has ended. `None`: it is gone, or the event's message is lost because it was
/// killed.
pub fn wait_for(tid: i32) -> Result<Option<Event>, Errno> {
    match wait_id(Some(tid), ANY)? {
        Some(report) => Ok(decode(tid, report.raw)?.map(|status| Event::new(tid, status))),
        None => Ok(None),
    }
}

/// Ends and stops.
pub const ANY: i32 = libc::WEXITED | libc::WSTOPPED;

/// Tracees of any kind, of this thread only: others may be tracing, too.
const THIS_THREADS: libc::c_int = libc::__WALL | libc::__WNOTHREAD;

/// A report of waitid(2).
struct Report {
    tid: i32,
    is_end: bool,
    /// As waitpid(2) gives it.
    raw: i32,
}

fn wait_id(tid: Option<i32>, flags: i32) -> Result<Option<Report>, Errno> {
    let (which, id) = match tid {
        Some(tid) => (libc::P_PID, tid.cast_unsigned()),
        None => (libc::P_ALL, 0),
    };
    loop {
        // SAFETY: all zeroes is a siginfo_t; waitid leaves it so when there is nothing to report.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: `info` is live.
        let r = unsafe { libc::waitid(which, id, &raw mut info, flags | THIS_THREADS) };
        match Errno::result(r) {
            Ok(_) => {}
            Err(Errno::EINTR) if tid.is_some() => continue,
            Err(Errno::EINTR) => return Ok(None),
            // This task has no further report. The caller's next wait finds out whether other tasks are left.
            Err(Errno::ECHILD) if tid.is_some() => return Ok(None),
            Err(e) => return Err(e),
        }
        // SAFETY: waitid fills the fields of SIGCHLD, or none.
        let (tid, status) = unsafe { (info.si_pid(), info.si_status()) };
        if tid == 0 {
            return Ok(None);
        }
        let (is_end, raw) = match info.si_code {
            libc::CLD_EXITED => (true, (status & 0xff) << 8),
            libc::CLD_KILLED => (true, status),
            libc::CLD_DUMPED => (true, status | 0x80),
            _ => (false, (status << 8) | 0x7f),
        };
        return Ok(Some(Report { tid, is_end, raw }));
    }
}

/// `None` when the tracee was killed in its stop and the event's message is lost; its end will be reported.
fn decode(tid: i32, raw: i32) -> Result<Option<Status>, Errno> {
    if libc::WIFEXITED(raw) {
        return Ok(Some(Status::Exited(libc::WEXITSTATUS(raw))));
    }
    if libc::WIFSIGNALED(raw) {
        return Ok(Some(Status::Signaled {
            signal: libc::WTERMSIG(raw),
            core: libc::WCOREDUMP(raw),
        }));
    }
    if !libc::WIFSTOPPED(raw) {
        return Ok(None);
    }
    let signal = libc::WSTOPSIG(raw);
    let child = |kind| match event_message(tid) {
        Ok(child) => Ok(Some(Status::NewChild { child, kind })),
        Err(Errno::ESRCH) => Ok(None),
        Err(e) => Err(e),
    };
    match raw >> 16 {
        libc::PTRACE_EVENT_SECCOMP => Ok(Some(Status::Seccomp)),
        libc::PTRACE_EVENT_FORK => child(CloneKind::Fork),
        libc::PTRACE_EVENT_VFORK => child(CloneKind::Vfork),
        libc::PTRACE_EVENT_CLONE => child(CloneKind::Clone),
        libc::PTRACE_EVENT_EXEC => match event_message(tid) {
            Ok(former_tid) => Ok(Some(Status::Exec { former_tid })),
            Err(Errno::ESRCH) => Ok(None),
            Err(e) => Err(e),
        },
        libc::PTRACE_EVENT_VFORK_DONE => Ok(Some(Status::VforkDone)),
        libc::PTRACE_EVENT_EXIT => Ok(Some(Status::ExitEvent)),
        libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Ok(Some(Status::EventStop)),
        libc::PTRACE_EVENT_STOP => Ok(Some(Status::GroupStop(signal))),
        _ if signal == libc::SIGTRAP | 0x80 => Ok(Some(Status::SyscallStop)),
        _ => Ok(Some(Status::SignalDelivery(signal))),
    }
}

/// The message of a tracee's event, as for [`Stopped::event_message`].
fn event_message(tid: i32) -> Result<i32, Errno> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: `message` is a live unsigned long, which is what this request fills.
    let r = unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut message) };
    Errno::result(r)?;
    // Thread ids fit an int (PID_MAX_LIMIT is 2^22).
    Ok(message as i32)
}

/// The system call that a tracee is stopped in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallStop {
    /// Before the call: by [`Stopped::cont_syscall`], or because of a filter's verdict.
    Entry {
        /// The call's number.
        nr: u64,
        /// Its argument registers.
        args: [u64; 6],
        /// Whether it is a call of the x86-64 ABI; else it is one of 32-bit programs.
        is_native: bool,
        /// The address behind the instruction that makes it.
        ip: u64,
    },
    /// After the call.
    Exit {
        /// The result register: a number from -4095 to -1 is an errno.
        result: i64,
    },
    /// The stop is of another kind.
    Other,
}

/// `AUDIT_ARCH_X86_64`
const ARCH_X86_64: u32 = 0xc000_003e;

fn call_stop(info: &libc::ptrace_syscall_info) -> CallStop {
    let is_native = info.arch == ARCH_X86_64;
    let u = &info.u;
    match info.op {
        libc::PTRACE_SYSCALL_INFO_ENTRY => {
            // SAFETY: `op` says which member the kernel has filled; all of them are integers.
            let entry = unsafe { u.entry };
            CallStop::Entry {
                nr: entry.nr,
                args: entry.args,
                is_native,
                ip: info.instruction_pointer,
            }
        }
        libc::PTRACE_SYSCALL_INFO_SECCOMP => {
            // SAFETY: as above.
            let seccomp = unsafe { u.seccomp };
            CallStop::Entry {
                nr: seccomp.nr,
                args: seccomp.args,
                is_native,
                ip: info.instruction_pointer,
            }
        }
        libc::PTRACE_SYSCALL_INFO_EXIT => {
            // SAFETY: as above.
            let exit = unsafe { u.exit };
            CallStop::Exit { result: exit.sval }
        }
        _ => CallStop::Other,
    }
}

/// Where a signal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignalOrigin {
    /// This process has sent it. The number is of the receiver's process namespace.
    Process(i32),
    /// The kernel has sent it: for a terminal, or because of a limit.
    Kernel,
    /// The receiver itself has caused it: by a fault, a timer, a child.
    Own,
}

/// Attaches to thread `tid` without stopping it. `EPERM`: another tracer has it, or we may not trace it.
pub fn seize(tid: i32, options: Options) -> Result<(), Errno> {
    // SAFETY: the request takes both arguments by value.
    let r = unsafe {
        libc::ptrace(
            libc::PTRACE_SEIZE,
            tid,
            0usize,
            libc::c_long::from(options.bits()),
        )
    };
    Errno::result(r).map(drop)
}

/// Asks a running tracee to stop; it reports [`Status::EventStop`], or another stop that came first.
pub fn interrupt(tid: i32) -> Result<(), Errno> {
    request(libc::PTRACE_INTERRUPT, tid, 0)
}

fn request(request: libc::c_uint, tid: i32, data: i32) -> Result<(), Errno> {
    // SAFETY: the requests that come here take both arguments by value.
    let r = unsafe { libc::ptrace(request, tid, 0usize, libc::c_long::from(data)) };
    Errno::result(r).map(drop)
}
