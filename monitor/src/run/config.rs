//! The configuration of a run: its mounts, its rules, and the receivers of its messages.

use std::sync::Arc;

use goanna_vfs::{Mounts, OpenHostDirectory};

use crate::Reporter;
use crate::observe::Observer;
use crate::participants::outside::Outside;
use crate::participants::profile::Profile;
use crate::process::nested_runs::Nesting;

/// How calls reach the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interception {
    /// By notification where the kernel supports it, else by ptrace stops.
    #[default]
    Auto,
    /// By seccomp user notification.
    Notify,
    /// By ptrace stops.
    Ptrace,
}

/// The mounts and rules of a run.
pub struct Config {
    /// The mounts.
    pub mounts: Mounts,
    /// Opens directories of the host where programs of the run mount file systems. `None`: such calls are EOPNOTSUPP.
    pub host_directories: Option<OpenHostDirectory>,
    /// Makes the mounts of runs inside of the run. `None`: there can be none.
    pub nesting: Option<Arc<dyn Nesting>>,
    /// Receives notes about the run.
    pub note: Reporter,
    /// Receives failures that cannot be returned to a caller.
    pub fail: Reporter,
    /// The rules by which transactions are inserted into programs.
    pub profile: Option<Profile>,
    /// The treatment of changes that transactions do not cover.
    pub outside: Outside,
    /// The whole run is one transaction. It belongs to the first mount, in mount order, that has transactions and can be
    /// changed.
    pub one_transaction: bool,
    /// Whether calls that concern no mount are answered in the process.
    pub stubs: Stubs,
    /// Observers of the calls of the run's programs. The filter must stop these calls ([`Start::interest`](crate::Start::interest)).
    pub observers: Vec<Arc<dyn Observer>>,
}

impl Config {
    /// A run with these mounts and no rules; `report` receives notes and failures.
    pub fn new(mounts: Mounts, report: Reporter) -> Self {
        Self {
            mounts,
            host_directories: None,
            nesting: None,
            note: report.clone(),
            fail: report,
            profile: None,
            outside: Outside::default(),
            one_transaction: false,
            stubs: Stubs::default(),
            observers: Vec::new(),
        }
    }
}

/// Whether calls that concern no mount are answered in the process, by stubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stubs {
    /// No: the monitor answers them.
    #[default]
    Unused,
    /// Yes, where that is possible.
    Used,
    /// As `Used`; the calls are also counted.
    Counted,
}
