//! `goanna-trace recover`.

use std::path::PathBuf;

use goanna_sys::plural::counted;
use goanna_tracer::tools::recover;

use crate::common::{Failure, Findings, Source, note};

const RECOVER_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace recover damaged.gtr -o recovered.gtr";

/// Write all readable records of a damaged trace to a new trace, and list what is lost
#[derive(Debug, clap::Args)]
#[command(after_help = RECOVER_HELP)]
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
            "{}: {} recovered, {} known to be lost",
            self.output.display(),
            counted(recovered.records, "record"),
            recovered.lost
        ));
        Ok(findings.status())
    }
}
