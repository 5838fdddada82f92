//! What a commit reads of the contents that it stores. The tests count the process's reads, so one runs after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Mutex, PoisonError};

use common::user::User;
use common::{close_and_check, open};
use goanna_vfs::FileSystem;

/// Held by the test that counts.
static COUNTING: Mutex<()> = Mutex::new(());

/// Calls that read, and bytes that they read.
fn reads() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let number = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    (number("syscr:"), number("rchar:"))
}

#[test]
fn a_commit_reads_each_page_once_and_several_by_one_call() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let mut user = User::new(&fs, 1);
    let content: Vec<u8> = (0..SIZE as u32).map(|at| (at >> 9) as u8 | 1).collect();
    user.begin();
    user.put("f", &content).unwrap();
    let before = reads();
    user.commit(None).unwrap();
    fs.sync(None).unwrap();
    let after = reads();
    let (calls, bytes) = (after.0 - before.0, after.1 - before.1);
    assert!(calls <= 50, "{calls} calls for {} pages", SIZE >> 14);
    assert!(bytes <= SIZE as u64 + (64 << 10), "{bytes} bytes");
    assert_eq!(user.get("f").unwrap(), content);
    close_and_check(fs, dir.path());
}

/// A program outside of the transaction has the file open, so the commit copies what the transaction wrote to that file's object.
#[test]
fn a_commit_does_not_read_again_what_it_copied_to_an_open_file() {
    let _counting = COUNTING.lock().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let outside = User::new(&fs, 1);
    outside.put("f", &vec![7; SIZE]).unwrap();
    let held = outside.open("f", libc::O_RDWR).unwrap();
    fs.sync(None).unwrap();
    let mut user = User::new(&fs, 2);
    user.begin();
    // A page of zeros among them, a page that does not change, and an end within a page.
    let mut content: Vec<u8> = (0..SIZE as u32 - 100)
        .map(|at| (at >> 9) as u8 | 1)
        .collect();
    content[3 << 14..4 << 14].fill(0);
    content[9 << 14..10 << 14].fill(7);
    user.put_at("f", 0, &content[..9 << 14]).unwrap();
    user.put_at("f", 10 << 14, &content[10 << 14..]).unwrap();
    user.truncate("f", content.len() as u64).unwrap();
    let before = reads();
    user.commit(None).unwrap();
    fs.sync(None).unwrap();
    let bytes = reads().1 - before.1;
    assert!(bytes <= SIZE as u64 + (64 << 10), "{bytes} bytes");
    assert!(user.get("f").unwrap() == content);
    held.close(&fs);
    drop(fs);
    let fs = open(dir.path());
    assert!(User::new(&fs, 1).get("f").unwrap() == content);
    close_and_check(fs, dir.path());
}
