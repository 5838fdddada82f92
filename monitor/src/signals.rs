//! Signals to the monitor or the launcher: which of them it blocks and passes on to the command (`BLOCKED`), and which end the run.
//!
//! Signals that would end the monitor are blocked in all its threads, those of back ends included, so they must be blocked
//! before the first thread is started: a monitor that Ctrl-C kills would not close its stores. The command gets the signals that
//! were meant for it; those that a terminal sends to the whole foreground group reach it anyway. Where the run is one
//! transaction, a second request to end ends it. `amino txn run` has signals of its own (`crates/session/src/subprocess.rs`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use goanna_sys::pidfd;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// The signals that are blocked.
const BLOCKED: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    // The kernel sends it when a file is opened during a test by a write lease.
    Signal::SIGIO,
    // The kernel sends it with EFBIG at the limit on file sizes.
    Signal::SIGXFSZ,
];

/// Blocked signals. They stay blocked until the process ends: a signal that arrives after the command's end must not end the monitor
/// before its stores are closed.
#[derive(Debug, Clone, Copy)]
pub struct Signals {
    before: SigSet,
    blocked: SigSet,
}

impl Signals {
    /// Blocks these signals in this thread and in all threads that it starts.
    pub(crate) fn block() -> io::Result<Self> {
        let blocked: SigSet = BLOCKED.into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        blocked.thread_block()?;
        Ok(Self { before, blocked })
    }

    /// The signals that must not be blocked in the command.
    pub fn of_command(&self) -> Vec<i32> {
        let ours = |signal: &Signal| !self.before.contains(*signal);
        BLOCKED
            .into_iter()
            .filter(ours)
            .map(|signal| signal as i32)
            .collect()
    }

    /// Forwards the signals that arrive from now on to the command, our child `pid`. `end` ends the run, if it can be ended: it
    /// is called at the second signal that requests the end, and at the first one when the command has ended already.
    pub fn forward_to(&self, pid: i32, end: Option<End>) -> io::Result<()> {
        // When it has been reaped, its id may belong to another process.
        let process = pidfd::open_process(pid)?;
        let arrived = SignalFd::with_flags(&self.blocked, SfdFlags::SFD_CLOEXEC)?;
        let forward = move || {
            let mut requests = Requests::default();
            loop {
                let info = match arrived.read_signal() {
                    Ok(Some(info)) => info,
                    Ok(None) | Err(Errno::EINTR) => continue,
                    Err(_) => return,
                };
                let signal = i32::try_from(info.ssi_signo).map(Signal::try_from);
                let Ok(Ok(signal)) = signal else { continue };
                if let Some(end) = &end
                    && requests.is_final(signal, Instant::now(), || has_ended(process.as_fd()))
                {
                    end();
                }
                if is_forwarded(signal, info.ssi_code) {
                    // It may have ended.
                    let _ = pidfd::send_signal(process.as_fd(), signal as i32);
                }
            }
        };
        let builder = thread::Builder::new().name("signals".into());
        builder.spawn(forward).map(drop)
    }
}

/// Ends a run.
pub type End = Box<dyn Fn() + Send>;

/// Whether to forward this signal, whose code shows the origin. A terminal sends it to the command, too.
fn is_forwarded(signal: Signal, code: i32) -> bool {
    match signal {
        Signal::SIGIO | Signal::SIGXFSZ => false,
        Signal::SIGINT | Signal::SIGQUIT => code != libc::SI_KERNEL,
        _ => true,
    }
}

/// Signals within this time count as one request: timeout(1) signals its child, and then its process group.
const SAME_REQUEST: Duration = Duration::from_millis(250);

/// The requests so far to end the run.
#[derive(Debug, Default)]
struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// Whether this signal ends the run now.
    fn is_final(&mut self, signal: Signal, now: Instant, has_ended: impl Fn() -> bool) -> bool {
        use Signal::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
        if !matches!(signal, SIGHUP | SIGINT | SIGQUIT | SIGTERM) {
            return false;
        }
        if has_ended() {
            return true;
        }
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first) >= SAME_REQUEST
    }
}

/// Whether our child `process` has ended. It is not reaped before the run ends.
fn has_ended(process: BorrowedFd<'_>) -> bool {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
    match waitid(Id::PIDFd(process), flags) {
        // Stops of tracees are reported to the process of their tracer whatever the flags are.
        Ok(status) => matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..)),
        Err(errno) => errno == Errno::ECHILD,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::process::Command;

    use goanna_sys::{pidfd, ptrace};

    use super::*;

    #[test]
    fn a_child_that_has_stopped_for_its_tracer_has_not_ended() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().cast_signed();
        let process = pidfd::open(pid).unwrap();
        ptrace::seize(pid, ptrace::Options::MONITOR).unwrap();
        ptrace::interrupt(pid).unwrap();
        while !ptrace::has_report(pid) {
            std::thread::yield_now();
        }
        assert!(!has_ended(process.as_fd()));
        child.kill().unwrap();
        while !has_ended(process.as_fd()) {
            std::thread::yield_now();
        }
        assert!(child.wait().unwrap().code().is_none());
    }

    #[test]
    fn the_second_request_is_final_and_the_first_one_when_the_command_has_ended() {
        let now = Instant::now();
        let mut requests = Requests::default();
        let alive = || false;
        assert!(!requests.is_final(Signal::SIGUSR1, now, || true));
        assert!(!requests.is_final(Signal::SIGTERM, now, alive));
        assert!(!requests.is_final(Signal::SIGTERM, now, alive), "its group");
        let later = now + SAME_REQUEST;
        assert!(!requests.is_final(Signal::SIGUSR1, later, alive));
        assert!(requests.is_final(Signal::SIGINT, later, alive));
        assert!(Requests::default().is_final(Signal::SIGINT, now, || true));
    }

    #[test]
    fn what_a_terminal_sends_reaches_the_command_anyway() {
        assert!(!is_forwarded(Signal::SIGINT, libc::SI_KERNEL));
        assert!(is_forwarded(Signal::SIGINT, libc::SI_USER));
        assert!(is_forwarded(Signal::SIGHUP, libc::SI_KERNEL));
        assert!(!is_forwarded(Signal::SIGIO, libc::SI_KERNEL));
        assert!(!is_forwarded(Signal::SIGXFSZ, libc::SI_KERNEL));
    }
}
