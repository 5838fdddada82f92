//! Requests to `aminod`, and its answers.

use std::ffi::OsString;

use goanna_offline::check;
use goanna_offline::facts::Facts;
use goanna_session::{Engine, Plan, Report, RunResult};
use serde::{Deserialize, Serialize};

use super::operation::NodeId;

/// The owner's name: it is started under this name, and `ps` shows it.
pub const NAME: &str = "aminod";

/// Version of the protocol, which must be the same at both ends.
pub const VERSION: u32 = 10;

/// The first message, from `aminod`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Its [`VERSION`].
    pub version: u32,
    /// Its process id.
    pub pid: i32,
}

/// A request of a client.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Follow a command.
    Run(Box<Run>),
    /// Let the client work on the tree: [`super::operation::TreeRequest`]s follow until the client disconnects.
    Attach {
        /// The engine that the store must have.
        engine: Option<Engine>,
        /// The client's access to the tree.
        access: Access,
    },
    /// Check the present state of the store.
    Check,
    /// Write the present state of the store as a stream to the pipe that comes with this request.
    Dump,
    /// Free the disk space of deleted data.
    Compact,
    /// Send the facts about the store.
    Facts,
    /// Send the list of the commands that use the store.
    Status,
    /// Close the store and end.
    Stop {
        /// Also when commands use the store: these are killed.
        force: bool,
    },
}

/// A client's access to the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// It reads the state of the tree at the moment of the request.
    Read,
    /// It reads and changes the tree, which other processes change at the same time.
    Change,
}

/// A run that a launcher requests.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// The mounts, with absolute paths, and the rules of the run.
    pub plan: Plan,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// The launcher's PATH.
    pub search: OsString,
    /// The launcher's working directory.
    pub directory: OsString,
}

/// The launcher has started the command, which waits at its gate. The filter's listener comes with this message.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// Process id.
    pub pid: i32,
}

/// An answer of `aminod`.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// This process cannot open the store, since another owner is just starting or ending: retry.
    Retry,
    /// The request failed.
    Failed(Report),
    /// The command was found: the launcher must start it.
    Found {
        /// As [`goanna_monitor::Program`] has it.
        file: Vec<u8>,
        /// As [`goanna_monitor::Program`] has it.
        shadow_files: bool,
        /// As [`goanna_monitor::Program`] has it.
        key: Option<u64>,
    },
    /// The monitor follows the command: the launcher must open the gate.
    Followed,
    /// A note to show.
    Note(String),
    /// A failure to show.
    Failure(String),
    /// The command and all its children have ended, and their changes are on the disk.
    Ended(RunResult),
    /// The root of the tree.
    Attached(NodeId),
    /// Number of records checked so far.
    Progress(u64),
    /// The result of the check.
    Checked(check::Report),
    /// The whole store was written: number of records, bytes of keys and values.
    Dumped(u64, u64),
    /// The space was freed.
    Compacted,
    /// The facts about the store, and the number of commands that are followed.
    Facts(Facts, usize),
    /// The commands that use the store.
    Status(Status),
    /// The owner closes the store and ends.
    Closing,
}

/// The status of `aminod`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its process id.
    pub pid: i32,
    /// The time since its start, in seconds.
    pub seconds: u64,
    /// The commands it follows.
    pub runs: Vec<Followed>,
}

/// A command that `aminod` follows.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Followed {
    /// Process id of the launcher.
    pub launcher: i32,
    /// Process id of the command.
    pub pid: i32,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// The time since its start, in seconds.
    pub seconds: u64,
}

#[cfg(test)]
mod tests {
    use goanna_offline::check::{Constraint, Finding, Report};

    #[test]
    fn reports_of_checks_survive_serialisation() {
        let finding = Finding {
            constraint: Constraint::Reachable,
            key: b"P\xff\0".to_vec(),
            ino: Some(u64::MAX),
            path: Some(b"not utf8 \xff".to_vec()),
            what: "gone".to_owned(),
        };
        let report = Report {
            records: 1,
            bytes: u64::MAX,
            findings: vec![finding],
            ..Report::default()
        };
        let bytes = postcard::to_allocvec(&report).unwrap();
        assert_eq!(postcard::from_bytes::<Report>(&bytes).unwrap(), report);
    }
}
