//! The report of a replay: differences by kind, and figures.

mod accuracy;
mod plot;

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};

pub use accuracy::{Accuracy, Second};
pub use plot::svg;

/// A result that differs from the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Number of the command.
    pub order: u64,
    /// The thread of the trace.
    pub tid: u64,
    /// The call.
    pub call: &'static str,
    /// The file, relative to the root.
    pub file: String,
    /// The result in the trace.
    pub expected: String,
    /// The result in the replay.
    pub got: String,
    /// A race in the trace explains the difference.
    pub is_race: bool,
}

impl Difference {
    /// Differences of the same kind have the same call, expectation and outcome, except for numbers that are not errors.
    fn kind(&self) -> String {
        let sort = |text: &str| {
            let is_number = text.parse::<i64>().is_ok();
            if is_number {
                "a number".to_owned()
            } else {
                text.to_owned()
            }
        };
        format!(
            "{}: {}, got {}",
            self.call,
            sort(&self.expected),
            sort(&self.got)
        )
    }
}

/// The differences of a replay: all are counted, the first of each kind are kept.
#[derive(Debug, Default)]
pub struct Differences {
    kinds: BTreeMap<String, Kind>,
    /// Commands that a later one overlapped in the trace.
    raced: HashSet<u64>,
}

#[derive(Debug, Default)]
struct Kind {
    count: u64,
    first: Vec<Difference>,
}

/// Differences of each kind that are kept.
const FIRST: usize = 10;
/// Kinds that are kept apart.
const MAX_KINDS: usize = 1000;
/// Commands of races that are remembered.
const MAX_RACED: usize = 1 << 16;

impl Differences {
    /// Counts a difference, and keeps it if it is one of the first of its kind.
    pub fn add(&mut self, difference: Difference) {
        let kind = match difference.kind() {
            kind if self.kinds.len() < MAX_KINDS || self.kinds.contains_key(&kind) => kind,
            _ => "others".to_owned(),
        };
        let kind = self.kinds.entry(kind).or_default();
        kind.count += 1;
        if kind.first.len() < FIRST {
            kind.first.push(difference);
        }
    }

    /// Records that another command overlapped this one in the trace.
    pub fn raced(&mut self, order: u64) {
        if self.raced.len() < MAX_RACED {
            self.raced.insert(order);
        }
    }
}

/// The figures and differences of a replay.
#[derive(Debug, Default)]
pub struct Report {
    /// Commands that were performed, without the replayer's own.
    pub commands: u64,
    /// By call.
    pub by_call: BTreeMap<&'static str, u64>,
    /// Commands that `--only` selects; `None` without it. The others that were performed are those that these depend on.
    pub selected: Option<u64>,
    /// Commands that `--only` leaves out.
    pub left_out: u64,
    /// Reads that were left out.
    pub skipped_reads: u64,
    /// Changes of ownership that an ordinary user may not make.
    pub skipped_owners: u64,
    /// Reads that were too long to compare their content with the trace.
    pub uncompared: u64,
    /// Lanes.
    pub lanes: usize,
    /// How long the replay took, in nanoseconds.
    pub elapsed_ns: u64,
    /// How long the trace took.
    pub original_ns: u64,
    /// Results were compared with the trace.
    pub is_verified: bool,
    /// Differences.
    pub differences: Differences,
    /// How exactly commands were issued, unless they were issued as fast as possible.
    pub accuracy: Option<Accuracy>,
    /// The replay was stopped at a difference.
    pub is_stopped: bool,
}

impl Report {
    /// Number of results that differ from the trace.
    pub fn different(&self) -> u64 {
        self.differences.kinds.values().map(|kind| kind.count).sum()
    }

    /// The differences that were kept, with whether a race explains them.
    pub fn first(&self) -> impl Iterator<Item = Difference> {
        let kinds = self.differences.kinds.values();
        kinds.flat_map(|kind| &kind.first).map(|difference| {
            let is_race = difference.is_race || self.differences.raced.contains(&difference.order);
            Difference {
                is_race,
                ..difference.clone()
            }
        })
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut lines = Vec::new();
        for difference in self.first() {
            let Difference {
                order,
                tid,
                call,
                file,
                expected,
                got,
                is_race,
            } = difference;
            let race = if is_race {
                " (a race in the trace explains it)"
            } else {
                ""
            };
            lines.push(format!(
                "command {order}, thread {tid}: {call} {file}: expected {expected}, got {got}{race}"
            ));
        }
        for (name, kind) in &self.differences.kinds {
            let more = kind.count.saturating_sub(kind.first.len() as u64);
            if more > 0 {
                lines.push(format!("{more} more of {name}"));
            }
        }
        let seconds = |ns: u64| ns as f64 / 1e9;
        lines.push(format!(
            "{} commands on {} lanes in {:.3} s; the trace took {:.3} s",
            self.commands,
            self.lanes,
            seconds(self.elapsed_ns),
            seconds(self.original_ns)
        ));
        if let Some(selected) = self.selected {
            let left_out = self.left_out;
            lines.push(format!(
                "--only selects {selected} commands; {left_out} were left out"
            ));
        }
        for (number, what) in [
            (self.skipped_reads, "reads were left out"),
            (
                self.skipped_owners,
                "changes of ownership were left out: only root may make them",
            ),
            (
                self.uncompared,
                "reads were too long to compare their content with the trace",
            ),
        ] {
            if number > 0 {
                lines.push(format!("{number} {what}"));
            }
        }
        if let Some(accuracy) = &self.accuracy {
            lines.push(accuracy.text());
        }
        lines.push(match self.different() {
            _ if !self.is_verified => "results were not compared with the trace".into(),
            0 => "every result is that of the trace".into(),
            1 => "1 result differs".into(),
            number => format!("{number} results differ"),
        });
        if self.is_stopped {
            lines.push("the replay was stopped at a difference".into());
        }
        lines.join("\n")
    }

    /// The report as JSON.
    pub fn json(&self) -> Value {
        let first = self.first().map(|difference| {
            json!({
                "command": difference.order,
                "thread": difference.tid,
                "call": difference.call,
                "file": difference.file,
                "expected": difference.expected,
                "got": difference.got,
                "race": difference.is_race,
            })
        });
        let kinds = self.differences.kinds.iter();
        let kinds: BTreeMap<&String, u64> = kinds.map(|(name, kind)| (name, kind.count)).collect();
        json!({
            "commands": self.commands,
            "calls": self.by_call,
            "lanes": self.lanes,
            "elapsed_ns": self.elapsed_ns,
            "original_ns": self.original_ns,
            "selected": self.selected,
            "left_out": self.left_out,
            "skipped_reads": self.skipped_reads,
            "skipped_owners": self.skipped_owners,
            "uncompared": self.uncompared,
            "verified": self.is_verified,
            "different": self.different(),
            "kinds": kinds,
            "differences": first.collect::<Vec<_>>(),
            "stopped": self.is_stopped,
            "accuracy": self.accuracy.as_ref().map(Accuracy::json),
        })
    }
}
