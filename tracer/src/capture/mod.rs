//! Sources of events.
//!
//! A [`Source`] sends [`Event`](crate::Event)s to a [`Sink`]: every call of the programs that it follows which may be [wanted](Wanted), and
//! the beginnings and ends of their threads. [`ptrace`] follows a command or running processes; [`filter`] makes the seccomp filter that
//! stops only wanted calls.

mod error;
pub mod filter;
pub mod ptrace;
mod wanted;

pub use error::CaptureError;
pub use wanted::{Data, Details, Wanted};

use crate::Sink;

/// How a capture ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CaptureEnd {
    /// The command has ended, and so have all its descendants. The status is as waitpid(2) gives it.
    Ended(i32),
    /// The source was attached to running programs; they continue without a tracer, or have ended.
    Detached,
}

impl CaptureEnd {
    /// The exit status for a tool that ran the command: the command's own, or 128 plus the number of the signal that killed it.
    pub fn exit_status(self) -> u8 {
        match self {
            Self::Ended(status) if libc::WIFSIGNALED(status) => {
                128_u8.saturating_add(libc::WTERMSIG(status) as u8)
            }
            Self::Ended(status) => libc::WEXITSTATUS(status) as u8,
            Self::Detached => 0,
        }
    }
}

/// Captures the system calls of programs.
///
/// A source reports each call once, when it has ended: with the result; without one where the thread died in it, or the
/// capture ended first. For each thread the order of the reports is the order in which its calls ended. It reports events that it cannot see
/// as [`Event::Lost`](crate::Event::Lost).
pub trait Source {
    /// Captures until the programs have ended or the capture is ended from outside. An error of the sink ends the capture.
    fn capture(&mut self, wanted: &Wanted, sink: &dyn Sink) -> Result<CaptureEnd, CaptureError>;
}
