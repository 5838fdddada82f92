//! `goanna-trace stat`.

use std::io::Write;

use goanna_tracer::Error;
use goanna_tracer::tools::{Statistics, consume};

use crate::common::{Failure, Findings, Source, output};

const STAT_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace stat build.gtr
  goanna-trace stat --json build.gtr | jq .context";

/// Print statistics: records, errors, bytes and time by call
#[derive(Debug, clap::Args)]
#[command(after_help = STAT_HELP)]
pub struct Stat {
    #[command(flatten)]
    source: Source,
    /// Print JSON, with the context of the trace
    #[arg(long)]
    json: bool,
}

impl Stat {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let mut statistics = Statistics::default();
        let consumed = consume(&mut reader, &mut statistics, &mut |it| findings.report(it));
        consumed.map_err(|error| self.source.failure(error))?;
        let bytes = self.source.len();
        let text = match self.json {
            true => format!("{:#}\n", statistics.json(bytes)),
            false => statistics.table(bytes),
        };
        let mut out = output(None)?;
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        written.map_err(|why| Error::Output {
            output: "".into(),
            why,
        })?;
        Ok(findings.status())
    }
}
