//! `goanna-trace cat`.

use goanna_tracer::tools::{JsonLines, Text, consume};

use crate::common::{Failure, Findings, Source, output};

/// Print the records, a line each, as strace -f -ttt -T -y does
#[derive(Debug, clap::Args)]
pub struct Cat {
    #[command(flatten)]
    source: Source,
    /// JSON lines instead
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
