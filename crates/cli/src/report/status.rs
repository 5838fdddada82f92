//! How a command ended: in words, and as an exit status.

use goanna_monitor::Status;

/// How the command ended, in words.
pub fn command_end(status: Status) -> String {
    match status {
        Status::Exited(code) => format!("the command exited with {code}"),
        Status::Signaled(signal) => format!("signal {signal} killed the command"),
    }
}

/// The status as shells give it: 128+N for signal N.
pub fn exit_status(status: Status) -> u8 {
    match status {
        // The kernel keeps eight bits of an exit status.
        Status::Exited(code) => (code & 0xff) as u8,
        Status::Signaled(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(exit_status(Status::Exited(0)), 0);
        assert_eq!(exit_status(Status::Exited(255)), 255);
        assert_eq!(exit_status(Status::Signaled(9)), 137);
        assert_eq!(exit_status(Status::Signaled(64)), 192);
    }
}
