//! A tracer: its filter, assembly and outputs, as the command line or a section of a configuration file describes them, and the pipeline
//! made of them.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use amino_schema::trace::pairs::Pairs;
use clap::Args;
use goanna_tracer::assemble::DataMode;
use goanna_tracer::assemble::{
    Aggregate, Assembly, Groups, RotateWhen, StreamAssembly, WriterOptions,
};
use goanna_tracer::capture::Details;
use goanna_tracer::output::{
    Address, FileOptions, FileOutput, OnFailure, Output, Rotation, SocketOptions, SocketOutput,
    StreamOutput,
};
use goanna_tracer::select::Filter;
use goanna_tracer::{OutputFilter, Pipeline, PipelineOptions};

use super::filters::OutputFilters;
use crate::common::{Failure, message};

/// Maximum number of blocks that wait for the thread which compresses, encrypts and writes them. When there are as many, the traced programs
/// wait.
const QUEUE: usize = 16;

/// The options of one tracer.
#[derive(Debug, Args)]
pub struct Tracer {
    /// Write the trace to FILE; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "trace.gtr")]
    pub output: PathBuf,
    /// Send the trace to goanna-trace listen at tcp://HOST:PORT or unix:PATH instead of writing a file
    ///
    /// When the connection breaks, goanna-trace connects again and sends what the receiver does not have yet. Up to 64 MiB of the trace wait for
    /// a receiver that is slow or gone; then each block waits at most 10 s, and --on-error decides what happens.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["output", "rotate", "keep", "buffer", "sync_writes"])]
    pub to: Option<Address>,
    /// Record only the calls that the expression selects, such as '(uid == 0 && name == "foo") || (gid == 4 && op == open)'
    ///
    /// Fields: uid, gid, pid, tid, sid, comm, name, ext, path, op, call, ret, size. Comparisons: == != < <= > >=, ~ and !~ with a pattern,
    /// in {...}. Combined by and, or, not, parentheses.
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    pub filter: String,
    /// Record each call (stream), or counters and histograms (aggregate)
    #[arg(long, value_name = "HOW", value_parser = ["stream", "aggregate"], default_value = "stream")]
    assemble: String,
    /// With aggregate, write a snapshot of the counters each SECONDS seconds [default: only at the end]
    #[arg(long, value_name = "SECONDS")]
    every: Option<u64>,
    /// Field groups of a stream: time, process, user, arguments, paths, files, results, or all
    #[arg(long, value_name = "LIST", default_value = "all")]
    fields: Groups,
    /// Record of data that is read and written: its length (none), also its hashes (hash), or all of it (full)
    #[arg(long, value_name = "MODE", default_value = "none")]
    pub data: DataMode,
    #[command(flatten)]
    output_filters: OutputFilters,
    /// Sync the file to the disk after each write
    #[arg(long)]
    sync_writes: bool,
    /// Collect this many bytes before a write; 0 writes each block at once [default: 256K]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    buffer: Option<u64>,
    /// Bytes of a block before compression [default: 512K with zstd, else at least 16K]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    block: Option<u64>,
    /// Begin a new file after this size (10M) or time (60s)
    #[arg(long, value_name = "SIZE|SECONDS", value_parser = rotation)]
    rotate: Option<RotateWhen>,
    /// Of rotated files, keep only the last N
    #[arg(long, value_name = "N", requires = "rotate")]
    keep: Option<usize>,
    /// If the trace cannot be written, for example to a full disk: let the command continue, or stop (kill) it
    #[arg(long, value_name = "WHAT", value_parser = ["continue", "stop"], default_value = "continue")]
    on_error: String,
}

impl Tracer {
    /// The input filter; an error as lines for the user, with the column.
    pub fn select(&self) -> Result<Filter, String> {
        Filter::parse(&self.filter).map_err(|error| format!("--filter: {error}"))
    }

    /// The facts about files that the tracer needs.
    pub fn details(&self) -> Details {
        match self.assemble.as_str() {
            "aggregate" => Details::default(),
            _ => Details {
                paths: self.fields.paths,
                files: self.fields.files,
            },
        }
    }

    /// Begins the tracer's trace. `context` describes the command.
    pub fn start(&self, context: Pairs) -> Result<Pipeline, Failure> {
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
        filters.extend(self.output_filters.read()?);
        // Also without an expression: the capture may see calls that only another tracer has asked for.
        let select = Filter::parse(&self.filter).ok();
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
            context,
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
