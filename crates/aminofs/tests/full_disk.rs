//! Removing files on a full disk, which is a small tmpfs of its own: mounting needs root, so without it these tests say so
//! and do nothing.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use amino_fs::{AminoFs, EngineKind};
use amino_schema::key;
use common::user::User;
use common::{close_and_check, open_with, options};
use goanna_skip::{Facility, skip};
use goanna_vfs::{Errno, FileSystem};

/// A file system of its own.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(dir.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        skip(Facility::Mounts, "no tmpfs can be mounted");
        None
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("s")
    }

    fn others(&self) -> PathBuf {
        self.0.path().join("others")
    }

    /// Leaves no byte to others.
    fn fill(&self) {
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(self.others())
            .unwrap();
        let mut len = 1 << 20;
        while len > 0 {
            // Of what does not fit, a part is written before it fails.
            if file.write_all(&vec![1; len]).is_err() {
                len /= 2;
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Bytes that no engine can make smaller.
fn noise(len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(len as u64);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

fn orphans(fs: &AminoFs) -> usize {
    let mut orphans = 0;
    fs.store()
        .scan(Bound::Unbounded, key::ORPHAN_TAG, &mut |_, _| {
            orphans += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    orphans
}

/// Fills the disk until the store has given up all that it kept free.
fn exhaust(disk: &SmallDisk, user: &User<'_>) {
    let mut last = 0;
    for _ in 0..40 {
        disk.fill();
        // The store notices, and releases its log.
        let refused = user.put("more", &noise(30 << 20));
        assert_eq!(refused, Err(Errno::ENOSPC));
        std::thread::sleep(Duration::from_millis(50));
        disk.fill();
        let len = fs::metadata(disk.others()).unwrap().len();
        if len == last && !disk.store().join("ballast").exists() {
            break;
        }
        last = len;
    }
}

/// A file of more pages than one operation deletes goes in steps. A step that found no room forgot its pages: they stayed in
/// the store for ever, without an inode.
#[test]
fn pages_of_a_removed_file_are_not_forgotten_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount(256) else {
        return;
    };
    let fs = open_with(&disk.store(), &options(EngineKind::Fjall));
    let user = User::new(&fs, 1);
    user.put("large", &noise(40 << 20)).unwrap();
    fs.sync(None).unwrap();
    let held = user.open("large", libc::O_RDONLY).unwrap();
    user.unlink("large").unwrap();
    fs.sync(None).unwrap();
    exhaust(&disk, &user);
    held.close(&fs);
    // Some rounds of the housekeeper.
    for _ in 0..15 {
        disk.fill();
        std::thread::sleep(Duration::from_millis(100));
    }
    fs::remove_file(disk.others()).unwrap();
    let begun = Instant::now();
    while orphans(&fs) > 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "it stays an orphan"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    close_and_check(fs, &disk.store());
}

/// What makes room must be possible when there is none.
#[test]
fn unlink_and_truncate_work_on_a_full_disk() {
    let Some(disk) = SmallDisk::mount(256) else {
        return;
    };
    let fs = open_with(&disk.store(), &options(EngineKind::Fjall));
    let user = User::new(&fs, 1);
    for number in 0..200 {
        user.put(&format!("small{number}"), &noise(100 * number))
            .unwrap();
    }
    for name in ["cut", "emptied", "opened", "replaced", "removed"] {
        user.put(name, &noise(5 << 20)).unwrap();
    }
    user.put("new", b"new").unwrap();
    fs.sync(None).unwrap();
    exhaust(&disk, &user);
    for number in 0..200 {
        user.unlink(&format!("small{number}")).unwrap();
    }
    user.truncate("cut", 4 << 20).unwrap();
    user.truncate("emptied", 0).unwrap();
    user.open("opened", libc::O_RDWR | libc::O_TRUNC)
        .unwrap()
        .close(&fs);
    user.rename("new", "replaced").unwrap();
    user.unlink("removed").unwrap();
    fs::remove_file(disk.others()).unwrap();
    close_and_check(fs, &disk.store());
    let fs = open_with(&disk.store(), &options(EngineKind::Fjall));
    let mut names = common::names(&fs, "");
    names.retain(|name| name != "more");
    assert_eq!(names, ["cut", "emptied", "opened", "replaced"]);
    close_and_check(fs, &disk.store());
}
