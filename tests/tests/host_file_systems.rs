//! Stores on host file systems that can share extents between files: XFS and btrfs, in image files on loop devices.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use goanna_tests::{Facility, Place, finish, is_root, program, skip, tools::has};

/// A file system of its own, mounted in a place; the place's store is in it.
struct Mounted<'p> {
    place: &'p Place,
    dir: PathBuf,
}

impl<'p> Mounted<'p> {
    /// `None`, and a line on stderr, where the machine cannot do it.
    fn new(place: &'p Place, kind: &str) -> Option<Self> {
        let make = format!("mkfs.{kind}");
        if !is_root() {
            skip(Facility::Root, format!("only root can mount {kind}"));
            return None;
        }
        if !has(&make) {
            return None;
        }
        let (image, dir) = (place.path("image"), place.make_dir("mounted"));
        File::create(&image).unwrap().set_len(1 << 30).unwrap();
        finish(Command::new(make).arg("-q").arg(&image)).expect(0);
        let mounted = finish(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&dir),
        );
        if mounted.status != 0 {
            let why = format!("{kind} cannot be mounted: {}", mounted.errors());
            skip(Facility::LoopDevices, why);
            return None;
        }
        fs::create_dir(dir.join("store")).unwrap();
        std::os::unix::fs::symlink(dir.join("store"), place.path("store")).unwrap();
        Some(Self { place, dir })
    }

    /// Ends the store's owner, so that what comes next reads the store from the disk.
    fn close_store(&self) {
        let mut stop = self.place.native(goanna_tests::binary("amino"));
        stop.args(["daemon", "stop", "--store"]);
        finish(stop.arg(self.place.path("store"))).expect(0);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.close_store();
        }
        // Lazily after a failure: the store's owner may still be there.
        let lazily = std::thread::panicking().then_some("-l");
        let _ = Command::new("umount").args(lazily).arg(&self.dir).status();
    }
}

/// More than a file's content may have to stay in memory.
const LARGE: usize = 65 << 20;

/// `cp` clones the new content where the host's file system can. Content in use of a large file is in a file beside the
/// store, and the store would not notice a clone into it: it kept a size of 0.
fn copy_over_a_large_file(kind: &str) {
    let place = Place::amino();
    let Some(mounted) = Mounted::new(&place, kind) else {
        return;
    };
    let source = mounted.dir.join("source");
    let content: Vec<u8> = (0..LARGE / 8).flat_map(|n| n.to_ne_bytes()).collect();
    fs::write(&source, &content).unwrap();
    let script = format!(
        "head -c {LARGE} /dev/zero >f && cat f >/dev/null && cp {source} f && cmp {source} f && stat -c %s f",
        source = source.display()
    );
    let ended = finish(&mut place.shell(&script)).expect(0);
    assert_eq!(ended.text(), format!("{LARGE}\n"));
    mounted.close_store();
    let kept = finish(place.amino_command("cat").arg("/f"))
        .expect(0)
        .stdout;
    assert_eq!(kept.len(), content.len());
    assert!(
        kept == content,
        "the store has another content than was copied"
    );
    place.fsck();
}

/// What `clones.c` prints, wherever the store is.
const REFUSED: [&str; 15] = [
    "clone: EXDEV",
    "clone range: EXDEV",
    "dedupe: EOPNOTSUPP",
    "exchange with the host's: ENOTTY",
    "exchange with ours: EOPNOTSUPP",
    "commit with ours: EOPNOTSUPP",
    "encoded write: ENOTTY",
    "defragment: ENOTTY",
    "trim: ENOTTY",
    "verity: ENOTTY",
    "move extents: ENOTTY",
    "nobody's: ENOTTY",
    "freeze: EOPNOTSUPP",
    "size: yes",
    "end",
];

/// Each request that changes a file without write(2), of a file beside the store and of one of the host's.
fn requests_of_the_host_file_system(kind: &str) {
    let place = Place::amino();
    let Some(mounted) = Mounted::new(&place, kind) else {
        return;
    };
    let clones = program("clones", &place.path("."), false);
    let mut run = place.run();
    run.arg(clones).arg(place.top()).arg(&mounted.dir);
    let ended = finish(&mut run).expect(0);
    let text = ended.text();
    let found: Vec<&str> = text
        .lines()
        .map(|line| line.split_once(' ').map_or(line, |(_, step)| step))
        .collect();
    assert_eq!(found, REFUSED);
    mounted.close_store();
    let kept = finish(place.amino_command("cat").arg("/w/large"))
        .expect(0)
        .stdout;
    assert_eq!(kept.len(), LARGE);
    assert!(kept.iter().all(|&byte| byte == b'x'));
    place.fsck();
}

macro_rules! on_host_file_systems {
    ($($kind:ident)*) => { $(mod $kind {
        #[test]
        fn copy_over_a_large_file() { super::copy_over_a_large_file(stringify!($kind)) }
        #[test]
        fn requests_of_the_host_file_system() { super::requests_of_the_host_file_system(stringify!($kind)) }
    })* };
}

on_host_file_systems! { xfs btrfs }

/// A device that keeps a file writes to it without any call on the file.
#[test]
fn loop_device_over_a_file_of_the_store() {
    if !is_root() {
        skip(Facility::Root, "only root can attach a loop device");
        return;
    }
    let place = Place::amino();
    let script = "head -c 4M /dev/zero >f && sync && device=$(losetup --find --show $PWD/f) \
        && printf changed >$device && blockdev --flushbufs $device; sync; losetup -d $device && head -c 7 f";
    let ended = finish(&mut place.shell(script)).expect(0);
    if ended.text().is_empty() {
        skip(Facility::LoopDevices, ended.errors());
        return;
    }
    assert_eq!(ended.text(), "changed");
    let mut stop = place.native(goanna_tests::binary("amino"));
    finish(
        stop.args(["daemon", "stop", "--store"])
            .arg(place.path("store")),
    )
    .expect(0);
    let kept = finish(place.amino_command("cat").arg("/f"))
        .expect(0)
        .stdout;
    assert_eq!(&kept[..7], b"changed");
    place.fsck();
}
