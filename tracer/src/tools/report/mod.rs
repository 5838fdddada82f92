//! Collects the figures of a report: calls over time, busiest files and processes, latencies, sizes, errors. `page.rs` makes
//! the page, `chart.rs` its drawings.

mod chart;
mod page;
mod timeline;

use std::collections::HashMap;

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::record::Record;
use goanna_syscalls::{Class, signature};

use super::fields::{Fields, bytes, error_name};
use super::{Consumer, clock_offset};
use crate::Error;
use timeline::Timeline;

/// Collects the figures of a trace, with bounded memory.
#[derive(Debug, Default)]
pub struct Report {
    context: Pairs,
    offset_ns: i64,
    records: u64,
    total: Count,
    timeline: Timeline,
    operations: HashMap<Box<str>, Operation>,
    files: HashMap<Box<[u8]>, Count>,
    processes: HashMap<Box<[u8]>, Count>,
    /// By name of the error and of the call.
    errors: HashMap<(Box<str>, Box<str>), u64>,
    /// Records of the messages of an aggregate, which a report does not show.
    counters: u64,
}

/// Calls of one sort.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    calls: u64,
    errors: u64,
    read: u64,
    written: u64,
    nanoseconds: u64,
}

/// Calls of one operation.
#[derive(Debug, Default)]
struct Operation {
    count: Count,
    latencies: Histogram,
    sizes: Histogram,
    reads: bool,
    writes: bool,
}

/// How many values have this many bits: 0, 1, 2 to 3, 4 to 7, ...
#[derive(Debug, Clone)]
struct Histogram([u64; 65]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; 65])
    }
}

impl Histogram {
    fn add(&mut self, value: u64) {
        if let Some(slot) = self.0.get_mut(64 - value.leading_zeros() as usize) {
            *slot += 1;
        }
    }

    fn merge(&mut self, other: &Self) {
        for (slot, more) in self.0.iter_mut().zip(other.0) {
            *slot += more;
        }
    }

    fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The smallest value of a bucket.
    fn from(bucket: usize) -> u64 {
        match bucket {
            0 => 0,
            bits => 1 << (bits - 1).min(63),
        }
    }

    /// The quantile `share`, rounded up to the end of its bucket.
    fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.total() as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.0.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Self::from(bucket + 1);
            }
        }
        0
    }
}

/// Maximum number of files, processes and kinds of errors; further ones are counted together.
const MAX_NAMES: usize = 1 << 16;
const OTHERS: &str = "(others)";

impl Count {
    fn add(&mut self, one: &Self) {
        self.calls += one.calls;
        self.errors += one.errors;
        self.read = self.read.saturating_add(one.read);
        self.written = self.written.saturating_add(one.written);
        self.nanoseconds = self.nanoseconds.saturating_add(one.nanoseconds);
    }
}

fn add(counts: &mut HashMap<Box<[u8]>, Count>, name: &[u8], one: &Count) {
    let known = counts.len() < MAX_NAMES || counts.contains_key(name);
    let name = if known { name } else { OTHERS.as_bytes() };
    match counts.get_mut(name) {
        Some(count) => count.add(one),
        None => counts.entry(name.into()).or_default().add(one),
    }
}

impl Consumer for Report {
    fn context(&mut self, context: &Pairs) -> Result<(), Error> {
        if self.context.is_empty() {
            self.context.clone_from(context);
            self.offset_ns = clock_offset(context).unwrap_or(0);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record<'_>) -> Result<(), Error> {
        self.records += 1;
        let Some(number) = record.message.number else {
            let name = record.message.name.as_str();
            self.counters += u64::from(matches!(name, "counter" | "bucket"));
            return Ok(());
        };
        let fields = Fields::of(record);
        let call = signature(number).filter(|it| it.name == record.message.name);
        let moves = |class| call.is_some_and(|it| it.class.intersects(class));
        let (reads, writes) = (moves(Class::READ), moves(Class::WRITE));
        let moved = match (fields.result_unit, fields.result) {
            ("bytes", Some(moved @ 0..)) => Some(moved.unsigned_abs()),
            _ => None,
        };
        let one = Count {
            calls: 1,
            errors: u64::from(fields.error().is_some()),
            read: moved.filter(|_| reads).unwrap_or(0),
            written: moved.filter(|_| writes).unwrap_or(0),
            nanoseconds: fields.duration.unwrap_or(0),
        };
        self.total.add(&one);
        let name = record.message.name.as_str();
        let operation = match call.map(|it| it.operation) {
            Some(operation) => operation.name(),
            None => name,
        };
        if let Some(time) = fields.time {
            self.timeline.add(time, operation);
        }
        let counted = match self.operations.get_mut(operation) {
            Some(counted) => counted,
            None => self.operations.entry(operation.into()).or_default(),
        };
        counted.count.add(&one);
        counted.reads |= reads;
        counted.writes |= writes;
        if let Some(took) = fields.duration {
            counted.latencies.add(took);
        }
        if let Some(moved) = moved.filter(|_| reads || writes) {
            counted.sizes.add(moved);
        }
        if let Some(error) = fields.error() {
            let error = error_name(record.schema(), error).unwrap_or("?");
            let key = (Box::from(error), Box::from(name));
            if self.errors.len() < MAX_NAMES || self.errors.contains_key(&key) {
                *self.errors.entry(key).or_default() += 1;
            }
        }
        let argument = fields.arguments.iter().find_map(|group| {
            let path = group.part("resolved").or(group.part("file.path"));
            path.and_then(bytes)
        });
        if let Some(path) = argument.or(fields.result_path) {
            add(&mut self.files, path, &one);
        }
        let pid = fields.pid.map(|pid| pid.to_string()).unwrap_or_default();
        let comm = fields.comm.unwrap_or_default().escape_ascii();
        add(
            &mut self.processes,
            format!("{pid} {comm}").trim().as_bytes(),
            &one,
        );
        Ok(())
    }
}
