//! What can go wrong between a source and the trace.

use std::io;
use std::path::PathBuf;

/// An error of the pipeline or of a reader.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An output cannot be written.
    #[error("{}: {why}", .output.display())]
    Output {
        /// The file or address.
        output: PathBuf,
        /// Why.
        why: io::Error,
    },
}
