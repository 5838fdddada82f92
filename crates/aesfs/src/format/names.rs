//! Names: of directory entries and of extended attributes, and the text of symbolic links.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{URL_SAFE, URL_SAFE_NO_PAD};
use goanna_sys::secret::Locked;
use sha2::{Digest, Sha256};
use zeroize::Zeroize;

use super::content::ContentCipher;
use super::eme::{BLOCK, Eme};
use super::keys::{KEY, MasterKey, Purpose, derive, memory};
use crate::Error;
use crate::error::Damage;

/// The IV of a directory, by which equal names in different directories are encrypted differently.
pub type DirIv = [u8; BLOCK];

/// The file with a directory's IV.
pub const DIR_IV_FILE: &[u8] = b"gocryptfs.diriv";

/// The prefix of entries with long names.
const LONG_PREFIX: &[u8] = b"gocryptfs.longname.";

/// The suffix of the file beside such an entry that contains the encrypted name.
pub(crate) const LONG_SUFFIX: &[u8] = b".name";

/// The IV of all names of extended attributes.
const XATTR_IV: DirIv = *b"xattr_name_iv_xx";

/// The prefix of encrypted names of extended attributes.
const XATTR_PREFIX: &[u8] = b"user.gocryptfs.";

/// The longest name, bytes.
const NAME_MAX: usize = 255;

/// The largest encrypted name, bytes: a name of 255 bytes, padded, in base64.
pub const ENCRYPTED_NAME_MAX: usize = 512;

/// The encryption of a volume's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// Names are not encrypted.
    Plain,
    /// With EME.
    Encrypted {
        /// Whether each directory has an IV; otherwise equal names are encrypted alike.
        has_dir_iv: bool,
        /// Whether the encrypted form of long names is stored in a file of its own.
        has_long_names: bool,
        /// The length in bytes from which on it is stored so.
        long_name_max: usize,
        /// Whether the base64 is padded with `=`.
        is_padded: bool,
    },
}

impl NameKind {
    /// Whether directories have a file with an IV.
    pub fn has_dir_iv(self) -> bool {
        matches!(
            self,
            Self::Encrypted {
                has_dir_iv: true,
                ..
            }
        )
    }
}

/// An entry's name in the lower file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EncryptedName {
    /// The name itself.
    Short(Vec<u8>),
    /// A hash, and the content of the file with the encrypted name.
    Long {
        /// The entry's name.
        entry: Vec<u8>,
        /// The encrypted name.
        content: Vec<u8>,
    },
}

impl EncryptedName {
    /// The entry's name.
    pub fn entry(&self) -> &[u8] {
        match self {
            Self::Short(name) | Self::Long { entry: name, .. } => name,
        }
    }
}

/// The meaning of a name in the lower file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LowerName<'a> {
    /// A file of the format, which is not shown: an IV, a long name, a config file.
    Internal,
    /// An entry whose encrypted name is in the file that [`name_file`] names.
    Long,
    /// An entry with this encrypted name.
    Entry(&'a [u8]),
}

/// The file beside an entry with a long name.
pub fn name_file(entry: &[u8]) -> Vec<u8> {
    [entry, LONG_SUFFIX].concat()
}

/// Encrypts and decrypts names under the key of a volume.
pub struct NameCipher {
    kind: NameKind,
    eme: Locked<Eme>,
}

impl NameCipher {
    /// The cipher for names of a volume with this master key.
    pub fn new(kind: NameKind, master: &MasterKey, hkdf: bool) -> Result<Self, Error> {
        let make = || {
            let mut key = [0; KEY];
            derive(master.bytes(), Purpose::Names, hkdf, &mut key);
            let eme = Eme::new(&key);
            key.zeroize();
            eme
        };
        Ok(Self {
            kind,
            eme: Locked::new(make).map_err(memory)?,
        })
    }

    /// The encryption of names.
    pub fn kind(&self) -> NameKind {
        self.kind
    }

    /// The meaning of `name`, a name in the lower file system. `at_root`: in the volume's top directory.
    pub fn classify<'a>(&self, name: &'a [u8], at_root: bool) -> LowerName<'a> {
        let config = super::CONFIG_FILE.as_bytes();
        if at_root && (name == config || name.strip_prefix(config) == Some(b".bak")) {
            return LowerName::Internal;
        }
        let NameKind::Encrypted {
            has_dir_iv,
            has_long_names,
            ..
        } = self.kind
        else {
            return LowerName::Entry(name);
        };
        if has_dir_iv && name == DIR_IV_FILE {
            return LowerName::Internal;
        }
        if has_long_names && name.starts_with(LONG_PREFIX) {
            return if name.ends_with(LONG_SUFFIX) {
                LowerName::Internal
            } else {
                LowerName::Long
            };
        }
        LowerName::Entry(name)
    }

    /// The encrypted name of `name` in a directory with this IV. `None` for one that is too long for a volume without long names, or
    /// that an entry cannot have.
    pub fn encrypt(&self, name: &[u8], iv: &DirIv) -> Option<EncryptedName> {
        let NameKind::Encrypted {
            has_long_names,
            long_name_max,
            ..
        } = self.kind
        else {
            return (name.len() <= NAME_MAX).then(|| EncryptedName::Short(name.to_vec()));
        };
        let encrypted = self.encrypt_text(name, iv)?;
        if encrypted.len() <= long_name_max {
            return Some(EncryptedName::Short(encrypted));
        }
        has_long_names.then(|| EncryptedName::Long {
            entry: self.long_entry(&encrypted),
            content: encrypted,
        })
    }

    /// The name of an entry whose encrypted name is `encrypted`.
    pub fn decrypt<'a>(&self, encrypted: &'a [u8], iv: &DirIv) -> Result<Cow<'a, [u8]>, Damage> {
        if self.kind == NameKind::Plain {
            return Ok(Cow::Borrowed(encrypted));
        }
        let name = self.decrypt_text(encrypted, iv).ok_or(Damage::Name)?;
        let is_name =
            !matches!(&name[..], b"." | b"..") && !name.iter().any(|b| matches!(b, 0 | b'/'));
        is_name.then_some(Cow::Owned(name)).ok_or(Damage::Name)
    }

    /// The name of the entry `entry`, beside which a file has `content` in it.
    pub fn decrypt_long(
        &self,
        entry: &[u8],
        content: &[u8],
        iv: &DirIv,
    ) -> Result<Vec<u8>, Damage> {
        if self.long_entry(content) != entry {
            return Err(Damage::LongName);
        }
        self.decrypt(content, iv).map(Cow::into_owned)
    }

    fn long_entry(&self, encrypted: &[u8]) -> Vec<u8> {
        let hash = self.encode(&Sha256::digest(encrypted));
        [LONG_PREFIX, hash.as_bytes()].concat()
    }

    fn encrypt_text(&self, name: &[u8], iv: &DirIv) -> Option<Vec<u8>> {
        if name.is_empty() || name.len() > NAME_MAX {
            return None;
        }
        let padding = BLOCK - name.len() % BLOCK;
        let mut data = name.to_vec();
        data.resize(name.len() + padding, padding as u8);
        self.eme
            .encrypt(iv, &mut data)
            .then(|| self.encode(&data).into_bytes())
    }

    fn decrypt_text(&self, encrypted: &[u8], iv: &DirIv) -> Option<Vec<u8>> {
        if encrypted.len() > ENCRYPTED_NAME_MAX {
            return None;
        }
        let mut data = self.decode(encrypted)?;
        if !self.eme.decrypt(iv, &mut data) {
            return None;
        }
        let padding = usize::from(*data.last()?);
        let len = data.len().checked_sub(padding)?;
        let (name, rest) = data.split_at_checked(len)?;
        let is_padding = (1..=BLOCK).contains(&padding)
            && rest.iter().all(|byte| usize::from(*byte) == padding)
            && (1..=NAME_MAX).contains(&name.len());
        is_padding.then(|| name.to_vec())
    }

    /// The lower file system's name of the extended attribute `name`; access control lists keep theirs.
    pub fn encrypt_xattr(&self, name: &[u8]) -> Option<Vec<u8>> {
        if is_acl(name) {
            return Some(name.to_vec());
        }
        Some([XATTR_PREFIX, &self.encrypt_text(name, &XATTR_IV)?].concat())
    }

    /// The extended attribute that `name` is in the lower file system. `None` for those that are not of the format.
    pub fn decrypt_xattr(&self, name: &[u8]) -> Option<Result<Vec<u8>, Damage>> {
        if is_acl(name) {
            return Some(Ok(name.to_vec()));
        }
        let encrypted = name.strip_prefix(XATTR_PREFIX)?;
        let name = self.decrypt_text(encrypted, &XATTR_IV);
        Some(name.ok_or(Damage::Xattr))
    }

    /// The text of a symbolic link in the lower file system.
    pub fn encrypt_link(&self, text: &[u8], cipher: &ContentCipher) -> Result<Vec<u8>, Error> {
        if self.kind == NameKind::Plain {
            return Ok(text.to_vec());
        }
        let mut block = Vec::new();
        cipher.encrypt(text, 0, None, &mut block)?;
        Ok(self.encode(&block).into_bytes())
    }

    /// The text of a symbolic link, from that in the lower file system.
    pub fn decrypt_link(
        &self,
        encrypted: &[u8],
        cipher: &ContentCipher,
    ) -> Result<Vec<u8>, Damage> {
        if self.kind == NameKind::Plain {
            return Ok(encrypted.to_vec());
        }
        let block = self.decode(encrypted).ok_or(Damage::Link)?;
        let len = block.len().checked_sub(cipher.cipher().overhead());
        let mut text = vec![0; len.filter(|len| *len > 0).ok_or(Damage::Link)?];
        cipher
            .decrypt(&block, 0, None, &mut text)
            .map_err(|_| Damage::Link)?;
        Ok(text)
    }

    /// The length of a symbolic link's text, from that in the lower file system.
    pub fn link_len(&self, encrypted: u64, cipher: &ContentCipher) -> u64 {
        if self.kind == NameKind::Plain {
            return encrypted;
        }
        // The length does not show how much padding there is: with padding the text must be read.
        let bytes = encrypted.saturating_mul(3) / 4;
        bytes.saturating_sub(cipher.cipher().overhead() as u64)
    }

    /// Whether [`NameCipher::link_len`] is exact.
    pub fn link_len_is_exact(&self) -> bool {
        !matches!(
            self.kind,
            NameKind::Encrypted {
                is_padded: true,
                ..
            }
        )
    }

    /// Volumes with plain names lack the feature of unpadded base64; their attributes' names are encrypted all the same.
    fn is_padded(&self) -> bool {
        match self.kind {
            NameKind::Plain => true,
            NameKind::Encrypted { is_padded, .. } => is_padded,
        }
    }

    fn encode(&self, bytes: &[u8]) -> String {
        if self.is_padded() {
            URL_SAFE.encode(bytes)
        } else {
            URL_SAFE_NO_PAD.encode(bytes)
        }
    }

    fn decode(&self, text: &[u8]) -> Option<Vec<u8>> {
        let bytes = if self.is_padded() {
            URL_SAFE.decode(text)
        } else {
            URL_SAFE_NO_PAD.decode(text)
        };
        bytes.ok()
    }
}

/// Whether it is an access control list. The host's kernel must read such lists, so they are not encrypted.
fn is_acl(name: &[u8]) -> bool {
    matches!(
        name,
        b"system.posix_acl_access" | b"system.posix_acl_default"
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const IV: DirIv = [4; 16];

    fn cipher(long_name_max: usize, is_padded: bool) -> NameCipher {
        let kind = NameKind::Encrypted {
            has_dir_iv: true,
            has_long_names: true,
            long_name_max,
            is_padded,
        };
        NameCipher::new(kind, &MasterKey::from_bytes(&mut [8; 32]).unwrap(), true).unwrap()
    }

    #[test]
    fn names_of_all_lengths_come_back() {
        for (max, padded) in [(255, false), (255, true), (100, false)] {
            let cipher = cipher(max, padded);
            for len in 1..=255 {
                let name: Vec<u8> = (0..len).map(|at| (at as u8) | 0x80).collect();
                match cipher.encrypt(&name, &IV).unwrap() {
                    EncryptedName::Short(text) => {
                        assert!(text.len() <= max);
                        assert_eq!(cipher.classify(&text, true), LowerName::Entry(&text));
                        assert_eq!(cipher.decrypt(&text, &IV).unwrap(), name);
                        assert_eq!(cipher.decrypt(&text, &[5; 16]), Err(Damage::Name));
                    }
                    EncryptedName::Long { entry, content } => {
                        assert!(content.len() > max && entry.len() <= 255);
                        assert_eq!(cipher.classify(&entry, false), LowerName::Long);
                        assert_eq!(
                            cipher.classify(&name_file(&entry), false),
                            LowerName::Internal
                        );
                        assert_eq!(cipher.decrypt_long(&entry, &content, &IV).unwrap(), name);
                        let other = cipher.decrypt_long(&entry, &content[1..], &IV);
                        assert_eq!(other, Err(Damage::LongName));
                    }
                }
            }
            assert_eq!(cipher.encrypt(&[b'x'; 256], &IV), None);
            assert_eq!(cipher.encrypt(b"", &IV), None);
        }
    }

    /// Names that no entry can have are refused, even if they are encrypted correctly.
    #[test]
    fn no_name_leads_out_of_its_directory() {
        let cipher = cipher(255, false);
        for name in [&b"."[..], b"..", b"a/b", b"/", b"a\0"] {
            let text = cipher.encrypt_text(name, &IV).unwrap();
            assert_eq!(cipher.decrypt(&text, &IV), Err(Damage::Name));
        }
    }

    #[test]
    fn damaged_names_are_refused() {
        let cipher = cipher(255, false);
        let text = cipher.encrypt_text(b"some name", &IV).unwrap();
        for at in 0..text.len() {
            let mut altered = text.clone();
            altered[at] = if altered[at] == b'A' { b'B' } else { b'A' };
            // With 16 altered bytes the padding fits by chance, once in some 256 times.
            assert_ne!(
                cipher.decrypt(&altered, &IV).ok().as_deref(),
                Some(&b"some name"[..])
            );
        }
        let mut random = fastrand::Rng::with_seed(14);
        for _ in 0..20_000 {
            let len = random.usize(0..600);
            let text: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            assert!(cipher.decrypt(&text, &IV).is_err());
            let encoded = URL_SAFE_NO_PAD.encode(&text);
            let _ = cipher.decrypt(encoded.as_bytes(), &IV);
            let _ = cipher.decrypt_xattr(&text);
            let _ = cipher.decrypt_long(&text, encoded.as_bytes(), &IV);
        }
    }

    #[test]
    fn attributes_and_links() {
        let names = cipher(255, false);
        let master = MasterKey::from_bytes(&mut [8; 32]).unwrap();
        let content =
            ContentCipher::new(super::super::content::Cipher::Gcm, &master, true).unwrap();
        let lower = names.encrypt_xattr(b"user.foo").unwrap();
        assert!(lower.starts_with(XATTR_PREFIX));
        assert_eq!(names.decrypt_xattr(&lower), Some(Ok(b"user.foo".to_vec())));
        assert_eq!(names.decrypt_xattr(b"user.other"), None);
        assert_eq!(
            names.decrypt_xattr(b"user.gocryptfs.x"),
            Some(Err(Damage::Xattr))
        );
        for len in 1..300_u64 {
            let text = vec![b'l'; len as usize];
            let link = names.encrypt_link(&text, &content).unwrap();
            assert_eq!(names.link_len(link.len() as u64, &content), len);
            assert_eq!(names.decrypt_link(&link, &content).unwrap(), text);
        }
        assert_eq!(names.decrypt_link(b"", &content), Err(Damage::Link));
        assert_eq!(names.decrypt_link(b"AAAA", &content), Err(Damage::Link));
    }
}
