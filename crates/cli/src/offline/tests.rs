//! Copies through the switch, with the host itself as the file system in the middle.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use goanna_passfs::PassFs;

use super::export::{self, Export};
use super::import::{Entrance, Import};
use super::report::Report;
use super::tree::Tree;
use crate::args::Loudness;
use crate::caller;

#[path = "../../tests/common/mod.rs"]
mod common;

fn tree(dir: &Path) -> Tree {
    let mut caller = caller::current();
    caller.umask = 0;
    Tree::new(Arc::new(PassFs::new(dir).unwrap()), caller)
}

fn report() -> Report {
    Report::new(None, Loudness::default())
}

fn bring_in(tree: &Tree, from: &Path, to: &[u8], force: bool) -> Report {
    Import::new(
        tree,
        Entrance::Switch,
        Path::new("/nonexistent"),
        force,
        report(),
    )
    .run(from, to)
    .unwrap()
}

fn take_out(tree: &Tree, from: &[u8], to: &Path, force: bool) -> Report {
    let place = tree.resolve(from, true).unwrap();
    let (target, empty) = export::open_target(to, force).unwrap();
    Export::new(tree, force, target, report())
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

    let imported = bring_in(&tree, &source, b"/a/b", false);
    assert_eq!(imported.done.hard_links, 3);
    common::assert_same(&source, &middle.join("a/b"));

    let exported = take_out(&tree, b"/a/b", &back, false);
    assert_eq!(imported.done.files, exported.done.files);
    assert_eq!(imported.done.directories, exported.done.directories);
    common::assert_same(&source, &back);
    assert_eq!(imported.finish(false).unwrap(), 0);
    assert_eq!(exported.finish(false).unwrap(), 0);
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
    let imported = bring_in(&tree, &source, b"/", false);
    assert_eq!(imported.done.bytes, 0);
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

    let report = bring_in(&tree, &source, b"/", false);
    assert_eq!(report.finish(false).unwrap(), 1);
    assert_eq!(fs::read(middle.join("file")).unwrap(), old);
    assert_eq!(fs::read(middle.join("dir/new")).unwrap(), b"new");
    assert_eq!(fs::read(middle.join("dir/old")).unwrap(), b"old");

    fs::remove_file(middle.join("dir/new")).unwrap();
    let report = bring_in(&tree, &source, b"/", true);
    assert_eq!(report.finish(false).unwrap(), 0);
    assert_eq!(
        fs::read(middle.join("file")).unwrap(),
        fs::read(source.join("file")).unwrap()
    );
}

/// An export must not be led out of its directory by links that somebody put there.
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

    assert!(export::open_target(&target, false).is_err());
    let report = take_out(&tree, b"/", &target, true);
    assert_eq!(report.finish(false).unwrap(), 0);
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
    let report = Import::new(&tree, Entrance::Switch, &middle, false, report())
        .run(&source, b"/")
        .unwrap();
    assert_eq!(report.finish(false).unwrap(), 0);
    assert!(middle.join("file").exists());
    assert!(!middle.join("store").exists());
}
