//! Compares two traces as streams of operations, thread by thread. Times, process ids and descriptor numbers are not compared, and neither
//! are the replayer's own calls.
//!
//! The first pass keeps a hash of each operation, the second one, over the threads that differ, fetches the operations as text.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use amino_schema::replay::Call;
use amino_schema::trace::pairs::Pairs;
use goanna_sys::Errno;
use goanna_sys::escape::escape;
use goanna_tracer::read::Keys;

use crate::Error;
use crate::source::{Name, Seen, Source, Step, Visitor};

/// A trace to compare.
#[derive(Debug, Clone, Copy)]
pub struct Side<'a> {
    /// The trace.
    pub trace: &'a Path,
    /// Only operations below this directory are compared; `None` for the working directory of the traced command.
    pub directory: Option<&'a Path>,
    /// Keys of the trace.
    pub keys: &'a Keys,
}

/// The differences of two traces.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Comparison {
    /// Operations of both traces, by call.
    pub counts: BTreeMap<&'static str, (u64, u64)>,
    /// Threads whose operations differ.
    pub threads: Vec<Difference>,
}

/// How the operations of a thread differ.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The thread in both traces; `None` in a trace that does not have it.
    pub threads: (Option<i32>, Option<i32>),
    /// Operations that both have, before the difference.
    pub same: usize,
    /// Operations of the first trace, the first ones as text.
    pub first: Unmatched,
    /// Operations of the second trace.
    pub second: Unmatched,
}

/// Operations that the other trace does not have at this place.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Unmatched {
    /// How many.
    pub length: usize,
    /// The first ones.
    pub texts: Vec<String>,
}

impl Comparison {
    /// Whether the traces have the same operations.
    pub fn is_equal(&self) -> bool {
        self.threads.is_empty()
    }
}

/// Operations of a stretch that are fetched as text.
const SHOWN: usize = 5;

/// Compares two traces.
pub fn compare(first: Side<'_>, second: Side<'_>) -> Result<Comparison, Error> {
    let mut sides = [Streams::read(first)?, Streams::read(second)?];
    let with_data = sides.iter().all(|side| side.has_data);
    for side in &mut sides {
        side.finish(with_data);
    }
    let [one, other] = &sides;
    let mut comparison = Comparison::default();
    for (number, side) in [one, other].into_iter().enumerate() {
        for (call, count) in &side.counts {
            let entry = comparison.counts.entry(call.name()).or_default();
            match number {
                0 => entry.0 = *count,
                _ => entry.1 = *count,
            }
        }
    }
    for (left, right) in pairs(one, other) {
        let empty = Vec::new();
        let stream = |side: &'_ Streams, tid: Option<i32>| -> Vec<u64> {
            let found = tid.and_then(|tid| side.hashes.get(&tid));
            found.unwrap_or(&empty).clone()
        };
        let (a, b) = (stream(one, left), stream(other, right));
        if a == b {
            continue;
        }
        let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
        let rest = a.len().min(b.len()) - same;
        let backwards = a.iter().rev().zip(b.iter().rev());
        let tail = backwards.take(rest).take_while(|(a, b)| a == b).count();
        comparison.threads.push(Difference {
            threads: (left, right),
            same,
            first: Unmatched {
                length: a.len() - same - tail,
                texts: Vec::new(),
            },
            second: Unmatched {
                length: b.len() - same - tail,
                texts: Vec::new(),
            },
        });
    }
    if !comparison.is_equal() {
        describe(first, &mut comparison, |it| {
            (it.threads.0, it.same, &mut it.first)
        })?;
        describe(second, &mut comparison, |it| {
            (it.threads.1, it.same, &mut it.second)
        })?;
    }
    Ok(comparison)
}

/// Which threads of the two traces belong together: those with the same id in a trace and its replay, then those with the same operations,
/// then in the order in which they appear.
fn pairs(one: &Streams, other: &Streams) -> Vec<(Option<i32>, Option<i32>)> {
    let mut pairs = Vec::new();
    let mut left: Vec<i32> = one.order.clone();
    let mut right: Vec<i32> = other.order.clone();
    if one.is_replay || other.is_replay {
        left.retain(|tid| {
            let found = right.iter().position(|it| it == tid);
            if let Some(at) = found {
                right.remove(at);
                pairs.push((Some(*tid), Some(*tid)));
            }
            found.is_none()
        });
    }
    let mut by_content: HashMap<&Vec<u64>, Vec<i32>> = HashMap::new();
    for tid in right.iter().rev() {
        if let Some(stream) = other.hashes.get(tid) {
            by_content.entry(stream).or_default().push(*tid);
        }
    }
    left.retain(|tid| {
        let stream = one.hashes.get(tid);
        let same = stream.and_then(|stream| by_content.get_mut(stream)?.pop());
        if let Some(same) = same {
            right.retain(|it| *it != same);
            pairs.push((Some(*tid), Some(same)));
        }
        same.is_none()
    });
    let longest = left.len().max(right.len());
    pairs.extend((0..longest).map(|at| (left.get(at).copied(), right.get(at).copied())));
    pairs
}

/// Fetches the operations that differ as text.
fn describe(
    side: Side<'_>,
    comparison: &mut Comparison,
    part: impl Fn(&mut Difference) -> (Option<i32>, usize, &mut Unmatched),
) -> Result<(), Error> {
    let mut wanted: HashMap<i32, (usize, usize, Vec<String>)> = HashMap::new();
    for difference in &mut comparison.threads {
        if let (Some(tid), same, stretch) = part(difference) {
            wanted.insert(tid, (same, same + stretch.length.min(SHOWN), Vec::new()));
        }
    }
    let mut seen: HashMap<i32, usize> = HashMap::new();
    let mut collect = |operation: Operation, step: &Step| {
        let at = seen.entry(step.tid).or_default();
        if let Some((from, to, texts)) = wanted.get_mut(&step.tid)
            && (*from..*to).contains(at)
        {
            texts.push(operation.text());
        }
        *at += 1;
    };
    let mut reader = Operations {
        slots: HashMap::new(),
        has_data: false,
        only_replayed: None,
        sink: &mut collect,
    };
    // The same threads as in the first pass.
    reader.only_replayed = Some(is_replay(side)?);
    Source::new(side.trace, side.directory).read(side.keys, &mut reader)?;
    for difference in &mut comparison.threads {
        if let (Some(tid), _, stretch) = part(difference)
            && let Some((_, _, texts)) = wanted.remove(&tid)
        {
            stretch.texts = texts;
        }
    }
    Ok(())
}

fn is_replay(side: Side<'_>) -> Result<bool, Error> {
    let mut found = false;
    let mut look = |_: Operation, step: &Step| found |= step.is_replayed;
    let mut reader = Operations {
        slots: HashMap::new(),
        has_data: false,
        only_replayed: None,
        sink: &mut look,
    };
    Source::new(side.trace, side.directory).read(side.keys, &mut reader)?;
    Ok(found)
}

/// The operations of a trace.
#[derive(Debug, Default)]
struct Streams {
    is_replay: bool,
    has_data: bool,
    /// Hash of each operation, without and with its content, and its call.
    raw: HashMap<i32, Vec<(u64, u64, Call, bool)>>,
    hashes: HashMap<i32, Vec<u64>>,
    /// Threads in the order of their first operations.
    order: Vec<i32>,
    counts: BTreeMap<Call, u64>,
}

impl Streams {
    fn read(side: Side<'_>) -> Result<Self, Error> {
        let mut streams = Self::default();
        let mut keep = |operation: Operation, step: &Step| {
            streams.is_replay |= step.is_replayed;
            let stream = streams.raw.entry(step.tid).or_default();
            if stream.is_empty() {
                streams.order.push(step.tid);
            }
            let (plain, with_data) = operation.hashes();
            stream.push((plain, with_data, step.call, step.is_replayed));
        };
        let mut reader = Operations {
            slots: HashMap::new(),
            has_data: false,
            only_replayed: None,
            sink: &mut keep,
        };
        Source::new(side.trace, side.directory).read(side.keys, &mut reader)?;
        let has_data = reader.has_data;
        streams.has_data = has_data;
        Ok(streams)
    }

    fn finish(&mut self, with_data: bool) {
        let is_replay = self.is_replay;
        for (tid, operations) in std::mem::take(&mut self.raw) {
            let mut hashes = Vec::with_capacity(operations.len());
            for (plain, data, call, is_replayed) in operations {
                if is_replay && !is_replayed {
                    continue;
                }
                *self.counts.entry(call).or_default() += 1;
                hashes.push(if with_data { data } else { plain });
            }
            if !hashes.is_empty() {
                self.hashes.insert(tid, hashes);
            }
        }
        let hashes = &self.hashes;
        self.order.retain(|tid| hashes.contains_key(tid));
    }
}

/// Converts steps to operations.
struct Operations<'a> {
    slots: HashMap<u32, Vec<u8>>,
    has_data: bool,
    only_replayed: Option<bool>,
    sink: &'a mut dyn FnMut(Operation, &Step),
}

impl Visitor for Operations<'_> {
    fn context(&mut self, context: &Pairs) {
        let data = context.iter().find(|(name, _)| name == "data");
        self.has_data = data.is_some_and(|(_, value)| value.as_slice() != b"none");
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), Error> {
        match seen {
            Seen::Began { inherited, .. } => {
                for (from, to) in inherited {
                    if let Some(path) = self.slots.get(&from).cloned() {
                        self.slots.insert(to, path);
                    }
                }
            }
            Seen::Step(step) => {
                let is_counted = !step.call.is_own()
                    && step.call != Call::Touch
                    && self
                        .only_replayed
                        .is_none_or(|only| !only || step.is_replayed);
                if is_counted {
                    let operation = self.operation(&step);
                    (self.sink)(operation, &step);
                }
                self.follow(&step);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Operations<'_> {
    fn path(&self, name: &Name) -> Vec<u8> {
        match name {
            Name::Path { path, .. } => path.clone(),
            Name::Slot(slot) => self.slots.get(slot).cloned().unwrap_or_default(),
        }
    }

    fn follow(&mut self, step: &Step) {
        if let (Some(slot), Some(target)) = (step.opened, step.targets.first()) {
            let path = self.path(&target.name);
            self.slots.insert(slot, path);
        }
    }

    fn operation(&self, step: &Step) -> Operation {
        let mut numbers = step.numbers.clone();
        let mut keep = |index: usize, bits: i32| {
            if let Some(number) = numbers.get_mut(index) {
                *number &= bits as u64;
            }
        };
        match step.call {
            Call::Open => {
                let added = libc::O_CLOEXEC | 0x8000 | libc::O_NOCTTY | libc::O_NOFOLLOW;
                keep(0, !added);
                let makes = step.number(0) & libc::O_CREAT as u64 != 0;
                keep(1, if makes { 0o7777 } else { 0 });
            }
            Call::Map => {
                keep(1, libc::PROT_READ | libc::PROT_WRITE);
                keep(2, libc::MAP_TYPE);
                keep(4, 0);
            }
            Call::Unmap | Call::Msync | Call::Dup => keep(0, 0),
            Call::Fcntl if step.number(0) == libc::F_SETFL as u64 => keep(1, !0x8000),
            _ => {}
        }
        let data = step.data.as_ref();
        Operation {
            call: step.call,
            files: step
                .targets
                .iter()
                .map(|target| self.path(&target.name))
                .collect(),
            numbers,
            text: step.text.clone().filter(|_| step.call != Call::Readlink),
            length: data.map(|data| data.length),
            hashes: data.map(|data| data.hashes.clone()).unwrap_or_default(),
            result: result(step),
        }
    }
}

/// The part of a result that does not differ from run to run.
fn result(step: &Step) -> String {
    if let Some(errno) = step.errno() {
        return format!("{:?}", Errno::from_raw(errno));
    }
    let result = step.result.unwrap_or(0);
    match step.call {
        Call::Open | Call::Dup | Call::Map | Call::Fcntl | Call::Listxattr => "ok".into(),
        Call::Readdir => (if result == 0 { "end" } else { "entries" }).into(),
        _ => result.to_string(),
    }
}

/// The parts of an operation that are compared.
#[derive(Debug)]
struct Operation {
    call: Call,
    files: Vec<Vec<u8>>,
    numbers: Vec<u64>,
    text: Option<Vec<u8>>,
    length: Option<u64>,
    hashes: Vec<[u8; 16]>,
    result: String,
}

impl Operation {
    fn hashes(&self) -> (u64, u64) {
        let mut hasher = DefaultHasher::new();
        (
            self.call,
            &self.files,
            &self.numbers,
            &self.text,
            self.length,
            &self.result,
        )
            .hash(&mut hasher);
        let plain = hasher.finish();
        self.hashes.hash(&mut hasher);
        (plain, hasher.finish())
    }

    fn text(&self) -> String {
        let mut parts = vec![self.call.name().to_owned()];
        parts.extend(self.files.iter().map(|path| match path.as_slice() {
            b"" => ".".to_owned(),
            path => escape(path),
        }));
        parts.extend(self.text.iter().map(|text| escape(text)));
        parts.extend(self.numbers.iter().map(|number| match number {
            number if *number > u64::MAX / 2 => number.cast_signed().to_string(),
            number => format!("{number:#x}"),
        }));
        parts.extend(self.length.map(|length| format!("{length} bytes")));
        format!("{} = {}", parts.join(" "), self.result)
    }
}
