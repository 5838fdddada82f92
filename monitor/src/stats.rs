//! The statistics of the monitor, for `--stats`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use goanna_syscalls::SysnoSet;

use crate::observe::{Handling, Observer};
use crate::table::{ROWS, entry};

const NUMBERS: usize = 512;

/// Counts the calls that come to the monitor.
#[derive(Debug)]
pub struct Counters {
    answered: AtomicU64,
    passed_on: AtomicU64,
    failed: AtomicU64,
    by_number: [AtomicU64; NUMBERS],
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            answered: AtomicU64::new(0),
            passed_on: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            by_number: [const { AtomicU64::new(0) }; NUMBERS],
        }
    }
}

impl Observer for Counters {
    /// None: a call that is stopped for an observer costs more than one that is counted.
    fn interest(&self) -> SysnoSet {
        SysnoSet::EMPTY
    }

    fn handled(&self, nr: u32, handling: Handling) {
        let counter = match handling {
            Handling::PassedOn => &self.passed_on,
            Handling::Answered => &self.answered,
            Handling::Failed => &self.failed,
        };
        counter.fetch_add(1, Relaxed);
        if let Some(counter) = self.by_number.get(nr as usize) {
            counter.fetch_add(1, Relaxed);
        }
    }
}

impl Counters {
    /// The counts so far.
    pub fn snapshot(&self) -> CallStats {
        let mut calls: Vec<(&'static str, u64)> = ROWS
            .iter()
            .filter_map(|row| {
                let count = self.by_number.get(row.nr as usize)?.load(Relaxed);
                (count > 0).then_some((entry(row.nr)?.name, count))
            })
            .collect();
        calls.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
        CallStats {
            answered: self.answered.load(Relaxed),
            passed_on: self.passed_on.load(Relaxed),
            failed: self.failed.load(Relaxed),
            calls,
        }
    }
}

/// The counts of a run.
#[derive(Debug, Clone, Default)]
pub struct CallStats {
    /// Calls answered with a value.
    pub answered: u64,
    /// Calls that were examined and passed on to the kernel.
    pub passed_on: u64,
    /// Calls answered with an errno.
    pub failed: u64,
    /// Calls by name, most frequent first.
    pub calls: Vec<(&'static str, u64)>,
}
