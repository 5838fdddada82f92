//! The mounts that options of `amino run` and `goanna run` ask for.

use std::path::Path;

use goanna_session::mounts::{self, MountSpec};

use crate::args::Verbosity;
use crate::args::amino::RunOptions;
use crate::error::Error;
use crate::mount_types::MOUNT_TYPES;
use crate::report::messages::note;
use crate::report::names;

/// Notifies the user if a store at `at` hides files.
pub fn note_hidden(at: &Path, verbosity: Verbosity) {
    if !mounts::hides_host(at) {
        return;
    }
    let at = names::escape_path(at);
    note(
        &format!(
            "--at {at} hides what the host has there from the command; \
             a place that does not exist hides nothing"
        ),
        verbosity,
    );
}

/// The mounts that the options ask for.
pub fn mounts_of(options: &RunOptions) -> Result<Vec<MountSpec>, Error> {
    let specs = mounts::parse(MOUNT_TYPES, options.config.as_deref(), &options.mount)?;
    Ok(specs)
}
