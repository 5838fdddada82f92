//! `goanna-trace anonymize`.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use goanna_sys::plural::counted;
use goanna_tracer::tools::anonymize::{
    self, Anonymize, Anonymized, DataRule, FieldKeys, Fields, deanonymize,
};

use crate::common::{Failure, Findings, Source, note};

const ANONYMIZE_HELP: &str = "\
Exit status:
  0    success
  3    something of the trace was lost or altered; stderr names it
  125  the command line is wrong, or FILE is not a trace

Examples:
  goanna-trace anonymize --keys keys build.gtr -o public.gtr
  goanna-trace anonymize --reverse --keys keys public.gtr -o build.gtr";

/// Encrypt names, users and hashes in a new trace, each field with its own key; or restore them
///
/// Equal values stay equal, so that records of the same file, user or process can be matched. The structure of paths stays. The key of a field
/// restores that field, with --reverse. Numbers of processes, devices and inodes, times, and lengths stay, unless --fields names them.
#[derive(Debug, clap::Args)]
#[command(after_help = ANONYMIZE_HELP)]
pub struct AnonymizeCommand {
    #[command(flatten)]
    source: Source,
    /// The new trace; compressed, neither encrypted nor authenticated
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The keys, a line for each field; made when there is no such file. With --reverse, fields without a key stay hidden
    #[arg(long, value_name = "FILE")]
    keys: PathBuf,
    /// What to hide: path, text, argv, comm, uid, gid, socket, hash, context (all these are names), pid, inode, time, or all
    #[arg(
        long,
        value_name = "LIST",
        default_value = "names",
        hide_default_value = true
    )]
    fields: Fields,
    /// Keep the extensions of file names
    #[arg(long, conflicts_with = "reverse")]
    keep_extensions: bool,
    /// Treatment of recorded content: remove, encrypt or keep
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "remove",
        conflicts_with = "reverse"
    )]
    data: DataRule,
    /// Show the fields again whose keys --keys has
    #[arg(long, conflicts_with = "fields")]
    reverse: bool,
}

impl AnonymizeCommand {
    pub fn run(&self) -> Result<u8, Failure> {
        self.source.differs_from(&self.output)?;
        let keys = self.keys()?;
        let mut reader = self.source.open()?;
        let mut findings = Findings::of(&self.source);
        let mut report = |finding: &_| findings.report(finding);
        let began = Instant::now();
        let done = match self.reverse {
            true => deanonymize(&mut reader, &self.output, &keys, &mut report),
            false => {
                let how = Anonymize {
                    fields: self.fields.clone(),
                    keep_extensions: self.keep_extensions,
                    data: self.data,
                };
                anonymize::anonymize(&mut reader, &self.output, &keys, how, &mut report)
            }
        };
        let done = done.map_err(|error| self.source.failure(error))?;
        note(&figures(&self.output, &done, began.elapsed()));
        Ok(findings.status())
    }

    fn keys(&self) -> Result<FieldKeys, Failure> {
        let exists = self.keys.try_exists().unwrap_or(true);
        if exists || self.reverse {
            return Ok(FieldKeys::read(&self.keys)?);
        }
        let keys = FieldKeys::create(&self.keys)?;
        let path = self.keys.display();
        note(&format!(
            "{path}: made; its holder can read the hidden fields"
        ));
        Ok(keys)
    }
}

/// Rate and growth.
fn figures(output: &Path, done: &Anonymized, took: Duration) -> String {
    let seconds = took.as_secs_f64().max(1e-9);
    let (before, after) = done.bytes;
    let removed = match done.removed {
        0 => String::new(),
        removed => format!(", {removed} of them content that was left out"),
    };
    format!(
        "{}: {}{removed}; {:.0} records and {:.1} MB a second; {before} bytes of records became {after}, {:.2} times as many",
        output.display(),
        counted(done.records, "record"),
        done.records as f64 / seconds,
        before as f64 / seconds / 1e6,
        after as f64 / before.max(1) as f64,
    )
}
