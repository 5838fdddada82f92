//! What a commit reads of the contents that it stores. The only test of its process, because it counts the process's reads.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::user::User;
use common::{close_and_check, open};
use goanna_vfs::FileSystem;

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
