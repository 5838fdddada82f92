//! `goanna-trace top`.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use goanna_tracer::Error;
use goanna_tracer::tools::{Counts, Top, consume};

use crate::common::{Failure, Findings, Source};

const TOP_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace -o - -- make | goanna-trace top -";

/// Show the busiest calls, files and processes while a trace is read from a pipe
///
/// On a terminal the summary is redrawn each second; elsewhere it is printed once, at the end.
#[derive(Debug, clap::Args)]
#[command(after_help = TOP_HELP)]
pub struct TopOf {
    #[command(flatten)]
    source: Source,
    /// Number of calls, of files and of processes to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
}

const EVERY: Duration = Duration::from_secs(1);
/// Moves the cursor to the corner, and clears what follows.
const CLEAR: &str = "\x1b[H\x1b[J";

impl TopOf {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let live = io::stdout().is_terminal();
        let mut drawn = Instant::now();
        let mut top = Top::new(|counts: &Counts| {
            if live && drawn.elapsed() >= EVERY {
                drawn = Instant::now();
                // A terminal that is gone ends the program at the next line.
                let _ = write!(io::stdout(), "{CLEAR}{}", counts.text(self.lines));
            }
        });
        let consumed = consume(&mut reader, &mut top, &mut |it| findings.report(it));
        consumed.map_err(|error| self.source.failure(error))?;
        let clear = if live { CLEAR } else { "" };
        let text = format!("{clear}{}", top.counts().text(self.lines));
        let written = io::stdout().write_all(text.as_bytes());
        written.map_err(|why| Error::Output {
            output: "".into(),
            why,
        })?;
        Ok(findings.status())
    }
}
