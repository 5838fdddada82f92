//! `goanna-trace cat`.

use goanna_tracer::tools::{JsonLines, Text, consume};

use crate::common::{Failure, Findings, Source, output};

const CAT_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace cat build.gtr | less
  goanna-trace cat --json build.gtr | jq 'select(.message == \"openat\")'";

/// Print the records, one per line, in the format of strace -f -ttt -T -y
#[derive(Debug, clap::Args)]
#[command(after_help = CAT_HELP)]
pub struct Cat {
    #[command(flatten)]
    source: Source,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

impl Cat {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let mut report = |finding: &_| findings.report(finding);
        let out = output(None)?;
        let consumed = match self.json {
            true => consume(&mut reader, &mut JsonLines::new(out), &mut report),
            false => consume(&mut reader, &mut Text::new(out), &mut report),
        };
        consumed.map_err(|error| self.source.failure(error))?;
        Ok(findings.status())
    }
}
