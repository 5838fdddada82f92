//! `replayer compile`.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use goanna_replayer::compile::{Options, Summary, compile};

use crate::common::{Failure, KeyFiles, bytes, message, print, progress, require_different};

const COMPILE_HELP: &str = "\
Exit status:
  0    success
  125  the command line is wrong, or replayer failed

Examples:
  replayer compile job.gtr -o job.grp
  replayer compile --directory /srv/data server.gtr -o server.grp";

/// Compile a trace into a file that can be replayed
///
/// The replay has the operations of the traced programs below one directory; all others are only counted. Where the trace has no data, or
/// only hashes, writes use generated content.
#[derive(Debug, Args)]
#[command(after_help = COMPILE_HELP)]
pub struct Compile {
    /// The trace
    trace: PathBuf,
    /// Write the compiled replay to OUT
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Replay what is below DIR [default: the working directory of the traced command]
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyFiles,
}

impl Compile {
    pub fn run(self) -> Result<u8, Failure> {
        require_different(&self.trace, &self.output)?;
        let started = Instant::now();
        let length = std::fs::metadata(&self.trace).map_or(0, |it| it.len());
        let bar = progress(length);
        let options = Options {
            directory: self.directory.as_deref(),
            keys: self.keys.read()?,
        };
        let result = compile(&self.trace, &self.output, &options, &mut |at| {
            bar.set_position(at);
        });
        bar.finish_and_clear();
        let summary = result?;
        for finding in &summary.findings {
            message(&format!("{}: {finding}", self.trace.display()));
        }
        let seconds = started.elapsed().as_secs_f64().max(1e-9);
        print(&text(&summary))?;
        let rate = length as f64 / 1_048_576.0 / seconds;
        print(&format!(
            "compiled in {seconds:.2} s, {rate:.1} MiB of trace a second"
        ))?;
        Ok(0)
    }
}

fn text(summary: &Summary) -> String {
    let sizes = summary.sizes;
    let mut lines = vec![
        format!(
            "commands        {} ({} calls, {} lanes, {} dependencies)",
            bytes(sizes.commands),
            summary.commands,
            summary.lanes,
            summary.dependencies
        ),
        format!(
            "resource table  {} ({} descriptors, {} initial files)",
            bytes(sizes.index),
            summary.slots,
            summary.initial
        ),
        format!("buffers         {}", bytes(sizes.buffers)),
    ];
    for (why, number) in &summary.skipped {
        lines.push(format!("not replayed    {number} {why}"));
    }
    lines.join("\n")
}
