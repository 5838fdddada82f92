//! The codecs of blocks, in both directions. `output/` applies them, `read/` undoes them.

mod authenticate;
mod encrypt;
mod key;
mod zstd;

pub use authenticate::Authenticate;
pub use encrypt::Encrypt;
pub use key::Key;
pub use zstd::Zstd;
pub(crate) use zstd::prefix as decompress_prefix;

use amino_schema::trace::{BlockHeader, Codec};

use crate::Error;

/// A transformation of the payload of blocks.
pub trait Transform: Send {
    /// How headers name it.
    fn codec(&self) -> Codec;

    /// Makes the stored form. `position` is that of the codec in the header.
    fn apply(
        &mut self,
        header: &BlockHeader,
        position: u32,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Error>;

    /// Undoes [`Self::apply`]; the result has at most `most` bytes.
    fn undo(
        &mut self,
        header: &BlockHeader,
        position: u32,
        stored: Vec<u8>,
        most: usize,
    ) -> Result<Vec<u8>, Error>;
}
