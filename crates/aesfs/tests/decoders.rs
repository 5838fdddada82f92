//! Whatever a volume's config, names, directory IVs, link texts and headers are: an error, or a value that leads nowhere else; never a panic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use goanna_aesfs::format::config::Config;
use goanna_aesfs::format::content::{Cipher, ContentCipher, HEADER, parse_header};
use goanna_aesfs::format::keys::MasterKey;
use goanna_aesfs::format::names::{LowerName, NameCipher, NameKind};
use goanna_vfs::FileSystem;
use proptest::prelude::*;
use support::Place;

const KINDS: [NameKind; 5] = [
    NameKind::Plain,
    support::NAMES,
    NameKind::Encrypted {
        has_dir_iv: false,
        has_long_names: true,
        long_name_max: 62,
        is_padded: true,
    },
    NameKind::Encrypted {
        has_dir_iv: true,
        has_long_names: false,
        long_name_max: 255,
        is_padded: false,
    },
    NameKind::Encrypted {
        has_dir_iv: true,
        has_long_names: true,
        long_name_max: 100,
        is_padded: true,
    },
];

fn master() -> MasterKey {
    MasterKey::from_bytes(&mut [3; 32]).unwrap()
}

/// Bytes similar to texts of the format.
fn text() -> impl Strategy<Value = Vec<u8>> {
    let base64 = "[A-Za-z0-9_-]{0,400}={0,3}".prop_map(String::into_bytes);
    let blocks = (0..20_usize).prop_flat_map(|blocks| {
        let len = (blocks * 16 * 4).div_ceil(3);
        proptest::collection::vec(proptest::sample::select(&b"ABCxyz019_-"[..]), len)
    });
    let long = "gocryptfs\\.longname\\.[A-Za-z0-9_-]{0,60}(\\.name)?".prop_map(String::into_bytes);
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..600),
        base64,
        blocks,
        long
    ]
}

/// A valid config with parts of its text replaced, and other numbers.
fn config() -> impl Strategy<Value = Vec<u8>> {
    let golden = include_str!("golden/gcm/gocryptfs.conf");
    let number = prop_oneof![
        Just(u64::MAX.to_string()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        any::<u64>().prop_map(|number| number.to_string()),
        Just("[]".to_owned()),
        Just("null".to_owned()),
        "\"[A-Za-z0-9+/=]{0,200}\"",
    ];
    let tokens = golden.split(&[' ', ',', '\n'][..]).count();
    (0..tokens, number, any::<bool>()).prop_map(move |(at, with, cut)| {
        let mut tokens: Vec<&str> = golden.split_inclusive(&[' ', ',', '\n'][..]).collect();
        tokens.insert(at.min(tokens.len()), &with);
        if cut && at + 1 < tokens.len() {
            tokens.remove(at + 1);
        }
        tokens.concat().into_bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn names(name in text(), content in text(), iv in any::<[u8; 16]>(), at_root in any::<bool>()) {
        let (master, hkdf) = (master(), iv[0] & 1 == 0);
        for kind in KINDS {
            let names = NameCipher::new(kind, &master, hkdf).unwrap();
            let plain = match names.classify(&name, at_root) {
                LowerName::Entry(text) => names.decrypt(text, &iv).ok().map(|plain| plain.into_owned()),
                LowerName::Long => names.decrypt_long(&name, &content, &iv).ok(),
                LowerName::Internal => None,
            };
            // Names of a volume with plain names are the host's.
            if let Some(plain) = plain.filter(|_| !matches!(kind, NameKind::Plain)) {
                prop_assert!(!plain.is_empty() && plain.len() <= 255);
                prop_assert!(plain != b"." && plain != b".." && !plain.contains(&b'/') && !plain.contains(&0));
            }
            // A host directory never has an entry with an invalid name.
            if !name.is_empty() && name.len() <= 255 && !name.contains(&b'/') && !name.contains(&0)
                && let Some(entry) = names.encrypt(&name, &iv)
            {
                prop_assert!(entry.entry().len() <= 255 && !entry.entry().contains(&b'/'));
            }
            let _ = names.decrypt_xattr(&name);
            let _ = names.encrypt_xattr(&name);
        }
    }

    #[test]
    fn links(text in text(), cipher in proptest::sample::select(&[Cipher::Gcm, Cipher::XChaCha, Cipher::Siv][..])) {
        let master = master();
        let content = ContentCipher::new(cipher, &master, true).unwrap();
        for kind in KINDS {
            let names = NameCipher::new(kind, &master, true).unwrap();
            if !matches!(kind, NameKind::Plain) {
                prop_assert!(names.decrypt_link(&text, &content).is_err());
            }
            let _ = names.link_len(text.len() as u64, &content);
        }
    }

    #[test]
    fn headers(bytes in proptest::collection::vec(any::<u8>(), 0..2 * HEADER)) {
        let is_header = bytes.len() == HEADER && bytes[..2] == [0, 2] && bytes[2..] != [0; 16];
        prop_assert_eq!(parse_header(&bytes).is_ok(), is_header);
    }

    #[test]
    fn configs(text in config()) {
        if let Ok(config) = Config::parse(&text) {
            let _ = config.features();
            prop_assert!(config.scrypt().check().is_ok());
        }
    }

    #[test]
    fn sizes(encrypted in any::<u64>()) {
        for cipher in [Cipher::Gcm, Cipher::XChaCha, Cipher::Siv] {
            let plain = cipher.plain_size(encrypted);
            prop_assert!(plain <= encrypted);
            prop_assert!(cipher.encrypted_size(plain) <= encrypted.max(18));
        }
    }
}

/// Entries and IVs of any content in a directory: a mount lists it, reads what can be read and refuses the rest, and the check ends.
#[test]
fn directories_of_anything() {
    let mut random = fastrand::Rng::with_seed(140);
    for _ in 0..60 {
        let place = Place::usual();
        let mounted = place.mount();
        mounted.put(b"kept", b"content");
        let root = mounted.fs.root();
        mounted
            .fs
            .mkdir(&mounted.caller, &root, b"d", 0o755)
            .unwrap();
        drop(mounted);
        let top = place.dir.path();
        let sub = fs::read_dir(top)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.is_dir())
            .unwrap();
        let iv = sub.join("gocryptfs.diriv");
        fs::remove_file(&iv).unwrap();
        let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
        fs::write(&iv, bytes).unwrap();
        for _ in 0..10 {
            let dir = if random.bool() { top } else { &sub };
            let len = random.usize(1..200);
            let mut name: Vec<u8> = (0..len)
                .map(|_| match random.u8(..4) {
                    0 => random.u8(1..),
                    _ => random.alphanumeric() as u8,
                })
                .map(|byte| if byte == b'/' { b'_' } else { byte })
                .collect();
            if random.bool() {
                name = [b"gocryptfs.longname.", &name[..]].concat();
            }
            let path = dir.join(Path::new(std::ffi::OsStr::from_bytes(&name)));
            let _ = match random.u8(..4) {
                0 => fs::create_dir(&path),
                1 => std::os::unix::fs::symlink("anything", &path),
                _ => fs::write(&path, &name),
            };
        }
        let mounted = place.mount();
        assert!(mounted.names().contains(&b"kept".to_vec()));
        assert_eq!(mounted.get(b"kept").unwrap(), b"content");
        assert!(!place.findings().is_empty());
    }
}
