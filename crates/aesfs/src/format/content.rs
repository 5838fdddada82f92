//! Contents: the ciphers, headers and blocks of files, and the relation between the sizes of plain and encrypted files.

use std::ops::Range;

use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U16;
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_siv::Aes256SivAead;
use chacha20poly1305::XChaCha20Poly1305;
use goanna_sys::secret::Locked;
use parking_lot::Mutex;
use zeroize::Zeroize;

use super::keys::{KEY, MasterKey, Purpose, derive, memory};
use crate::error::Damage;
use crate::{Error, format::keys};

/// Bytes of a plain block.
pub const BLOCK: usize = 4096;

/// Bytes of a file's header.
pub const HEADER: usize = 18;

/// Bytes of a tag.
const TAG: usize = 16;

/// The version in headers.
const VERSION: [u8; 2] = [0, 2];

/// The id in a file's header, which authenticates all its blocks.
pub type FileId = [u8; 16];

/// The encryption of contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AES-256-GCM with nonces of 128 bits, gocryptfs's default.
    Gcm,
    /// XChaCha20-Poly1305.
    XChaCha,
    /// AES-256-SIV.
    Siv,
}

impl Cipher {
    /// Bytes of a nonce.
    pub const fn nonce_len(self) -> usize {
        match self {
            Self::Gcm | Self::Siv => 16,
            Self::XChaCha => 24,
        }
    }

    /// Bytes by which an encrypted block is longer than the plain one.
    pub const fn overhead(self) -> usize {
        self.nonce_len() + TAG
    }

    /// Bytes of an encrypted block.
    pub const fn block(self) -> usize {
        BLOCK + self.overhead()
    }

    /// The offset of block `number` in an encrypted file.
    pub const fn offset(self, number: u64) -> u64 {
        HEADER as u64 + number.saturating_mul(self.block() as u64)
    }

    /// The size of the plain file, from that of the encrypted one. A file that is cut off in its header or in a nonce or tag has
    /// the blocks before that.
    pub const fn plain_size(self, encrypted: u64) -> u64 {
        let Some(content) = encrypted.checked_sub(HEADER as u64) else {
            return 0;
        };
        let (blocks, rest) = (content / self.block() as u64, content % self.block() as u64);
        blocks * BLOCK as u64 + rest.saturating_sub(self.overhead() as u64)
    }

    /// The size of the encrypted file, from that of the plain one.
    pub const fn encrypted_size(self, plain: u64) -> u64 {
        if plain == 0 {
            return 0;
        }
        let blocks = plain.div_ceil(BLOCK as u64);
        (HEADER as u64)
            .saturating_add(plain)
            .saturating_add(blocks.saturating_mul(self.overhead() as u64))
    }

    /// The largest plain file: its encrypted size is the largest possible offset.
    pub const fn largest_file(self) -> u64 {
        self.plain_size(i64::MAX.unsigned_abs())
    }
}

/// A header for file id `id`.
pub fn header(id: &FileId) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (version, rest) = header.split_at_mut(VERSION.len());
    version.copy_from_slice(&VERSION);
    rest.copy_from_slice(id);
    header
}

/// The file id of a header. An id of zeros is a header that was never written.
pub fn parse_header(header: &[u8]) -> Result<FileId, Damage> {
    let id = header.strip_prefix(&VERSION).ok_or(Damage::Header)?;
    let id = FileId::try_from(id).map_err(|_| Damage::Header)?;
    (id != [0; 16]).then_some(id).ok_or(Damage::Header)
}

/// The blocks that the bytes `range` of a plain file touch.
pub fn blocks_of(range: Range<u64>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64)
}

// The sizes differ, but there is one value of it for each volume.
#[allow(
    clippy::large_enum_variant,
    reason = "one value a volume, in locked memory"
)]
enum Keyed {
    Gcm(AesGcm<aes::Aes256, U16>),
    XChaCha(XChaCha20Poly1305),
    Siv(Aes256SivAead),
}

/// Encrypts and decrypts blocks under the key of a volume.
pub struct ContentCipher {
    cipher: Cipher,
    keyed: Locked<Keyed>,
    nonces: Nonces,
}

impl ContentCipher {
    /// The cipher for contents of a volume with this master key.
    pub fn new(cipher: Cipher, master: &MasterKey, hkdf: bool) -> Result<Self, Error> {
        Self::under(cipher, master.bytes(), hkdf)
    }

    pub(crate) fn under(cipher: Cipher, master: &[u8; KEY], hkdf: bool) -> Result<Self, Error> {
        let make = || match cipher {
            Cipher::Gcm => {
                let mut key = [0; KEY];
                derive(master, Purpose::Gcm, hkdf, &mut key);
                let keyed = Keyed::Gcm(AesGcm::new(&key.into()));
                key.zeroize();
                keyed
            }
            Cipher::XChaCha => {
                let mut key = [0; KEY];
                derive(master, Purpose::XChaCha, hkdf, &mut key);
                let keyed = Keyed::XChaCha(XChaCha20Poly1305::new(&key.into()));
                key.zeroize();
                keyed
            }
            Cipher::Siv => {
                let mut key = [0; 2 * KEY];
                derive(master, Purpose::Siv, hkdf, &mut key);
                let keyed = Keyed::Siv(Aes256SivAead::new(&key.into()));
                key.zeroize();
                keyed
            }
        };
        Ok(Self {
            cipher,
            keyed: Locked::new(make).map_err(memory)?,
            nonces: Nonces::default(),
        })
    }

    /// The kind of cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Appends block `number` of file `id`, which is `plain`, to `out`. Every call takes a new nonce. An empty block stays empty.
    /// Without an id it is a symbolic link or an extended attribute, which has no number.
    pub fn encrypt(
        &self,
        plain: &[u8],
        number: u64,
        id: Option<&FileId>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if plain.is_empty() {
            return Ok(());
        }
        let mut nonce = [0; 24];
        let nonce = nonce.get_mut(..self.cipher.nonce_len()).unwrap_or_default();
        self.nonces.take(nonce)?;
        let start = out.len();
        out.extend_from_slice(nonce);
        if self.cipher == Cipher::Siv {
            out.extend_from_slice(&[0; TAG]);
        }
        let text = out.len();
        out.extend_from_slice(plain);
        let (_, buffer) = out.split_at_mut(text);
        let associated = Associated::new(number, id);
        let tag = match &*self.keyed {
            Keyed::Gcm(keyed) => <&_>::try_from(&*nonce).ok().and_then(|nonce| {
                keyed
                    .encrypt_inout_detached(nonce, associated.bytes(), buffer.into())
                    .ok()
            }),
            Keyed::XChaCha(keyed) => <&_>::try_from(&*nonce).ok().and_then(|nonce| {
                keyed
                    .encrypt_inout_detached(nonce, associated.bytes(), buffer.into())
                    .ok()
            }),
            Keyed::Siv(keyed) => <&_>::try_from(&*nonce).ok().and_then(|nonce| {
                keyed
                    .encrypt_inout_detached(nonce, associated.bytes(), buffer.into())
                    .ok()
            }),
        };
        let Some(tag) = tag else {
            out.truncate(start);
            return Err(Error::Random("a block is too long".into()));
        };
        if self.cipher == Cipher::Siv {
            out.get_mut(text - TAG..text)
                .unwrap_or_default()
                .copy_from_slice(&tag);
        } else {
            out.extend_from_slice(&tag);
        }
        Ok(())
    }

    /// Decrypts block `number` of file `id` to `plain`, whose length is that of the plain block. A whole block of zeros is a hole.
    /// A damaged block leaves no decrypted bytes in `plain`.
    pub fn decrypt(
        &self,
        block: &[u8],
        number: u64,
        id: Option<&FileId>,
        plain: &mut [u8],
    ) -> Result<(), Damage> {
        let damaged = Damage::Block(number);
        if block.is_empty() && plain.is_empty() {
            return Ok(());
        }
        if block.len() != plain.len() + self.cipher.overhead() || plain.is_empty() {
            return Err(damaged);
        }
        if id.is_some() && plain.len() == BLOCK && is_zero(block) {
            plain.fill(0);
            return Ok(());
        }
        let (nonce, rest) = block.split_at(self.cipher.nonce_len());
        let (text, tag) = match self.cipher {
            Cipher::Siv => {
                let (tag, text) = rest.split_at(TAG);
                (text, tag)
            }
            Cipher::Gcm | Cipher::XChaCha => rest.split_at(rest.len() - TAG),
        };
        plain.copy_from_slice(text);
        let associated = Associated::new(number, id);
        let associated = associated.bytes();
        let tag = <&_>::try_from(tag).map_err(|_| damaged)?;
        let buffer = (&mut *plain).into();
        let result = match &*self.keyed {
            Keyed::Gcm(keyed) => {
                let nonce = <&_>::try_from(nonce).map_err(|_| damaged)?;
                keyed.decrypt_inout_detached(nonce, associated, buffer, tag)
            }
            Keyed::XChaCha(keyed) => {
                let nonce = <&_>::try_from(nonce).map_err(|_| damaged)?;
                keyed.decrypt_inout_detached(nonce, associated, buffer, tag)
            }
            Keyed::Siv(keyed) => {
                let nonce = <&_>::try_from(nonce).map_err(|_| damaged)?;
                keyed.decrypt_inout_detached(nonce, associated, buffer, tag)
            }
        };
        result.map_err(|_| {
            plain.zeroize();
            damaged
        })
    }
}

/// The additional authenticated data of a block: its number, and its file's id.
struct Associated {
    bytes: [u8; 24],
    len: usize,
}

impl Associated {
    fn new(number: u64, id: Option<&FileId>) -> Self {
        let mut bytes = [0; 24];
        let (head, rest) = bytes.split_at_mut(8);
        head.copy_from_slice(&number.to_be_bytes());
        if let Some(id) = id {
            rest.copy_from_slice(id);
        }
        Self {
            bytes,
            len: if id.is_some() { 24 } else { 8 },
        }
    }

    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Whether all bytes are zero.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Whole chunks at a time, which the compiler turns into wide instructions.
    bytes
        .chunks(256)
        .all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Random nonces, read from the kernel many at a time. None is used twice.
struct Nonces {
    pool: Mutex<Pool>,
}

struct Pool {
    bytes: [u8; 4096],
    used: usize,
}

impl Default for Nonces {
    fn default() -> Self {
        let pool = Pool {
            bytes: [0; 4096],
            used: 4096,
        };
        Self {
            pool: Mutex::new(pool),
        }
    }
}

impl Nonces {
    fn take(&self, nonce: &mut [u8]) -> Result<(), Error> {
        let mut pool = self.pool.lock();
        if pool.bytes.len() - pool.used < nonce.len() {
            // Marked as used up first: if getrandom(2) fails half-way, old numbers must not be used again.
            pool.used = pool.bytes.len();
            keys::random(&mut pool.bytes)?;
            pool.used = 0;
        }
        let end = pool.used + nonce.len();
        let from = pool.used..end;
        nonce.copy_from_slice(pool.bytes.get(from).unwrap_or_default());
        pool.used = end;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const CIPHERS: [Cipher; 3] = [Cipher::Gcm, Cipher::XChaCha, Cipher::Siv];
    const ID: FileId = [5; 16];

    fn cipher(cipher: Cipher) -> ContentCipher {
        ContentCipher::under(cipher, &[1; KEY], true).unwrap()
    }

    #[test]
    fn sizes_belong_together() {
        for cipher in CIPHERS {
            for plain in (0..10_000).chain([1 << 32, (1 << 40) + 4095, cipher.largest_file()]) {
                assert_eq!(cipher.plain_size(cipher.encrypted_size(plain)), plain);
            }
        }
        assert_eq!(Cipher::Gcm.encrypted_size(5000), 5082);
        assert_eq!(Cipher::Gcm.encrypted_size(1), 51);
    }

    #[test]
    fn blocks_come_back_and_only_where_they_belong() {
        for kind in CIPHERS {
            let cipher = cipher(kind);
            for len in [1, 15, 16, 17, 4095, 4096] {
                let plain: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
                let mut block = Vec::new();
                cipher.encrypt(&plain, 3, Some(&ID), &mut block).unwrap();
                assert_eq!(block.len(), len + kind.overhead());
                let mut back = vec![0; len];
                cipher.decrypt(&block, 3, Some(&ID), &mut back).unwrap();
                assert_eq!(back, plain);
                let refused = Err(Damage::Block(3));
                assert_eq!(
                    cipher.decrypt(&block, 3, Some(&[6; 16]), &mut back),
                    refused
                );
                assert_eq!(cipher.decrypt(&block, 3, None, &mut back), refused);
                assert_eq!(
                    cipher.decrypt(&block, 4, Some(&ID), &mut back),
                    Err(Damage::Block(4))
                );
                assert!(is_zero(&back), "nothing of a refused block is given out");
                for at in [0, block.len() / 2, block.len() - 1] {
                    let mut altered = block.clone();
                    altered[at] ^= 1;
                    assert_eq!(cipher.decrypt(&altered, 3, Some(&ID), &mut back), refused);
                }
                let cut = &block[..block.len() - 1];
                assert_eq!(cipher.decrypt(cut, 3, Some(&ID), &mut back), refused);
            }
        }
    }

    #[test]
    fn only_a_whole_block_of_zeros_is_a_hole() {
        for kind in CIPHERS {
            let cipher = cipher(kind);
            let mut plain = vec![1; BLOCK];
            let zeros = vec![0; kind.block()];
            cipher.decrypt(&zeros, 9, Some(&ID), &mut plain).unwrap();
            assert!(is_zero(&plain));
            let short = &zeros[1..];
            let short = cipher.decrypt(short, 9, Some(&ID), &mut plain[1..]);
            assert_eq!(short, Err(Damage::Block(9)));
            assert_eq!(
                cipher.decrypt(&zeros, 0, None, &mut plain),
                Err(Damage::Block(0))
            );
        }
    }

    #[test]
    fn headers() {
        assert_eq!(parse_header(&header(&ID)), Ok(ID));
        let mut other = header(&ID);
        other[1] = 3;
        assert_eq!(parse_header(&other), Err(Damage::Header));
        assert_eq!(parse_header(&header(&ID)[..17]), Err(Damage::Header));
        assert_eq!(parse_header(&header(&[0; 16])), Err(Damage::Header));
    }

    /// A nonce that is used twice under one key reveals AES-GCM's authentication key.
    #[test]
    fn a_million_writes_of_one_block_take_a_million_nonces() {
        let cipher = cipher(Cipher::Gcm);
        let mut seen = HashSet::with_capacity(1_000_000);
        let mut block = Vec::new();
        for _ in 0..1_000_000 {
            block.clear();
            cipher.encrypt(b"x", 0, Some(&ID), &mut block).unwrap();
            assert!(seen.insert(<[u8; 16]>::try_from(&block[..16]).unwrap()));
        }
    }

    #[test]
    fn threads_share_no_nonces() {
        let nonces = Nonces::default();
        let seen = Mutex::new(HashSet::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5000 {
                        let mut nonce = [0; 24];
                        nonces.take(&mut nonce).unwrap();
                        assert!(seen.lock().insert(nonce));
                    }
                });
            }
        });
    }
}
