//! `goanna-trace record`: captures a command or running processes into a trace.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use goanna_tracer::assemble::DataMode;
use goanna_tracer::assemble::{
    Aggregate, Assembly, Groups, RotateWhen, StreamAssembly, WriterOptions,
};
use goanna_tracer::capture::ptrace::{Ptrace, Signals, Target};
use goanna_tracer::capture::{CaptureError, Data, Details, Source, Wanted};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{
    Address, FileOptions, FileOutput, OnFailure, Output, Rotation, SocketOptions, SocketOutput,
    StreamOutput,
};
use goanna_tracer::select::Filter;
use goanna_tracer::{OutputFilter, Pipeline, PipelineOptions, context};

use crate::common::{FAILED, Failure, message};

/// Bytes of one call's data that are captured at most.
const MAX_DATA: usize = 16 << 20;
/// Blocks that may wait for the thread that compresses, encrypts and writes them; then the programs wait.
const QUEUE: usize = 16;

/// Record what a command, or running processes, do to files; the subcommand that is meant where none is given
///
/// The exit status is the command's; 128 and the signal's number where a signal has killed it. As an ordinary user, set-uid
/// programs run without their privilege.
#[derive(Debug, Args)]
#[command(
    override_usage = "goanna-trace [record] [options] -- COMMAND [ARG...]\n       goanna-trace [record] [options] -p PID..."
)]
pub struct Record {
    /// Write the trace to FILE; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "trace.gtr")]
    output: PathBuf,
    /// Send the trace to goanna-trace listen at tcp://HOST:PORT or unix:PATH instead of writing a file
    ///
    /// A connection that breaks is made again, and nothing is lost. When the receiver stays away, 64 MiB of the trace wait for it; then each
    /// block waits 10 s at most, and --on-error says what happens.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["output", "rotate", "keep", "buffer", "sync_writes"])]
    to: Option<Address>,
    /// Follow this running process, with all its threads and its later children, until it ends or an interrupt; repeatable
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Vec<i32>,
    /// Record only what the expression selects, as '(uid == 0 && name == "foo") || (gid == 4 && op == open)'
    ///
    /// Fields: uid, gid, pid, tid, sid, comm, name, ext, path, op, call, ret, size. Comparisons: == != < <= > >=, ~ and !~ with a pattern,
    /// in {...}. Combined by and, or, not, parentheses.
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
    /// Record each call (stream), or counters and histograms (aggregate)
    #[arg(long, value_name = "HOW", value_parser = ["stream", "aggregate"], default_value = "stream")]
    assemble: String,
    /// With aggregate, write a snapshot of the counters this often
    #[arg(long, value_name = "SECONDS")]
    every: Option<u64>,
    /// Field groups of a stream: time, process, user, arguments, paths, files, results, or all
    #[arg(long, value_name = "LIST", default_value = "all")]
    fields: Groups,
    /// Of data that is read and written, record the length (none), hashes (hash), or all (full)
    #[arg(long, value_name = "MODE", default_value = "none")]
    data: DataMode,
    /// Record which pages of files the programs read and write through mappings
    ///
    /// Of mappings that they make while they are traced. The granularity is a page (4 KiB). When a page was touched is known as a time before which
    /// that happened: the mapping is looked at before it ends. Needs Linux 6.7.
    #[arg(long)]
    mmap: bool,
    /// Compress blocks: zstd or zstd:LEVEL
    #[arg(long, value_name = "METHOD", value_parser = compression)]
    compress: Option<i32>,
    /// Authenticate blocks by HMAC-SHA-256 with the key in FILE (32 bytes, or 64 hexadecimal digits)
    #[arg(long, value_name = "FILE")]
    hmac_key: Option<PathBuf>,
    /// Encrypt blocks by AES-256-GCM with the key in FILE
    #[arg(long, value_name = "FILE")]
    encrypt_key: Option<PathBuf>,
    /// Wait after each write until the disk has it
    #[arg(long)]
    sync_writes: bool,
    /// Collect this much before a write
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffer: Option<u64>,
    /// Size of blocks
    #[arg(long, value_name = "SIZE", value_parser = size)]
    block: Option<u64>,
    /// Begin a new file after this size (10M) or time (60s)
    #[arg(long, value_name = "SIZE|SECONDS", value_parser = rotation)]
    rotate: Option<RotateWhen>,
    /// Of rotated files, keep only the last N
    #[arg(long, value_name = "N", requires = "rotate")]
    keep: Option<usize>,
    /// When the trace cannot be written, as on a full disk: let the command continue (continue) or end it (stop)
    #[arg(long, value_name = "WHAT", value_parser = ["continue", "stop"], default_value = "continue")]
    on_error: String,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Record {
    /// Records; the exit status.
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
        let filter = Filter::parse(&self.filter).map_err(|error| {
            message(&format!("--filter: {error}"));
            Failure::Reported
        })?;
        let filter = Arc::new(filter);
        let data = match self.data {
            DataMode::None => Data::None,
            DataMode::Hash | DataMode::Full => Data::UpTo(MAX_DATA),
        };
        let details = match self.assemble.as_str() {
            "aggregate" => Details::default(),
            _ => Details {
                paths: self.fields.paths,
                files: self.fields.files,
            },
        };
        let mut wanted = Wanted::new(vec![filter], data).with_details(details);
        if self.mmap {
            wanted = wanted.with_pages();
        }
        // Before the pipeline starts a thread.
        let signals = Signals::hold().map_err(|why| Failure::Usage(format!("signals: {why}")))?;
        let pipeline = self.pipeline()?;
        let ending = Ptrace::new(target)
            .with_signals(signals)
            .capture(&wanted, &pipeline);
        let summary = pipeline.finish()?;
        if summary.dropped > 0 {
            message(&format!(
                "{} records are missing in the trace",
                summary.dropped
            ));
        }
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

    fn pipeline(&self) -> Result<Pipeline, Failure> {
        let assembly: Box<dyn Assembly> = if self.assemble == "aggregate" {
            let period = self
                .every
                .map(|seconds| seconds.saturating_mul(1_000_000_000));
            Box::new(Aggregate::new(period))
        } else {
            Box::new(StreamAssembly::new(self.fields, self.data))
        };
        let mut filters = Vec::new();
        if !self.sync_writes {
            filters.push(OutputFilter::Asynchronous(QUEUE));
        }
        filters.extend(self.compress.map(OutputFilter::Zstd));
        if let Some(key) = &self.encrypt_key {
            filters.push(OutputFilter::Encrypt(Key::read(key)?));
        }
        if let Some(key) = &self.hmac_key {
            filters.push(OutputFilter::Authenticate(Key::read(key)?));
        }
        let mut pairs = context::of_machine();
        for arg in &self.command {
            pairs.push(("command".into(), arg.as_bytes().to_vec()));
        }
        if let Ok(directory) = std::env::current_dir() {
            pairs.push((
                "directory".into(),
                directory.as_os_str().as_bytes().to_vec(),
            ));
        }
        for pid in &self.pid {
            pairs.push(("attached".into(), pid.to_string().into_bytes()));
        }
        let select = match self.filter.trim() {
            "" => None,
            text => Filter::parse(text).ok(),
        };
        let options = PipelineOptions {
            writer: WriterOptions {
                block: self.block.and_then(|bytes| usize::try_from(bytes).ok()),
                rotate: self.rotate.unwrap_or_default(),
                ..WriterOptions::default()
            },
            filters,
            on_failure: match self.on_error.as_str() {
                "stop" => OnFailure::Stop,
                _ => OnFailure::Continue,
            },
            report: Box::new(|error| {
                message(&format!("{error}; the trace will say what is missing"))
            }),
            select,
            context: pairs,
        };
        Ok(Pipeline::start(options, assembly, self.driver()?)?)
    }

    fn driver(&self) -> Result<Box<dyn Output>, Failure> {
        if let Some(address) = &self.to {
            let options = SocketOptions::default();
            return Ok(Box::new(SocketOutput::new(address.clone(), options)));
        }
        if self.output == Path::new("-") {
            if io::stdout().is_terminal() {
                let why = "a trace is not for a terminal; -o FILE names a file";
                return Err(Failure::Usage(why.into()));
            }
            return Ok(Box::new(StreamOutput::new("", io::stdout())));
        }
        let defaults = FileOptions::default();
        let buffer = self.buffer.and_then(|bytes| usize::try_from(bytes).ok());
        let options = FileOptions {
            buffer: buffer.unwrap_or(defaults.buffer),
            sync: self.sync_writes,
            rotation: self.rotate.map(|_| Rotation { keep: self.keep }),
        };
        Ok(Box::new(FileOutput::new(&self.output, options)))
    }
}

/// A number of bytes, with K, M or G.
fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K')) => (&text[..at], 10),
        Some((at, 'M')) => (&text[..at], 20),
        Some((at, 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| "a number of bytes is needed, as 64K, 10M or 1G".into())
}

fn rotation(text: &str) -> Result<RotateWhen, String> {
    let mut when = RotateWhen::default();
    match text.strip_suffix('s').map(str::parse) {
        Some(Ok(seconds)) => when.after = Some(Duration::from_secs(seconds)),
        Some(Err(_)) => return Err("a number of seconds is needed before the s".into()),
        None => when.bytes = Some(size(text)?),
    }
    Ok(when)
}

fn compression(text: &str) -> Result<i32, String> {
    let level = match text.split_once(':') {
        None => "3",
        Some((_, level)) => level,
    };
    let is_zstd = text.split(':').next() == Some("zstd");
    let level = level.parse().ok().filter(|level| (1..=22).contains(level));
    level
        .filter(|_| is_zstd)
        .ok_or_else(|| "zstd, or zstd:LEVEL with a level from 1 to 22, is known".into())
}
