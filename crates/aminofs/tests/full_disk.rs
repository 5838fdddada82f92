//! Removing files on a full disk.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;
#[path = "../../../txn/tests/common/small_disk.rs"]
mod small_disk;

use std::fs;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

use amino_fs::{AminoFs, EngineKind};
use amino_schema::key;
use amino_txn::Records;
use common::user::User;
use common::{close_and_check, open_with, options};
use goanna_vfs::{Errno, FileSystem};
use small_disk::SmallDisk;

const ENGINES: [EngineKind; 2] = [EngineKind::Fjall, EngineKind::Sled];

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
        assert_eq!(refused, Err(Errno::ENOSPC.into()));
        std::thread::sleep(Duration::from_millis(50));
        disk.fill();
        let len = fs::metadata(disk.others()).unwrap().len();
        if len == last && !disk.store().join("ballast").exists() {
            break;
        }
        last = len;
    }
}

/// A file of more pages than one operation deletes goes in steps. A step that found no space forgot its pages: they stayed in
/// the store forever, without an inode.
#[test]
fn pages_of_a_removed_file_are_not_forgotten_on_a_full_disk() {
    for engine in ENGINES {
        pages_of_a_removed_file_are_not_forgotten(engine);
    }
}

fn pages_of_a_removed_file_are_not_forgotten(engine: EngineKind) {
    let Some(disk) = SmallDisk::mount(400) else {
        return;
    };
    let fs = open_with(&disk.store(), &options(engine));
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
    disk.free_space();
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

/// What makes space must be possible when there is none.
#[test]
fn unlink_and_truncate_work_on_a_full_disk() {
    for engine in ENGINES {
        unlink_and_truncate_work(engine);
    }
}

fn unlink_and_truncate_work(engine: EngineKind) {
    let Some(disk) = SmallDisk::mount(400) else {
        return;
    };
    let fs = open_with(&disk.store(), &options(engine));
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
    disk.free_space();
    close_and_check(fs, &disk.store());
    let fs = open_with(&disk.store(), &options(engine));
    let mut names = common::names(&fs, "");
    names.retain(|name| name != "more");
    assert_eq!(names, ["cut", "emptied", "opened", "replaced"]);
    close_and_check(fs, &disk.store());
}

/// What an operation needs may be taken by what was removed or is in the log still. It failed at once, and only the next
/// one waited until the store had cleaned up.
#[test]
fn a_large_write_waits_for_the_space_that_a_checkpoint_frees() {
    for engine in ENGINES {
        let Some(disk) = SmallDisk::mount(448) else {
            return;
        };
        let fs = open_with(&disk.store(), &options(engine));
        let user = User::new(&fs, 1);
        let content = noise(30 << 20);
        for number in 0..5 {
            let name = format!("large{number}");
            assert_eq!(user.put(&name, &content), Ok(()), "{engine:?} {number}");
            user.unlink(&name).unwrap();
        }
        close_and_check(fs, &disk.store());
    }
}
