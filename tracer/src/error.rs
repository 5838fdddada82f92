//! Errors of the pipeline, between a source and the trace, and of readers of traces.

use std::io;
use std::path::PathBuf;

use amino_schema::DecodeError;

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
    /// A trace or a key file cannot be read.
    #[error("{}: {why}", .input.display())]
    Input {
        /// The file.
        input: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A key file does not hold a key.
    #[error("{}: not a key: it has {len} bytes, and a key has 32, or 64 hexadecimal digits", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Bytes that it holds.
        len: u64,
    },
    /// The bytes are not a trace.
    #[error("not a trace of goanna-trace: {0}")]
    NoTrace(&'static str),
    /// The trace has another major version.
    #[error("the trace has format version {major}.{minor}, this program reads version 1")]
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    },
    /// Bytes do not follow the format.
    #[error(transparent)]
    Damaged(#[from] DecodeError),
    /// A codec cannot be applied or undone.
    #[error("{codec}: {why}")]
    Codec {
        /// Its name.
        codec: &'static str,
        /// Why.
        why: String,
    },
    /// The random number generator of the kernel failed.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
    /// A thread of the pipeline has ended, because of an error that it has reported.
    #[error("the thread that writes the trace has ended")]
    Ended,
    /// The pipeline is set up in a way that cannot work.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    pub(crate) fn codec(codec: &'static str, why: impl ToString) -> Self {
        let why = why.to_string();
        Self::Codec { codec, why }
    }

    pub(crate) fn output(output: impl Into<PathBuf>, why: impl Into<io::Error>) -> Self {
        let (output, why) = (output.into(), why.into());
        Self::Output { output, why }
    }

    pub(crate) fn input(input: impl Into<PathBuf>, why: impl Into<io::Error>) -> Self {
        let (input, why) = (input.into(), why.into());
        Self::Input { input, why }
    }
}
