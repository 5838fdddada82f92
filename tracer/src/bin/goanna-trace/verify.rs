//! `goanna-trace verify`.

use std::io::Write;

use amino_schema::trace::record::Record;
use goanna_sys::plural::counted;
use goanna_tracer::Error;
use goanna_tracer::tools::{Consumer, consume};
use serde_json::json;

use crate::common::{Failure, Findings, Source, output};

const VERIFY_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace verify build.gtr
  goanna-trace verify --hmac-key key build.gtr";

/// Check the whole trace; with --hmac-key, also whether blocks were altered, removed, moved or repeated
#[derive(Debug, clap::Args)]
#[command(after_help = VERIFY_HELP)]
pub struct Verify {
    #[command(flatten)]
    source: Source,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

struct Nothing;

impl Consumer for Nothing {
    fn record(&mut self, _record: &Record<'_>) -> Result<(), Error> {
        Ok(())
    }
}

impl Verify {
    pub fn run(&self) -> Result<u8, Failure> {
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let consumed = consume(&mut reader, &mut Nothing, &mut |it| findings.report(it));
        let records = consumed.map_err(|error| self.source.failure(error))?;
        let (found, lost) = (findings.count, findings.lost);
        let checked = match self.source.keys.hmac_key {
            Some(_) => "authenticated",
            None => "checksums only, without an HMAC key",
        };
        let text = match self.json {
            true => {
                let figures = json!({
                    "records": records,
                    "lost": lost,
                    "findings": found,
                    "authenticated": self.source.keys.hmac_key.is_some(),
                });
                format!("{figures}\n")
            }
            false if found == 0 => format!(
                "{}, nothing lost or altered ({checked})\n",
                counted(records, "record")
            ),
            false => format!(
                "{}, {}, {} known to be lost ({checked})\n",
                counted(records, "record"),
                counted(found, "finding"),
                counted(lost, "record")
            ),
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
