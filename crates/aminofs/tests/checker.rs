//! Each constraint is violated once, in a store of its own, and the checker says which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::*;

use amino_fs::fsck::{Constraint, fsck};
use amino_schema::{DataRecord, Meta, OrphanRecord, PathRecord, key, record};
use amino_txn::{Changes, EngineKind, Options, Records, Store};
use goanna_vfs::FileSystem;

const DIR_INO: u64 = 2;
const FILE_INO: u64 = 3;
const LINKED_INO: u64 = 4;

fn path_record(store: &Store, parent: u64, name: &[u8]) -> PathRecord {
    PathRecord::decode(&store.get(&key::path_key(parent, name)).unwrap().unwrap()).unwrap()
}

fn file_meta(store: &Store) -> Meta {
    path_record(store, DIR_INO, b"file").meta.unwrap()
}

fn put_file(store: &Store, changes: &mut Changes, edit: impl FnOnce(&mut Meta)) {
    let mut record = path_record(store, DIR_INO, b"file");
    edit(record.meta.as_mut().unwrap());
    changes.put(key::path_key(DIR_INO, b"file"), record.encode());
}

/// Damages a store by `damage`; the constraints that the checker then finds violated.
fn violated(damage: impl FnOnce(&Store, &mut Changes)) -> Vec<Constraint> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let fs = open(&path);
    let user = caller();
    let sub = fs.mkdir(&user, &fs.root(), b"dir", 0o755).unwrap();
    assert_eq!(sub.ino(), DIR_INO);
    write_file(&fs, "dir/file", &[1; 40_000]).unwrap();
    write_file(&fs, "dir/linked", &[1; 100]).unwrap();
    let node = walk(&fs, "dir/linked").unwrap();
    assert_eq!(
        (walk(&fs, "dir/file").unwrap().ino(), node.ino()),
        (FILE_INO, LINKED_INO)
    );
    fs.link(&user, &node, &fs.root(), b"other").unwrap();
    drop((sub, node));
    close_and_check(fs, &path);

    let options = Options {
        engine: EngineKind::Memory,
        ..Options::default()
    };
    let store = Store::open(&path, options).unwrap();
    let mut changes = Changes::new();
    damage(&store, &mut changes);
    let guard = store.enter();
    store.submit(&guard, changes).unwrap();
    drop(guard);
    store.close().unwrap();
    let report = fsck(&path, &mut |_| {}).unwrap();
    let mut found: Vec<_> = report
        .findings
        .iter()
        .map(|finding| finding.constraint)
        .collect();
    found.sort();
    found.dedup();
    found
}

#[test]
fn undecodable_records() {
    let found = violated(|store, changes| {
        let key = key::path_key(DIR_INO, b"file");
        let mut raw = store.get(&key).unwrap().unwrap().to_vec();
        raw[20] ^= 1;
        changes.put(key, raw);
    });
    assert!(found.contains(&Constraint::Records));
}

#[test]
fn uniq_id() {
    let found = violated(|store, changes| {
        let meta = file_meta(store);
        changes.put(key::data_key(FILE_INO), DataRecord { meta }.encode());
    });
    assert!(found.contains(&Constraint::UniqId));
    let found = violated(|store, changes| {
        let mut record = path_record(store, DIR_INO, b"file");
        record.ino = 1 << 60;
        changes.put(key::path_key(1, b"future"), record.encode());
    });
    assert!(found.contains(&Constraint::UniqId));
}

#[test]
fn ref_count() {
    let found = violated(|store, changes| put_file(store, changes, |meta| meta.nlink = 2));
    assert_eq!(found, [Constraint::RefCount]);
}

#[test]
fn no_orphaned_files() {
    let found = violated(|_, changes| changes.delete(key::data_key(LINKED_INO)));
    assert!(found.contains(&Constraint::NoOrphanedFiles));
    let found = violated(|store, changes| {
        let meta = file_meta(store);
        changes.put(key::data_key(77), DataRecord { meta }.encode());
    });
    assert!(found.contains(&Constraint::NoOrphanedFiles));
}

#[test]
fn no_orphaned_blocks() {
    let found = violated(|_, changes| changes.put(key::page_key(99, 0), record::encode_page(b"x")));
    assert_eq!(found, [Constraint::NoOrphanedBlocks]);
    let found = violated(|_, changes| {
        changes.put(key::xattr_key(99, b"user.x"), record::encode_xattr(b"x"));
    });
    assert_eq!(found, [Constraint::NoOrphanedBlocks]);
}

#[test]
fn hard_link_uses_dlmd() {
    let found = violated(|_, changes| changes.delete(key::link_key(LINKED_INO, 1, b"other")));
    assert_eq!(found, [Constraint::HardLinkUsesDlmd]);
    let found = violated(|_, changes| {
        changes.put(
            key::link_key(FILE_INO, DIR_INO, b"file"),
            record::LINK_VALUE,
        );
    });
    assert_eq!(found, [Constraint::HardLinkUsesDlmd]);
}

#[test]
fn pages_match_size() {
    let found = violated(|_, changes| {
        changes.put(key::page_key(FILE_INO, 3), record::encode_page(b"x"));
    });
    assert_eq!(found, [Constraint::PagesMatchSize]);
    let found = violated(|_, changes| {
        changes.put(key::page_key(LINKED_INO, 0), record::encode_page(b"x"));
    });
    assert_eq!(
        found,
        [Constraint::PagesMatchSize],
        "inline content and a page"
    );
}

#[test]
fn last_page_matches_size() {
    let found = violated(|store, changes| put_file(store, changes, |meta| meta.size -= 1));
    assert_eq!(found, [Constraint::LastPageMatchesSize]);
}

#[test]
fn directory_counts() {
    let edit = |edit: fn(&mut Meta)| {
        violated(|store, changes| {
            let mut record = path_record(store, 1, b"dir");
            edit(record.meta.as_mut().unwrap());
            changes.put(key::path_key(1, b"dir"), record.encode());
        })
    };
    assert_eq!(edit(|meta| meta.nlink = 3), [Constraint::DirectoryCounts]);
    assert_eq!(edit(|meta| meta.size = 3), [Constraint::DirectoryCounts]);
}

#[test]
fn reachable() {
    let found = violated(|store, changes| {
        // The directory lies in itself.
        let record = path_record(store, 1, b"dir");
        changes.delete(key::path_key(1, b"dir"));
        changes.put(key::path_key(DIR_INO, b"dir"), record.encode());
    });
    assert!(found.contains(&Constraint::Reachable));
}

/// A power cut after the creation of a store and before its first record.
#[test]
fn a_store_whose_creation_was_interrupted_is_clean() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = Options {
        engine: EngineKind::Memory,
        create: true,
        ..Options::default()
    };
    Store::open(&path, options.clone())
        .unwrap()
        .close()
        .unwrap();
    let report = fsck(&path, &mut |_| {}).unwrap();
    assert_eq!(report.findings, []);
    close_and_check(open(&path), &path);

    // The same emptiness is damage once there has been a record.
    let store = Store::open(&path, options).unwrap();
    let mut changes = Changes::new();
    changes.delete(key::root_key());
    changes.delete(key::super_key());
    let guard = store.enter();
    store.submit(&guard, changes).unwrap();
    drop(guard);
    store.close().unwrap();
    let report = fsck(&path, &mut |_| {}).unwrap();
    let constraints: Vec<_> = report.findings.iter().map(|it| it.constraint).collect();
    assert_eq!(constraints, [Constraint::Reachable]);
}

#[test]
fn orphans_are_no_violation() {
    let found = violated(|store, changes| {
        let mut meta = file_meta(store);
        meta.nlink = 0;
        meta.size = 0;
        changes.put(key::orphan_key(50), OrphanRecord { meta }.encode());
    });
    assert_eq!(found, []);
}
