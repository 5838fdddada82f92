//! `goanna-trace report`.

use std::io::Write;
use std::path::PathBuf;

use goanna_tracer::Error;
use goanna_tracer::tools::{Report, consume};

use crate::common::{Failure, Findings, Source, output};

const REPORT_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace report build.gtr -o build.html";

/// Write an HTML page: operations over time, busiest files and processes, latencies, sizes, errors
///
/// The page is one file without scripts, and needs nothing from outside.
#[derive(Debug, clap::Args)]
#[command(after_help = REPORT_HELP)]
pub struct ReportCommand {
    #[command(flatten)]
    source: Source,
    /// The HTML file to write; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

impl ReportCommand {
    pub fn run(&self) -> Result<u8, Failure> {
        self.source.differs_from(&self.output)?;
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let mut report = Report::default();
        let consumed = consume(&mut reader, &mut report, &mut |it| findings.report(it));
        consumed.map_err(|error| self.source.failure(error))?;
        let page = report.html(&self.source.file.display().to_string());
        let mut out = output(Some(&self.output))?;
        let written = out.write_all(page.as_bytes()).and_then(|()| out.flush());
        written.map_err(|why| Error::Output {
            output: self.output.clone(),
            why,
        })?;
        Ok(findings.status())
    }
}
