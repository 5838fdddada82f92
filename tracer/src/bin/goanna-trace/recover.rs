//! `goanna-trace recover`.

use std::path::PathBuf;

use goanna_tracer::tools::recover;

use crate::common::{Failure, Findings, Source, note};

/// Write every record of a damaged trace that can be read to a new trace, and say what is lost
///
/// Exits 0 when nothing was lost or altered, 3 when something was, 125 when the file is no trace.
#[derive(Debug, clap::Args)]
pub struct Recover {
    #[command(flatten)]
    source: Source,
    /// The new trace; compressed, neither encrypted nor authenticated
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl Recover {
    pub fn run(&self) -> Result<u8, Failure> {
        self.source.differs_from(&self.output)?;
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let recovered = recover(&mut reader, &self.output, &mut |it| findings.report(it));
        let recovered = recovered.map_err(|error| self.source.failure(error))?;
        note(&format!(
            "{}: {} records recovered, {} known to be lost",
            self.output.display(),
            recovered.records,
            recovered.lost
        ));
        Ok(findings.status())
    }
}
