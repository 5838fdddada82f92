//! The summary that `goanna-trace top` shows: the busiest calls, files and processes.

use std::collections::HashMap;
use std::fmt::Write;

use amino_schema::trace::record::Record;
use goanna_sys::plural::counted;

use super::Consumer;
use super::fields::{Fields, bytes};
use crate::Error;

/// Counts by call, by file and by process. `draw` is called after each record, with the summary so far.
pub struct Top<D> {
    counts: Counts,
    draw: D,
}

/// Counters of the records of a trace so far.
#[derive(Debug, Default)]
pub struct Counts {
    records: u64,
    calls: HashMap<Box<[u8]>, Count>,
    files: HashMap<Box<[u8]>, Count>,
    processes: HashMap<Box<[u8]>, Count>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    calls: u64,
    nanoseconds: u64,
}

/// Maximum number of names of each kind; further ones are counted together.
const MAX_NAMES: usize = 1 << 16;
const OTHERS: &[u8] = b"(others)";

impl<D: FnMut(&Counts)> Top<D> {
    /// Begins with empty counters.
    pub fn new(draw: D) -> Self {
        let counts = Counts::default();
        Self { counts, draw }
    }

    /// The summary.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }
}

impl<D: FnMut(&Counts)> Consumer for Top<D> {
    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let counts = &mut self.counts;
        counts.records += 1;
        if record.message.number.is_some() {
            let fields = Fields::of(record);
            let took = fields.duration.unwrap_or(0);
            add(&mut counts.calls, record.message.name.as_bytes(), took);
            let argument = fields.arguments.iter().find_map(|group| {
                let path = group.part("resolved").or(group.part("file.path"));
                path.and_then(bytes)
            });
            if let Some(path) = argument.or(fields.result_path) {
                add(&mut counts.files, path, took);
            }
            let comm = fields.comm.unwrap_or_default().escape_ascii();
            let process = format!("{} {comm}", fields.pid.unwrap_or(0));
            add(&mut counts.processes, process.as_bytes(), took);
        }
        (self.draw)(counts);
        Ok(())
    }
}

fn add(counts: &mut HashMap<Box<[u8]>, Count>, name: &[u8], nanoseconds: u64) {
    let known = counts.len() < MAX_NAMES || counts.contains_key(name);
    let name = if known { name } else { OTHERS };
    let count = match counts.get_mut(name) {
        Some(count) => count,
        None => counts.entry(name.into()).or_default(),
    };
    count.calls += 1;
    count.nanoseconds = count.nanoseconds.saturating_add(nanoseconds);
}

impl Counts {
    /// The summary as text, with this many lines of each kind.
    pub fn text(&self, lines: usize) -> String {
        let mut text = format!("{}\n", counted(self.records, "record"));
        let sorts = [
            ("calls", &self.calls),
            ("files", &self.files),
            ("processes", &self.processes),
        ];
        for (title, counts) in sorts {
            let _ = writeln!(text, "\n{:>10} {:>12}  {title}", "calls", "seconds");
            let mut sorted = counts.iter().collect::<Vec<_>>();
            sorted.sort_by(|a, b| b.1.calls.cmp(&a.1.calls).then(a.0.cmp(b.0)));
            for (name, count) in sorted.into_iter().take(lines) {
                let seconds = count.nanoseconds as f64 / 1e9;
                let _ = writeln!(
                    text,
                    "{:>10} {seconds:>12.6}  {}",
                    count.calls,
                    name.escape_ascii()
                );
            }
        }
        text
    }
}
