//! Transactions across several operations: what they see, what others see, what is left of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use amino_fs::{AminoFs, EngineKind};
use common::user::User;
use common::{check, close_and_check, is_blocked, lock_of, open, open_with, options};
use goanna_vfs::{
    Attr, CachedContent, Errno, FileSystem, SetAttr, TimeSet, Transactions, WritePosition,
};

#[test]
fn other_callers_see_a_transaction_only_after_its_commit() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("old", b"before").unwrap();
    let before = outside.open("old", libc::O_RDONLY).unwrap();
    inside.begin();
    inside.put("new", b"made inside").unwrap();
    inside.put("old", b"after").unwrap();
    inside.mkdir("d").unwrap();
    inside.put("d/deep", b"deep").unwrap();
    assert_eq!(outside.get("new"), Err(Errno::ENOENT.into()));
    assert_eq!(outside.get("old").unwrap(), b"before");
    assert_eq!(outside.names("").unwrap(), ["old"]);
    assert_eq!(
        outside
            .fs
            .getattr(&outside.caller, &fs.root())
            .unwrap()
            .nlink,
        2
    );
    assert_eq!(inside.get("old").unwrap(), b"after");
    assert_eq!(inside.get("d/deep").unwrap(), b"deep");
    assert_eq!(inside.names("").unwrap(), ["d", "new", "old"]);
    assert_eq!(
        inside.fs.getattr(&inside.caller, &fs.root()).unwrap().nlink,
        3
    );
    let native = |len: usize| {
        let mut buf = vec![0; len + 1];
        let got = nix::sys::uio::pread(&before.fd, &mut buf, 0).unwrap();
        buf.truncate(got);
        buf
    };
    assert_eq!(native(6), b"before");
    inside.commit(None).unwrap();
    // By the descriptor that was open all the time, too.
    assert_eq!(native(6), b"after");
    assert_eq!(outside.get("old").unwrap(), b"after");
    assert_eq!(outside.names("").unwrap(), ["d", "new", "old"]);
    assert_eq!(outside.get("d/deep").unwrap(), b"deep");
    before.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn an_abort_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.mkdir("d").unwrap();
    outside.put("d/f", b"content").unwrap();
    let mut before = BTreeMap::new();
    outside.tree("", &mut before);
    let attr = |path: &str| {
        outside
            .fs
            .getattr(&outside.caller, &outside.walk(path).unwrap())
    };
    let (d, f) = (attr("d").unwrap(), attr("d/f").unwrap());
    inside.begin();
    let orphan = inside.create("never").unwrap();
    inside.write(&orphan, WritePosition::Cursor, b"x").unwrap();
    inside.rename("d/f", "g").unwrap();
    inside.link("g", "d/h").unwrap();
    inside.put_at("g", 5000, b"far").unwrap();
    let node = inside.walk("d").unwrap();
    let set = SetAttr {
        mode: Some(0o700),
        mtime: Some(TimeSet::Now),
        ..SetAttr::default()
    };
    fs.setattr(&inside.caller, &node, &set).unwrap();
    fs.setxattr(&inside.caller, &node, b"user.x", b"1", 0)
        .unwrap();
    inside.abort(None);
    let mut after = BTreeMap::new();
    outside.tree("", &mut after);
    assert_eq!(before, after);
    assert_eq!((attr("d").unwrap(), attr("d/f").unwrap()), (d, f));
    assert_eq!(
        fs.getxattr(&outside.caller, &node, b"user.x"),
        Err(Errno::ENODATA.into())
    );
    // A file that never was.
    assert_eq!(
        fs.getattr(&outside.caller, &orphan.node),
        Err(Errno::ESTALE.into())
    );
    assert_eq!(
        outside.write(&orphan, WritePosition::Cursor, b"y"),
        Err(Errno::ESTALE.into())
    );
    orphan.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn what_is_written_through_a_mapping_of_a_new_file_is_committed() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("old", &[1; 5000]).unwrap();
    inside.begin();
    let old = inside.open("old", libc::O_RDWR).unwrap();
    assert_eq!(
        fs.map_shared(&inside.caller, &old.node),
        Err(Errno::ENODEV.into())
    );
    old.close(&fs);
    let new = inside.create("new").unwrap();
    inside.truncate("new", 20_000).unwrap();
    fs.map_shared(&inside.caller, &new.node).unwrap();
    // As through a mapping: the content object changes without a call.
    let mut object = std::fs::File::from(new.fd.try_clone().unwrap());
    object.write_all(&[7; 9000]).unwrap();
    inside.commit(None).unwrap();
    let mut expected = vec![7; 9000];
    expected.resize(20_000, 0);
    assert_eq!(outside.get("new").unwrap(), expected);
    drop(object);
    new.close(&fs);
    close_and_check(fs, dir.path());
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    assert_eq!(User::new(&fs, 3).get("new").unwrap(), expected);
    close_and_check(fs, dir.path());
}

#[test]
fn a_second_change_of_the_same_file_waits() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"1").unwrap();
    inside.begin();
    inside.put("f", b"2").unwrap();
    inside.put("new", b"").unwrap();
    let lock = lock_of(outside.put("f", b"3"));
    let short = Duration::from_millis(1);
    assert_eq!(lock.wait(Duration::ZERO, short), Ok(false));
    assert!(is_blocked(&outside.put("new", b"")));
    // Another name in the same directory does not conflict.
    outside.put("other", b"").unwrap();
    inside.commit(None).unwrap();
    assert_eq!(lock.wait(Duration::ZERO, short), Ok(true));
    outside.put("f", b"3").unwrap();
    assert_eq!(outside.names("").unwrap(), ["f", "new", "other"]);
    close_and_check(fs, dir.path());
}

/// Size, links and times of a directory are what was committed in that moment, with the transaction's own changes; the rest is
/// locked.
#[test]
fn a_stat_of_a_directory_does_not_block_new_entries() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, mut other) = (User::new(&fs, 1), User::new(&fs, 2));
    let node = inside.mkdir("d").unwrap();
    let seen = |user: &User<'_>| fs.getattr(&user.caller, &node).unwrap();
    inside.begin();
    let first = seen(&inside);
    // What is committed is seen, and nothing before.
    other.begin();
    for index in 0..130 {
        other.put(&format!("d/f{index}"), b"").unwrap();
    }
    other.mkdir("d/sub").unwrap();
    assert_eq!(seen(&inside), first);
    other.commit(None).unwrap();
    let second = seen(&inside);
    assert_eq!(second, seen(&other));
    assert_eq!((first.size, first.nlink), (4096, 2));
    assert_eq!((second.size, second.nlink), (8192, 3));
    assert!(second.mtime > first.mtime && second.ctime > first.ctime);
    // Its own comes on top, and so does what others commit later.
    inside.mkdir("d/own").unwrap();
    let third = seen(&inside);
    assert_eq!(third.nlink, 4);
    assert!(third.mtime > second.mtime && third.ctime > second.ctime);
    assert_eq!(seen(&other), second);
    other.mkdir("d/later").unwrap();
    let fourth = seen(&inside);
    assert_eq!((seen(&other).nlink, fourth.nlink), (4, 5));
    assert!(fourth.mtime > third.mtime);
    assert_eq!(
        (fourth.mtime, fourth.ctime),
        (seen(&other).mtime, seen(&other).ctime)
    );
    // Its own attributes are locked, and that it is there.
    let set = SetAttr {
        mode: Some(0o700),
        ..SetAttr::default()
    };
    assert!(is_blocked(&fs.setattr(&other.caller, &node, &set)));
    assert!(is_blocked(&other.rename("d", "e")));
    // A transaction that lists it waits, and others wait for one that has listed it.
    other.begin();
    assert!(is_blocked(&other.names("d")));
    other.abort(None);
    inside.commit(None).unwrap();
    let fifth = seen(&other);
    assert!(fifth.version > fourth.version);
    let version = fourth.version;
    assert_eq!(Attr { version, ..fifth }, fourth);
    inside.begin();
    inside.names("d").unwrap();
    assert!(is_blocked(&other.put("d/new", b"")));
    inside.commit(None).unwrap();
    close_and_check(fs, dir.path());
}

#[test]
fn times_of_a_directory_that_lie_ahead_are_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, other) = (User::new(&fs, 1), User::new(&fs, 2));
    let node = inside.mkdir("d").unwrap();
    let mtime = |user: &User<'_>| fs.getattr(&user.caller, &node).unwrap().mtime;
    let before = mtime(&other);
    let ahead = goanna_vfs::Stamp {
        sec: before.sec + 1_000_000,
        nsec: 0,
    };
    let set = SetAttr {
        mtime: Some(TimeSet::At(ahead)),
        ..SetAttr::default()
    };
    fs.setattr(&other.caller, &node, &set).unwrap();
    inside.begin();
    assert_eq!(mtime(&inside), ahead);
    inside.put("d/f", b"").unwrap();
    assert!(mtime(&inside) > before && mtime(&inside) < ahead);
    inside.abort(None);
    assert_eq!(mtime(&other), ahead);
    close_and_check(fs, dir.path());
}

#[test]
fn a_read_of_a_transactions_own_content_is_one_operation() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let mut inside = User::new(&fs, 1);
    inside.put("f", b"committed").unwrap();
    let open = inside.open("f", libc::O_RDWR).unwrap();
    inside.begin();
    let read = |user: &User<'_>, offset, len| fs.read_own(&user.caller, &open.node, offset, len);
    assert_eq!(read(&inside, 0, 9), Ok(None), "the descriptor shows it");
    inside.write(&open, WritePosition::At(0), b"C").unwrap();
    for (offset, len, expected) in [(0, 100, &b"Committed"[..]), (3, 2, b"mi"), (9, 5, b"")] {
        assert_eq!(read(&inside, offset, len), Ok(Some(expected.to_vec())));
    }
    let outside = User::new(&fs, 2);
    assert_eq!(read(&outside, 0, 9), Ok(None));
    inside.abort(None);
    open.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn waiting_has_a_limit_and_cycles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut one, mut two) = (User::new(&fs, 1), User::new(&fs, 2));
    for name in ["a", "b"] {
        one.put(name, b"").unwrap();
    }
    one.begin();
    two.begin();
    one.put("a", b"1").unwrap();
    two.put("b", b"2").unwrap();
    let ones = lock_of(one.put("b", b"1"));
    let twos = lock_of(two.put("a", b"2"));
    let long = Duration::from_secs(1000);
    assert_eq!(ones.wait(long, long), Err(Errno::ETIMEDOUT));
    assert_eq!(fs.status(one.caller.txn.unwrap()).unwrap().conflicts, 1);
    let ones = lock_of(one.put("b", b"1"));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ones.wait(Duration::ZERO, Duration::from_secs(20)));
        // The transaction that completes the cycle gets the error at once.
        std::thread::sleep(Duration::from_millis(300));
        let told = twos.wait(Duration::ZERO, Duration::from_secs(20));
        assert_eq!(told, Err(Errno::EDEADLK));
        two.abort(None);
        assert_eq!(waiting.join().unwrap(), Ok(true));
    });
    one.put("b", b"1").unwrap();
    one.commit(None).unwrap();
    assert_eq!(two.get("b").unwrap(), b"1");
    close_and_check(fs, dir.path());
}

#[test]
fn a_transaction_that_is_too_large_fails_with_enospc_and_can_be_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(EngineKind::Memory);
    options.transaction_bytes = 1 << 20;
    let fs = open_with(dir.path(), &options);
    let mut user = User::new(&fs, 1);
    user.begin();
    user.put("f", &[1; 500_000]).unwrap();
    assert_eq!(user.put("g", &[1; 900_000]), Err(Errno::ENOSPC.into()));
    user.abort(None);
    assert_eq!(user.names("").unwrap(), [""; 0]);
    close_and_check(fs, dir.path());
}

#[test]
fn a_commit_without_space_in_the_log_is_reported_and_aborts() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(EngineKind::Fjall);
    options.log_limit_bytes = 64 << 20;
    let fs = open_with(dir.path(), &options);
    let (mut user, other) = (User::new(&fs, 1), User::new(&fs, 2));
    other.put("f", b"before").unwrap();
    user.begin();
    user.put("f", b"after").unwrap();
    let large = user.create("large").unwrap();
    for piece in 0..80 {
        let position = WritePosition::At(piece << 20);
        user.write(&large, position, &[7; 1 << 20]).unwrap();
    }
    assert_eq!(user.commit(None), Err(Errno::ENOSPC.into()));
    assert_eq!(other.names("").unwrap(), ["f"]);
    assert_eq!(other.get("f").unwrap(), b"before");
    assert_eq!(
        user.write(&large, WritePosition::At(0), b"x"),
        Err(Errno::ESTALE.into())
    );
    large.close(&fs);
    // The store continues.
    user.begin();
    user.put("f", b"later").unwrap();
    user.commit(None).unwrap();
    assert_eq!(other.get("f").unwrap(), b"later");
    close_and_check(fs, dir.path());
}

#[test]
fn a_committed_transaction_is_on_the_disk_whole_and_an_open_one_is_not() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    let (mut done, mut open_still) = (User::new(&fs, 1), User::new(&fs, 2));
    done.begin();
    open_still.begin();
    for index in 0..100 {
        done.put(&format!("done{index}"), &[1; 6000]).unwrap();
        open_still.put(&format!("open{index}"), &[2; 6000]).unwrap();
    }
    done.commit(None).unwrap();
    // Others' operations after it reach the disk, too, and take nothing of the open one with them.
    done.put("later", b"x").unwrap();
    fs.sync(None).unwrap();
    common::copy_dir(dir.path(), crashed.path());
    open_still.abort(None);
    close_and_check(fs, dir.path());
    let fs = open_with(crashed.path(), &options(EngineKind::Fjall));
    let user = User::new(&fs, 1);
    let names = user.names("").unwrap();
    assert_eq!(names.len(), 101, "{names:?}");
    assert_eq!(user.get("done99").unwrap(), vec![1; 6000]);
    close_and_check(fs, crashed.path());
    check(crashed.path());
}

/// Reads a directory in pieces of `piece` entries, as getdents64(2) does with a small buffer, and checks that cookies grow.
fn listed(fs: &AminoFs, caller: &goanna_vfs::Caller, piece: usize) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let mut taken = 0;
        fs.readdir(caller, &fs.root(), cookie, &mut |entry| {
            if taken == piece {
                return false;
            }
            assert!(entry.cookie > cookie || taken == 0, "cookies grow");
            cookie = entry.cookie;
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            taken += 1;
            true
        })
        .unwrap();
        if taken == 0 {
            return names;
        }
    }
}

/// More entries than one step of a listing takes, of which each transaction has added, removed and renamed some.
#[test]
fn nested_transactions_list_each_name_once() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let mut user = User::new(&fs, 1);
    let mut expected: Vec<String> = Vec::new();
    for n in 0..300 {
        user.put(&format!("committed{n}"), b"").unwrap();
        expected.push(format!("committed{n}"));
    }
    let mut levels = Vec::new();
    for level in 0..3 {
        let outer = user.caller.txn;
        levels.push((outer, expected.clone()));
        user.begin();
        for n in 0..1500 {
            user.put(&format!("made{level}-{n}"), b"").unwrap();
            expected.push(format!("made{level}-{n}"));
        }
        for name in expected.clone().iter().step_by(7) {
            user.unlink(name).unwrap();
        }
        expected = expected
            .into_iter()
            .enumerate()
            .filter_map(|(at, name)| (at % 7 != 0).then_some(name))
            .collect();
        // A name that was removed further outside, and one that is there already.
        for again in ["committed0".to_owned(), format!("made{level}-5")] {
            user.put(&again, b"").unwrap();
            if !expected.contains(&again) {
                expected.push(again);
            }
        }
        let last = expected.pop().unwrap();
        user.rename(&last, &format!("renamed{level}")).unwrap();
        expected.push(format!("renamed{level}"));
    }
    expected.sort();
    for piece in [97, 1366, usize::MAX] {
        let mut found = listed(&fs, &user.caller, piece);
        found.sort();
        assert_eq!(found, expected, "in pieces of {piece}");
    }
    let (outer, before) = levels.pop().unwrap();
    user.abort(outer);
    let mut found = listed(&fs, &user.caller, 64);
    let mut before = before;
    found.sort();
    before.sort();
    assert_eq!(found, before, "without the aborted one");
    user.commit(levels.pop().unwrap().0).unwrap();
    let inside = listed(&fs, &user.caller, 64);
    user.commit(None).unwrap();
    assert_eq!(
        listed(&fs, &user.caller, 64),
        inside,
        "and in the same order after the commit"
    );
    drop(user);
    close_and_check(fs, dir.path());
}
