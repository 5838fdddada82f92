//! `goanna-trace stat`.

use std::io::Write;

use goanna_tracer::Error;
use goanna_tracer::tools::{Statistics, consume};

use crate::common::{Failure, Findings, Source, output};

/// Print figures: records, errors, bytes and time by call
#[derive(Debug, clap::Args)]
pub struct Stat {
    #[command(flatten)]
    source: Source,
    /// As JSON, with the context of the trace
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
