//! The driver for a byte stream that is open already: standard output, a pipe.

use std::io::Write;
use std::path::PathBuf;

use super::{Block, Output, Stream, file_header};
use crate::Error;

/// Writes blocks as they come, without an index at the end.
pub struct StreamOutput<W> {
    name: PathBuf,
    writer: W,
    stream: Option<Stream>,
    encoded: Vec<u8>,
}

impl<W: Write + Send> StreamOutput<W> {
    /// Writes to `writer`, which messages call `name`.
    pub fn new(name: impl Into<PathBuf>, writer: W) -> Self {
        Self {
            name: name.into(),
            writer,
            stream: None,
            encoded: Vec::new(),
        }
    }

    fn put(&mut self) -> Result<(), Error> {
        let written = self.writer.write_all(&self.encoded);
        written.map_err(|why| Error::output(&self.name, why))?;
        if let Some(stream) = &self.stream {
            stream.progress.add(self.encoded.len());
        }
        Ok(())
    }
}

impl<W: Write + Send> Output for StreamOutput<W> {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.stream = Some(stream.clone());
        self.encoded = file_header(stream.serial);
        self.put()
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        self.encoded.clear();
        block.header.encode(&block.payload, &mut self.encoded);
        self.put()
    }

    fn flush(&mut self) -> Result<(), Error> {
        let flushed = self.writer.flush();
        flushed.map_err(|why| Error::output(&self.name, why))
    }

    fn release(&mut self) -> Result<(), Error> {
        self.flush()
    }

    fn preferred_block(&self) -> usize {
        64 << 10
    }
}
