//! The description of a run, and its result: plain data, which `amino run` and `aminod` exchange.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::mounts::{MountSpec, Source};
use crate::profile::ProfileSource;
use crate::store::Create;
use crate::{Engine, Error, Figures, Outside};

/// The description of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is mounted; transactions are those of the first store.
    pub specs: Vec<MountSpec>,
    /// The engine of that store, if the run makes it.
    pub engine: Option<Engine>,
    /// Whether that store keeps the segments of its log from now on; `None`: as before.
    pub keep_log: Option<bool>,
    /// Stores are made also where there is no directory to make them in.
    pub create: bool,
    /// The first store is at the default place.
    pub default_store: bool,
    /// The whole command is one transaction.
    pub one_transaction: bool,
    /// Where transactions are inserted.
    pub profile: Option<ProfileSource>,
    /// How changes are treated that they do not cover.
    pub outside: Outside,
    /// The file that gets a trace of the run, as the user names it.
    pub trace: Option<PathBuf>,
    /// The result has figures.
    pub figures: bool,
    /// Calls that concern no mount are answered in the process.
    pub in_process: bool,
}

impl Plan {
    /// Where the run makes stores that do not exist.
    pub fn create(&self) -> Create {
        if self.create {
            Create::WithParents
        } else {
            Create::InParent
        }
    }

    /// Fails where a transaction of the whole run would span two stores: they could not commit at the same instant.
    pub fn check(&self) -> Result<(), Error> {
        let others = self.specs.iter().skip(1);
        let mut changed =
            others.filter(|spec| matches!(spec.source, Source::Store { .. }) && !spec.read_only);
        match changed.next() {
            Some(spec) if self.one_transaction => Err(Error::SeveralStores(spec.target.clone())),
            _ => Ok(()),
        }
    }
}

/// The result of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// The command's exit status, or the signal that killed it.
    pub ended: Result<i32, i32>,
    /// The figures, if the plan asks for them.
    pub figures: Option<Figures>,
    /// Why the transaction of the run was aborted, if it was.
    pub aborted: Option<AbortReason>,
    /// How many transactions of the profile could not be committed.
    pub lost: usize,
}

/// Why the transaction of a run was aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortReason {
    /// The command failed.
    CommandFailed,
    /// The run was ended before all of its processes had ended.
    RunEnded,
    /// A process was killed that the command had left running.
    ProcessKilled {
        /// The process's name.
        name: String,
        /// Its process id.
        pid: i32,
        /// The signal.
        signal: i32,
    },
}
