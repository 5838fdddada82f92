//! HMAC-SHA-256 of each block, over its serial and sequence number as well as its bytes.

use amino_schema::trace::{BlockHeader, Codec};

use super::Transform;
use super::key::{Key, equal, mac};
use crate::Error;

const PURPOSE: &str = "goanna-trace authenticate";
const TAG: usize = 32;

/// Appends a tag to each block, and checks it.
#[derive(Debug)]
pub struct Authenticate {
    key: Key,
    derived: Option<([u8; 16], [u8; 32])>,
}

impl Authenticate {
    /// Authenticates with the key of the user.
    pub fn new(key: Key) -> Self {
        Self { key, derived: None }
    }

    fn tag(&mut self, header: &BlockHeader, position: u32, bytes: &[u8]) -> [u8; TAG] {
        let derived = match self.derived {
            Some((serial, derived)) if serial == header.serial => derived,
            _ => self.key.derive(PURPOSE, &header.serial),
        };
        self.derived = Some((header.serial, derived));
        mac(
            &derived,
            &[&header.identity(), &position.to_le_bytes(), bytes],
        )
    }
}

impl Transform for Authenticate {
    fn codec(&self) -> Codec {
        Codec::HmacSha256
    }

    fn apply(
        &mut self,
        header: &BlockHeader,
        position: u32,
        mut payload: Vec<u8>,
    ) -> Result<Vec<u8>, Error> {
        let tag = self.tag(header, position, &payload);
        payload.extend_from_slice(&tag);
        Ok(payload)
    }

    fn undo(
        &mut self,
        header: &BlockHeader,
        position: u32,
        mut stored: Vec<u8>,
        _most: usize,
    ) -> Result<Vec<u8>, Error> {
        let len = stored.len().saturating_sub(TAG);
        let tag = stored.split_off(len);
        if equal(&tag, &self.tag(header, position, &stored)) {
            Ok(stored)
        } else {
            Err(Error::codec(
                "HMAC-SHA-256",
                "the block does not verify: it was altered, or the key is another one",
            ))
        }
    }
}
