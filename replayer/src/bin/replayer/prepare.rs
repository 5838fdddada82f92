//! `replayer prepare`.

use std::path::PathBuf;

use clap::Args;
use goanna_replayer::prepare::prepare;
use goanna_sys::plural::counted;

use crate::common::{Failure, bytes, print};

const PREPARE_HELP: &str = "\
Exit status:
  0    success
  125  the command line is wrong, or replayer failed

Examples:
  replayer prepare job.grp --root copy
  replayer prepare job.grp --root copy --snapshot before";

/// Create the files that must exist before a replay starts
///
/// Files get the types, sizes, permissions, owners and extended attributes that the trace shows, and the content that its reads returned,
/// else generated content. With --snapshot they are copied. Existing files stay. The command creates the first file after all checks have
/// succeeded; errors name the paths that are missing or in the way. Only root can set owners; for other users the command prints how many files
/// have another owner.
#[derive(Debug, Args)]
#[command(after_help = PREPARE_HELP)]
pub struct Prepare {
    /// The compiled replay
    replay: PathBuf,
    /// Create them below DIR, which is made if its parent exists
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Copy everything from DIR, which is as the traced directory was before the trace; devices and sockets are left out
    #[arg(long, value_name = "DIR")]
    snapshot: Option<PathBuf>,
}

impl Prepare {
    pub fn run(self) -> Result<u8, Failure> {
        let made = prepare(&self.replay, &self.root, self.snapshot.as_deref())?;
        print(&format!(
            "made {} with {} ({} of them as in the trace); {} there before",
            counted(made.files, "file"),
            bytes(made.bytes),
            bytes(made.known),
            counted(made.present, "file")
        ))?;
        for (number, what) in [
            (made.skipped_owners, "owners"),
            (made.skipped_attributes, "extended attributes"),
            (made.skipped_files, "devices and sockets"),
        ] {
            if number > 0 {
                print(&format!("{number} {what} were left out"))?;
            }
        }
        Ok(0)
    }
}
