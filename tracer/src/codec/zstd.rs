//! zstd, one frame a block.

use std::io::Read;

use amino_schema::trace::{BlockHeader, Codec};
use zstd::bulk::{Compressor, Decompressor};

use super::Transform;
use crate::Error;

/// Compresses each block.
pub struct Zstd {
    level: i32,
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
}

impl Zstd {
    /// The level when the user gives none.
    pub const LEVEL: i32 = 3;

    /// Compresses at this level.
    pub fn new(level: i32) -> Self {
        Self {
            level,
            compressor: None,
            decompressor: None,
        }
    }
}

impl Transform for Zstd {
    fn codec(&self) -> Codec {
        Codec::Zstd
    }

    fn apply(
        &mut self,
        _header: &BlockHeader,
        _position: u32,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let compressor = match &mut self.compressor {
            Some(compressor) => compressor,
            none => none.insert(Compressor::new(self.level).map_err(error)?),
        };
        compressor.compress(&payload).map_err(error)
    }

    fn undo(
        &mut self,
        _header: &BlockHeader,
        _position: u32,
        stored: Vec<u8>,
        most: usize,
    ) -> Result<Vec<u8>, Error> {
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => none.insert(Decompressor::new().map_err(error)?),
        };
        decompressor.decompress(&stored, most).map_err(error)
    }
}

/// Decompresses as much as possible of the beginning of a frame, at most `most` bytes.
pub(crate) fn prefix(stored: &[u8], most: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let Ok(decoder) = zstd::stream::read::Decoder::with_buffer(stored) else {
        return out;
    };
    let mut decoder = decoder.take(most as u64);
    let mut chunk = vec![0; 8192];
    while let Ok(len @ 1..) = decoder.read(&mut chunk) {
        out.extend_from_slice(chunk.get(..len).unwrap_or_default());
    }
    out
}

fn error(why: impl ToString) -> Error {
    Error::codec("zstd", why)
}
