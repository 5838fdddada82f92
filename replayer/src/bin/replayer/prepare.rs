//! `replayer prepare`.

use std::path::PathBuf;

use clap::Args;
use goanna_replayer::prepare::prepare;

use crate::common::{Failure, bytes, print};

const PREPARE_HELP: &str = "\
Exit status:
  0    success
  125  the command line is wrong, or replayer failed

Examples:
  mkdir copy && replayer prepare job.grp --root copy";

/// Create the files that must exist before a replay starts
///
/// Files get the sizes, types and permissions of the trace, and the content that its reads returned, else generated content. Existing files stay.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_HELP)]
pub struct Prepare {
    /// The compiled replay
    replay: PathBuf,
    /// Create them below DIR
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
}

impl Prepare {
    pub fn run(self) -> Result<u8, Failure> {
        let made = prepare(&self.replay, &self.root)?;
        print(&format!(
            "made {} files with {} ({} of them as in the trace); {} were there",
            made.files,
            bytes(made.bytes),
            bytes(made.known),
            made.present
        ))?;
        Ok(0)
    }
}
