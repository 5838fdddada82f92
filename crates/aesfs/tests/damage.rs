//! Damaged and altered volumes: EIO and a report with the plain path, and everything else is as it was.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use goanna_aesfs::format::content::{Cipher, HEADER};
use goanna_aesfs::format::names::NameCipher;
use goanna_aesfs::{Damage, Problem};
use goanna_skip::{Facility, skip};
use goanna_vfs::{Errno, FileSystem};
use support::{NAMES, Place};

const BLOCK: u64 = 4128;

/// A volume with the files `a` and `b`, of three blocks each, and their encrypted files.
fn two_files() -> (Place, PathBuf, PathBuf) {
    let place = Place::usual();
    let mounted = place.mount();
    mounted.put(b"a", &[b'a'; 10_000]);
    let a = place.entries(Path::new(""));
    mounted.put(b"b", &[b'b'; 10_000]);
    let b = place.entries(Path::new(""));
    let b = b.into_iter().find(|path| !a.contains(path)).unwrap();
    (place, a[0].clone(), b)
}

/// `a` fails with the damage, in reads, opens, writes and the check; `b` does not.
fn only_a_fails(place: &Place, damage: Damage) {
    let mounted = place.mount();
    for flags in [
        libc::O_RDONLY,
        libc::O_RDWR,
        libc::O_WRONLY | libc::O_APPEND,
    ] {
        assert_eq!(mounted.open(b"a", flags).err(), Some(Errno::EIO.into()));
        assert_eq!(mounted.reported(), [(b"a".to_vec(), damage)]);
    }
    let node = mounted.lookup(b"a").unwrap();
    let mut data = [0; 10_000];
    let read = mounted.fs.read_at(&mounted.caller, &node, 0, &mut data);
    assert_eq!(read, Err(Errno::EIO.into()));
    assert_eq!(mounted.get(b"b").unwrap(), [b'b'; 10_000]);
    assert_eq!(mounted.names(), [b"a", b"b"]);
    let findings = place.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0].path, b"a");
    assert_eq!(findings[0].problem, Problem::Damaged(damage));
    // The damage ends when the content is removed.
    let file = mounted.open(b"a", libc::O_RDWR | libc::O_TRUNC).unwrap();
    mounted.write(&file, 0, b"new").unwrap();
    mounted.close(file);
    assert_eq!(mounted.get(b"a").unwrap(), b"new");
    assert_eq!(place.findings(), []);
}

fn writable(path: &Path) -> fs::File {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap()
}

fn block(path: &Path, number: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let file = writable(path);
    file.read_exact_at(&mut block, HEADER as u64 + number * BLOCK)
        .unwrap();
    block
}

fn set_block(path: &Path, number: u64, block: &[u8]) {
    let offset = HEADER as u64 + number * BLOCK;
    writable(path).write_all_at(block, offset).unwrap();
}

#[test]
fn an_altered_block() {
    for at in [0, 16, 2000, 4127] {
        let (place, a, _) = two_files();
        let mut altered = block(&a, 1);
        altered[at] ^= 0x80;
        set_block(&a, 1, &altered);
        only_a_fails(&place, Damage::Block(1));
    }
}

#[test]
fn a_block_of_the_same_file_in_another_place() {
    let (place, a, _) = two_files();
    set_block(&a, 1, &block(&a, 0));
    only_a_fails(&place, Damage::Block(1));
}

#[test]
fn a_block_of_another_file() {
    let (place, a, b) = two_files();
    set_block(&a, 1, &block(&b, 1));
    only_a_fails(&place, Damage::Block(1));
}

#[test]
fn the_id_of_another_file() {
    let (place, a, b) = two_files();
    let mut header = [0; HEADER];
    writable(&b).read_exact_at(&mut header, 0).unwrap();
    writable(&a).write_all_at(&header, 0).unwrap();
    let mounted = place.mount();
    assert_eq!(mounted.get(b"a").err(), Some(Errno::EIO.into()));
    assert_eq!(mounted.reported(), [(b"a".to_vec(), Damage::Block(0))]);
    assert_eq!(mounted.get(b"b").unwrap(), [b'b'; 10_000]);
    // All three blocks.
    assert_eq!(place.findings().len(), 3);
}

#[test]
fn a_truncated_header() {
    for len in [1, 2, 17] {
        let (place, a, _) = two_files();
        writable(&a).set_len(len).unwrap();
        only_a_fails(&place, Damage::Header);
    }
}

#[test]
fn a_header_of_another_version() {
    let (place, a, _) = two_files();
    writable(&a).write_all_at(&[0, 3], 0).unwrap();
    only_a_fails(&place, Damage::Header);
}

#[test]
fn a_file_that_ends_within_a_nonce_or_a_tag() {
    for bytes in [1, 16, 31, 32] {
        let (place, a, _) = two_files();
        writable(&a)
            .set_len(HEADER as u64 + 2 * BLOCK + bytes)
            .unwrap();
        only_a_fails(&place, Damage::Block(2));
    }
}

/// As a power cut leaves it: the first half of the new block, and the second half of the old one.
#[test]
fn a_torn_block() {
    for torn_at in [512, 2048, 4096] {
        let (place, a, _) = two_files();
        let old = block(&a, 1);
        let mounted = place.mount();
        let file = mounted.open(b"a", libc::O_RDWR).unwrap();
        mounted.write(&file, 5000, b"changed").unwrap();
        mounted.close(file);
        let mut torn = block(&a, 1);
        torn[torn_at..].copy_from_slice(&old[torn_at..]);
        set_block(&a, 1, &torn);
        only_a_fails(&place, Damage::Block(1));
    }
}

/// A whole block of zeros is a hole, by the format; a short one is not.
#[test]
fn blocks_of_zeros() {
    let (place, a, _) = two_files();
    set_block(&a, 1, &[0; BLOCK as usize]);
    let mut hole = vec![b'a'; 10_000];
    hole[4096..8192].fill(0);
    assert_eq!(place.mount().get(b"a").unwrap(), hole);
    let (place, a, _) = two_files();
    let size = fs::metadata(&a).unwrap().len();
    let file = writable(&a);
    file.set_len(HEADER as u64 + 2 * BLOCK).unwrap();
    file.set_len(size).unwrap();
    only_a_fails(&place, Damage::Block(2));
}

/// A block in base64 that is not the encryption of a name in the top directory. Names have no tag, only padding, which is right by
/// chance in one block of 256.
fn block_of_no_name(place: &Place) -> String {
    let iv = fs::read(place.dir.path().join("gocryptfs.diriv")).unwrap();
    let cipher = NameCipher::new(NAMES, &place.master, true).unwrap();
    (b'A'..=b'Z')
        .map(|letter| format!("{}A", char::from(letter).to_string().repeat(21)))
        .find(|text| {
            cipher
                .decrypt(text.as_bytes(), &iv[..].try_into().unwrap())
                .is_err()
        })
        .unwrap()
}

#[test]
fn foreign_names_are_not_listed() {
    let (place, a, _) = two_files();
    let block = block_of_no_name(&place);
    for name in ["foreign", "with.dot", &block, "gocryptfs.longname.AA"] {
        fs::write(place.dir.path().join(name), "x").unwrap();
    }
    fs::copy(&a, place.dir.path().join(format!("{}x", a.display()))).unwrap();
    let mounted = place.mount();
    assert_eq!(mounted.names(), [b"a", b"b"]);
    let reported = mounted.reported();
    assert_eq!(reported.len(), 5, "{reported:?}");
    assert!(
        reported
            .iter()
            .any(|it| *it == (b"foreign".to_vec(), Damage::Name))
    );
    assert!(reported.iter().any(|it| it.1 == Damage::LongName));
    assert_eq!(place.findings().len(), 5);
}

#[test]
fn a_long_name_whose_file_is_altered_or_missing() {
    let place = Place::usual();
    let long = [b'l'; 200];
    place.mount().put(&long, b"content");
    let entries = fs::read_dir(place.dir.path()).unwrap();
    let file = entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|it| it == "name"))
        .unwrap();
    let text = fs::read(&file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    for altered in [&text[1..], b"", &[b'A'; 342]] {
        fs::write(&file, altered).unwrap();
        let mounted = place.mount();
        assert_eq!(mounted.names(), Vec::<Vec<u8>>::new());
        assert_eq!(mounted.reported()[0].1, Damage::LongName);
        // The name is found by its hash all the same.
        assert_eq!(mounted.get(&long).unwrap(), b"content");
    }
    fs::remove_file(&file).unwrap();
    let mounted = place.mount();
    assert_eq!(mounted.names(), Vec::<Vec<u8>>::new());
    assert_eq!(
        place.findings()[0].problem,
        Problem::Damaged(Damage::LongName)
    );
}

#[test]
fn a_missing_or_altered_directory_iv() {
    const FILES: [&[u8]; 8] = [b"0", b"1", b"2", b"3", b"4", b"5", b"6", b"7"];
    let place = Place::usual();
    let mounted = place.mount();
    let root = mounted.fs.root();
    let mut dirs = Vec::new();
    for name in [b"d", b"e"] {
        let dir = mounted
            .fs
            .mkdir(&mounted.caller, &root, name, 0o755)
            .unwrap();
        // Under another IV, the padding of a single name is right in one case of 256.
        for file in FILES {
            mounted.close(mounted.try_create(&dir, file).unwrap());
        }
        let mut entries = place.entries(Path::new(""));
        entries.retain(|entry| !dirs.contains(entry));
        dirs.append(&mut entries);
    }
    let in_d = |damage: Option<Damage>| {
        let mounted = place.mount();
        let (d, e) = (mounted.lookup(b"d").unwrap(), mounted.lookup(b"e").unwrap());
        let found = |dir| mounted.fs.lookup(&mounted.caller, dir, FILES[0]).map(drop);
        let expected = damage.map_or(Ok(()), |_| Err(Errno::EIO.into()));
        assert_eq!((found(&d), found(&e)), (expected, Ok(())));
        mounted.reported()
    };
    assert_eq!(in_d(None), []);
    let iv = dirs[0].join("gocryptfs.diriv");
    fs::set_permissions(&iv, fs::Permissions::from_mode(0o600)).unwrap();
    for wrong in [&[0; 16][..], &[1; 15], &[1; 17], b""] {
        fs::write(&iv, wrong).unwrap();
        let reported = in_d(Some(Damage::DirIv));
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].1, Damage::DirIv);
        assert_eq!(reported[0].0, b"d");
    }
    // The IV of another directory: the names in this one do not decrypt.
    fs::copy(dirs[1].join("gocryptfs.diriv"), &iv).unwrap();
    assert_eq!(place.findings()[0].problem, Problem::Damaged(Damage::Name));
    fs::remove_file(&iv).unwrap();
    assert_eq!(in_d(Some(Damage::DirIv)).len(), 1);
    assert_eq!(place.findings()[0].problem, Problem::Damaged(Damage::DirIv));
}

#[test]
fn altered_links_and_attributes() {
    let place = Place::usual();
    let mounted = place.mount();
    let (root, by) = (mounted.fs.root(), &mounted.caller);
    mounted.fs.symlink(by, &root, b"l", b"target").unwrap();
    let link = place.entries(Path::new(""))[0].clone();
    for text in ["x", "AAAA", "not base64!"] {
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(text, &link).unwrap();
        let node = mounted.lookup(b"l").unwrap();
        assert_eq!(mounted.fs.readlink(by, &node), Err(Errno::EIO.into()));
        assert_eq!(mounted.reported(), [(b"l".to_vec(), Damage::Link)]);
    }
    assert_eq!(place.findings()[0].problem, Problem::Damaged(Damage::Link));
    fs::remove_file(&link).unwrap();

    mounted.put(b"f", b"content");
    let node = mounted.lookup(b"f").unwrap();
    let set = mounted.fs.setxattr(by, &node, b"user.x", b"value", 0);
    if set == Err(Errno::EOPNOTSUPP.into()) {
        skip(
            Facility::UserAttributes,
            "the file system of temporary files has none",
        );
        return;
    }
    set.unwrap();
    let file = mounted
        .lower
        .lookup(
            by,
            &mounted.lower.root(),
            place.entries(Path::new(""))[0]
                .file_name()
                .unwrap()
                .as_encoded_bytes(),
        )
        .unwrap();
    let names = mounted.lower.listxattr(by, &file).unwrap();
    mounted
        .lower
        .setxattr(by, &file, &names[0], &[7; 40], 0)
        .unwrap();
    assert_eq!(
        mounted.fs.getxattr(by, &node, b"user.x"),
        Err(Errno::EIO.into())
    );
    assert_eq!(mounted.reported(), [(b"f".to_vec(), Damage::Xattr)]);
    assert_eq!(place.findings()[0].problem, Problem::Damaged(Damage::Xattr));
}

/// Random bytes anywhere in a file: an error or the right content, never other content, and never a panic.
#[test]
fn random_damage_is_never_shown_as_content() {
    let mut random = fastrand::Rng::with_seed(14);
    let right: Vec<u8> = (0..10_000).map(|_| random.u8(1..)).collect();
    for cipher in [Cipher::Gcm, Cipher::XChaCha, Cipher::Siv] {
        let place = Place::new(cipher, NAMES);
        place.mount().put(b"a", &right);
        let path = place.entries(Path::new(""))[0].clone();
        let original = fs::read(&path).unwrap();
        for _ in 0..300 {
            let mut altered = original.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..altered.len());
                altered[at] = random.u8(..);
            }
            if random.bool() {
                altered.truncate(random.usize(..altered.len()));
            }
            fs::write(&path, &altered).unwrap();
            let mounted = place.mount();
            match mounted.get(b"a") {
                Err(errno) => assert!(errno == Errno::EIO),
                // Cut off at the end of a block, or nothing was altered.
                Ok(content) => assert!(right.starts_with(&content), "{cipher:?}"),
            }
        }
    }
}

/// Another process damages a file that a program has open: each later open is refused, not only the first.
#[test]
fn a_damaged_block_of_an_open_file_is_refused_again() {
    let (place, a, _) = two_files();
    let mounted = place.mount();
    let file = mounted.open(b"a", libc::O_RDONLY).unwrap();
    let mut altered = block(&a, 1);
    altered[100] ^= 1;
    // A new size, so that the change is seen whatever the granularity of times is.
    writable(&a).set_len(HEADER as u64 + 2 * BLOCK).unwrap();
    set_block(&a, 1, &altered);
    for _ in 0..3 {
        let opened = mounted.open(b"a", libc::O_RDONLY).map(drop);
        assert_eq!(opened, Err(Errno::EIO.into()));
        assert_eq!(mounted.reported(), [(b"a".to_vec(), Damage::Block(1))]);
    }
    mounted.close(file);
}
