//! The stages of output: output filters, each with the next stage behind it, and an output driver at the end.
//!
//! A stage gets whole blocks, in order. Filters that transform the payload are [`Transform`]s in a [`Transformed`] stage; the
//! [`Asynchronous`] stage moves all later ones to a thread of their own. [`FailureStage`] stands before the driver, and applies the user's choice
//! when the driver fails.

mod asynchronous;
mod file;
mod live;
mod on_failure;
mod socket;
mod stream;
mod transformed;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amino_schema::trace::{BlockHeader, FileHeader};

pub use asynchronous::Asynchronous;
pub use file::{FileOptions, FileOutput, Rotation, manifest_path, segment_path};
pub use live::{Live, live};
pub use on_failure::{FailureStage, OnFailure};
pub use socket::{Address, SocketOptions, SocketOutput};
pub use stream::StreamOutput;
pub use transformed::Transformed;

use crate::Error;
#[allow(unused_imports)] // named in the module's documentation
use crate::codec::Transform;

/// A block on its way out.
#[derive(Debug, Clone)]
pub struct Block {
    /// Its header. The driver computes the lengths and checksums of the stored payload.
    pub header: BlockHeader,
    /// The payload, as far as the stages have transformed it.
    pub payload: Vec<u8>,
    /// Whether a file starts with it. Drivers that write no files ignore it.
    pub starts_file: bool,
}

/// The properties of a stream that its stages know.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Random number of the stream.
    pub serial: [u8; 16],
    /// The reports of the stages to the pipeline.
    pub progress: Arc<Progress>,
}

/// The reports of the stages to the pipeline, possibly from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written to the current file.
    file_bytes: AtomicU64,
    /// Bytes written in all.
    bytes: AtomicU64,
    /// Records in blocks that could not be written.
    dropped: AtomicU64,
}

impl Progress {
    /// Bytes written to the current file.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes.load(Ordering::Relaxed)
    }

    /// Bytes written in all.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Records in blocks that could not be written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.file_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn new_file(&self) {
        self.file_bytes.store(0, Ordering::Relaxed);
    }

    fn drop_records(&self, records: u32) {
        self.dropped
            .fetch_add(u64::from(records), Ordering::Relaxed);
    }
}

/// An output filter or an output driver.
///
/// The pipeline calls [`Self::initialise`] once, then the others in any order, and [`Self::release`] last. A filter passes each call on to
/// the next stage.
pub trait Output: Send {
    /// Prepares for the blocks of `stream`.
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error>;

    /// Takes a block. It may wait, which holds the source back.
    fn write(&mut self, block: Block) -> Result<(), Error>;

    /// Passes all buffered bytes on.
    fn flush(&mut self) -> Result<(), Error>;

    /// Ends the stream: passes everything on. No call follows.
    fn release(&mut self) -> Result<(), Error>;

    /// Bytes of payload that suit it, before codecs. The pipeline takes the largest that any stage prefers.
    fn preferred_block(&self) -> usize;
}

/// The first bytes of a file or connection of a stream.
fn file_header(serial: [u8; 16]) -> Vec<u8> {
    FileHeader { serial }.encode()
}

/// Whether two paths lead to the same existing file. A program that read the one and wrote the other would destroy its input.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (one.canonicalize(), other.canonicalize()) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}
