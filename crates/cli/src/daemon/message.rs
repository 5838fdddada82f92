//! What `aminod` and its clients say to each other.

use std::ffi::OsString;

use goanna_offline::facts::Facts;
use serde::{Deserialize, Serialize};

use super::operation::NodeId;
use crate::args::Engine;
use crate::error::Error;
use crate::run::{Done, Plan};

/// Of what both must have the same.
pub const VERSION: u32 = 3;

/// The first message, from `aminod`.
#[derive(Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Its [`VERSION`].
    pub version: u32,
    /// Its process id.
    pub pid: i32,
}

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// To follow a command.
    Run(Box<Run>),
    /// To work on the tree: [`super::operation::Step`]s follow until the client leaves.
    Attach {
        /// The engine that the store is to have.
        engine: Option<Engine>,
    },
    /// To check the store as it is now.
    Check,
    /// What the store is and holds.
    Facts,
    /// Who uses the store.
    Status,
    /// To leave; with `force` also when commands use the store, which are killed.
    Stop {
        /// See above.
        force: bool,
    },
}

/// A run, as its launcher asks for it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Run {
    /// What it is over, with absolute paths.
    pub plan: Plan,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// The launcher's PATH.
    pub search: OsString,
    /// The launcher's working directory.
    pub directory: OsString,
}

/// A command that waits at its gate, from its launcher; the filter's listener comes with it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Started {
    /// Process id.
    pub pid: i32,
}

/// What `aminod` answers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// This process cannot have the store, since another owner is just leaving or arriving: ask again.
    Again,
    /// What was asked for failed.
    Failed(Told),
    /// The command was found: start it.
    Found {
        /// As [`goanna_monitor::Program`] has it.
        file: Vec<u8>,
        /// As [`goanna_monitor::Program`] has it.
        shadow_files: bool,
    },
    /// The command is followed: let it go.
    Followed,
    /// A line that is worth knowing.
    Note(String),
    /// A line about a failure.
    Complaint(String),
    /// The command and all its children have ended, and what it did is on the disk.
    Ended(Done),
    /// The root of the tree.
    Attached(NodeId),
    /// So many records are checked.
    Progress(u64),
    /// What the check has found.
    Checked(amino_fs::fsck::Report),
    /// What the store is and holds, and how many commands are followed.
    Facts(Facts, usize),
    /// Who uses the store.
    Status(Status),
    /// Done.
    Leaving,
}

/// An error as it is to be told to the user.
#[derive(Debug, Serialize, Deserialize)]
pub struct Told {
    /// What and why.
    pub text: String,
    /// What to do about it.
    pub hint: Option<String>,
    /// The exit status it means.
    pub code: u8,
}

impl From<&Error> for Told {
    fn from(error: &Error) -> Self {
        Self {
            text: error.to_string(),
            hint: error.hint(),
            code: error.exit_code(),
        }
    }
}

/// `aminod` as it is.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its process id.
    pub pid: i32,
    /// Since when it has been there, seconds.
    pub seconds: u64,
    /// The commands it follows.
    pub runs: Vec<Followed>,
}

/// One of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Followed {
    /// Process id of the launcher.
    pub launcher: i32,
    /// Process id of the command.
    pub pid: i32,
    /// The command and its arguments.
    pub argv: Vec<OsString>,
    /// Since when, seconds.
    pub seconds: u64,
}
