//! Copies in and out of a tree, with a host directory as the file system in the middle.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use goanna_offline::Tree;
use goanna_offline::copy::{Export, FileSystemWriter, Import, Summary, open_target};
use goanna_passfs::PassFs;
use goanna_vfs::Caller;

#[path = "../../cli/tests/common/mod.rs"]
mod common;

fn tree(dir: &Path) -> Tree {
    let pid = std::process::id() as i32;
    let uid = nix::unistd::geteuid().as_raw();
    let gid = nix::unistd::getegid().as_raw();
    let caps = if uid == 0 { u64::MAX } else { 0 };
    let caller = Caller {
        tid: pid,
        pid,
        caps,
        real_caps: caps,
        umask: 0,
        ..Caller::with_ids(uid, gid)
    };
    Tree::new(Arc::new(PassFs::new(dir).unwrap()), caller)
}

fn import(tree: &Tree, from: &Path, to: &[u8], force: bool) -> Summary {
    let store = Path::new("/nonexistent");
    Import::new(tree, &FileSystemWriter, store, force, &())
        .run(from, to)
        .unwrap()
}

fn export(tree: &Tree, from: &[u8], to: &Path, force: bool) -> Summary {
    let place = tree.resolve(from, true).unwrap();
    let (target, empty) = open_target(to, force).unwrap();
    Export::new(tree, force, target, &())
        .run(place, from, empty)
        .unwrap()
}

#[test]
fn everything_survives_the_way_in_and_out() {
    let dir = tempfile::tempdir().unwrap();
    let [source, middle, back] = ["source", "middle", "back"].map(|name| dir.path().join(name));
    common::build(&source);
    fs::create_dir(&middle).unwrap();
    let tree = tree(&middle);

    let imported = import(&tree, &source, b"/a/b", false);
    assert_eq!(imported.counts.hard_links, 3);
    common::assert_same(&source, &middle.join("a/b"));

    let exported = export(&tree, b"/a/b", &back, false);
    assert_eq!(imported.counts.files, exported.counts.files);
    assert_eq!(imported.counts.directories, exported.counts.directories);
    common::assert_same(&source, &back);
    assert_eq!(imported.skipped, []);
    assert_eq!(exported.skipped, []);
}

#[test]
fn holes_stay_holes() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::File::create(source.join("hole"))
        .unwrap()
        .set_len(1 << 30)
        .unwrap();
    let middle = dir.path().join("middle");
    fs::create_dir(&middle).unwrap();
    let tree = tree(&middle);
    let imported = import(&tree, &source, b"/", false);
    assert_eq!(imported.counts.bytes, 0);
    let meta = middle.join("hole").metadata().unwrap();
    assert_eq!((meta.len(), meta.blocks()), (1 << 30, 0));
}

#[test]
fn what_is_in_the_way_stays_without_force() {
    let dir = tempfile::tempdir().unwrap();
    let [source, middle] = ["source", "middle"].map(|name| dir.path().join(name));
    for path in [&source, &middle] {
        fs::create_dir(path).unwrap();
        fs::write(path.join("file"), path.as_os_str().as_encoded_bytes()).unwrap();
    }
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/new"), "new").unwrap();
    fs::create_dir(middle.join("dir")).unwrap();
    fs::write(middle.join("dir/old"), "old").unwrap();
    let tree = tree(&middle);
    let old = fs::read(middle.join("file")).unwrap();

    let summary = import(&tree, &source, b"/", false);
    assert_eq!(summary.skipped.len(), 1);
    assert_eq!(fs::read(middle.join("file")).unwrap(), old);
    assert_eq!(fs::read(middle.join("dir/new")).unwrap(), b"new");
    assert_eq!(fs::read(middle.join("dir/old")).unwrap(), b"old");

    fs::remove_file(middle.join("dir/new")).unwrap();
    let summary = import(&tree, &source, b"/", true);
    assert_eq!(summary.skipped, []);
    assert_eq!(
        fs::read(middle.join("file")).unwrap(),
        fs::read(source.join("file")).unwrap()
    );
}

/// Symbolic links in the target must not lead an export out of its directory.
#[test]
fn links_in_the_target_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let [middle, target, outside] =
        ["middle", "target", "outside"].map(|name| dir.path().join(name));
    for path in [&middle, &target, &outside] {
        fs::create_dir(path).unwrap();
    }
    fs::create_dir(middle.join("dir")).unwrap();
    fs::write(middle.join("dir/file"), "x").unwrap();
    fs::write(middle.join("plain"), "y").unwrap();
    fs::hard_link(middle.join("dir/file"), middle.join("same")).unwrap();
    fs::write(outside.join("plain"), "precious").unwrap();
    std::os::unix::fs::symlink(&outside, target.join("dir")).unwrap();
    std::os::unix::fs::symlink(outside.join("plain"), target.join("plain")).unwrap();
    std::os::unix::fs::symlink(outside.join("new"), target.join("same")).unwrap();
    let tree = tree(&middle);

    assert!(open_target(&target, false).is_err());
    let summary = export(&tree, b"/", &target, true);
    assert_eq!(summary.skipped, []);
    assert_eq!(fs::read(outside.join("plain")).unwrap(), b"precious");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fs::read(target.join("dir/file")).unwrap(), b"x");
    assert!(target.join("plain").symlink_metadata().unwrap().is_file());
    assert!(target.join("same").symlink_metadata().unwrap().is_file());
}

#[test]
fn the_store_itself_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let [source, middle] = ["source", "source/store"].map(|name| dir.path().join(name));
    fs::create_dir_all(&middle).unwrap();
    fs::write(source.join("file"), "x").unwrap();
    let tree = tree(&middle);
    let summary = Import::new(&tree, &FileSystemWriter, &middle, false, &())
        .run(&source, b"/")
        .unwrap();
    assert_eq!(summary.skipped, []);
    assert!(middle.join("file").exists());
    assert!(!middle.join("store").exists());
}
