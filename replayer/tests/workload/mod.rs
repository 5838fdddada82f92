//! Workloads: a program is traced natively, its trace is compiled and replayed on an empty directory, and the replay is traced, too.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test uses a part, and fails by panicking"
)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use goanna_replayer::compare::{Comparison, Side, compare};
use goanna_replayer::compile::{Options, Summary, compile};
use goanna_replayer::prepare::prepare;
use goanna_skip::{Facility, skip};
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::capture::ptrace::{Ptrace, Target};
use goanna_tracer::capture::{Data, Source, Wanted};
use goanna_tracer::output::{FileOptions, FileOutput, OnFailure};
use goanna_tracer::read::Keys;
use goanna_tracer::select::Filter;
use goanna_tracer::{Error, Event, Pipeline, PipelineOptions, Sink, context};

/// The binary under test.
pub const REPLAYER: &str = env!("CARGO_BIN_EXE_replayer");

/// Whether a program is installed; records that the calling test is left out where it is not.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skip(Facility::Program, format!("{program} is not installed"));
    }
    found
}

/// Compiles a C program: `tests/programs/NAME.c`, or one of the tracer's tests.
pub fn program(name: &str) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = manifest.join(format!("tests/programs/{name}.c"));
    let tracer = manifest.join(format!("../tracer/tests/programs/{name}.c"));
    let source = if own.exists() { own } else { tracer };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&directory).unwrap();
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let program = directory.join(format!("{name}-{}-{number}", std::process::id()));
    let status = Command::new("cc")
        .args(["-O1", "-pthread", "-Wno-unused-result", "-o"])
        .args([&program, &source])
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// File mode creation mask of the commands that are recorded: not the usual one, so that a replay has to know it.
const UMASK: u32 = 0o027;

/// Records `command`, run in `directory`, into `trace`.
pub fn record(trace: &Path, directory: &Path, command: &[&str], data: DataMode) {
    record_groups(trace, directory, command, data, Groups::default());
}

/// Records these groups of fields.
pub fn record_groups(
    trace: &Path,
    directory: &Path,
    command: &[&str],
    data: DataMode,
    groups: Groups,
) {
    record_altered(trace, directory, command, (data, groups), |_| true);
}

/// Records the events as `alter` leaves them: a trace with changed records. An event for which it returns false is left out.
pub fn record_altered(
    trace: &Path,
    directory: &Path,
    command: &[&str],
    what: (DataMode, Groups),
    alter: impl Fn(&mut Event) -> bool + Send + Sync,
) {
    // The command inherits the mask of the thread that starts it.
    let ended = thread::scope(|scope| {
        let capture = || {
            goanna_sys::replay::own_directory().unwrap();
            goanna_sys::replay::umask(UMASK).unwrap();
            capture(trace, directory, command, what, alter)
        };
        scope.spawn(capture).join()
    });
    assert_eq!(ended.unwrap(), 0, "{command:?}");
}

/// Records a command, and returns its exit status.
fn capture(
    trace: &Path,
    directory: &Path,
    command: &[&str],
    (data, groups): (DataMode, Groups),
    alter: impl Fn(&mut Event) -> bool + Send + Sync,
) -> i32 {
    // The tracer has one working directory for all tests, so that a shell changes it.
    let mut words: Vec<OsString> = ["sh", "-c", "cd \"$0\" && exec \"$@\""]
        .map(Into::into)
        .into();
    words.push(directory.into());
    words.extend(command.iter().map(Into::into));
    let filter = Arc::new(Filter::parse("").unwrap());
    let captured = match data {
        DataMode::None => Data::None,
        DataMode::Hash | DataMode::Full => Data::UpTo(16 << 20),
    };
    let wanted = Wanted::new(vec![filter], captured);
    let mut pairs = context::of_machine();
    pairs.push((
        "directory".into(),
        directory.as_os_str().as_bytes().to_vec(),
    ));
    let options = PipelineOptions {
        writer: WriterOptions::default(),
        filters: Vec::new(),
        on_failure: OnFailure::Stop,
        report: Box::new(|error| panic!("{error}")),
        select: None,
        context: pairs,
    };
    let assembly = Box::new(StreamAssembly::new(groups, data));
    let output = Box::new(FileOutput::new(trace, FileOptions::default()));
    let pipeline = Pipeline::start(options, assembly, output).unwrap();
    let sink = Altering {
        alter,
        pipeline: &pipeline,
    };
    let ending = Ptrace::new(Target::Command(words)).capture(&wanted, &sink);
    pipeline.finish().unwrap();
    ending.unwrap().exit_status().into()
}

/// Passes events on as `alter` leaves them.
struct Altering<'a, F> {
    alter: F,
    pipeline: &'a Pipeline,
}

impl<F: Fn(&mut Event) -> bool + Send + Sync> Sink for Altering<'_, F> {
    fn take(&self, event: &Event) -> Result<(), Error> {
        let mut event = event.clone();
        match (self.alter)(&mut event) {
            true => self.pipeline.take(&event),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<(), Error> {
        self.pipeline.flush()
    }
}

/// A workload that was recorded and compiled.
pub struct Workload {
    pub scratch: tempfile::TempDir,
    pub summary: Summary,
}

impl Workload {
    /// Records and compiles. `setup` fills the directory before.
    pub fn new(command: &[&str], data: DataMode, setup: impl FnOnce(&Path)) -> Self {
        Self::with_groups(command, data, Groups::default(), setup)
    }

    /// Records these groups of fields.
    pub fn with_groups(
        command: &[&str],
        data: DataMode,
        groups: Groups,
        setup: impl FnOnce(&Path),
    ) -> Self {
        Self::altered(command, (data, groups), setup, |_| true)
    }

    /// Records the events as `alter` leaves them.
    pub fn altered(
        command: &[&str],
        what: (DataMode, Groups),
        setup: impl FnOnce(&Path),
        alter: impl Fn(&mut Event) -> bool + Send + Sync,
    ) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let original = scratch.path().join("original");
        fs::create_dir(&original).unwrap();
        fs::create_dir(scratch.path().join("replayed")).unwrap();
        setup(&original);
        let trace = scratch.path().join("trace");
        record_altered(&trace, &original, command, what, alter);
        let out = scratch.path().join("compiled");
        let summary = compile(&trace, &out, &Options::default(), &mut |_| {}).unwrap();
        assert_eq!(summary.findings, Vec::<String>::new());
        Self { scratch, summary }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes the initial state and replays, while another trace is recorded. The replay must give every result of the trace.
    pub fn replay_traced(&self, options: &[&str]) {
        prepare(&self.path("compiled"), &self.path("replayed"), None).unwrap();
        let compiled = self.path("compiled");
        let mut command = vec![REPLAYER, "run", compiled.to_str().unwrap(), "--root", "."];
        command.extend(options);
        record(
            &self.path("again"),
            &self.path("replayed"),
            &command,
            DataMode::Full,
        );
    }

    /// Replays with these options.
    pub fn replay(&self, options: &[&str]) -> Output {
        Command::new(REPLAYER)
            .arg("run")
            .arg(self.path("compiled"))
            .arg("--root")
            .arg(self.path("replayed"))
            .args(options)
            .output()
            .unwrap()
    }

    pub fn compare(&self) -> Comparison {
        compare_traces(&self.path("trace"), &self.path("again"))
    }

    /// The whole test of fidelity: trees, operations and their counts are equal.
    pub fn assert_faithful(&self) {
        self.replay_traced(&[]);
        self.assert_same_trees();
        let comparison = self.compare();
        assert!(comparison.is_equal(), "{comparison:#?}");
        for (call, (first, second)) in &comparison.counts {
            assert_eq!(first, second, "{call}");
        }
        assert!(!comparison.counts.is_empty());
    }

    /// Replays what has been prepared: every result is that of the trace.
    pub fn assert_faithful_results(&self) {
        let output = self.replay(&[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }

    pub fn assert_same_trees(&self) {
        let (original, replayed) = (tree(&self.path("original")), tree(&self.path("replayed")));
        assert_eq!(original, replayed);
    }
}

pub fn compare_traces(first: &Path, second: &Path) -> Comparison {
    let keys = Keys::default();
    let side = |trace| Side {
        trace,
        directory: None,
        keys: &keys,
    };
    compare(side(first), side(second)).unwrap()
}

/// The content of a tree: type, permissions, links, content or target, and extended attributes of each file.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_owned();
            let content = if metadata.is_symlink() {
                format!("link to {:?}", fs::read_link(&path).unwrap())
            } else if metadata.is_dir() {
                pending.push(path.clone());
                "directory".into()
            } else if metadata.is_file() {
                let content = fs::read(&path).unwrap();
                format!("{} bytes, {:08x}", content.len(), crc32c::crc32c(&content))
            } else {
                format!("{:?}", metadata.file_type())
            };
            let mode = metadata.permissions().mode();
            let names = if metadata.is_dir() {
                1
            } else {
                metadata.nlink()
            };
            let attributes = attributes(&path);
            files.insert(name, format!("{mode:o} {names} {content} {attributes}"));
        }
    }
    files
}

fn attributes(path: &Path) -> String {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
        let name = String::from_utf8_lossy(name).into_owned();
        found.push(format!("{name}={:?}", &value[..length]));
    }
    found.sort();
    found.join(" ")
}
