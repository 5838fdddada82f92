//! The description of a run, and its result: plain data, which `amino run` and `aminod` exchange.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::mounts::{MountSpec, Source};
use crate::profile::ProfileSource;
use crate::store::Create;
use crate::{Engine, Error, Outside, RunStats};

/// The description of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The mounts. Transactions are those of the first store.
    pub specs: Vec<MountSpec>,
    /// The engine of the first store, if the run makes the store.
    pub engine: Option<Engine>,
    /// Whether the first store keeps the segments of its log from now on; `None`: as before.
    pub keep_log: Option<bool>,
    /// Make missing parent directories of new stores, too.
    pub create: bool,
    /// Whether the first store is at the default place.
    pub default_store: bool,
    /// The whole command is one transaction.
    pub one_transaction: bool,
    /// The rules by which transactions are inserted.
    pub profile: Option<ProfileSource>,
    /// The treatment of changes that transactions do not cover.
    pub outside: Outside,
    /// The file that gets a trace of the run, as the user names it.
    pub trace: Option<PathBuf>,
    /// Whether the result has statistics.
    pub stats: bool,
    /// Whether calls that concern no mount are answered in the process.
    pub in_process: bool,
}

impl Plan {
    /// The places at which the run makes missing stores.
    pub fn create(&self) -> Create {
        if self.create {
            Create::WithParents
        } else {
            Create::InParent
        }
    }

    /// Fails if a run transaction would span two stores: they could not commit atomically.
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
    /// The statistics, if the plan requests them.
    pub stats: Option<RunStats>,
    /// Why the run transaction was aborted, if it was.
    pub aborted: Option<AbortReason>,
    /// Number of transactions of the profile that could not be committed.
    pub lost: usize,
}

/// Why a run transaction was aborted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbortReason {
    /// The command failed.
    CommandFailed,
    /// The run was ended before all of its processes had ended.
    RunEnded,
    /// A process that the command had left running was killed.
    ProcessKilled {
        /// The process's name.
        name: String,
        /// Its process id.
        pid: i32,
        /// The signal.
        signal: i32,
    },
}
