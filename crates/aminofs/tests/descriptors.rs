//! Ends of transactions in a process that has no descriptors left. The limit is the process's, so one test runs at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::sync::{Mutex, PoisonError};

use amino_fs::EngineKind;
use common::user::User;
use common::{close_and_check, open_with, options};
use goanna_vfs::{Errno, FileSystem, FsError, WritePosition};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn limit_descriptors() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 200, hard).unwrap();
}

/// All descriptors of the process but `free`, until it is dropped.
fn take_all_but(free: usize) -> Vec<File> {
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    for _ in 0..free {
        taken.pop();
    }
    taken
}

#[test]
fn a_commit_without_descriptors_fails_before_its_record_or_not_at_all() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    limit_descriptors();
    let dir = tempfile::tempdir().unwrap();
    let options = options(EngineKind::Fjall);
    let (long, short) = (vec![b'o'; 50_000], b"short".to_vec());
    let (mut failed, mut done) = (0, 0);
    for free in 0..8 {
        let fs = open_with(dir.path(), &options);
        let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
        for name in ["held", "closed", "grown"] {
            outside.put(name, &long).unwrap();
        }
        let held = outside.open("held", libc::O_RDONLY).unwrap();
        let grown = outside.open("grown", libc::O_RDONLY).unwrap();
        fs.sync(None).unwrap();
        inside.begin();
        inside.put("held", &short).unwrap();
        inside.put("closed", &short).unwrap();
        let more = inside.open("grown", libc::O_RDWR).unwrap();
        inside
            .write(&more, WritePosition::At(70_000), &short)
            .unwrap();
        more.close(&fs);
        inside.put("new", &short).unwrap();
        let taken = take_all_but(free);
        let result = inside.commit(None);
        drop(taken);
        let committed = match result {
            Ok(()) => true,
            Err(errno) => {
                assert_eq!(errno, FsError::Errno(Errno::EMFILE));
                assert_eq!(done, 0, "{free} free, and fewer sufficed");
                false
            }
        };
        if committed {
            done += 1
        } else {
            failed += 1
        };
        let check = |user: &User<'_>| {
            let content = if committed { &short } else { &long };
            assert_eq!(&user.get("held").unwrap(), content, "{free} free");
            assert_eq!(&user.get("closed").unwrap(), content, "{free} free");
            let size = if committed { 70_005 } else { long.len() };
            assert_eq!(user.get("grown").unwrap().len(), size, "{free} free");
            assert_eq!(user.get("new").is_ok(), committed, "{free} free");
        };
        check(&outside);
        held.close(&fs);
        grown.close(&fs);
        close_and_check(fs, dir.path());
        let fs = open_with(dir.path(), &options);
        let later = User::new(&fs, 3);
        check(&later);
        if committed {
            later.unlink("new").unwrap();
        }
        close_and_check(fs, dir.path());
    }
    assert!(failed > 0 && done > 0, "{failed} failed, {done} done");
}

/// What a transaction made stayed readable by descriptors that had left it when the abort found no descriptor to empty it by.
#[test]
fn an_abort_without_descriptors_empties_what_the_transaction_made() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    limit_descriptors();
    let dir = tempfile::tempdir().unwrap();
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    let mut inside = User::new(&fs, 1);
    inside.begin();
    let made = inside.create("made").unwrap();
    inside
        .write(&made, WritePosition::At(0), b"never committed")
        .unwrap();
    // As a process outside gets it by a socket.
    let passed = made.fd.try_clone().unwrap();
    let taken = take_all_but(0);
    inside.abort(None);
    drop(taken);
    assert_eq!(File::from(passed).metadata().unwrap().len(), 0);
    drop(made);
    close_and_check(fs, dir.path());
}
