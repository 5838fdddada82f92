//! Hard links, files without names, and what is left of them in the store.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::*;

use amino_fs::AminoFs;
use amino_schema::{ParsedKey, PathRecord};
use amino_txn::Records;
use goanna_vfs::{CachedContent, Errno, FileSystem, WritePosition};
use std::ops::{Bound, ControlFlow};

fn fresh() -> (tempfile::TempDir, Arc<AminoFs>) {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(&dir.path().join("store"));
    (dir, fs)
}

/// Counts of keys in the store: data records, link index entries, orphans, pages, attributes, and path records with
/// metadata.
fn keys(fs: &AminoFs) -> [usize; 6] {
    let mut counts = [0; 6];
    fs.store()
        .scan(Bound::Unbounded, b"", &mut |raw, value| {
            match ParsedKey::parse(raw).unwrap() {
                ParsedKey::Data { .. } => counts[0] += 1,
                ParsedKey::Link { .. } => counts[1] += 1,
                ParsedKey::Orphan { .. } => counts[2] += 1,
                ParsedKey::Page { .. } => counts[3] += 1,
                ParsedKey::Xattr { .. } => counts[4] += 1,
                ParsedKey::Path { .. } => {
                    counts[5] += usize::from(PathRecord::decode(value).unwrap().meta.is_some());
                }
                ParsedKey::Super => {}
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    counts
}

/// The housekeeper works in its own time.
fn wait_for(fs: &AminoFs, expected: [usize; 6]) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        fs.sync(None).unwrap();
        let found = keys(fs);
        if found == expected {
            return;
        }
        assert!(Instant::now() < until, "{found:?}, not {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn metadata_is_promoted_and_demoted() {
    let (dir, fs) = fresh();
    let user = caller();
    let top = fs.root();
    write_file(&fs, "a", b"content").unwrap();
    assert_eq!(keys(&fs), [0, 0, 0, 0, 0, 2], "the root and the file");
    let node = walk(&fs, "a").unwrap();
    fs.link(&user, &node, &top, b"b").unwrap();
    assert_eq!(keys(&fs), [1, 2, 0, 0, 0, 1]);
    fs.link(&user, &node, &top, b"c").unwrap();
    assert_eq!(keys(&fs), [1, 3, 0, 0, 0, 1]);
    assert_eq!(fs.link(&user, &node, &top, b"c"), Err(Errno::EEXIST.into()));
    assert_eq!(fs.link(&user, &top, &top, b"d"), Err(Errno::EPERM.into()));
    fs.rename(&user, &top, b"b", &top, b"B", 0).unwrap();
    assert_eq!(
        fs.rename(&user, &top, b"B", &top, b"c", 0),
        Ok(()),
        "the same file: nothing happens"
    );
    assert_eq!(names(&fs, ""), ["B", "a", "c"]);
    assert_eq!(fs.getattr(&user, &node).unwrap().nlink, 3);
    let path = dir.path().join("store");
    drop(node);
    close_and_check(fs, &path);

    let fs = open(&path);
    let top = fs.root();
    fs.unlink(&user, &top, b"a").unwrap();
    let node = walk(&fs, "B").unwrap();
    let (shown, deleted) = fs.path(&root(), &node).unwrap();
    // Its next name in the order of keys took the place of the one by which it was in use.
    assert_eq!((&shown[..], deleted), (&b"c"[..], false));
    fs.unlink(&user, &top, b"c").unwrap();
    assert_eq!(fs.path(&root(), &node).unwrap(), (b"B".to_vec(), false));
    assert_eq!(keys(&fs), [0, 0, 0, 0, 0, 2]);
    assert_eq!(fs.getattr(&user, &node).unwrap().nlink, 1);
    assert_eq!(read_direct(&fs, &node).unwrap(), b"content");
    drop(node);
    close_and_check(fs, &path);
    let fs = open(&path);
    assert_eq!(read_file(&fs, "B").unwrap(), b"content");
    // Replacing one of two names demotes as well.
    let node = walk(&fs, "B").unwrap();
    fs.link(&user, &node, &fs.root(), b"x").unwrap();
    write_file(&fs, "y", b"new").unwrap();
    fs.rename(&user, &fs.root(), b"y", &fs.root(), b"x", 0)
        .unwrap();
    assert_eq!(fs.getattr(&user, &node).unwrap().nlink, 1);
    assert_eq!(keys(&fs), [0, 0, 0, 0, 0, 3]);
    drop(node);
    close_and_check(fs, &path);
}

/// Whichever way the names go, the file keeps one that can be found.
#[test]
fn names_go_in_any_order() {
    for backwards in [false, true] {
        let (dir, fs) = fresh();
        let (user, top) = (caller(), fs.root());
        write_file(&fs, "n00", b"content").unwrap();
        let node = walk(&fs, "n00").unwrap();
        for n in 1..40 {
            fs.link(&user, &node, &top, format!("n{n:02}").as_bytes())
                .unwrap();
        }
        let mut order: Vec<_> = (0..40).collect();
        if backwards {
            order.reverse();
        }
        for (gone, n) in order.iter().take(39).enumerate() {
            fs.unlink(&user, &top, format!("n{n:02}").as_bytes())
                .unwrap();
            let (shown, deleted) = fs.path(&root(), &node).unwrap();
            let shown = String::from_utf8(shown).unwrap();
            assert!(!deleted && walk(&fs, &shown).is_ok(), "{shown}");
            assert_eq!(fs.getattr(&user, &node).unwrap().nlink, 39 - gone as u32);
        }
        drop(node);
        close_and_check(fs, &dir.path().join("store"));
    }
}

#[test]
fn exchange_of_hard_links() {
    let (dir, fs) = fresh();
    let user = caller();
    let top = fs.root();
    write_file(&fs, "a", b"one").unwrap();
    let node = walk(&fs, "a").unwrap();
    fs.link(&user, &node, &top, b"b").unwrap();
    let sub = fs.mkdir(&user, &top, b"d", 0o755).unwrap();
    fs.mkdir(&user, &sub, b"e", 0o755).unwrap();
    fs.rename(&user, &top, b"b", &sub, b"e", libc::RENAME_EXCHANGE)
        .unwrap();
    assert_eq!(fs.getattr(&user, &top).unwrap().nlink, 4);
    assert_eq!(fs.getattr(&user, &sub).unwrap().nlink, 2);
    assert_eq!(read_file(&fs, "d/e").unwrap(), b"one");
    assert!(walk(&fs, "b").unwrap().is_dir());
    assert_eq!(
        fs.rename(&user, &top, b"d", &sub, b"e", libc::RENAME_EXCHANGE),
        Err(Errno::EINVAL.into())
    );
    drop((node, sub));
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn files_without_names_stay_while_open_and_go_afterwards() {
    let (dir, fs) = fresh();
    let user = caller();
    let file = create(&fs, "f").unwrap();
    file.write(&fs, WritePosition::Cursor, &[3; 100_000])
        .unwrap();
    fs.setxattr(&user, &file.node, b"user.x", b"1", 0).unwrap();
    fs.sync(None).unwrap();
    assert_eq!(keys(&fs), [0, 0, 0, 7, 1, 2]);
    fs.unlink(&user, &fs.root(), b"f").unwrap();
    fs.sync(None).unwrap();
    assert_eq!(keys(&fs), [0, 0, 1, 7, 1, 1]);
    assert_eq!(fs.getattr(&user, &file.node).unwrap().nlink, 0);
    assert_eq!(
        fs.link(&user, &file.node, &fs.root(), b"g"),
        Err(Errno::ENOENT.into())
    );
    file.write(&fs, WritePosition::Cursor, b"more").unwrap();
    assert_eq!(fs.getattr(&user, &file.node).unwrap().size, 100_004);
    fs.sync(None).unwrap();
    drop(file.fd);
    fs.released(&file.node);
    wait_for(&fs, [0, 0, 0, 0, 0, 1]);
    // The caller looks the name up again: there may be another file by now. ENOENT was shown to readers of a file that others replace.
    assert_eq!(fs.open(&user, &file.node, 0).unwrap_err(), Errno::ESTALE);
    drop(file.node);
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn a_file_that_lives_shortly_never_reaches_the_store() {
    let (dir, fs) = fresh();
    fs.sync(None).unwrap();
    let before = fs.store().stats().log_bytes;
    for i in 0..50 {
        let name = format!("t{i}");
        write_file(&fs, &name, &[1; 100_000]).unwrap();
        fs.unlink(&caller(), &fs.root(), name.as_bytes()).unwrap();
    }
    fs.sync(None).unwrap();
    let written = fs.store().stats().log_bytes - before;
    // Not the 5 MB of content. A flush point in the middle can catch one or two of them.
    assert!(written < 400_000, "{written} bytes in the log");
    wait_for(&fs, [0, 0, 0, 0, 0, 1]);
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn a_replaced_file_stays_readable_for_a_caller_that_has_found_it() {
    let (dir, fs) = fresh();
    let user = caller();
    write_file(&fs, "f", &[1; 30_000]).unwrap();
    fs.sync(None).unwrap();
    // A thread has looked the name up and not opened it yet.
    let found = walk(&fs, "f").unwrap();
    write_file(&fs, "tmp", &[2; 30_000]).unwrap();
    fs.rename(&user, &fs.root(), b"tmp", &fs.root(), b"f", 0)
        .unwrap();
    fs.sync(None).unwrap();
    let opened = fs.open(&user, &found, libc::O_RDONLY).unwrap();
    let mut data = vec![0; 40_000];
    assert_eq!(
        nix::sys::uio::pread(opened.fd().unwrap(), &mut data, 0),
        Ok(30_000)
    );
    assert_eq!(data[..30_000], [1; 30_000]);
    drop((opened, found));
    wait_for(&fs, [0, 0, 0, 2, 0, 2]);
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn large_files_go_in_steps() {
    let (dir, fs) = fresh();
    let data = vec![1; 40 << 20];
    let mut source = &data[..];
    let big = fs.import_new(&caller(), &fs.root(), b"big", 0o644).unwrap();
    fs.import(&caller(), &big, &mut source, &mut |_| {})
        .unwrap();
    fs.sync(None).unwrap();
    assert_eq!(keys(&fs), [0, 0, 0, 2560, 0, 2]);
    drop(big);
    fs.unlink(&caller(), &fs.root(), b"big").unwrap();
    wait_for(&fs, [0, 0, 0, 0, 0, 1]);
    close_and_check(fs, &dir.path().join("store"));
}

#[test]
fn tmpfiles() {
    let (dir, fs) = fresh();
    let user = caller();
    let flags = libc::O_RDWR;
    let make = |flags| {
        let (node, opened) = fs.tmpfile(&user, &fs.root(), 0o666, flags).unwrap();
        Handle {
            node,
            fd: opened.into_fd().unwrap(),
            flags,
        }
    };
    let named = make(flags);
    named
        .write(&fs, WritePosition::Cursor, &[4; 20_000])
        .unwrap();
    fs.sync(None).unwrap();
    assert_eq!(keys(&fs)[2], 1);
    assert!(fs.path(&root(), &named.node).unwrap().1);
    fs.link(&user, &named.node, &fs.root(), b"name").unwrap();
    assert_eq!(
        fs.path(&root(), &named.node).unwrap(),
        (b"name".to_vec(), false)
    );
    assert_eq!(fs.getattr(&user, &named.node).unwrap().nlink, 1);
    let private = make(flags | libc::O_EXCL);
    assert_eq!(
        fs.link(&user, &private.node, &fs.root(), b"other"),
        Err(Errno::ENOENT.into())
    );
    private.close(&fs);
    make(flags).close(&fs);
    named.close(&fs);
    wait_for(&fs, [0, 0, 0, 2, 0, 2]);
    let path = dir.path().join("store");
    close_and_check(fs, &path);
    assert_eq!(read_file(&open(&path), "name").unwrap(), [4; 20_000]);
}
