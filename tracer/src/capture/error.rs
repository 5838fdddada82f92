//! Errors of captures.

use std::ffi::OsString;

use goanna_sys::Errno;
use goanna_sys::launch::LaunchError;

/// An error of a source.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The command does not exist.
    #[error("{}: command not found", .0.display())]
    NotFound(OsString),
    /// The command cannot be executed.
    #[error("{}: {}", .command.display(), .why)]
    CannotExecute {
        /// The command as the user named it.
        command: OsString,
        /// Why.
        why: String,
    },
    /// The command could not be started.
    #[error("cannot start the command: {0}")]
    Launch(#[from] LaunchError),
    /// The tracer cannot attach to a process.
    #[error("process {pid}: {why}")]
    Attach {
        /// Its id.
        pid: i32,
        /// Why.
        why: String,
    },
    /// Another call of the tracer failed.
    #[error("cannot trace: {0}")]
    Kernel(#[from] Errno),
    /// The trace cannot continue.
    #[error(transparent)]
    Sink(#[from] crate::Error),
}
