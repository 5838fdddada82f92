//! The stage that applies a codec.

use super::{Block, Output, Stream};
use crate::Error;
use crate::codec::Transform;

/// Applies a codec to each block, and passes the block on.
pub struct Transformed {
    transform: Box<dyn Transform>,
    position: u32,
    next: Box<dyn Output>,
}

impl Transformed {
    /// Applies `transform`, which has this position among the codecs of the header.
    pub fn new(transform: Box<dyn Transform>, position: u32, next: Box<dyn Output>) -> Self {
        Self {
            transform,
            position,
            next,
        }
    }
}

/// Preferred size of a block: each block is compressed alone, and needs enough bytes to contain
/// repetitions.
const PREFERRED: usize = 256 << 10;

impl Output for Transformed {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.next.initialise(stream)
    }

    fn write(&mut self, mut block: Block) -> Result<(), Error> {
        let payload = std::mem::take(&mut block.payload);
        block.payload = self
            .transform
            .apply(&block.header, self.position, payload)?;
        self.next.write(block)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.next.flush()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.next.release()
    }

    fn preferred_block(&self) -> usize {
        self.next.preferred_block().max(PREFERRED)
    }
}
