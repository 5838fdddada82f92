//! `replayer run`.

use std::path::PathBuf;

use clap::Args;
use goanna_replayer::run::{Options, Reads, Speed, Until, Verify, run};

use crate::common::{DIFFERENT, Failure, print};

/// Replay a compiled trace below a directory
///
/// Nothing outside of the directory is touched, whatever the trace says. The exit status is 0 when every result was that of the trace, 1 when
/// some were not, 125 when the replay could not be made.
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
    /// Make all reads (now), those that the page cache does not have (cached), or none
    #[arg(long, value_name = "WHICH", default_value = "now")]
    reads: Reads,
    /// Check nothing (off), report differences (warn), or stop at the first one (stop)
    #[arg(long, value_name = "POLICY", default_value = "warn")]
    verify: Verify,
    /// Stop before calls so many seconds after the first one (1.5s), or after the command with this number
    #[arg(long, value_name = "TIME|N")]
    until: Option<Until>,
    /// Write the report to FILE as JSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Run {
    pub fn run(self) -> Result<u8, Failure> {
        let options = Options {
            root: self.root,
            speed: self.speed,
            reads: self.reads,
            verify: self.verify,
            until: self.until,
        };
        let report = run(&self.replay, options)?;
        if let Some(path) = &self.report {
            let text = format!("{:#}\n", report.json());
            std::fs::write(path, text)
                .map_err(|why| Failure(format!("{}: {why}", path.display())))?;
        }
        print(&report.text())?;
        Ok(if report.different() == 0 {
            0
        } else {
            DIFFERENT
        })
    }
}
