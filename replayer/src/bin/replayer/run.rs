//! `replayer run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use goanna_replayer::run::{Options, Reads, Speed, Until, Verify, run, svg};
use goanna_tracer::select::Filter;

use crate::common::{DIFFERENT, Failure, print};

const RUN_HELP: &str = "\
Exit status:
  0    every result was that of the trace, or --verify off
  1    some results differ; stdout lists each kind: call, file, expected, got
  125  the command line is wrong, or the replay could not run

Examples:
  replayer run job.grp --root copy
  replayer run --speed on-time --plot accuracy.svg job.grp --root copy
  replayer run --only 'path ~ \"/src/**\"' job.grp --root copy";

/// Replay a compiled trace below a directory
///
/// Nothing outside of the directory is touched, even if the file is hostile.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP)]
pub struct Run {
    /// The compiled replay
    replay: PathBuf,
    /// Replay below DIR
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Issue calls as fast as possible (afap), at the times of the trace (on-time), or FACTOR times as fast
    #[arg(long, value_name = "SPEED", default_value = "afap")]
    speed: Speed,
    /// Perform all reads (now), only those that the page cache did not have within the last millisecond (cached), or none (none)
    #[arg(long, value_name = "WHICH", default_value = "now")]
    reads: Reads,
    /// Results: check none (off), report differences (warn), or stop at the first difference (stop)
    #[arg(long, value_name = "POLICY", default_value = "warn")]
    verify: Verify,
    /// Stop before the first call that began TIME (1.5s) or more after the first one in the trace, or after command number N
    #[arg(long, value_name = "TIME|N")]
    until: Option<Until>,
    /// Replay only the calls that FILTER selects, and those that they depend on
    ///
    /// FILTER is an expression as for goanna-trace --filter, such as 'path ~ "/d/**" && op == write'. Paths begin at the root of the replay: /d/f. The compiled replay
    /// does not have uid, gid, pid, sid and comm, and does not distinguish the forms of a call, such as open and openat.
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Write the report to FILE, as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write an SVG plot of how late calls were issued to FILE; not with --speed afap, where calls have no scheduled time
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl Run {
    pub fn run(self) -> Result<u8, Failure> {
        if self.plot.is_some() && self.speed == Speed::Fast {
            let why = "--plot needs --speed on-time or a factor: afap issues no call at a time";
            return Err(Failure(why.into()));
        }
        let only = self.only.as_deref().map(filter).transpose()?;
        let options = Options {
            root: self.root,
            speed: self.speed,
            reads: self.reads,
            verify: self.verify,
            until: self.until,
            only,
        };
        let report = run(&self.replay, options)?;
        if let Some(path) = &self.report {
            save(path, &format!("{:#}\n", report.json()))?;
        }
        if let (Some(path), Some(accuracy)) = (&self.plot, &report.accuracy) {
            save(path, &svg(accuracy))?;
        }
        print(&report.text())?;
        Ok(if report.different() == 0 {
            0
        } else {
            DIFFERENT
        })
    }
}

/// Parses a filter. Refuses fields that a compiled replay does not have.
fn filter(text: &str) -> Result<Arc<Filter>, Failure> {
    let filter = Filter::parse(text).map_err(|why| Failure(format!("--only: {why}")))?;
    if filter.asks_for_process() {
        let why = "--only: a compiled replay does not have uid, gid, pid, sid and comm";
        return Err(Failure(why.into()));
    }
    Ok(Arc::new(filter))
}

fn save(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|why| Failure(format!("{}: {why}", path.display())))
}
