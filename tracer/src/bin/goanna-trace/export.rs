//! `goanna-trace export`.

use std::path::{Path, PathBuf};

use goanna_tracer::tools::{Consumer, Ctf, JsonLines, Parquet, Perfetto, Text, consume};

use crate::common::{Failure, Findings, Source, output};

const EXPORT_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace export --format perfetto build.gtr -o build.perfetto
  goanna-trace export --format parquet build.gtr -o build.parquet
  goanna-trace export --format ctf build.gtr -o ctf && babeltrace2 ctf";

/// Convert the records to another format
#[derive(Debug, clap::Args)]
#[command(after_help = EXPORT_HELP)]
pub struct Export {
    #[command(flatten)]
    source: Source,
    /// The format
    #[arg(long, value_enum)]
    format: Format,
    /// The file to write, with ctf the directory; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    /// Lines in the format of strace -f -ttt -T -y
    Text,
    /// One object per line
    Json,
    /// Track events of Perfetto, a slice for each call
    Perfetto,
    /// Apache Parquet: a row for each record, for DuckDB, pandas and others
    Parquet,
    /// Common Trace Format 1.8, a directory: for babeltrace2 and Trace Compass
    Ctf,
}

impl Export {
    pub fn run(&self) -> Result<u8, Failure> {
        self.source.differs_from(&self.output)?;
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let out = || output(Some(&self.output));
        let mut consumer: Box<dyn Consumer> = match self.format {
            Format::Text => Box::new(Text::new(out()?)),
            Format::Json => Box::new(JsonLines::new(out()?)),
            Format::Perfetto => Box::new(Perfetto::new(out()?)),
            Format::Parquet => Box::new(Parquet::new(out()?)),
            Format::Ctf if self.output == Path::new("-") => {
                let why = "--output: ctf needs a directory";
                return Err(Failure::Usage(why.into()));
            }
            Format::Ctf => Box::new(Ctf::create(&self.output)?),
        };
        let consumed = consume(&mut reader, &mut *consumer, &mut |it| findings.report(it));
        consumed.map_err(|error| self.source.failure(error))?;
        Ok(findings.status())
    }
}
