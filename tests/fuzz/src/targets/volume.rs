//! Encrypted volumes: the config file, names, links and contents. The first byte of an input chooses what the others are.

use goanna_aesfs::format::config::Config;
use goanna_aesfs::format::content::{BLOCK, Cipher, ContentCipher, HEADER, parse_header};
use goanna_aesfs::format::keys::MasterKey;
use goanna_aesfs::format::names::{LowerName, NameCipher, NameKind};

/// A volume's config file.
const CONFIG: &[u8] = include_bytes!("../../../../crates/aesfs/tests/golden/gcm/gocryptfs.conf");
/// The longest name of a host file, in bytes.
const NAME_MAX: usize = 255;
const IV: [u8; 16] = [5; 16];
const KIND: NameKind = NameKind::Encrypted {
    has_dir_iv: true,
    has_long_names: true,
    long_name_max: 255,
    is_padded: false,
};

/// Decodes the bytes after the first one.
pub fn read(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    match first {
        0 => config(rest),
        1 => parts(rest, Cipher::Gcm),
        2 => parts(rest, Cipher::XChaCha),
        _ => parts(rest, Cipher::Siv),
    }
}

fn config(text: &[u8]) {
    if let Ok(config) = Config::parse(text) {
        let _ = (config.features(), config.text(), config.encrypted_key_len());
        assert!(config.scrypt().check().is_ok());
    }
}

fn parts(bytes: &[u8], cipher: Cipher) {
    let master = MasterKey::from_bytes(&mut [3; 32]);
    let Some((names, content)) = master.ok().and_then(|master| {
        let names = NameCipher::new(KIND, &master, true).ok()?;
        Some((names, ContentCipher::new(cipher, &master, true).ok()?))
    }) else {
        return;
    };
    let end = bytes.iter().position(|byte| *byte == 0);
    let (name, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
    let plain = match names.classify(name, false) {
        LowerName::Entry(text) => names.decrypt(text, &IV).ok().map(|it| it.into_owned()),
        LowerName::Long => names.decrypt_long(name, rest, &IV).ok(),
        LowerName::Internal => None,
    };
    if let Some(plain) = plain {
        assert!(!plain.is_empty() && plain.len() <= NAME_MAX && !plain.contains(&b'/'));
        assert!(plain != b"." && plain != b"..");
    }
    if let Some(entry) = names.encrypt(name, &IV).filter(|_| name.len() <= NAME_MAX) {
        assert!(entry.entry().len() <= NAME_MAX);
    }
    let _ = (names.decrypt_xattr(name), names.encrypt_xattr(name));
    let _ = names.decrypt_link(name, &content);
    let _ = parse_header(rest.get(..HEADER).unwrap_or(rest));
    let len = rest.len().saturating_sub(cipher.overhead()).min(BLOCK);
    let _ = content.decrypt(rest, 0, Some(&IV), &mut vec![0; len]);
}

/// A config file, and encrypted names, links and contents.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![[&[0], CONFIG].concat()];
    for (first, cipher) in [(1, Cipher::Gcm), (2, Cipher::XChaCha), (3, Cipher::Siv)] {
        let Ok(master) = MasterKey::from_bytes(&mut [3; 32]) else {
            continue;
        };
        let names = NameCipher::new(KIND, &master, true);
        let content = ContentCipher::new(cipher, &master, true);
        let (Ok(names), Ok(content)) = (names, content) else {
            continue;
        };
        let mut block = Vec::new();
        let _ = content.encrypt(b"content", 0, Some(&IV), &mut block);
        for name in [&b"name"[..], &[b'n'; 200]] {
            if let Some(name) = names.encrypt(name, &IV) {
                seeds.push([&[first], name.entry(), &[0], &block].concat());
            }
        }
        if let Ok(link) = names.encrypt_link(b"../target", &content) {
            seeds.push([&[first], &link[..]].concat());
        }
    }
    seeds
}
