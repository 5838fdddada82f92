//! `replayer prepare`.

use std::path::PathBuf;

use clap::Args;
use goanna_replayer::prepare::prepare;

use crate::common::{Failure, bytes, print};

/// Make the files that a replay needs and its trace did not make
///
/// Files have the sizes, types and permissions of the trace, and the content that its reads saw, else generated content. What is there already stays.
#[derive(Debug, Args)]
pub struct Prepare {
    /// The compiled replay
    replay: PathBuf,
    /// Make them below DIR
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
