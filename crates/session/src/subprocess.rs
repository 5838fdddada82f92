//! Runs a command without a monitor and waits for it, as system(3) does. Signals for this process are blocked meanwhile.

use std::env;
use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;

use goanna_monitor::Status;
use goanna_sys::{child, pidfd};
use goanna_vfs::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::Error;

/// The signals that are blocked.
const BLOCKED: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
];

/// Blocked signals: none of them ends this process, which has a transaction to end first.
pub struct Signals {
    before: SigSet,
    arrived: SignalFd,
    any: bool,
}

impl Signals {
    /// Blocks the signals until the process ends, and takes care that it can wait for commands. The process must have one thread.
    pub fn block() -> Result<Self, Errno> {
        child::report_ends();
        let blocked: SigSet = BLOCKED.into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        blocked.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            before,
            arrived: SignalFd::with_flags(&blocked, flags)?,
            any: false,
        })
    }

    /// Whether one of the signals has arrived since they were blocked.
    pub fn any_arrived(&mut self) -> Result<bool, Errno> {
        while self.next()?.is_some() {}
        Ok(self.any)
    }

    /// The next signal, and whether a terminal has sent it: the command then gets it from the terminal, too.
    fn next(&mut self) -> Result<Option<(Signal, bool)>, Errno> {
        let Some(info) = self.arrived.read_signal()? else {
            return Ok(None);
        };
        self.any = true;
        let number = i32::try_from(info.ssi_signo).map_err(|_| Errno::EINVAL)?;
        let by_terminal = info.ssi_code == nix::libc::SI_KERNEL;
        Ok(Some((Signal::try_from(number)?, by_terminal)))
    }
}

/// Runs `command`, found in PATH, and waits for its end. It gets the signal mask that this process had at the start.
pub fn run(command: &[OsString], signals: &mut Signals) -> Result<Status, Error> {
    let pid = spawn(command, signals.before)?;
    let watched = watch(pid, signals);
    if watched.is_err() {
        // Otherwise no process would end the command's transaction.
        let _ = kill(pid, Signal::SIGKILL);
    }
    let ended = waitpid(pid, None).map_err(Error::Subprocess)?;
    watched.map_err(Error::Subprocess)?;
    match ended {
        WaitStatus::Exited(_, code) => Ok(Status::Exited(code)),
        WaitStatus::Signaled(_, signal, _) => Ok(Status::Signaled(signal as i32)),
        // With these flags there is no other report.
        _ => Err(Error::Subprocess(Errno::ECHILD)),
    }
}

fn spawn(command: &[OsString], mask: SigSet) -> Result<Pid, Error> {
    let bad = |_| Error::Monitor(goanna_monitor::Error::BadCommand);
    let words = command.iter().cloned();
    let argv = words.map(|word| CString::new(word.into_vec()).map_err(bad));
    let argv = argv.collect::<Result<Vec<CString>, Error>>()?;
    let variables = env::vars_os().map(|(mut variable, value)| {
        variable.push("=");
        variable.push(value);
        CString::new(variable.into_vec()).map_err(bad)
    });
    let envp = variables.collect::<Result<Vec<CString>, Error>>()?;
    let (Some(name), Some(file)) = (command.first(), argv.first()) else {
        return Err(Error::Monitor(goanna_monitor::Error::BadCommand));
    };
    let attr = attributes(mask).map_err(Error::Subprocess)?;
    let actions = PosixSpawnFileActions::init().map_err(Error::Subprocess)?;
    posix_spawnp(file, &actions, &attr, &argv, &envp).map_err(|errno| match errno {
        Errno::EAGAIN | Errno::ENOMEM => Error::Subprocess(errno),
        Errno::ENOENT => Error::Monitor(goanna_monitor::Error::NotFound(name.clone())),
        _ => Error::Monitor(goanna_monitor::Error::NotExecutable(name.clone(), errno)),
    })
}

fn attributes(mask: SigSet) -> Result<PosixSpawnAttr, Errno> {
    let mut attr = PosixSpawnAttr::init()?;
    attr.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
    )?;
    attr.set_sigmask(&mask)?;
    // Rust's run-time ignores SIGPIPE in this process.
    attr.set_sigdefault(&SigSet::from(Signal::SIGPIPE))?;
    Ok(attr)
}

/// Returns when `pid` has ended, without reaping it. Forwards signals to it, except those from a terminal.
fn watch(pid: Pid, signals: &mut Signals) -> Result<(), Errno> {
    let process = pidfd::open_process(pid.as_raw())?;
    loop {
        let (arrived, ended) = wait(signals.arrived.as_fd(), process.as_fd())?;
        if arrived {
            while let Some((signal, by_terminal)) = signals.next()? {
                send_on(process.as_fd(), signal, by_terminal)?;
            }
        }
        if ended {
            return Ok(());
        }
    }
}

fn send_on(process: BorrowedFd<'_>, signal: Signal, by_terminal: bool) -> Result<(), Errno> {
    let is_sent_on = match signal {
        Signal::SIGTERM | Signal::SIGHUP => true,
        Signal::SIGINT | Signal::SIGQUIT => !by_terminal,
        _ => false,
    };
    if !is_sent_on {
        return Ok(());
    }
    match pidfd::send_signal(process, signal as i32) {
        // The process has ended meanwhile.
        Err(Errno::ESRCH) => Ok(()),
        sent => sent,
    }
}

/// Waits until one of the two descriptors is readable, and returns which.
fn wait(arrived: BorrowedFd<'_>, process: BorrowedFd<'_>) -> Result<(bool, bool), Errno> {
    let mut fds = [arrived, process].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    match poll(&mut fds, PollTimeout::NONE) {
        Err(Errno::EINTR) => {}
        result => {
            result?;
        }
    }
    let [arrived, process] = fds.map(|fd| fd.any().unwrap_or(false));
    Ok((arrived, process))
}
