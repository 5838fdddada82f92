//! How a command ends.

/// How the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// With this exit status.
    Exited(i32),
    /// Killed by this signal.
    Signaled(i32),
}

impl Status {
    /// The status that a shell would report: the exit status, or 128 plus the signal.
    pub fn exit_code(self) -> u8 {
        match self {
            // The kernel keeps eight bits of an exit status.
            Self::Exited(status) => (status & 0xff) as u8,
            Self::Signaled(signal) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(127)),
        }
    }
}
