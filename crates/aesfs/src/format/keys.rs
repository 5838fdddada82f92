//! Keys: the master key, and those that are derived from it or from a password.

use goanna_sys::secret::Locked;
use hkdf::Hkdf;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256, Sha512};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::Error;

/// Bytes of a key.
pub const KEY: usize = 32;

/// The key of a whole volume. Everything else in the volume is encrypted under keys that are derived from it.
pub struct MasterKey(Locked<[u8; KEY]>);

impl MasterKey {
    /// A new random key.
    pub fn random() -> Result<Self, Error> {
        let mut key = Locked::new(|| [0; KEY]).map_err(memory)?;
        random(&mut *key)?;
        Ok(Self(key))
    }

    /// A key from its bytes, which are wiped.
    pub fn from_bytes(bytes: &mut [u8]) -> Result<Self, Error> {
        let mut key = Locked::new(|| [0; KEY]).map_err(memory)?;
        let fits = bytes.len() == KEY;
        if fits {
            key.copy_from_slice(bytes);
        }
        bytes.zeroize();
        fits.then_some(Self(key)).ok_or(Error::MasterKey)
    }

    /// A key from the text that [`MasterKey::text`] makes: 64 hexadecimal digits, dashes and blanks between them.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let is_digit = |byte: &&u8| !matches!(byte, b'-' | b' ' | b'\n' | b'\r' | b'\t');
        let mut key = Locked::new(|| [0; KEY]).map_err(memory)?;
        let mut count = 0;
        for byte in text.iter().filter(is_digit) {
            let digit = (*byte as char).to_digit(16).ok_or(Error::MasterKey)?;
            let at = key.get_mut(count / 2).ok_or(Error::MasterKey)?;
            *at = *at << 4 | digit as u8;
            count += 1;
        }
        (count == 2 * KEY)
            .then_some(Self(key))
            .ok_or(Error::MasterKey)
    }

    /// The key as users write it down: eight groups of eight hexadecimal digits.
    pub fn text(&self) -> Secret {
        let mut text = Vec::with_capacity(3 * KEY);
        for (at, byte) in self.0.iter().enumerate() {
            if at > 0 && at.is_multiple_of(4) {
                text.push(b'-');
            }
            for digit in [byte >> 4, byte & 15] {
                text.push(
                    b"0123456789abcdef"
                        .get(usize::from(digit))
                        .copied()
                        .unwrap_or(b'0'),
                );
            }
        }
        Secret(text)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; KEY] {
        &self.0
    }
}

/// A password, or another text that is wiped when it is dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret from its bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// The cost of deriving a key from a password, and its salt.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ScryptParams {
    /// In base64.
    #[serde(with = "super::base64_text")]
    pub salt: Vec<u8>,
    /// Steps; a power of two.
    pub n: u64,
    /// Size of a step.
    pub r: u32,
    /// Parallel runs.
    pub p: u32,
    /// Bytes of the key.
    pub key_len: usize,
}

impl ScryptParams {
    /// Parameters with a random salt and 2^`log_n` steps, which take 2^(`log_n` + 10) bytes.
    pub fn new(log_n: u8) -> Result<Self, Error> {
        let mut salt = vec![0; 32];
        random(&mut salt)?;
        Ok(Self {
            salt,
            n: 1 << log_n.clamp(LOG_N.0, LOG_N.1),
            r: 8,
            p: 1,
            key_len: KEY,
        })
    }

    /// Refuses parameters that are too weak, or that would take more than 4 GiB of memory: the file is not trusted.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: &str| Err(Error::Config(format!("ScryptObject: {what}")));
        let is_power = self.n.is_power_of_two();
        if !is_power || self.n < 1 << LOG_N.0 || self.n > 1 << LOG_N.1 {
            return wrong("N is not a power of two from 2^10 to 2^28");
        }
        if !(8..=64).contains(&self.r) || !(1..=16).contains(&self.p) {
            return wrong("R is not from 8 to 64, or P is not from 1 to 16");
        }
        if self.memory_bytes() > 4 << 30 {
            return wrong("the password's key would take more than 4 GiB of memory");
        }
        if self.key_len != KEY || !(16..=1024).contains(&self.salt.len()) {
            return wrong("KeyLen is not 32, or the salt is not of 16 to 1024 bytes");
        }
        Ok(())
    }

    /// Bytes of memory that deriving the key takes, apart from some KiB.
    fn memory_bytes(&self) -> u64 {
        self.n.saturating_mul(u64::from(self.r) * 128)
    }

    /// The key that encrypts the master key.
    pub fn derive(&self, password: &Secret) -> Result<Locked<[u8; KEY]>, Error> {
        self.check()?;
        let log_n = u8::try_from(self.n.trailing_zeros()).unwrap_or(0);
        let wrong = |what: &dyn std::fmt::Display| Error::Config(format!("ScryptObject: {what}"));
        let params = scrypt::Params::new(log_n, self.r, self.p).map_err(|error| wrong(&error))?;
        // Without memory scrypt ends the process, which may be one that others' runs depend on. So it is allocated here first.
        let bytes = self.memory_bytes();
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let reserved = Vec::<u8>::new().try_reserve_exact(len);
        reserved.map_err(|_| Error::NoMemory(bytes))?;
        let mut key = Locked::new(|| [0; KEY]).map_err(memory)?;
        scrypt::scrypt(password.bytes(), &self.salt, &params, &mut *key)
            .map_err(|error| wrong(&error))?;
        Ok(key)
    }
}

/// The least and the largest cost, as logarithms of N.
pub const LOG_N: (u8, u8) = (10, 28);

/// The purpose of a derived key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Contents by AES-256-GCM; also the master key itself.
    Gcm,
    /// Contents by XChaCha20-Poly1305.
    XChaCha,
    /// Contents by AES-SIV: 64 bytes.
    Siv,
    /// Names by EME.
    Names,
}

/// Derives `key`, of 32 or 64 bytes, for `purpose`. Volumes of gocryptfs 1.2 and older (`hkdf` false) use the master key itself, and for
/// AES-SIV its SHA-512.
pub fn derive(master: &[u8; KEY], purpose: Purpose, hkdf: bool, key: &mut [u8]) {
    if !hkdf {
        if key.len() == KEY {
            key.copy_from_slice(master);
        } else {
            let mut digest = Sha512::digest(master);
            key.iter_mut()
                .zip(digest.iter())
                .for_each(|(to, from)| *to = *from);
            digest.zeroize();
        }
        return;
    }
    let info: &[u8] = match purpose {
        Purpose::Gcm => b"AES-GCM file content encryption",
        Purpose::XChaCha => b"XChaCha20-Poly1305 file content encryption",
        Purpose::Siv => b"AES-SIV file content encryption",
        Purpose::Names => b"EME filename encryption",
    };
    let hkdf = Hkdf::<Sha256>::new(None, master);
    // Fails for more than 255 times 32 bytes only.
    let _ = hkdf.expand(info, key);
}

/// Fills `bytes` with random numbers of the kernel.
pub fn random(bytes: &mut [u8]) -> Result<(), Error> {
    getrandom::fill(bytes).map_err(|error| Error::Random(error.to_string()))
}

pub(crate) fn memory(errno: goanna_vfs::Errno) -> Error {
    Error::Memory(errno.into())
}
