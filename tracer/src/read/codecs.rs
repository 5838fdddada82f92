//! Undoes the codecs of blocks.

use amino_schema::trace::{BlockHeader, Codec};

use super::Keys;
use crate::Error;
use crate::codec::{Authenticate, Encrypt, Transform, Zstd, decompress_prefix};

/// Bytes of an HMAC.
const TAG: usize = 32;

/// The codecs with their keys.
pub(super) struct Codecs {
    zstd: Zstd,
    authenticate: Option<Authenticate>,
    encrypt: Option<Encrypt>,
}

impl Codecs {
    pub(super) fn new(keys: &Keys) -> Self {
        Self {
            zstd: Zstd::new(Zstd::LEVEL),
            authenticate: keys.authenticate.clone().map(Authenticate::new),
            encrypt: keys.encrypt.clone().map(Encrypt::new),
        }
    }

    /// Whether the header of the block names an HMAC; true if no key was given.
    pub(super) fn authenticates(&self, header: &BlockHeader) -> bool {
        self.authenticate.is_none() || header.codecs.contains(&Codec::HmacSha256.byte())
    }

    /// The payload as it was before the codecs.
    pub(super) fn undo(&mut self, header: &BlockHeader, stored: Vec<u8>) -> Result<Vec<u8>, Error> {
        let codecs = header.codecs();
        let codecs =
            codecs.map_err(|byte| Error::codec("codec", format!("number {byte} is unknown")))?;
        let raw_len = header.raw_len as usize;
        // Each earlier codec may have lengthened the payload a little.
        let most = raw_len + (raw_len >> 7) + 4096;
        let mut payload = stored;
        for (position, codec) in codecs.iter().enumerate().rev() {
            let position = position as u32;
            payload = match (codec, &mut self.authenticate, &mut self.encrypt) {
                (Codec::Zstd, ..) => self.zstd.undo(header, position, payload, most)?,
                (Codec::HmacSha256, Some(codec), _) => {
                    codec.undo(header, position, payload, most)?
                }
                (Codec::HmacSha256, None, _) => {
                    let len = payload.len().saturating_sub(TAG);
                    payload.truncate(len);
                    payload
                }
                (Codec::Aes256Gcm, _, Some(codec)) => {
                    codec.undo(header, position, payload, most)?
                }
                (Codec::Aes256Gcm, _, None) => {
                    return Err(Error::codec(
                        "AES-256-GCM",
                        "the block is encrypted, and no key was given",
                    ));
                }
            };
        }
        if payload.len() != raw_len {
            return Err(Error::codec(
                "codecs",
                "the payload has another length than its header says",
            ));
        }
        Ok(payload)
    }

    /// The readable part of a payload whose end is missing. Nothing, if a key was given and the payload cannot be authenticated.
    pub(super) fn prefix(&self, header: &BlockHeader, stored: &[u8]) -> Option<Vec<u8>> {
        let codecs = header.codecs().ok()?;
        let raw_len = header.raw_len as usize;
        let most = raw_len + (raw_len >> 7) + 4096;
        let mut payload = stored.to_vec();
        for codec in codecs.iter().rev() {
            payload = match codec {
                Codec::Zstd => decompress_prefix(&payload, most),
                // The tag is missing, or only its first bytes follow the payload.
                Codec::HmacSha256 if self.authenticate.is_none() => payload,
                Codec::HmacSha256 | Codec::Aes256Gcm => return None,
            };
        }
        payload.truncate(raw_len);
        Some(payload)
    }
}

/// Checks that blocks are authentic, without reading them.
pub struct Checker(Option<Codecs>);

impl Checker {
    /// Checks with the key for HMAC; without a key, accepts every block.
    pub fn new(keys: &Keys) -> Self {
        Self(keys.authenticate.is_some().then(|| Codecs::new(keys)))
    }

    /// Fails unless the block carries an HMAC that verifies. If the block was encrypted after that, the other key is needed,
    /// too.
    pub fn check(&mut self, header: &BlockHeader, stored: &[u8]) -> Result<(), Error> {
        let Some(codecs) = &mut self.0 else {
            return Ok(());
        };
        if !codecs.authenticates(header) {
            return Err(Error::codec("HMAC-SHA-256", "the block has none"));
        }
        codecs.undo(header, stored.to_vec()).map(|_| ())
    }
}
