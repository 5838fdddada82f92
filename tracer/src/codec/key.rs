//! Keys.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::Error;

/// A key of 256 bits, from which each stream and purpose derives its own.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Reads a key file: 32 bytes, or 64 hexadecimal digits and white space.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let mut raw = Vec::new();
        let file = File::open(path).map_err(|why| Error::input(path, why))?;
        let read = file.take(4096).read_to_end(&mut raw);
        read.map_err(|why| Error::input(path, why))?;
        Self::parse(&raw).ok_or_else(|| Error::Key {
            path: path.to_owned(),
            len: raw.len() as u64,
        })
    }

    /// A key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(crate) fn parse(raw: &[u8]) -> Option<Self> {
        if let Ok(bytes) = <[u8; 32]>::try_from(raw) {
            return Some(Self(bytes));
        }
        let text = raw.trim_ascii();
        if text.len() != 64 {
            return None;
        }
        let mut key = [0; 32];
        for (slot, pair) in key.iter_mut().zip(text.chunks_exact(2)) {
            let digits = std::str::from_utf8(pair).ok()?;
            let digits = digits
                .bytes()
                .all(|it| it.is_ascii_hexdigit())
                .then_some(digits)?;
            *slot = u8::from_str_radix(digits, 16).ok()?;
        }
        Some(Self(key))
    }

    /// The key for one purpose in one stream.
    pub(crate) fn derive(&self, purpose: &str, serial: &[u8; 16]) -> [u8; 32] {
        mac(&self.0, &[purpose.as_bytes(), serial])
    }
}

/// Shows no key: keys must not get into messages.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// HMAC-SHA-256 of the parts.
pub(crate) fn mac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return [0; 32]; // HMAC takes keys of any length
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Whether both are equal, compared in a time that does not depend on where they differ.
pub(crate) fn equal(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differences) == 0
}
