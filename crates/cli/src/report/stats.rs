//! `--stats`: what a run did, for people and for programs.

use std::fmt::Write;
use std::time::Duration;

use goanna_monitor::Stats;
use serde_json::{Map, Value, json};

use super::names;
use crate::args::StatsFormat;
use crate::mounts::OpenStore;

/// Kinds of calls that are listed for people who do not ask for more.
const LISTED: usize = 10;

/// What a run did.
pub struct Figures<'a> {
    /// From the start of the command to the end of its last child.
    pub elapsed: Duration,
    /// The monitor's counts.
    pub monitor: &'a Stats,
    /// The stores that were mounted.
    pub stores: &'a [OpenStore],
    /// Their counters at the start.
    pub before: &'a [amino_txn::Stats],
}

impl Figures<'_> {
    /// What the stores have done since; of a store that others use, too, theirs with it.
    fn stores(&self) -> impl Iterator<Item = (&std::path::Path, amino_txn::Stats)> {
        let stores = self.stores.iter().zip(self.before);
        stores.map(|((dir, fs), before)| (dir.as_path(), fs.store().stats().since(before)))
    }

    /// The figures as text that ends in a newline. `all` lists every kind of call.
    pub fn text(&self, format: StatsFormat, all: bool) -> String {
        match format {
            StatsFormat::Json => format!("{}\n", self.json()),
            StatsFormat::Human => self.table(all),
        }
    }

    fn json(&self) -> Value {
        let calls: Map<String, Value> = self
            .monitor
            .calls
            .iter()
            .map(|&(name, count)| (name.to_owned(), count.into()))
            .collect();
        let stores = self.stores().map(|(dir, stats)| {
            use std::os::unix::ffi::OsStrExt;
            let mut map = Map::new();
            names::put(&mut map, "store", dir.as_os_str().as_bytes());
            let figures = [
                ("changes", stats.submits),
                ("commits", stats.records),
                ("log_bytes", stats.log_bytes),
                ("syncs", stats.syncs),
                ("disk_syncs", stats.fdatasyncs),
                ("checkpoints", stats.checkpoints),
            ];
            map.extend(figures.map(|(key, figure)| (key.to_owned(), figure.into())));
            Value::Object(map)
        });
        json!({
            "seconds": self.elapsed.as_secs_f64(),
            "answered": self.monitor.answered,
            "failed": self.monitor.failed,
            "passed_on": self.monitor.passed_on,
            "calls": calls,
            "stores": stores.collect::<Vec<Value>>(),
        })
    }

    fn table(&self, all: bool) -> String {
        let mut text = String::new();
        let mut row = |label: &str, value: String| {
            let _ = writeln!(text, "{label:20} {value:>12}");
        };
        row("seconds", format!("{:.3}", self.elapsed.as_secs_f64()));
        row("calls answered", self.monitor.answered.to_string());
        row("calls failed", self.monitor.failed.to_string());
        row("calls passed on", self.monitor.passed_on.to_string());
        let shown = if all { usize::MAX } else { LISTED };
        for (name, count) in self.monitor.calls.iter().take(shown) {
            row(&format!("  {name}"), count.to_string());
        }
        let rest = self
            .monitor
            .calls
            .iter()
            .skip(shown)
            .map(|&(_, count)| count);
        if self.monitor.calls.len() > shown {
            row("  others", rest.sum::<u64>().to_string());
        }
        for (dir, stats) in self.stores() {
            let _ = writeln!(text, "store {}", names::escape_path(dir));
            let mut row = |label: &str, value: u64| {
                let _ = writeln!(text, "  {label:18} {value:>12}");
            };
            row("changes", stats.submits);
            row("commits", stats.records);
            row("bytes of log", stats.log_bytes);
            row("syncs asked for", stats.syncs);
            row("syncs of the disk", stats.fdatasyncs);
            row("checkpoints", stats.checkpoints);
        }
        text
    }
}
