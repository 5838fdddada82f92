//! The assembly `aggregate`: writes counters and histograms, no record for each event.

use std::collections::HashMap;

use amino_schema::trace::record::Value;
use amino_schema::trace::{Schema, Type};
use goanna_syscalls as calls;
use goanna_syscalls::{Class, Returns};

use super::{Assembly, Definitions, Writer};
use crate::event::Call;
use crate::{Error, Event};

/// The keys by which counters are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum By {
    /// Operation.
    Operation,
    /// Effective user.
    User,
    /// Process: id and name.
    Process,
    /// File: its path.
    File,
    /// Extension of the file's name.
    Extension,
}

impl By {
    const ALL: [(Self, &'static str); 5] = [
        (Self::Operation, "operation"),
        (Self::User, "user"),
        (Self::Process, "process"),
        (Self::File, "file"),
        (Self::Extension, "extension"),
    ];
}

/// Counts calls, errors, bytes and time, per operation, user, process, file and extension, with histograms of duration and size per
/// operation.
pub struct Aggregate {
    /// Nanoseconds between snapshots; `None` for one at the end.
    period_ns: Option<u64>,
    next_ns: u64,
    last_ns: u64,
    snapshot: u64,
    counters: HashMap<(By, Box<[u8]>, &'static str), Counter>,
    histograms: HashMap<&'static str, [[u64; 64]; 2]>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Counter {
    calls: u64,
    errors: u64,
    bytes: u64,
    nanoseconds: u64,
}

/// Positions of the messages in the schema.
const COUNTER: usize = 0;
const BUCKET: usize = 1;
/// Maximum number of keys of files, processes and so on. Further ones are counted under the key `(others)`.
const MAX_KEYS: usize = 1 << 18;
const OTHERS: &[u8] = b"(others)";

impl Aggregate {
    /// Writes a snapshot of all counters each `period_ns` nanoseconds, if given, and one at the end.
    pub fn new(period_ns: Option<u64>) -> Self {
        Self {
            period_ns,
            next_ns: 0,
            last_ns: 0,
            snapshot: 0,
            counters: HashMap::new(),
            histograms: HashMap::new(),
        }
    }

    fn count(&mut self, call: &Call) {
        let operation = call
            .call
            .operation()
            .map_or("unknown", calls::Operation::name);
        let result = call.outcome.map_or(0, |it| it.result);
        let took = call
            .outcome
            .map_or(0, |it| it.left_ns.saturating_sub(call.entered_ns));
        let moves = call.call.signature.is_some_and(|it| {
            it.returns == Returns::Size && it.class.intersects(Class::READ | Class::WRITE)
        });
        let bytes = if moves {
            u64::try_from(result).unwrap_or(0)
        } else {
            0
        };
        let one = Counter {
            calls: 1,
            errors: u64::from((-4095..0).contains(&result)),
            bytes,
            nanoseconds: took,
        };
        self.add((By::Operation, operation.as_bytes(), operation), one);
        self.add(
            (By::User, call.subject.uid.to_string().as_bytes(), operation),
            one,
        );
        let process = format!("{} {}", call.subject.pid, call.subject.comm);
        self.add((By::Process, process.as_bytes(), operation), one);
        if let Some(path) = call.path() {
            self.add((By::File, path, operation), one);
            self.add((By::Extension, extension(path), operation), one);
        }
        let histograms = self.histograms.entry(operation).or_insert([[0; 64]; 2]);
        let [durations, sizes] = histograms;
        let values = [(durations, Some(took)), (sizes, moves.then_some(bytes))];
        for (histogram, value) in values {
            let bucket = value.map(|value| value.max(1).ilog2() as usize);
            if let Some(slot) = bucket.and_then(|bucket| histogram.get_mut(bucket)) {
                *slot += 1;
            }
        }
    }

    fn add(&mut self, (by, key, operation): (By, &[u8], &'static str), one: Counter) {
        let mut entry = (by, Box::from(key), operation);
        if self.counters.len() >= MAX_KEYS && !self.counters.contains_key(&entry) {
            entry.1 = Box::from(OTHERS);
        }
        let counter = self.counters.entry(entry).or_default();
        counter.calls += one.calls;
        counter.errors += one.errors;
        counter.bytes += one.bytes;
        counter.nanoseconds += one.nanoseconds;
    }

    fn write(&mut self, out: &mut Writer) -> Result<(), Error> {
        use Value::{Bytes, Number};
        let (time, snapshot) = (Number(self.last_ns), Number(self.snapshot));
        self.snapshot += 1;
        let mut counters = self.counters.iter().collect::<Vec<_>>();
        counters.sort_by_key(|(key, _)| *key);
        for ((by, key, operation), counter) in counters {
            let values = [
                time,
                snapshot,
                Number(*by as u64),
                Bytes(key),
                Bytes(operation.as_bytes()),
                Number(counter.calls),
                Number(counter.errors),
                Number(counter.bytes),
                Number(counter.nanoseconds),
            ];
            out.put(COUNTER, 0, self.last_ns, &values)?;
        }
        let mut histograms = self.histograms.iter().collect::<Vec<_>>();
        histograms.sort_by_key(|(operation, _)| **operation);
        for (operation, histograms) in histograms {
            for (what, histogram) in (0..).zip(histograms) {
                for (bucket, calls) in (0..64u32).zip(histogram) {
                    if *calls > 0 {
                        let operation = Bytes(operation.as_bytes());
                        let (what, from) = (Number(what), Number(1 << bucket));
                        let values = [time, snapshot, operation, what, from, Number(*calls)];
                        out.put(BUCKET, 0, self.last_ns, &values)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The extension: the part of the file's name after the last dot; empty without a dot.
fn extension(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let mut parts = name.rsplitn(2, |&byte| byte == b'.');
    match (parts.next(), parts.next()) {
        (Some(extension), Some([_, ..])) => extension,
        _ => b"",
    }
}

impl Assembly for Aggregate {
    fn schema(&mut self) -> Schema {
        const U64: (Type, u8) = (Type::Unsigned, 8);
        const BYTES: (Type, u8) = (Type::Bytes, 0);
        let mut definitions = Definitions::default();
        let names = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned());
            (0..).zip(names.collect::<Vec<_>>())
        };
        let by = definitions.symbol_set("by", false, 0, names(&By::ALL.map(|(_, name)| name)));
        let what = definitions.symbol_set("what", false, 0, names(&["duration", "size"]));
        let mut plain = |name: &str, role: &str, unit: &str, kind, symbols| {
            definitions.named_values(name, role, unit, kind, name, symbols)
        };
        let time = plain("time", "time", "ns", U64, None);
        let snapshot = plain("snapshot", "number", "", U64, None);
        let operation = plain("operation", "text", "", BYTES, None);
        let calls = plain("calls", "count", "", U64, None);
        let counter = vec![
            time,
            snapshot,
            plain("by", "choice", "", (Type::Unsigned, 1), Some(by)),
            plain("key", "text", "", BYTES, None),
            operation,
            calls,
            plain("errors", "count", "", U64, None),
            plain("bytes", "size", "bytes", U64, None),
            plain("nanoseconds", "duration", "ns", U64, None),
        ];
        let what = plain("what", "choice", "", (Type::Unsigned, 1), Some(what));
        let from = plain("from", "number", "", U64, None);
        definitions.message(16, "counter", None, counter);
        definitions.message(
            17,
            "bucket",
            None,
            vec![time, snapshot, operation, what, from, calls],
        );
        definitions.schema()
    }

    fn event(&mut self, event: &Event, out: &mut Writer) -> Result<(), Error> {
        match event {
            Event::Call(call) => {
                self.count(call);
                let now = call.outcome.map_or(call.entered_ns, |it| it.left_ns);
                self.last_ns = self.last_ns.max(now);
                let Some(period) = self.period_ns else {
                    return Ok(());
                };
                if self.next_ns == 0 {
                    self.next_ns = now.saturating_add(period);
                } else if now >= self.next_ns {
                    self.next_ns = now.saturating_add(period);
                    self.write(out)?;
                    out.flush()?;
                }
            }
            Event::Lost { events, .. } => out.count_lost(*events),
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, out: &mut Writer) -> Result<(), Error> {
        self.write(out)
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![("assembly".into(), "aggregate".into())]
    }
}
