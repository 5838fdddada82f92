//! Signals sent to the monitor.
//!
//! Those that would end the monitor are blocked in all its threads, those of back ends included, so they must be held
//! before the first thread is started: a monitor that dies of Ctrl-C closes no store. Signals meant for the command
//! are sent on to it; those that a terminal sends to the whole foreground group reach it anyway.

use std::io;
use std::thread;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

/// The signals that are held.
const HELD: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    // A write lease test that meets an open makes the kernel send it.
    Signal::SIGIO,
];

/// Held signals. They stay held until the process ends: one that is still on its way when the command has ended must not
/// end the monitor before its stores are closed.
#[derive(Debug, Clone, Copy)]
pub struct Signals {
    before: SigSet,
    held: SigSet,
}

impl Signals {
    /// Holds them from now on, in this thread and all it starts.
    pub(crate) fn hold() -> io::Result<Self> {
        let held: SigSet = HELD.into_iter().collect();
        let before = SigSet::thread_get_mask()?;
        held.thread_block()?;
        Ok(Self { before, held })
    }

    /// Those the command is not to have blocked.
    pub fn of_command(&self) -> Vec<i32> {
        let ours = |signal: &Signal| !self.before.contains(*signal);
        HELD.into_iter()
            .filter(ours)
            .map(|signal| signal as i32)
            .collect()
    }

    /// Sends on to `pid` what comes from now on.
    pub fn forward_to(&self, pid: i32) -> io::Result<()> {
        let held = self.held;
        let from_terminal = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGIO];
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                while let Ok(signal) = held.wait() {
                    if !from_terminal.contains(&signal) {
                        // It may have ended.
                        let _ = kill(Pid::from_raw(pid), signal);
                    }
                }
            })?;
        Ok(())
    }
}
