//! `goanna-trace record`: captures a command or running processes into one trace, or into several with a configuration file.
//!
//! `tracer.rs` has the options of a tracer, `filters.rs` its output filters, `config.rs` reads configuration files.

mod config;
mod filters;
mod tracer;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use amino_schema::trace::pairs::Pairs;
use clap::Args;
use goanna_tracer::assemble::DataMode;
use goanna_tracer::capture::ptrace::{Ptrace, Recorded, Signals, Target};
use goanna_tracer::capture::{CaptureError, Data, Details, Source, Wanted};
use goanna_tracer::{Error, Event, Pipeline, Sink, context};

use crate::common::{FAILED, Failure, detail, message, message_of_lines};
use goanna_sys::plural::{counted, counted_as};
use tracer::Tracer;

/// Maximum number of bytes of one call's data that are captured.
const MAX_DATA: usize = 16 << 20;
/// The options of a tracer that the command line cannot set beside a configuration file.
const OF_A_TRACER: [&str; 16] = [
    "output",
    "to",
    "filter",
    "assemble",
    "every",
    "fields",
    "data",
    "compress",
    "hmac_key",
    "encrypt_key",
    "sync_writes",
    "buffer",
    "block",
    "rotate",
    "keep",
    "on_error",
];

const RECORD_HELP: &str = "\
Notes:
  SIZE is in bytes; K, M and G multiply by 1024, 1024^2 and 1024^3.
  Traced as an ordinary user, set-uid programs run without their privilege. -p
  requires the right to trace the process (ptrace(2)).
  --mmap and -p stop and restart calls of the programs; see docs/overhead.md
  for the time that tracing takes.

Exit status:
  That of COMMAND; 128+N when signal N killed it. With -p, 0.
  125  the command line is wrong, or tracing failed
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found

Examples:
  goanna-trace -o build.gtr --compress zstd -- make
  goanna-trace --filter 'uid == 0 && op in {create, unlink}' -- ./install.sh
  goanna-trace -p 4711 --rotate 100M --keep 5 -o server.gtr
  goanna-trace --data full -o job.gtr -- ./job.sh      for replayer compile
  goanna-trace --to tcp://logs:7000 -- ./server";

/// Record what a command or running processes do to files (the default subcommand)
#[derive(Debug, Args)]
#[command(
    after_help = RECORD_HELP,
    override_usage = "goanna-trace [record] [options] -- COMMAND [ARG...]\n       goanna-trace [record] [options] -p PID..."
)]
pub struct Record {
    #[command(flatten)]
    tracer: Tracer,
    /// Run several tracers at once, as FILE describes them, instead of the one that the other options describe
    ///
    /// FILE is TOML with a table [[tracer]] for each. A table has filter (as --filter), [tracer.assembly] with driver, every, fields and data, and
    /// [tracer.outputs] with file or to, filters (a list of zstd, zstd:LEVEL, hmac:FILE and encrypt:FILE, in the order in which blocks pass
    /// them), buffer, block, rotate, keep, on-error and sync-writes.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_A_TRACER)]
    config: Option<PathBuf>,
    /// Follow this running process, with all its threads and its later children, until it ends or goanna-trace is interrupted; may be given several times
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Vec<i32>,
    /// Record which pages of files the programs read and write through mappings
    ///
    /// Covers mappings that they make while they are traced. The unit is a page (4 KiB). The time of a record is an upper bound: the page was
    /// touched before it, since a mapping is examined shortly before it ends. Needs Linux 6.7.
    #[arg(long)]
    mmap: bool,
    /// Stop the command's programs at each call, and record none inside of them
    ///
    /// A program that makes many calls gets code in its memory that records most of them without a stop. The records are the same; only /proc/PID/maps and the
    /// time that calls take differ.
    #[arg(long, conflicts_with = "pid")]
    no_fast_path: bool,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Tracers that get the same events.
struct Pipelines(Vec<Pipeline>);

impl Sink for Pipelines {
    fn take(&self, event: &Event) -> Result<(), Error> {
        self.0.iter().try_for_each(|pipeline| pipeline.take(event))
    }

    fn flush(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(Pipeline::flush)
    }
}

impl Record {
    /// Records, and returns the exit status.
    pub fn run(self) -> Result<u8, Failure> {
        let target = if self.pid.is_empty() {
            Target::Command(self.command.clone())
        } else {
            Target::Processes(self.pid.clone())
        };
        if self.pid.is_empty() && self.command.is_empty() {
            let usage = "a command after --, or -p PID, is needed; --help says more";
            return Err(Failure::Usage(usage.into()));
        }
        let context = self.context();
        let tracers = match &self.config {
            Some(path) => config::read(path)?,
            None => vec![self.tracer],
        };
        let mut wanted = wanted(&tracers)?;
        if self.mmap {
            wanted = wanted.with_pages();
        }
        // Before a pipeline starts a thread.
        let signals = Signals::hold().map_err(|why| Failure::Usage(format!("signals: {why}")))?;
        let start = |tracer: &Tracer| tracer.start(context.clone());
        let pipelines = tracers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
        let sink = Pipelines(pipelines);
        let recorded = match self.no_fast_path {
            true => Recorded::Never,
            false => Recorded::default(),
        };
        let ending = Ptrace::new(target)
            .with_signals(signals)
            .recorded(recorded)
            .capture(&wanted, &sink);
        finish(&sink, &tracers)?;
        match ending {
            Ok(ending) => Ok(ending.exit_status()),
            Err(CaptureError::Sink(error)) => Err(error.into()),
            Err(error) => {
                message(&error.to_string());
                Ok(match error {
                    CaptureError::NotFound(_) => 127,
                    CaptureError::CannotExecute { .. } => 126,
                    _ => FAILED,
                })
            }
        }
    }

    /// The pairs of the context block that describe the command.
    fn context(&self) -> Pairs {
        let mut pairs = context::of_machine();
        for arg in &self.command {
            pairs.push(("command".into(), arg.as_bytes().to_vec()));
        }
        if let Ok(directory) = std::env::current_dir() {
            let directory = directory.as_os_str().as_bytes().to_vec();
            pairs.push(("directory".into(), directory));
        }
        for pid in &self.pid {
            pairs.push(("attached".into(), pid.to_string().into_bytes()));
        }
        pairs
    }
}

/// The union of the events and facts that the tracers need from the capture.
fn wanted(tracers: &[Tracer]) -> Result<Wanted, Failure> {
    let mut filters = Vec::new();
    let mut data = Data::None;
    let mut details = Details {
        paths: false,
        files: false,
    };
    for tracer in tracers {
        let filter = tracer.select().map_err(|text| {
            message_of_lines(&text);
            Failure::Reported
        })?;
        filters.push(Arc::new(filter));
        if tracer.data != DataMode::None {
            data = Data::UpTo(MAX_DATA);
        }
        let own = tracer.details();
        details.paths |= own.paths;
        details.files |= own.files;
    }
    Ok(Wanted::new(filters, data).with_details(details))
}

/// Ends all traces, even when one of them fails.
fn finish(sink: &Pipelines, tracers: &[Tracer]) -> Result<(), Error> {
    let ended = sink.0.iter().map(Pipeline::finish).collect::<Vec<_>>();
    for (summary, tracer) in ended.into_iter().zip(tracers) {
        let summary = summary?;
        let name = match &tracer.to {
            Some(address) => address.to_string(),
            None => tracer.output.display().to_string(),
        };
        if summary.dropped > 0 {
            let missing = counted_as(summary.dropped, "record is", "records are");
            message(&format!("{missing} missing in the trace"));
        }
        detail(&format!(
            "{name}: {}, {}",
            counted(summary.records, "record"),
            counted(summary.bytes, "byte")
        ));
    }
    Ok(())
}
