//! How a command ended, in words.

use goanna_monitor::Status;

/// How the command ended, in words.
pub fn command_end(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("the command exited with {code}"),
        Status::Signaled(signal) => format!("signal {signal} killed the command"),
    }
}
