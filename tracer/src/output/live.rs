//! The driver for a consumer in the same process: a display, an intrusion detection.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::{Block, Output, Stream, file_header};
use crate::Error;

/// Sends the bytes of the trace, a block at a time, to the other end of [`live`].
///
/// A slow consumer blocks the source. A consumer that has ended is not an error, and the rest of the trace is dropped.
pub struct Live {
    consumer: SyncSender<Vec<u8>>,
    stream: Option<Stream>,
}

/// A driver, and where the consumer receives the bytes: the file header first, then a block each.
pub fn live(queue: usize) -> (Live, Receiver<Vec<u8>>) {
    let (consumer, receiver) = sync_channel(queue);
    let stream = None;
    (Live { consumer, stream }, receiver)
}

impl Live {
    fn send(&mut self, bytes: Vec<u8>) {
        let len = bytes.len();
        if let (Ok(()), Some(stream)) = (self.consumer.send(bytes), &self.stream) {
            stream.progress.add(len);
        }
    }
}

impl Output for Live {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.stream = Some(stream.clone());
        self.send(file_header(stream.serial));
        Ok(())
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        let mut bytes = Vec::with_capacity(BLOCK_OVERHEAD + block.payload.len());
        block.header.encode(&block.payload, &mut bytes);
        self.send(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn release(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn preferred_block(&self) -> usize {
        4 << 10
    }
}

const BLOCK_OVERHEAD: usize = amino_schema::trace::BlockHeader::LEN;
