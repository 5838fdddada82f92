//! A run transaction: its programs read its changes natively, and no other program sees them before its commit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::RwLock;

use amino_fs::EngineKind;
use common::user::{Runs, User};
use common::{Handle, check, close_and_check, copy_dir, is_blocked, open, open_with, options};
use goanna_vfs::{CachedContent, Errno, FileSystem, OpenFile, Transactions, TxnId, WritePosition};

/// What a program reads by the descriptor, from the start.
fn native(handle: &Handle) -> Vec<u8> {
    let mut data = vec![0; 1 << 20];
    let got = nix::sys::uio::pread(&handle.fd, &mut data, 0).unwrap();
    data.truncate(got);
    data
}

/// A child has our descriptors from its fork to its exec, so that a content whose last one was closed meanwhile still counts
/// as in use. Locked for writing by a test that starts a child, for reading by one that counts released contents.
static CHILDREN: RwLock<()> = RwLock::new(());

/// Writes through a shared mapping: a child does it, since `unsafe` is for `crates/sys` only.
fn write_mapped(handle: &Handle, data: &str) {
    let program = "import mmap, sys\nf = open(sys.argv[1], 'r+b')\nm = mmap.mmap(f.fileno(), 4096)\n\
        m[:len(sys.argv[2])] = sys.argv[2].encode()\n";
    let path = format!("/proc/{}/fd/{}", std::process::id(), handle.fd.as_raw_fd());
    let mut python = std::process::Command::new("python3");
    let _starting = CHILDREN.write().unwrap();
    let status = python.args(["-c", program, &path, data]).status();
    assert!(status.unwrap().success());
}

fn run(user: &mut User<'_>) -> TxnId {
    let id = user.fs.begin_run().unwrap();
    user.caller.txn = Some(id);
    id
}

fn tree(user: &User<'_>) -> BTreeMap<String, (Option<Runs>, u32)> {
    let mut tree = BTreeMap::new();
    user.tree("", &mut tree);
    tree
}

#[test]
fn descriptors_show_the_runs_own_content() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"before").unwrap();
    let theirs = outside.open("f", libc::O_RDONLY).unwrap();
    run(&mut inside);
    let reader = inside.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(native(&reader), b"before");
    let writer = inside.open("f", libc::O_RDWR).unwrap();
    inside
        .write(&writer, WritePosition::Cursor, b"after!!")
        .unwrap();
    // At once, by the descriptor that was opened before the write.
    assert_eq!(native(&reader), b"after!!");
    assert!(!fs.has_own_content(&inside.caller, &reader.node).unwrap());
    inside.truncate("f", 3).unwrap();
    assert_eq!(native(&reader), b"aft");
    inside.write(&writer, WritePosition::At(3), b"er").unwrap();
    assert_eq!(native(&reader), b"after");

    assert_eq!(native(&theirs), b"before");
    assert_eq!(outside.get("f").unwrap(), b"before");
    inside.commit(None).unwrap();
    assert_eq!(native(&theirs), b"after");
    assert_eq!(outside.get("f").unwrap(), b"after");
    for handle in [theirs, reader, writer] {
        handle.close(&fs);
    }
    close_and_check(fs, dir.path());
}

#[test]
fn what_was_only_read_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("read", &[7; 50_000]).unwrap();
    outside.put("moded", &[8; 50_000]).unwrap();
    fs.sync(None).unwrap();
    let before = fs.getattr(&outside.caller, &outside.walk("read").unwrap());
    let dirty = fs.stats().dirty_inodes;
    let id = run(&mut inside);
    let held = inside.open("read", libc::O_RDONLY).unwrap();
    let closed = inside.open("read", libc::O_RDWR).unwrap();
    closed.close(&fs);
    let status = fs.status(id).unwrap();
    assert_eq!((status.inodes, status.names, status.bytes), (0, 0, 0));
    assert!(!fs.commit(id).unwrap(), "there is nothing to make_durable");
    assert_eq!(fs.stats().dirty_inodes, dirty);
    held.close(&fs);

    // With one that is changed beside it.
    let id = run(&mut inside);
    let (held, moded) = (
        inside.open("read", libc::O_RDONLY).unwrap(),
        inside.open("moded", libc::O_RDONLY).unwrap(),
    );
    let set = goanna_vfs::SetAttr {
        mode: Some(0o600),
        ..goanna_vfs::SetAttr::default()
    };
    fs.setattr(&inside.caller, &moded.node, &set).unwrap();
    assert_eq!(fs.status(id).unwrap().inodes, 1);
    let logged = || {
        fs.sync(None).unwrap();
        fs.store().stats().log_bytes
    };
    let logged_before = logged();
    assert!(fs.commit(id).unwrap());
    assert_eq!(fs.stats().dirty_inodes, 0, "its frame has all of it");
    let bytes = logged() - logged_before;
    assert!(bytes < 50_000, "the content did not change: {bytes} logged");
    inside.caller.txn = None;
    let after = fs.getattr(&outside.caller, &outside.walk("read").unwrap());
    assert_eq!(before, after);
    held.close(&fs);
    moded.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn what_is_written_through_mappings_commits_or_goes() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("m", &[b'.'; 40_000]).unwrap();
    let at_once = |held: bool, abort: bool| {
        let mut inside = User::new(&fs, 1);
        run(&mut inside);
        let handle = inside.open("m", libc::O_RDWR).unwrap();
        let reader = inside.open("m", libc::O_RDONLY).unwrap();
        fs.map_shared(&inside.caller, &handle.node).unwrap();
        let word = format!("held {held}, abort {abort}");
        write_mapped(&handle, &word);
        assert!(native(&reader).starts_with(word.as_bytes()));
        assert!(!outside.get("m").unwrap().starts_with(word.as_bytes()));
        let left = if held {
            Some((handle, reader))
        } else {
            drop(handle.fd);
            reader.close(&fs);
            None
        };
        if abort {
            inside.abort(None);
        } else {
            inside.commit(None).unwrap();
        }
        assert_eq!(
            outside.get("m").unwrap().starts_with(word.as_bytes()),
            !abort,
            "{word}"
        );
        if let Some((handle, reader)) = left {
            drop(handle.fd);
            reader.close(&fs);
        }
    };
    for held in [true, false] {
        at_once(held, true);
        at_once(held, false);
    }
    // Made inside, and grown in a hole through the mapping.
    run(&mut inside);
    let made = inside.create("made").unwrap();
    inside.truncate("made", 100 << 20).unwrap();
    fs.map_shared(&inside.caller, &made.node).unwrap();
    write_mapped(&made, "in a hole");
    drop(made.fd);
    fs.released(&made.node);
    inside.commit(None).unwrap();
    assert_eq!(outside.get("made").unwrap().len(), 100 << 20);
    assert!(outside.get("made").unwrap().starts_with(b"in a hole"));
    assert!(
        fs.stats().dirty_bytes < 1 << 20,
        "holes count for nothing: {:?}",
        fs.stats()
    );
    close_and_check(fs, dir.path());
}

#[test]
fn an_abort_and_a_crash_leave_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, crashed) = (dir.path().join("s"), dir.path().join("crashed"));
    let fs = open_with(&store, &options(EngineKind::Fjall));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.mkdir("d").unwrap();
    outside.put("d/f", b"content").unwrap();
    fs.sync(None).unwrap();
    let before = tree(&outside);
    for ends in ["crash", "abort"] {
        run(&mut inside);
        inside.put("d/f", b"other content").unwrap();
        inside.put("new", &vec![1; 3 << 20]).unwrap();
        inside.rename("d", "e").unwrap();
        let held = inside.open("e/f", libc::O_RDWR).unwrap();
        let made = inside.create("e/made").unwrap();
        inside.write(&made, WritePosition::Cursor, b"x").unwrap();
        assert_eq!(tree(&outside), before);
        if ends == "crash" {
            // All that is not inside is on the disk.
            outside.put("beside", b"").unwrap();
            fs.sync(None).unwrap();
            outside.unlink("beside").unwrap();
            fs.sync(None).unwrap();
            copy_dir(&store, &crashed);
        }
        inside.abort(None);
        assert_eq!(tree(&outside), before);
        assert_eq!(native(&made), b"", "it never was");
        held.close(&fs);
        made.close(&fs);
    }
    close_and_check(fs, &store);
    check(&crashed);
    let fs = open_with(&crashed, &options(EngineKind::Fjall));
    assert_eq!(tree(&User::new(&fs, 1)), before);
}

#[test]
fn explicit_transactions_nest_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"committed").unwrap();
    outside.put("g", b"committed").unwrap();
    let id = run(&mut inside);
    let held = inside.open("f", libc::O_RDWR).unwrap();
    inside
        .write(&held, WritePosition::At(0), b"the run's")
        .unwrap();

    inside.begin();
    inside
        .write(&held, WritePosition::At(0), b"nested 1!")
        .unwrap();
    // Descriptors show what is outside of the nested one, and those opened inside do the same.
    assert_eq!(native(&held), b"the run's");
    assert!(fs.has_own_content(&inside.caller, &held.node).unwrap());
    let other = inside.open("f", libc::O_RDONLY).unwrap();
    assert_eq!(native(&other), b"the run's");
    assert_eq!(inside.get("f").unwrap(), b"nested 1!");
    assert_eq!(
        fs.map_shared(&inside.caller, &held.node),
        Err(Errno::ENODEV.into())
    );
    // One that only it has changed: its descriptor shows the run's copy, which the open makes.
    inside.put("g", b"nested").unwrap();
    let late = inside.open("g", libc::O_RDONLY).unwrap();
    assert_eq!(native(&late), b"committed");
    assert_eq!(inside.get("g").unwrap(), b"nested");
    let made = inside.create("made").unwrap();
    inside.write(&made, WritePosition::Cursor, b"made").unwrap();
    assert_eq!(native(&made), b"made");
    inside.abort(Some(id));
    assert_eq!(native(&held), b"the run's");
    assert_eq!(inside.get("g").unwrap(), b"committed");
    assert_eq!(inside.get("made"), Err(Errno::ENOENT.into()));
    made.close(&fs);

    inside.begin();
    inside
        .write(&held, WritePosition::At(0), b"nested 2!")
        .unwrap();
    inside.put("g", b"nested 2").unwrap();
    inside.put("made", b"made again").unwrap();
    inside.commit(Some(id)).unwrap();
    assert_eq!(native(&held), b"nested 2!");
    assert_eq!(native(&other), b"nested 2!");
    assert_eq!(native(&late), b"nested 2");
    let made = inside.open("made", libc::O_RDWR).unwrap();
    inside.write(&made, WritePosition::At(5), b"twice").unwrap();
    assert_eq!(native(&made), b"made twice");
    assert_eq!(outside.names("").unwrap(), ["f", "g"]);
    assert_eq!(outside.get("f").unwrap(), b"committed");
    inside.commit(None).unwrap();
    assert_eq!(outside.get("f").unwrap(), b"nested 2!");
    assert_eq!(outside.get("g").unwrap(), b"nested 2");
    assert_eq!(outside.get("made").unwrap(), b"made twice");
    for handle in [held, other, late, made] {
        handle.close(&fs);
    }
    close_and_check(fs, dir.path());
}

/// Descriptors of this process that are contents.
fn contents() -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
        .filter(|target| target.starts_with("/memfd:amino"))
        .count()
}

#[test]
fn closed_files_take_no_descriptor_and_keep_their_content() {
    let _nobody_starts = CHILDREN.read().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let fs = open_with(&store, &options(EngineKind::Fjall));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    let sizes = [0, 1, 512, 513, 16 << 10, (16 << 10) + 1, 64 << 10];
    let data = |size: usize| -> Vec<u8> { (0..size).map(|at| (at % 251) as u8 + 1).collect() };
    for size in sizes {
        outside.put(&format!("old{size}"), &data(70_000)).unwrap();
    }
    run(&mut inside);
    for size in sizes {
        inside.put(&format!("new{size}"), &data(size)).unwrap();
        inside.put(&format!("old{size}"), &data(size)).unwrap();
    }
    let zeros = inside.create("zeros").unwrap();
    inside
        .write(&zeros, WritePosition::At(40_000), b"end")
        .unwrap();
    zeros.close(&fs);
    for size in sizes {
        for name in [format!("new{size}"), format!("old{size}")] {
            assert_eq!(inside.get(&name).unwrap(), data(size));
            // Opened, changed and closed again.
            let handle = inside.open(&name, libc::O_RDWR | libc::O_APPEND).unwrap();
            assert_eq!(native(&handle), data(size));
            inside.write(&handle, WritePosition::Cursor, b"+").unwrap();
            handle.close(&fs);
        }
        // By a path, without a descriptor.
        inside
            .truncate(&format!("old{size}"), size as u64 / 2)
            .unwrap();
    }
    let temporary = inside.create("temporary").unwrap();
    inside
        .write(&temporary, WritePosition::Cursor, &data(1000))
        .unwrap();
    inside.unlink("temporary").unwrap();
    assert_eq!(native(&temporary), data(1000));
    temporary.close(&fs);
    for file in 0..500 {
        inside.put(&format!("many{file}"), &data(1000)).unwrap();
    }
    // The other tests of this process have theirs, too.
    assert!(contents() < 250, "{}", contents());
    inside.commit(None).unwrap();
    assert_eq!(outside.get("temporary"), Err(Errno::ENOENT.into()));
    for size in sizes {
        let mut longer = data(size);
        longer.push(b'+');
        assert_eq!(outside.get(&format!("new{size}")).unwrap(), longer);
        longer.truncate(size / 2);
        assert_eq!(outside.get(&format!("old{size}")).unwrap(), longer);
    }
    assert_eq!(outside.get("many499").unwrap(), data(1000));
    assert_eq!(outside.get("zeros").unwrap().len(), 40_003);
    close_and_check(fs, &store);
    let fs = open_with(&store, &options(EngineKind::Fjall));
    let stored = User::new(&fs, 1);
    for size in sizes {
        assert_eq!(stored.get(&format!("new{size}")).unwrap().len(), size + 1);
        assert_eq!(stored.get(&format!("old{size}")).unwrap(), data(size / 2));
    }
    let mut zeros = vec![0; 40_000];
    zeros.extend_from_slice(b"end");
    assert_eq!(stored.get("zeros").unwrap(), zeros);
}

#[test]
fn what_does_not_fit_is_refused_and_temporary_files_give_back() {
    let _nobody_starts = CHILDREN.read().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let small = amino_fs::Options {
        transaction_bytes: 16 << 20,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(dir.path(), &small);
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    let id = run(&mut inside);
    for round in 0..50 {
        // Removed while open, after the close, and by a rename; large and small.
        inside.put("temporary", &[1; 1 << 20]).unwrap();
        let held = inside.open("temporary", libc::O_RDWR).unwrap();
        inside.unlink("temporary").unwrap();
        held.close(&fs);
        inside.put("temporary", &[1; 1 << 20]).unwrap();
        inside.unlink("temporary").unwrap();
        inside.put("temporary", &[1; 60_000]).unwrap();
        inside.unlink("temporary").unwrap();
        inside.put("temporary", &[1; 60_000]).unwrap();
        inside.put("other", &[1; 100]).unwrap();
        inside.rename("other", "temporary").unwrap();
        inside.unlink("temporary").unwrap();
        let status = fs.status(id).unwrap();
        assert!(
            status.bytes < 2 << 20 && status.inodes <= 1,
            "after {round} rounds: {status:?}"
        );
    }
    // What is small takes what it is, also when it is written again.
    for file in 0..1000 {
        inside.put(&format!("s{file}"), b"small").unwrap();
        inside.put_at(&format!("s{file}"), 5, b"er").unwrap();
    }
    let bytes = fs.status(id).unwrap().bytes;
    assert!((100_000..10_000_000).contains(&bytes), "{bytes}");
    for file in 0..1000 {
        inside.unlink(&format!("s{file}")).unwrap();
    }
    let mut kept = 0;
    while inside.put(&format!("f{kept}"), &[2; 100_000]).is_ok() {
        kept += 1;
        assert!(kept < 200);
    }
    assert!(kept > 20, "{kept}");
    inside.commit(None).unwrap();
    assert_eq!(
        outside.get(&format!("f{}", kept - 1)).unwrap(),
        [2; 100_000]
    );
    close_and_check(fs, dir.path());
}

#[test]
fn a_commit_without_space_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let little = amino_fs::Options {
        log_limit_bytes: 36 << 20,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(dir.path(), &little);
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"old").unwrap();
    let before = tree(&outside);
    run(&mut inside);
    inside.put("f", b"new").unwrap();
    for file in 0..10 {
        inside.put(&format!("f{file}"), &vec![3; 6 << 20]).unwrap();
    }
    assert_eq!(inside.commit(None), Err(Errno::ENOSPC.into()));
    assert_eq!(tree(&outside), before);
    outside.put("f", b"free for others").unwrap();
    close_and_check(fs, dir.path());
}

#[test]
fn others_wait_for_what_it_has_read_and_may_read_everything() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"content").unwrap();
    run(&mut inside);
    inside.open("f", libc::O_RDONLY).unwrap().close(&fs);
    assert_eq!(outside.get("f").unwrap(), b"content");
    let theirs = outside.open("f", libc::O_RDWR).unwrap();
    assert!(is_blocked(&outside.write(
        &theirs,
        WritePosition::At(0),
        b"x"
    )));
    // Another run has a copy of its own.
    let mut another = User::new(&fs, 3);
    run(&mut another);
    let (mine, other) = (
        inside.open("f", libc::O_RDONLY).unwrap(),
        another.open("f", libc::O_RDONLY).unwrap(),
    );
    let identity = |handle: &Handle| nix::sys::stat::fstat(&handle.fd).unwrap().st_ino;
    assert_ne!(identity(&mine), identity(&other));
    another.abort(None);
    inside.commit(None).unwrap();
    outside.write(&theirs, WritePosition::At(0), b"x").unwrap();
    for handle in [theirs, mine, other] {
        handle.close(&fs);
    }
    close_and_check(fs, dir.path());
}

#[test]
fn programs_and_large_files_are_checked_by_its_own_content() {
    let dir = tempfile::tempdir().unwrap();
    let large = amino_fs::Options {
        large_file_bytes: 1 << 20,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(dir.path(), &large);
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"old").unwrap();
    run(&mut inside);
    let writer = inside.open("f", libc::O_RDWR).unwrap();
    assert!(fs.open_for_writing(&inside.caller, &writer.node));
    assert!(!fs.open_for_writing(&outside.caller, &writer.node));
    let piece = vec![b'l'; 300_000];
    for _ in 0..10 {
        inside
            .write(&writer, WritePosition::Cursor, &piece)
            .unwrap();
    }
    assert!(fs.outgrown(&inside.caller, &writer.node));
    assert!(!fs.outgrown(&outside.caller, &writer.node));
    // The writer's descriptor is there.
    let unused = fs.relocate_unused(&inside.caller, &writer.node, libc::O_RDWR);
    assert!(matches!(unused, Ok(None)));
    let moved = fs.relocate(&inside.caller, &writer.node, libc::O_RDWR);
    let moved = Handle {
        fd: moved.unwrap().unwrap().into_fd().unwrap(),
        node: writer.node.clone(),
        flags: libc::O_RDWR,
    };
    drop(writer);
    let file = |handle: &Handle| {
        use std::os::fd::AsFd;
        let ofd = handle.fd.as_fd();
        let file = OpenFile {
            node: &handle.node,
            ofd,
            flags: handle.flags,
        };
        fs.write(&inside.caller, file, WritePosition::End, b"the end")
            .unwrap();
    };
    file(&moved);
    assert!(!fs.outgrown(&inside.caller, &moved.node));
    moved.close(&fs);
    inside.commit(None).unwrap();
    let all = outside.get("f").unwrap();
    assert_eq!(all.len(), 3_000_007);
    assert!(all.ends_with(b"lthe end"));
    close_and_check(fs, dir.path());
}
