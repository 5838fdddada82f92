//! A process with an open store is killed at a random moment. What the store then holds must be the result of the first
//! so many operations, none partly, and at least those before the last sync.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::*;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{FileSystem, Spot};

const SYNC_EVERY: u64 = 503;

/// Names and contents after a number of operations.
type Model = BTreeMap<String, Vec<u8>>;

fn content(i: u64) -> Vec<u8> {
    let len = [10, 700, 20_000, 40_000][(i / 5 % 4) as usize];
    vec![(i % 250) as u8 + 1; len]
}

/// Operation `i` on the model.
fn model_step(model: &mut Model, i: u64) {
    let base = i - i % 5;
    match i % 5 {
        0 => drop(model.insert(format!("a/f{base}"), Vec::new())),
        1 => drop(model.insert(format!("a/f{base}"), content(base))),
        2 => {
            let data = model.remove(&format!("a/f{base}")).unwrap();
            model.insert(format!("b/g{base}"), data);
        }
        3 => {
            let data = model[&format!("b/g{base}")].clone();
            model.insert(format!("b/l{base}"), data);
        }
        // Old links go, so that files are deleted as well.
        _ => {
            model.remove(&format!("b/g{base}"));
            if base >= 500 {
                model.remove(&format!("b/l{}", base - 500));
            }
        }
    }
}

/// Operation `i` on the file system: one call each, but the last of five, which is two and tells the first to the model
/// as not worth a state of its own.
fn fs_step(fs: &AminoFs, i: u64) {
    let user = caller();
    let base = i - i % 5;
    let (a, b) = (walk(fs, "a").unwrap(), walk(fs, "b").unwrap());
    let (f, g, l) = (format!("f{base}"), format!("g{base}"), format!("l{base}"));
    match i % 5 {
        0 => create(fs, &format!("a/{f}")).unwrap().close(fs),
        1 => {
            let file = open_file(fs, &format!("a/{f}"), libc::O_WRONLY).unwrap();
            file.write(fs, Spot::Cursor, &content(base)).unwrap();
            file.close(fs);
        }
        2 => fs
            .rename(&user, &a, f.as_bytes(), &b, g.as_bytes(), 0)
            .unwrap(),
        3 => {
            let node = walk(fs, &format!("b/{g}")).unwrap();
            fs.link(&user, &node, &b, l.as_bytes()).unwrap();
        }
        _ => {
            fs.unlink(&user, &b, g.as_bytes()).unwrap();
            if base >= 500 {
                fs.unlink(&user, &b, format!("l{}", base - 500).as_bytes())
                    .unwrap();
            }
        }
    }
}

fn state(fs: &AminoFs) -> Model {
    let mut model = Model::new();
    for dir in ["a", "b"] {
        for name in names(fs, dir) {
            let path = format!("{dir}/{name}");
            let node = walk(fs, &path).unwrap();
            model.insert(path, read_direct(fs, &node).unwrap());
        }
    }
    model
}

/// The process that is killed. It runs only when the test below starts it.
#[test]
fn victim() {
    let Ok(dir) = std::env::var("AMINO_CRASH_DIR") else {
        return;
    };
    let engine = EngineKind::from_name(&std::env::var("AMINO_CRASH_ENGINE").unwrap()).unwrap();
    let fs = AminoFs::open(Path::new(&dir), options(engine)).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"a", 0o755).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"b", 0o755).unwrap();
    // Open without a name, all the time.
    let orphan = create(&fs, "orphan").unwrap();
    orphan.write(&fs, Spot::Cursor, &[1; 100_000]).unwrap();
    fs.sync(None).unwrap();
    fs.unlink(&caller(), &fs.root(), b"orphan").unwrap();
    fs.sync(None).unwrap();
    for i in 0.. {
        fs_step(&fs, i);
        if i % SYNC_EVERY == 0 {
            fs.sync(None).unwrap();
            println!("synced {i}");
        }
    }
}

fn kill_and_look(engine: EngineKind, after: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture"])
        .env("AMINO_CRASH_DIR", &store)
        .env("AMINO_CRASH_ENGINE", engine.name())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut synced = 0;
    let mut kill_at = None;
    while let Some(Ok(line)) = lines.next() {
        if let Some(number) = line.rsplit("synced ").next().and_then(|n| n.parse().ok()) {
            synced = number;
            let kill_at = *kill_at.get_or_insert_with(|| Instant::now() + after);
            if Instant::now() >= kill_at {
                // Not at the sync itself, but somewhere in what follows.
                std::thread::sleep(Duration::from_micros(fastrand::u64(..40_000)));
                child.kill().unwrap();
                break;
            }
        }
    }
    let rest = lines.map_while(Result::ok);
    let last = rest
        .filter_map(|line| line.rsplit("synced ").next()?.parse().ok())
        .last();
    let synced: u64 = last.unwrap_or(synced);
    child.wait().unwrap();

    // The check is without recovery of orphans, so it sees the state that the crash left.
    let report = fsck(&store);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.orphans, 1);
    let options = || Options {
        create: false,
        engine: None,
        ..options(engine)
    };
    let fs = open_with(&store, &options());
    let found = state(&fs);
    let mut model = Model::new();
    let mut matching = None;
    for i in 0..synced + 1_000_000 {
        model_step(&mut model, i);
        let likely = i >= synced && model.len() == found.len();
        if likely && model == found {
            matching = Some(i);
            break;
        }
        // The two halves of the fifth operation.
        if i % 5 == 4 && i >= 504 && model.len() + 1 == found.len() {
            let mut half = model.clone();
            let old = i - i % 5 - 500;
            half.insert(format!("b/l{old}"), content(old));
            if half == found {
                matching = Some(i);
                break;
            }
        }
        if i > synced + 20_000 {
            break;
        }
    }
    assert!(
        matching.is_some(),
        "no prefix from {synced} on gives what was found"
    );
    drop(fs);
    let report = fsck(&store);
    assert!(report.is_clean(), "{:#?}", report.findings);
    assert_eq!(report.orphans, 0, "orphans go when the store is opened");
}

#[test]
fn killed_processes_leave_a_prefix() {
    for round in 0..4 {
        kill_and_look(EngineKind::Fjall, Duration::from_millis(300 * round));
    }
}

#[test]
fn killed_processes_leave_a_prefix_in_the_log_alone() {
    for round in 0..3 {
        kill_and_look(EngineKind::Memory, Duration::from_millis(200 * round));
    }
}

/// A file system that is dropped without being closed keeps everything.
#[test]
fn dropping_is_closing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let fs = open(&store);
    write_file(&fs, "f", &[5; 50_000]).unwrap();
    drop(fs);
    check(&store);
    assert_eq!(read_file(&open(&store), "f").unwrap(), [5; 50_000]);
}
