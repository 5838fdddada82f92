//! `--stats`: the statistics of a run, as text and as JSON.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

use goanna_session::RunStats;
use serde_json::{Map, Value, json};

use super::names;
use crate::args::StatsFormat;

/// Kinds of calls that the text lists, unless all are asked for.
const LISTED: usize = 10;

/// The statistics as text that ends in a newline. `all` lists every kind of call.
pub fn text(stats: &RunStats, format: StatsFormat, all: bool) -> String {
    match format {
        StatsFormat::Json => format!("{}\n", json(stats)),
        StatsFormat::Human => table(stats, all),
    }
}

fn json(stats: &RunStats) -> Value {
    let calls = stats.calls.iter();
    let calls: Map<String, Value> = calls
        .map(|(name, count)| (name.clone(), (*count).into()))
        .collect();
    let stores = stats.stores.iter().map(|store| {
        let mut map = Map::new();
        names::put(&mut map, "store", store.dir.as_os_str().as_bytes());
        let counters = [
            ("changes", store.changes),
            ("commits", store.commits),
            ("log_bytes", store.log_bytes),
            ("syncs", store.syncs),
            ("disk_syncs", store.disk_syncs),
            ("checkpoints", store.checkpoints),
        ];
        map.extend(counters.map(|(key, figure)| (key.to_owned(), figure.into())));
        Value::Object(map)
    });
    json!({
        "seconds": stats.elapsed.as_secs_f64(),
        "answered": stats.answered,
        "failed": stats.failed,
        "passed_on": stats.passed_on,
        "in_process": stats.in_process,
        "calls": calls,
        "stores": stores.collect::<Vec<Value>>(),
    })
}

fn table(stats: &RunStats, all: bool) -> String {
    let mut text = String::new();
    let mut row = |label: &str, value: String| {
        let _ = writeln!(text, "{label:20} {value:>12}");
    };
    row("seconds", format!("{:.3}", stats.elapsed.as_secs_f64()));
    row("calls answered", stats.answered.to_string());
    row("calls failed", stats.failed.to_string());
    row("calls passed on", stats.passed_on.to_string());
    row("calls in the process", stats.in_process.to_string());
    let shown = if all { usize::MAX } else { LISTED };
    for (name, count) in stats.calls.iter().take(shown) {
        row(&format!("  {name}"), count.to_string());
    }
    if stats.calls.len() > shown {
        let rest = stats.calls.iter().skip(shown).map(|(_, count)| count);
        row("  others", rest.sum::<u64>().to_string());
    }
    for store in &stats.stores {
        let _ = writeln!(text, "store {}", names::escape_path(&store.dir));
        let mut row = |label: &str, value: u64| {
            let _ = writeln!(text, "  {label:18} {value:>12}");
        };
        row("changes", store.changes);
        row("commits", store.commits);
        row("bytes of log", store.log_bytes);
        row("syncs asked for", store.syncs);
        row("syncs of the disk", store.disk_syncs);
        row("checkpoints", store.checkpoints);
    }
    text
}
