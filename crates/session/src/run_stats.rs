//! `--stats`: the statistics of a run.

use std::path::PathBuf;
use std::time::Duration;

use goanna_monitor::CallStats;
use serde::{Deserialize, Serialize};

use crate::mounts::OpenStore;

/// The statistics of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStats {
    /// From the start of the command to the end of its last child.
    pub elapsed: Duration,
    /// Calls that the monitor answered with a value.
    pub answered: u64,
    /// Calls that the monitor answered with an errno.
    pub failed: u64,
    /// Calls that the monitor examined and passed on to the kernel.
    pub passed_on: u64,
    /// Calls that were answered in the processes, as the processes have counted them.
    pub in_process: u64,
    /// Calls by name, most frequent first.
    pub calls: Vec<(String, u64)>,
    /// The stores that were mounted.
    pub stores: Vec<StoreStats>,
}

/// The statistics of a store during a run. If other commands use the store, their work is included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// The store.
    #[serde(with = "crate::mounts::path_as_bytes")]
    pub dir: PathBuf,
    /// Transactions that changed something.
    pub changes: u64,
    /// Records of the log.
    pub commits: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Number of requested syncs.
    pub syncs: u64,
    /// Syncs of the disk.
    pub disk_syncs: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

impl StoreStats {
    fn since((dir, fs): &OpenStore, before: &amino_txn::Stats) -> Self {
        let stats = fs.store().stats().since(before);
        Self {
            dir: dir.clone(),
            changes: stats.submits,
            commits: stats.frames,
            log_bytes: stats.log_bytes,
            syncs: stats.syncs,
            disk_syncs: stats.fdatasyncs,
            checkpoints: stats.checkpoints,
        }
    }
}

impl RunStats {
    /// The statistics of a run that took `elapsed`; `before` are the counters of `stores` at its
    /// start.
    pub(crate) fn new(
        elapsed: Duration,
        (monitor, in_process): (&CallStats, u64),
        stores: &[OpenStore],
        before: &[amino_txn::Stats],
    ) -> Self {
        let calls = monitor.calls.iter();
        let stores = stores.iter().zip(before);
        Self {
            elapsed,
            answered: monitor.answered,
            failed: monitor.failed,
            passed_on: monitor.passed_on,
            in_process,
            calls: calls
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            stores: stores
                .map(|(store, before)| StoreStats::since(store, before))
                .collect(),
        }
    }
}
