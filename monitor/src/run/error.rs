//! Why a command could not be run, and the user's remedy.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use goanna_sys::launch::LaunchError;
use goanna_vfs::{Errno, escape};
use thiserror::Error;

/// Why a command could not be run.
#[derive(Debug, Error)]
pub enum Error {
    /// No program of that name in PATH, or no such file.
    #[error("{}: command not found", escape(.0.as_bytes()))]
    NotFound(OsString),
    /// The file cannot be executed.
    #[error("{}: cannot be executed: {}", escape(.0.as_bytes()), .1.desc())]
    NotExecutable(OsString, Errno),
    /// An argument holds a NUL byte, or there is no command.
    #[error("the command line is empty or holds a NUL byte")]
    BadCommand,
    /// No directory for the run-time objects.
    #[error("no run-time directory: {0}")]
    RunDir(#[source] io::Error),
    /// The kernel does not allow interception.
    #[error("cannot intercept system calls: {0}")]
    Launch(#[from] LaunchError),
    /// The tracee could not be seized.
    #[error("cannot trace the command: {}", .0.desc())]
    Trace(Errno),
    /// The run's transaction could not be begun.
    #[error("cannot begin the transaction: {}", .0.desc())]
    Transaction(Errno),
    /// A thread could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl Error {
    /// 127 for a missing command, 126 for one that cannot be executed, 125 for failures of the monitor.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(..) => 126,
            _ => 125,
        }
    }

    /// The user's remedy.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Launch(_) | Self::Trace(_) => Some("'goanna check' shows what the kernel offers"),
            Self::RunDir(_) => {
                Some("a directory from which programs may be executed is needed: set TMPDIR")
            }
            _ => None,
        }
    }
}
