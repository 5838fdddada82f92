//! A store with records that no program of ours has written, although their checksums are right: `amino load` makes one of any dump.
//! Operations return what they return; none of them panics, or runs for ever.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use common::*;

use amino_fs::{AminoFs, fsck};
use amino_schema::{
    DataRecord, Meta, MetaFlags, OrphanRecord, PathRecord, Super, Timestamp, key, record,
};
use amino_txn::{Changes, EngineKind, Options, Records, Store};
use goanna_vfs::{FileSystem, Transactions, WritePosition};

const NAMES: [&str; 6] = ["dir", "dir/file", "small", "linked", "link", "dir/linked"];
const FIRST_INO: u64 = 2;

/// A store with entries of each kind.
fn sample(path: &Path) {
    let fs = open(path);
    let user = root();
    fs.mkdir(&user, &fs.root(), b"dir", 0o777).unwrap();
    write_file(&fs, "dir/file", &[1; 40_000]).unwrap();
    for name in ["small", "linked"] {
        let (node, _) = fs
            .create(&user, &fs.root(), name.as_bytes(), 0o666, libc::O_RDWR)
            .unwrap();
        fs.write_at(&user, &node, 0, b"content").unwrap();
    }
    let linked = walk(&fs, "linked").unwrap();
    fs.link(&user, &linked, &walk(&fs, "dir").unwrap(), b"linked")
        .unwrap();
    fs.symlink(&user, &fs.root(), b"link", b"dir/file").unwrap();
    fs.close().unwrap();
}

/// Puts changes into the store, whatever they are.
fn put(path: &Path, change: impl FnOnce(&Store, &mut Changes)) {
    let options = Options {
        engine: EngineKind::Memory,
        ..Options::default()
    };
    let store = Store::open(path, options).unwrap();
    let mut changes = Changes::new();
    change(&store, &mut changes);
    let guard = store.enter();
    store.submit(&guard, changes).unwrap();
    drop(guard);
    store.close().unwrap();
}

/// Changes the metadata of all files.
fn edit_all(store: &Store, changes: &mut Changes, edit: &dyn Fn(&mut Meta)) {
    for (parent, name) in [
        (0, &b""[..]),
        (1, b"dir"),
        (1, b"small"),
        (1, b"linked"),
        (1, b"link"),
        (2, b"file"),
    ] {
        let key = key::path_key(parent, name);
        let Some(raw) = store.get(&key).unwrap() else {
            continue;
        };
        let mut record = PathRecord::decode(&raw).unwrap();
        if let Some(meta) = &mut record.meta {
            edit(meta);
            changes.put(key, record.encode());
        }
    }
    for ino in FIRST_INO..FIRST_INO + 8 {
        let key = key::data_key(ino);
        if let Some(raw) = store.get(&key).unwrap() {
            let mut record = DataRecord::decode(&raw).unwrap();
            edit(&mut record.meta);
            changes.put(key, record.encode());
        }
    }
}

/// All that can be done with a store; errors are as good as results.
fn exercise(path: &Path) {
    let _ = fsck::fsck(path, &mut |_| {});
    let Ok(fs) = AminoFs::open(path, options(EngineKind::Memory)) else {
        return;
    };
    let user = root();
    let within = fs.begin(None).ok();
    for txn in [None, within] {
        let mut user = user.clone();
        user.txn = txn;
        for name in NAMES {
            touch(&fs, &user, name);
        }
        let _ = fs.readdir(&user, &fs.root(), 0, &mut |_| true);
        let _ = fs.statfs(&user, &fs.root());
        for (from, to) in [("dir", "other"), ("small", "dir/small"), ("link", "linked")] {
            let (Ok((a, old)), Ok((b, new))) = (parent(&fs, from), parent(&fs, to)) else {
                continue;
            };
            let _ = fs.rename(&user, &a, old, &b, new, 0);
        }
    }
    if let Some(id) = within {
        let _ = fs.commit(id);
    }
    let _ = fs.sync(None);
    for name in NAMES {
        let Ok((dir, name)) = parent(&fs, name) else {
            continue;
        };
        let _ = fs.unlink(&user, &dir, name);
        let _ = fs.rmdir(&user, &dir, name);
    }
    let _ = fs.close();
    drop(fs);
    let _ = fsck::fsck(path, &mut |_| {});
}

fn touch(fs: &AminoFs, user: &goanna_vfs::Caller, name: &str) {
    let Ok(node) = walk(fs, name) else { return };
    let _ = fs.getattr(user, &node);
    let _ = fs.path(user, &node);
    let _ = fs.readlink(user, &node);
    let _ = fs.listxattr(user, &node);
    let _ = fs.readdir(user, &node, 0, &mut |_| true);
    let mut buf = [0; 5000];
    for offset in [0, 4000, 1 << 40, u64::MAX >> 1, u64::MAX] {
        let _ = fs.read_at(user, &node, offset, &mut buf);
        if offset <= u64::MAX >> 1 {
            let _ = fs.write_at(user, &node, offset, b"written");
        }
    }
    if let Ok(opened) = fs.open(user, &node, libc::O_RDWR) {
        let handle = Handle {
            node: node.clone(),
            fd: opened.into_fd().unwrap(),
            flags: libc::O_RDWR,
        };
        let _ = handle.write(fs, WritePosition::End, b"end");
        let modes = [
            0,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
            libc::FALLOC_FL_ZERO_RANGE,
        ];
        for mode in modes {
            let _ = fs.fallocate(user, &node, mode, 4096, 4096);
        }
        handle.close(fs);
    }
    for size in [100_000, 3, 0] {
        let _ = fs.truncate(user, &node, size);
    }
    let _ = fs.setxattr(user, &node, b"user.x", b"y", 0);
    let _ = fs.create(user, &node, b"new", 0o644, libc::O_RDWR);
    let _ = fs.mkdir(user, &node, b"newdir", 0o755);
    let _ = fs.link(
        user,
        &node,
        &fs.root(),
        format!("{}-2", name.replace('/', "-")).as_bytes(),
    );
}

/// Makes a store, changes it, and does with it all that can be done; the error names the case.
fn check(case: &str, change: impl FnOnce(&Store, &mut Changes)) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    sample(&path);
    put(&path, change);
    let outcome = catch_unwind(AssertUnwindSafe(|| exercise(&path)));
    outcome.map_err(|_| case.to_owned())
}

/// The same for changes with each of some numbers.
fn check_numbers(what: &str, change: impl Fn(u64, &Store, &mut Changes)) {
    for number in [u64::MAX, u64::MAX >> 1] {
        let done = check(&format!("{what} {number}"), |store, changes| {
            change(number, store, changes);
        });
        assert_eq!(done, Ok(()));
    }
}

fn check_metadata(what: &str, edit: impl Fn(u64, &mut Meta)) {
    check_numbers(what, |number, store, changes| {
        edit_all(store, changes, &|meta| edit(number, meta));
    });
}

#[test]
fn sizes_and_counts_of_any_size() {
    check_metadata("size", |number, meta| meta.size = number);
    check_metadata("nlink", |number, meta| meta.nlink = number as u32);
}

#[test]
fn times_and_versions_of_any_size() {
    check_metadata("time", |number, meta| {
        let (secs, nanos) = (number.cast_signed(), 999_999_999);
        let time = Timestamp { secs, nanos };
        (meta.mtime, meta.ctime, meta.atime) = (time, time, time);
    });
    check_metadata("version", |number, meta| {
        (meta.version, meta.generation) = (number, number);
    });
}

#[test]
fn flags_devices_and_inline_content_of_any_kind() {
    check_metadata("flags", |number, meta| {
        (meta.flags, meta.rdev) = (MetaFlags(number as u32), number);
    });
    check_metadata("inline", |number, meta| {
        meta.inline = Some(vec![7; number as usize & 255].into());
    });
}

#[test]
fn superblocks_with_any_numbers() {
    check_numbers("superblock", |number, store, changes| {
        let raw = store.get(&key::super_key()).unwrap().unwrap();
        let superblock = Super {
            next_ino: number,
            session: number as u32,
            first_session: number as u32,
            ..Super::decode(&raw).unwrap()
        };
        changes.put(key::super_key(), superblock.encode());
    });
}

#[test]
fn pages_anywhere() {
    check_numbers("page", |number, _, changes| {
        for ino in FIRST_INO..FIRST_INO + 8 {
            let page = record::encode_page(&[1; 4096]);
            changes.put(key::page_key(ino, number), page);
            changes.put(key::page_key(ino, number - 1), record::encode_page(&[]));
        }
    });
}

#[test]
fn inode_numbers_of_any_size() {
    check_numbers("orphan", |number, store, changes| {
        let raw = store.get(&key::path_key(2, b"file")).unwrap().unwrap();
        let mut meta = PathRecord::decode(&raw).unwrap().meta.unwrap();
        meta.size = number;
        changes.put(key::orphan_key(number), OrphanRecord { meta }.encode());
        changes.put(key::page_key(number, number), record::encode_page(b"x"));
    });
    check_numbers("name", |number, store, changes| {
        let raw = store.get(&key::path_key(1, b"small")).unwrap().unwrap();
        let record = PathRecord {
            ino: number,
            ..PathRecord::decode(&raw).unwrap()
        };
        changes.put(key::path_key(1, b"small"), record.encode());
    });
}

/// A directory in itself, and one below itself.
#[test]
fn directories_in_cycles() {
    for (parent, name, to) in [(2, "file", 2_u64), (2, "file", 1), (1, "small", 1)] {
        let done = check(&format!("{name} in {parent} is {to}"), |store, changes| {
            let raw = store.get(&key::path_key(1, b"dir")).unwrap().unwrap();
            let record = PathRecord {
                ino: to,
                ..PathRecord::decode(&raw).unwrap()
            };
            changes.put(key::path_key(parent, name.as_bytes()), record.encode());
        });
        assert_eq!(done, Ok(()));
    }
}
