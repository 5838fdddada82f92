//! AES-256-GCM.

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use amino_schema::trace::{BlockHeader, Codec};

use super::Transform;
use super::key::Key;
use crate::Error;

const PURPOSE: &str = "goanna-trace encrypt";

/// Encrypts each block. A stream has its own key, so that the sequence number is a unique nonce.
pub struct Encrypt {
    key: Key,
    cipher: Option<([u8; 16], Aes256Gcm)>,
}

impl Encrypt {
    /// Encrypts with the key of the user.
    pub fn new(key: Key) -> Self {
        Self { key, cipher: None }
    }

    fn cipher(&mut self, serial: [u8; 16]) -> &Aes256Gcm {
        if self
            .cipher
            .as_ref()
            .is_some_and(|(known, _)| *known != serial)
        {
            self.cipher = None;
        }
        let key = &self.key;
        let (_, cipher) = self.cipher.get_or_insert_with(|| {
            let derived = key.derive(PURPOSE, &serial);
            (serial, Aes256Gcm::new(&derived.into()))
        });
        cipher
    }
}

fn nonce(header: &BlockHeader, position: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    let bytes = header.sequence.to_le_bytes().into_iter();
    for (slot, byte) in nonce.iter_mut().zip(bytes.chain(position.to_le_bytes())) {
        *slot = byte;
    }
    nonce
}

impl Transform for Encrypt {
    fn codec(&self) -> Codec {
        Codec::Aes256Gcm
    }

    fn apply(
        &mut self,
        header: &BlockHeader,
        position: u32,
        payload: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let (msg, aad) = (payload.as_slice(), header.identity());
        let cipher = self.cipher(header.serial);
        let sealed = cipher.encrypt(
            &Nonce::from(nonce(header, position)),
            Payload { msg, aad: &aad },
        );
        sealed.map_err(|_| Error::codec("AES-256-GCM", "the block cannot be encrypted"))
    }

    fn undo(
        &mut self,
        header: &BlockHeader,
        position: u32,
        stored: Vec<u8>,
        _most: usize,
    ) -> Result<Vec<u8>, Error> {
        let (msg, aad) = (stored.as_slice(), header.identity());
        let cipher = self.cipher(header.serial);
        let opened = cipher.decrypt(
            &Nonce::from(nonce(header, position)),
            Payload { msg, aad: &aad },
        );
        opened.map_err(|_| {
            Error::codec(
                "AES-256-GCM",
                "the block does not decrypt: it was altered, or the key is another one",
            )
        })
    }
}
