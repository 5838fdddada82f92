//! Compiles a trace, in one pass and with bounded memory.
//!
//! Each step of the trace ([`crate::source`]) becomes a command of a lane (`lanes.rs`). The command waits for the commands that it must
//! follow (`depend.rs`, with `uses.rs` for the resources of a step). `held.rs` follows descriptors, `initial.rs` determines the initial
//! state, `output.rs` writes.

mod depend;
mod held;
mod initial;
mod lanes;
mod output;
mod scan;
mod uses;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use amino_schema::replay::{
    Call, Command, Content, Data, Index, MAX_NAME, MAX_PATH, Place, Target, Wait,
};
use amino_schema::trace::pairs::Pairs;
use goanna_tracer::read::{Finding, Keys};

use crate::Error;
use crate::source::{Name, Payload, Seen, Source, Step, Visitor};
use depend::{Dependencies, Issuer};
use held::Slots;
use initial::State;
use lanes::Lanes;
use output::Output;
pub use output::Sizes;

/// How to compile.
#[derive(Debug, Default)]
pub struct Options<'a> {
    /// Operations below this directory are replayed; `None` for the working directory of the traced command.
    pub directory: Option<&'a Path>,
    /// Keys of the trace.
    pub keys: Keys,
}

/// The figures and findings of a compilation.
#[derive(Debug, Default)]
pub struct Summary {
    /// Bytes of the parts.
    pub sizes: Sizes,
    /// Commands, without the replayer's own.
    pub commands: u64,
    /// Lanes, slots of descriptors, files of the initial state, dependencies.
    pub lanes: u32,
    /// Slots of descriptors.
    pub slots: u32,
    /// Files of the initial state.
    pub initial: usize,
    /// Dependencies between lanes.
    pub dependencies: u64,
    /// Calls that did not become commands, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Findings: missing or altered parts of the trace.
    pub findings: Vec<String>,
}

/// Name in the counts of an index: commands that stand for calls.
pub const COMMANDS: &str = "commands";
const TOO_LONG: &str = "names that are too long";
const TOO_MANY: &str = "threads beyond the most that may be";
/// Maximum number of findings that are kept.
const MAX_FINDINGS: usize = 100;

/// Compiles `trace` into `out`. `progress` receives the number of bytes of the trace that were read.
pub fn compile(
    trace: &Path,
    out: &Path,
    options: &Options<'_>,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary, Error> {
    let mut source = Source::new(trace, options.directory);
    let mut compiler = Compiler {
        output: Output::create(out)?,
        progress,
        lanes: Lanes::default(),
        dependencies: Dependencies::default(),
        slots: Slots::default(),
        state: State::default(),
        directories: HashMap::new(),
        paths: Vec::new(),
        mapped: HashMap::new(),
        context: Pairs::new(),
        order: 0,
        times: (0, 0),
        summary: Summary::default(),
    };
    source.read(&options.keys, &mut compiler)?;
    let (slots, mappings) = source.slots();
    compiler.finish(slots, mappings)
}

struct Compiler<'a> {
    output: Output,
    progress: &'a mut dyn FnMut(u64),
    lanes: Lanes,
    dependencies: Dependencies,
    slots: Slots,
    state: State,
    /// Numbers of directories by path, as long as the path leads there.
    directories: HashMap<Vec<u8>, u32>,
    paths: Vec<Vec<u8>>,
    /// Files of mapping slots.
    mapped: HashMap<u32, u64>,
    context: Pairs,
    order: u64,
    times: (u64, u64),
    summary: Summary,
}

impl Visitor for Compiler<'_> {
    fn context(&mut self, context: &Pairs) {
        if self.context.is_empty() {
            let kept = context.iter().filter(|(name, _)| name != "mount");
            self.context = kept.cloned().collect();
        }
    }

    fn progress(&mut self, bytes: u64) {
        (self.progress)(bytes);
    }

    fn finding(&mut self, finding: &Finding) {
        if self.summary.findings.len() < MAX_FINDINGS {
            self.summary.findings.push(finding.to_string());
        }
    }

    fn see(&mut self, seen: Seen<'_>) -> Result<(), Error> {
        match seen {
            Seen::Blob { hash, data } => self.output.buffer(hash, data),
            Seen::Skipped { why } => {
                *self.summary.skipped.entry(why).or_default() += 1;
                Ok(())
            }
            Seen::Waited { tid, child } => {
                self.lanes.waited(tid, child);
                Ok(())
            }
            Seen::Ended { tid } => {
                self.lanes.end(tid);
                Ok(())
            }
            Seen::Began {
                tid,
                parent,
                inherited,
                at_ns,
            } => self.begin(tid, parent, &inherited, at_ns),
            Seen::Step(step) => self.step(&step),
        }
    }
}

impl Compiler<'_> {
    /// Begins a thread. The parent's lane copies the descriptors, so that it cannot close them before.
    fn begin(
        &mut self,
        tid: i32,
        parent: i32,
        inherited: &[(u32, u32)],
        at_ns: u64,
    ) -> Result<(), Error> {
        for (from, to) in inherited {
            let mut step = Step {
                tid: parent,
                is_replayed: false,
                entered_ns: at_ns,
                left_ns: at_ns,
                result: None,
                call: Call::Inherit,
                targets: Vec::new(),
                numbers: Vec::new(),
                text: None,
                data: None,
                opened: Some(*to),
            };
            step.targets.push(crate::source::Subject {
                name: Name::Slot(*from),
                info: None,
            });
            self.step(&step)?;
        }
        let last = self.lanes.threads.get(&parent).and_then(|it| it.last);
        let thread = self.lanes.threads.entry(tid).or_default();
        thread.waits = last.into_iter().collect();
        thread.last = last;
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        let Some((lane, is_new)) = self.lanes.of(step.tid) else {
            *self.summary.skipped.entry(TOO_MANY).or_default() += 1;
            return Ok(());
        };
        let Some(targets) = self.targets(step) else {
            *self.summary.skipped.entry(TOO_LONG).or_default() += 1;
            return Ok(());
        };
        if self.times.0 == 0 && step.entered_ns > 0 {
            self.times.0 = step.entered_ns;
        }
        self.times.1 = self.times.1.max(step.left_ns);
        if is_new {
            self.enter(lane, step)?;
        }
        let mapped = |slot| self.mapped.get(&slot).copied();
        let uses = uses::of(step, &self.slots, &mapped);
        self.order += 1;
        let issuer = Issuer {
            lane,
            order: self.order,
            entered_ns: step.entered_ns,
            left_ns: step.left_ns,
        };
        let thread = self.lanes.threads.entry(step.tid).or_default();
        let extra = std::mem::take(&mut thread.waits);
        thread.last = Some(Wait {
            lane,
            order: self.order,
        });
        let must = self.dependencies.add(issuer, &uses, &extra);
        let command = Command {
            call: step.call,
            order: self.order,
            start_ns: step.entered_ns.saturating_sub(self.times.0),
            duration_ns: step.left_ns.saturating_sub(step.entered_ns),
            expected: step.result,
            is_racy: must.is_racy,
            waits: must.waits,
            targets,
            numbers: step.numbers.clone(),
            result: step.opened,
            text: step.text.clone().filter(|_| step.call != Call::Readlink),
            data: step
                .data
                .as_ref()
                .filter(|_| step.call.reads() || step.call.writes())
                .map(|data| self.data(step, data)),
        };
        self.observe(step);
        if !step.call.is_own() {
            self.summary.commands += 1;
        }
        self.output.command(lane, &command)
    }

    /// Records that the lane continues with another thread.
    fn enter(&mut self, lane: u32, step: &Step) -> Result<(), Error> {
        self.dependencies.of_new_lane(lane);
        let thread = self.lanes.threads.entry(step.tid).or_default();
        self.order += 1;
        let issuer = Issuer {
            lane,
            order: self.order,
            entered_ns: step.entered_ns,
            left_ns: step.entered_ns,
        };
        let waits = std::mem::take(&mut thread.waits);
        let must = self
            .dependencies
            .add(issuer, &depend::Uses::default(), &waits);
        let command = Command {
            call: Call::Begin,
            order: self.order,
            start_ns: step.entered_ns.saturating_sub(self.times.0),
            duration_ns: 0,
            expected: None,
            is_racy: false,
            waits: must.waits,
            targets: Vec::new(),
            numbers: vec![step.tid.unsigned_abs().into()],
            result: None,
            text: None,
            data: None,
        };
        self.output.command(lane, &command)
    }

    /// The targets of a command; `None` when a name is longer than a file system takes.
    fn targets(&mut self, step: &Step) -> Option<Vec<Target>> {
        let mut targets = Vec::with_capacity(step.targets.len());
        for target in &step.targets {
            targets.push(match &target.name {
                Name::Slot(slot) => Target::Slot(*slot),
                Name::Path { path, slash } => Target::Place(self.place(path, *slash)?),
            });
        }
        Some(targets)
    }

    fn place(&mut self, path: &[u8], slash: bool) -> Option<Place> {
        let directory = uses::parent(path);
        let name = match path.get(directory.len()..).unwrap_or_default() {
            b"" => b".",
            rest => rest.strip_prefix(b"/").unwrap_or(rest),
        };
        if name.len() > MAX_NAME || directory.len() > MAX_PATH || name.contains(&0) {
            return None;
        }
        let mut name = name.to_vec();
        if slash {
            name.push(b'/');
        }
        let directory = match self.directories.get(directory) {
            Some(number) => *number,
            None => {
                let number = self.paths.len() as u32;
                self.directories.insert(directory.to_vec(), number);
                self.paths.push(directory.to_vec());
                number
            }
        };
        Some(Place { directory, name })
    }

    /// Forgets the directories at `path` and below it: another directory may be there from now on.
    fn forget_directories(&mut self, path: &[u8]) {
        self.directories.retain(|directory, _| {
            let rest = directory.strip_prefix(path);
            !rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        });
    }

    fn data(&self, step: &Step, payload: &Payload) -> Data {
        let length = payload.length;
        let found = payload.hashes.iter().map(|hash| self.output.find(hash));
        let content = match found.collect::<Option<Vec<_>>>() {
            _ if payload.hashes.is_empty() => Content::Unknown,
            Some(buffers) => Content::Buffers(buffers),
            None if step.call.reads() => Content::Hashes(payload.hashes.clone()),
            None => Content::Unknown,
        };
        Data { length, content }
    }

    fn finish(self, slots: u32, mappings: u32) -> Result<Summary, Error> {
        let mut summary = self.summary;
        let initial = self.state.finish();
        summary.initial = initial.len();
        summary.lanes = self.lanes.count();
        summary.slots = slots;
        summary.dependencies = self.dependencies.count();
        let mut counts = vec![(COMMANDS.to_owned(), summary.commands)];
        let skipped = summary.skipped.iter();
        counts.extend(skipped.map(|(why, number)| ((*why).to_owned(), *number)));
        let index = Index {
            context: self.context,
            times: self.times,
            slots,
            mappings,
            directories: self.paths,
            lanes: Vec::new(),
            initial,
            counts,
        };
        summary.sizes = self.output.finish(index)?;
        Ok(summary)
    }
}
