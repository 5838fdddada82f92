//! `replayer run`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use goanna_replayer::run::{Options, Reads, Speed, Until, Verify, run, svg};
use goanna_tracer::select::Filter;

use crate::common::{DIFFERENT, Failure, print};

/// Replay a compiled trace below a directory
///
/// Nothing outside of the directory is touched, even if the file is hostile. Exits 0 when every result was that of the trace, 1 when some
/// were not, 125 when the replay could not run.
#[derive(Debug, Args)]
pub struct Run {
    /// The compiled replay
    replay: PathBuf,
    /// Replay below DIR
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Issue calls as fast as possible (afap), at their times (on-time), or this many times as fast (a factor)
    #[arg(long, value_name = "SPEED", default_value = "afap")]
    speed: Speed,
    /// Perform all reads (now), only those that the page cache does not have (cached), or none (none)
    #[arg(long, value_name = "WHICH", default_value = "now")]
    reads: Reads,
    /// Check nothing (off), report differences (warn), or stop at the first one (stop)
    #[arg(long, value_name = "POLICY", default_value = "warn")]
    verify: Verify,
    /// Stop before calls this many seconds after the first one (1.5s), or after the command with this number
    #[arg(long, value_name = "TIME|N")]
    until: Option<Until>,
    /// Replay only the calls that FILTER selects, and those that they depend on
    ///
    /// FILTER is one of goanna-trace, as 'path ~ "/d/**" && op == write'. Paths begin at the root of the replay: /d/f. The compiled replay
    /// does not have uid, gid, pid, sid and comm, and does not distinguish the forms of a call, such as open and openat.
    #[arg(long, value_name = "FILTER")]
    only: Option<String>,
    /// Write the report to FILE as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draw how exactly calls were issued into FILE as SVG; not with afap, which issues no call at a time
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
