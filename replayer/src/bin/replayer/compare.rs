//! `replayer compare`.

use std::path::PathBuf;

use clap::Args;
use goanna_replayer::compare::{Side, Unmatched, compare};

use crate::common::{DIFFERENT, Failure, KeyFiles, print};

const COMPARE_HELP: &str = "\
Exit status:
  0    the operations are equal
  1    they differ; stdout lists the differences by thread
  125  the command line is wrong, or a trace cannot be read

Examples:
  replayer compare job.gtr replayed.gtr";

/// Compare two traces, thread by thread
///
/// Times, process ids and descriptor numbers are not compared.
#[derive(Debug, Args)]
#[command(after_help = COMPARE_HELP)]
pub struct Compare {
    /// The first trace
    first: PathBuf,
    /// The second trace
    second: PathBuf,
    /// Compare the operations of the first trace below DIR [default: the working directory of its command]
    #[arg(long, value_name = "DIR")]
    directory_a: Option<PathBuf>,
    /// Compare the operations of the second trace below DIR [default: the working directory of its command]
    #[arg(long, value_name = "DIR")]
    directory_b: Option<PathBuf>,
    #[command(flatten)]
    keys: KeyFiles,
}

impl Compare {
    pub fn run(self) -> Result<u8, Failure> {
        let keys = self.keys.read()?;
        let comparison = compare(
            Side {
                trace: &self.first,
                directory: self.directory_a.as_deref(),
                keys: &keys,
            },
            Side {
                trace: &self.second,
                directory: self.directory_b.as_deref(),
                keys: &keys,
            },
        )?;
        for difference in &comparison.threads {
            let name = |tid: Option<i32>| tid.map_or("-".to_owned(), |tid| tid.to_string());
            let (first, second) = difference.threads;
            print(&format!(
                "threads {} and {}: after {} equal operations",
                name(first),
                name(second),
                difference.same
            ))?;
            stretch("<", &difference.first)?;
            stretch(">", &difference.second)?;
        }
        for (call, (first, second)) in &comparison.counts {
            let mark = if first == second { "" } else { "  different" };
            print(&format!("{call:12} {first:8} {second:8}{mark}"))?;
        }
        print(match comparison.is_equal() {
            true => "the traces have the same operations",
            false => "the traces differ",
        })?;
        Ok(if comparison.is_equal() { 0 } else { DIFFERENT })
    }
}

fn stretch(mark: &str, stretch: &Unmatched) -> Result<(), Failure> {
    for text in &stretch.texts {
        print(&format!("{mark} {text}"))?;
    }
    match stretch.length.saturating_sub(stretch.texts.len()) {
        0 => Ok(()),
        more => print(&format!("{mark} and {more} more")),
    }
}
