//! `--trace`: an observer that passes the calls that it sees to the trace pipeline.

use std::env::current_dir;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_monitor::Reporter;
use goanna_monitor::observe::{Ended, Observer};
use goanna_sys::procfs;
use goanna_syscalls::{Subject, SysnoSet};
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::event::Call;
use goanna_tracer::output::StreamOutput;
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink, context};

use crate::Error;

/// Maximum number of blocks that wait for the thread that compresses and writes them.
const QUEUE: usize = 64;
/// Level of zstd.
const LEVEL: i32 = 3;

/// The file that receives a trace.
#[derive(Debug)]
pub struct TraceFile {
    /// Its name in messages.
    pub name: PathBuf,
    /// The file, open for writing.
    pub file: File,
    /// The command that is traced.
    pub argv: Vec<OsString>,
    /// The working directory that the command starts in: relative paths in the trace begin there. Empty when it is not known.
    pub directory: PathBuf,
}

impl TraceFile {
    /// Creates the file `name`, or truncates it, for a trace of the command `argv`. Records this process's working directory.
    pub fn create(name: &Path, argv: &[OsString]) -> Result<Self, Error> {
        let file = File::create(name).map_err(|why| Error::host(name, why))?;
        Ok(Self {
            name: name.to_owned(),
            file,
            argv: argv.to_vec(),
            directory: current_dir().unwrap_or_default(),
        })
    }
}

/// The calls in a trace: those on files, descriptors, mappings, sockets, the working directory and processes.
pub fn interest() -> SysnoSet {
    SysnoSet::of(goanna_syscalls::Signature::concerns_files)
}

/// Writes a trace of a run.
pub struct Recorder {
    pipeline: Pipeline,
    fail: Reporter,
    has_failed: AtomicBool,
}

impl Recorder {
    /// Begins a trace. `fail` gets the first failure, after which the run continues.
    pub fn start(trace: TraceFile, fail: Reporter) -> Result<Self, Error> {
        let mut context = context::of_machine();
        for arg in trace.argv {
            context.push(("command".to_owned(), arg.into_vec()));
        }
        let directory = trace.directory.into_os_string().into_vec();
        if !directory.is_empty() {
            context.push(("directory".to_owned(), directory));
        }
        let report = fail.clone();
        let options = PipelineOptions {
            filters: vec![OutputFilter::Asynchronous(QUEUE), OutputFilter::Zstd(LEVEL)],
            report: Box::new(move |why| report.line(&format!("the trace is incomplete: {why}"))),
            context,
            ..PipelineOptions::default()
        };
        let assembly = StreamAssembly::new(Groups::default(), DataMode::None);
        let output = StreamOutput::new(trace.name, trace.file);
        Ok(Self {
            pipeline: Pipeline::start(options, Box::new(assembly), Box::new(output))
                .map_err(Error::Trace)?,
            fail,
            has_failed: AtomicBool::new(false),
        })
    }

    /// Ends the trace. If records could not be written, `fail` has received that already.
    pub fn finish(&self) -> Result<(), Error> {
        self.pipeline.finish().map(drop).map_err(Error::Trace)
    }

    fn take(&self, event: Event) {
        if let Err(why) = self.pipeline.take(&event)
            && !self.has_failed.swap(true, Ordering::Relaxed)
        {
            self.fail.line(&format!("the trace is incomplete: {why}"));
        }
    }
}

impl Observer for Recorder {
    fn interest(&self) -> SysnoSet {
        interest()
    }

    fn exit(&self, call: &Ended<'_>) {
        self.take(Event::Call(Box::new(Call {
            subject: call.subject.clone(),
            call: call.call.clone(),
            entered_ns: call.entered_ns,
            outcome: call.outcome.copied(),
            files: call.files.to_vec(),
        })));
    }

    fn began(&self, subject: &Subject, parent: i32, at_ns: u64) {
        // Children inherit their parents' masks.
        let status = (parent == 0).then(|| procfs::status(subject.tid));
        let status = status.and_then(Result::ok);
        self.take(Event::Began {
            subject: subject.clone(),
            parent,
            umask: status.map(|status| status.umask),
            at_ns,
        });
    }

    fn executed(&self, subject: &Subject, program: &[u8], at_ns: u64) {
        self.take(Event::Executed {
            subject: subject.clone(),
            program: program.into(),
            at_ns,
        });
    }

    fn ended(&self, subject: &Subject, status: i32, at_ns: u64) {
        let subject = subject.clone();
        self.take(Event::Ended {
            subject,
            status,
            at_ns,
        });
    }
}
