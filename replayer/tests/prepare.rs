//! `replayer prepare`: the initial state, from the trace or from a snapshot.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};

use goanna_skip::{Facility, skip};
use goanna_tracer::assemble::DataMode;
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use workload::{REPLAYER, Workload, has, tree};

/// Runs `replayer prepare` of the workload with these options.
fn prepare(workload: &Workload, root: &str, options: &[&str]) -> Output {
    let mut command = Command::new(REPLAYER);
    command.arg("prepare").arg(workload.path("compiled"));
    command.arg("--root").arg(workload.path(root)).args(options);
    command.output().unwrap()
}

fn errors(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn set(path: &Path, name: &str, value: &[u8]) {
    lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Vec<u8> {
    let mut value = [0; 256];
    let length = lgetxattr(path, name, &mut value).unwrap();
    value[..length].to_vec()
}

/// Makes a directory with files that a trace does not show completely: links, modes, attributes, a hole, a file that the
/// workload does not use.
fn before(directory: &Path) {
    fs::create_dir_all(directory.join("old/below")).unwrap();
    fs::write(directory.join("old/file"), "as it was").unwrap();
    fs::write(directory.join("old/unused"), "unused").unwrap();
    fs::hard_link(directory.join("old/file"), directory.join("old/below/hard")).unwrap();
    symlink("../file", directory.join("old/below/soft")).unwrap();
    set(&directory.join("old/file"), "user.mark", b"value");
    let hole = fs::File::create(directory.join("old/hole")).unwrap();
    hole.set_len(8 << 20).unwrap();
    fs::set_permissions(
        directory.join("old/file"),
        fs::Permissions::from_mode(0o604),
    )
    .unwrap();
    fs::set_permissions(
        directory.join("old/below"),
        fs::Permissions::from_mode(0o500),
    )
    .unwrap();
}

fn workload() -> Workload {
    let script = "set -e; cat old/below/soft > copy; cat old/below/hard >> copy; head -c 9 old/hole > start; echo more >> old/file";
    Workload::new(&["sh", "-c", script], DataMode::None, before)
}

#[test]
fn a_snapshot_is_copied_into_a_new_root() {
    let workload = workload();
    let snapshot = workload.path("snapshot");
    fs::create_dir(&snapshot).unwrap();
    before(&snapshot);
    // The root does not exist yet.
    let output = prepare(
        &workload,
        "new",
        &["--snapshot", snapshot.to_str().unwrap()],
    );
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let root = workload.path("new");
    assert_eq!(tree(&snapshot), tree(&root));
    let time = |path: &Path| fs::metadata(path).unwrap().mtime_nsec();
    assert_eq!(time(&snapshot.join("old")), time(&root.join("old")));
    let hole = fs::metadata(root.join("old/hole")).unwrap();
    assert!(hole.blocks() < 16, "{}", hole.blocks());
    // The replay has the results of the trace, and the original's tree.
    let replayed = Command::new(REPLAYER)
        .arg("run")
        .arg(workload.path("compiled"))
        .arg("--root")
        .arg(&root)
        .output()
        .unwrap();
    assert_eq!(replayed.status.code(), Some(0), "{replayed:?}");
    let names = |name: &str| tree(&workload.path(name)).into_keys().collect::<Vec<_>>();
    assert_eq!(names("original"), names("new"));
}

#[test]
fn what_a_snapshot_lacks_is_named_before_anything_is_made() {
    let workload = workload();
    let snapshot = workload.path("snapshot");
    fs::create_dir(&snapshot).unwrap();
    before(&snapshot);
    fs::remove_file(snapshot.join("old/hole")).unwrap();
    fs::remove_file(snapshot.join("old/file")).unwrap();
    fs::create_dir(snapshot.join("old/file")).unwrap();
    let why = errors(&prepare(
        &workload,
        "new",
        &["--snapshot", snapshot.to_str().unwrap()],
    ));
    for name in ["snapshot does not have", "old/hole", "old/file (EEXIST"] {
        assert!(why.contains(name), "{why}");
    }
    assert!(!workload.path("new").exists());
    let original = workload.path("original");
    let within = ["--snapshot", original.to_str().unwrap()];
    let why = errors(&prepare(&workload, "original/new", &within));
    assert!(why.contains("the root is in the snapshot"), "{why}");
}

#[test]
fn files_of_other_types_are_named_before_anything_is_made() {
    let workload = workload();
    let root = workload.path("replayed");
    fs::create_dir_all(root.join("old/hole")).unwrap();
    fs::create_dir_all(root.join("old/file")).unwrap();
    let why = errors(&prepare(&workload, "replayed", &[]));
    for name in ["old/hole (EEXIST", "old/file (EEXIST"] {
        assert!(why.contains(name), "{why}");
    }
    assert!(!root.join("old/below").exists());
    let why = errors(&prepare(&workload, "missing/new", &[]));
    assert!(why.contains("No such file"), "{why}");
}

/// The trace's stat(2) and getxattr(2) show owners and extended attributes of files that were there before.
#[test]
fn owners_and_attributes_that_the_trace_shows_are_made() {
    if !rustix::process::geteuid().is_root() {
        return skip(Facility::Root, "sets owners");
    }
    if !has("python3") {
        return;
    }
    let script = "
import os
os.stat('file'); os.stat('changed')
os.getxattr('file', 'user.read'); os.removexattr('file', 'user.removed')
os.setxattr('file', 'user.replaced', b'new', os.XATTR_REPLACE)
os.setxattr('file', 'user.made', b'new', os.XATTR_CREATE)
os.getxattr('file', 'user.made')
os.chown('file', 7, 8); os.stat('file')
os.stat('directory')";
    let make = |directory: &Path| {
        for (name, owner) in [("file", (1, 2)), ("changed", (3, 4))] {
            let path = directory.join(name);
            fs::write(&path, "content").unwrap();
            chown(&path, Some(owner.0), Some(owner.1)).unwrap();
            for name in ["user.read", "user.removed", "user.replaced"] {
                set(&path, name, b"old value");
            }
        }
        fs::create_dir(directory.join("directory")).unwrap();
        chown(directory.join("directory"), Some(5), Some(6)).unwrap();
    };
    let command = ["python3", "-S", "-c", script];
    let workload = Workload::new(&command, DataMode::Full, make);
    let output = prepare(&workload, "replayed", &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let owner = |name: &str| {
        let found = fs::metadata(workload.path("replayed").join(name)).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!(owner("file"), (1, 2));
    assert_eq!(owner("changed"), (3, 4));
    assert_eq!(owner("directory"), (5, 6));
    let file = workload.path("replayed/file");
    assert_eq!(get(&file, "user.read"), b"old value");
    let mut value = [0; 64];
    assert!(lgetxattr(&file, "user.made", &mut value).is_err());
    workload.assert_faithful_results();
}
