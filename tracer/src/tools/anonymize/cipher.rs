//! Hides single values. The cipher is AES-SIV without a nonce: equal values become equal ones; apart from lengths, nothing else is
//! revealed.
//!
//! Strings are padded to 16 bytes before, and numbers have 8, so that lengths reveal little. A hidden value is text in the alphabet of
//! base64url, which has neither the `/` of paths nor the dot of extensions. Content and its hashes stay bytes.

use std::collections::HashMap;

use aes_siv::KeyInit;
use aes_siv::siv::Aes256Siv;
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

use crate::codec::Key;

/// The cipher with the key of a field.
pub(super) struct Cipher {
    siv: Aes256Siv,
    /// A cache of strings that were hidden or shown.
    known: HashMap<Box<[u8]>, Box<[u8]>>,
}

/// Bytes that encryption adds.
const TAG: usize = 16;
/// Bytes to which strings are padded.
const PAD: usize = 16;
/// Bytes of one hash of content.
const HASH: usize = 16;
/// Characters of a hidden number: 24 bytes in base64.
const NUMBER: usize = 32;
/// Maximum number of strings that are cached, and the length of the longest one, in bytes.
const MAX_KNOWN: usize = 1 << 15;
const LONGEST_KNOWN: usize = 512;
/// Longest extension that is kept, in bytes.
const MAX_EXTENSION: usize = 8;

/// How a byte string is cut into pieces that are hidden one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// As a whole.
    Whole,
    /// Components of a path.
    Components {
        /// Whether the extension of the last one stays.
        keep_extensions: bool,
    },
    /// Strings with a zero byte after each.
    Strings,
    /// Hashes of 16 bytes.
    Hashes,
    /// Content.
    Data,
}

impl Cipher {
    pub(super) fn new(key: &Key) -> Option<Self> {
        let mut siv = [0; 64];
        let halves = [
            "goanna-trace anonymize mac",
            "goanna-trace anonymize cipher",
        ];
        for (slot, purpose) in siv.chunks_exact_mut(32).zip(halves) {
            slot.copy_from_slice(&key.derive(purpose, &[0; 16]));
        }
        Some(Self {
            siv: Aes256Siv::new_from_slice(&siv).ok()?,
            known: HashMap::new(),
        })
    }

    /// Hides a number. Results that are errors keep their number, which reveals no name or user.
    pub(super) fn hide_number(&mut self, number: u64, is_result: bool) -> Option<Vec<u8>> {
        let signed = number as i64;
        if is_result && (-4095..0).contains(&signed) {
            return Some(signed.to_string().into_bytes());
        }
        let hidden = self.encrypt(&number.to_le_bytes())?;
        Some(BASE64.encode(hidden).into_bytes())
    }

    /// The number that was hidden; `None` when the key is another one, or the text was changed.
    pub(super) fn show_number(&mut self, text: &[u8]) -> Option<u64> {
        if text.len() != NUMBER {
            let error = std::str::from_utf8(text).ok()?.parse::<i64>().ok()?;
            return (-4095..0).contains(&error).then_some(error as u64);
        }
        let bytes = self.decrypt(&BASE64.decode(text).ok()?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Hides a byte string.
    pub(super) fn hide(&mut self, bytes: &[u8], cut: Cut) -> Option<Vec<u8>> {
        match cut {
            Cut::Whole => self.hide_string(bytes),
            Cut::Components { keep_extensions } => {
                let last = bytes.iter().filter(|&&byte| byte == b'/').count();
                let piece = |cipher: &mut Self, (at, name): (usize, &[u8])| {
                    cipher.hide_component(name, keep_extensions && at == last)
                };
                self.pieces(bytes, b'/', piece)
            }
            Cut::Strings => self.pieces(bytes, 0, |cipher, (_, text)| cipher.hide_string(text)),
            Cut::Hashes => {
                let hashes = bytes.chunks(HASH).map(|hash| self.encrypt(hash));
                Some(hashes.collect::<Option<Vec<_>>>()?.concat())
            }
            Cut::Data => self.encrypt(bytes),
        }
    }

    /// The byte string that was hidden; `None` when the key is another one, or the text was changed.
    pub(super) fn show(&mut self, bytes: &[u8], cut: Cut) -> Option<Vec<u8>> {
        match cut {
            Cut::Whole => self.show_string(bytes),
            Cut::Components { .. } => {
                self.pieces(bytes, b'/', |cipher, (_, name)| cipher.show_component(name))
            }
            Cut::Strings => self.pieces(bytes, 0, |cipher, (_, text)| cipher.show_string(text)),
            Cut::Hashes => {
                let hashes = bytes.chunks(HASH + TAG).map(|hash| self.decrypt(hash));
                Some(hashes.collect::<Option<Vec<_>>>()?.concat())
            }
            Cut::Data => self.decrypt(bytes),
        }
    }

    fn pieces(
        &mut self,
        bytes: &[u8],
        separator: u8,
        mut piece: impl FnMut(&mut Self, (usize, &[u8])) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let pieces = bytes.split(|&byte| byte == separator).enumerate();
        let done = pieces
            .map(|it| piece(self, it))
            .collect::<Option<Vec<_>>>()?;
        Some(done.join(&separator))
    }

    fn hide_component(&mut self, name: &[u8], keep_extension: bool) -> Option<Vec<u8>> {
        match (name, keep_extension.then(|| extension(name)).flatten()) {
            (b"." | b"..", _) => Some(name.to_vec()),
            (_, Some((stem, extension))) => {
                let mut hidden = self.hide_string(stem)?;
                hidden.push(b'.');
                hidden.extend_from_slice(extension);
                Some(hidden)
            }
            (_, None) => self.hide_string(name),
        }
    }

    fn show_component(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        match (name, name.iter().position(|&byte| byte == b'.')) {
            (b"." | b"..", _) => Some(name.to_vec()),
            (_, Some(dot)) => {
                let (stem, extension) = name.split_at(dot);
                let mut shown = self.show_string(stem)?;
                shown.extend_from_slice(extension);
                Some(shown)
            }
            (_, None) => self.show_string(name),
        }
    }

    /// An empty string stays empty.
    fn hide_string(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.remembered(text, |cipher| {
            let mut padded = text.to_vec();
            padded.push(0x80);
            padded.resize(padded.len().next_multiple_of(PAD), 0);
            Some(BASE64.encode(cipher.encrypt(&padded)?).into_bytes())
        })
    }

    fn show_string(&mut self, text: &[u8]) -> Option<Vec<u8>> {
        self.remembered(text, |cipher| {
            let mut shown = cipher.decrypt(&BASE64.decode(text).ok()?)?;
            let end = shown.iter().rposition(|&byte| byte != 0)?;
            let marked = shown.get(end) == Some(&0x80);
            shown.truncate(end);
            marked.then_some(shown)
        })
    }

    fn remembered(
        &mut self,
        text: &[u8],
        make: impl FnOnce(&mut Self) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        if text.is_empty() {
            return Some(Vec::new());
        }
        if let Some(known) = self.known.get(text) {
            return Some(known.to_vec());
        }
        let made = make(self)?;
        if text.len() <= LONGEST_KNOWN {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(text.into(), made.as_slice().into());
        }
        Some(made)
    }

    fn encrypt(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.siv.encrypt(NO_HEADERS, bytes).ok()
    }

    fn decrypt(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        self.siv.decrypt(NO_HEADERS, bytes).ok()
    }
}

const NO_HEADERS: [&[u8]; 0] = [];

/// A name without its extension, and the extension, if it looks like a file type: a few letters and digits.
fn extension(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let dot = name.iter().rposition(|&byte| byte == b'.')?;
    let (stem, extension) = (name.get(..dot)?, name.get(dot + 1..)?);
    let short = (1..=MAX_EXTENSION).contains(&extension.len());
    let plain = extension.iter().all(u8::is_ascii_alphanumeric);
    (short && plain && !stem.is_empty()).then_some((stem, extension))
}
