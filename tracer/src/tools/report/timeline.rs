//! Calls over time, in a limited number of intervals.

use std::collections::BTreeMap;

/// Counts by interval and operation. When the time goes beyond the last interval, all of them become twice as long.
#[derive(Debug)]
pub(super) struct Timeline {
    start_ns: Option<u64>,
    width_ns: u64,
    intervals: Vec<BTreeMap<Box<str>, u64>>,
}

/// Maximum number of intervals.
const MAX: usize = 160;
/// Length of the intervals of a short trace, in nanoseconds.
const SHORTEST: u64 = 10_000;

impl Default for Timeline {
    fn default() -> Self {
        Self {
            start_ns: None,
            width_ns: SHORTEST,
            intervals: Vec::new(),
        }
    }
}

impl Timeline {
    /// Counts a call. A call that began before the first counted one belongs to the first interval.
    pub(super) fn add(&mut self, time_ns: u64, operation: &str) {
        let start = *self.start_ns.get_or_insert(time_ns);
        let since = time_ns.saturating_sub(start);
        while since / self.width_ns >= MAX as u64 {
            self.width_ns = self.width_ns.saturating_mul(2);
            let pairs = std::mem::take(&mut self.intervals);
            let mut pairs = pairs.into_iter();
            while let Some(mut first) = pairs.next() {
                for (operation, calls) in pairs.next().unwrap_or_default() {
                    *first.entry(operation).or_default() += calls;
                }
                self.intervals.push(first);
            }
        }
        let at = (since / self.width_ns) as usize;
        if self.intervals.len() <= at {
            self.intervals.resize_with(at + 1, BTreeMap::new);
        }
        if let Some(counts) = self.intervals.get_mut(at) {
            match counts.get_mut(operation) {
                Some(calls) => *calls += 1,
                None => {
                    counts.insert(operation.into(), 1);
                }
            }
        }
    }

    /// Time of the first call, in nanoseconds.
    pub(super) fn start_ns(&self) -> Option<u64> {
        self.start_ns
    }

    /// Length of an interval, in nanoseconds.
    pub(super) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// For each interval, the calls of these operations, and those of all others.
    pub(super) fn rows(&self, operations: &[&str]) -> Vec<Vec<u64>> {
        let row = |counts: &BTreeMap<Box<str>, u64>| {
            let of = |name: &&str| counts.get(*name).copied().unwrap_or(0);
            let mut row = operations.iter().map(of).collect::<Vec<_>>();
            let all = counts.values().sum::<u64>();
            row.push(all.saturating_sub(row.iter().sum()));
            row
        };
        self.intervals.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX, Timeline};

    #[test]
    fn intervals_grow_and_no_call_is_lost() {
        let mut timeline = Timeline::default();
        for call in 0..10_000u64 {
            timeline.add(
                5_000_000 + call * call * 997,
                ["read", "write", "stat"][call as usize % 3],
            );
        }
        let rows = timeline.rows(&["read", "write"]);
        assert!(rows.len() <= MAX && rows.len() > MAX / 2);
        let sum = |at: usize| rows.iter().filter_map(|row| row.get(at)).sum::<u64>();
        assert_eq!((sum(0), sum(1), sum(2)), (3334, 3333, 3333));
    }
}
