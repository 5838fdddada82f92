//! A process with an open store is killed at a random moment. What the store then holds must be the result of the first
//! this many operations, none partly, and at least those before the last sync.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{Errno, FileSystem, FsError, WritePosition};

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
            file.write(fs, WritePosition::Cursor, &content(base))
                .unwrap();
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

/// The process that is killed.
#[test]
#[ignore = "run as a process of its own by a test below"]
fn victim() {
    let dir = std::env::var("AMINO_CRASH_DIR").unwrap();
    let engine = EngineKind::from_name(&std::env::var("AMINO_CRASH_ENGINE").unwrap()).unwrap();
    let fs = AminoFs::open(Path::new(&dir), options(engine)).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"a", 0o755).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"b", 0o755).unwrap();
    // Open without a name, all the time.
    let orphan = create(&fs, "orphan").unwrap();
    orphan
        .write(&fs, WritePosition::Cursor, &[1; 100_000])
        .unwrap();
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

/// Runs the test `victim` of this program on `store`, and kills it; returns the last operation that it reported as synced.
fn kill(victim: &str, store: &Path, engine: EngineKind, after: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", victim, "--ignored", "--nocapture"])
        .env("AMINO_CRASH_DIR", store)
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
    child.wait().unwrap();
    last.unwrap_or(synced)
}

fn kill_and_look(engine: EngineKind, after: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let synced = kill("victim", &store, engine, after);
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

/// Names of any directory and the inodes behind them, with their contents.
#[derive(Default)]
struct Tree {
    names: BTreeMap<String, u64>,
    contents: BTreeMap<u64, Vec<u8>>,
}

impl Tree {
    fn nlink(&self, ino: u64) -> usize {
        self.names.values().filter(|&&other| other == ino).count()
    }

    fn unlink(&mut self, name: &str) {
        if let Some(ino) = self.names.remove(name)
            && self.nlink(ino) == 0
        {
            self.contents.remove(&ino);
        }
    }

    /// What [`Change`] number `i` makes of it; nothing if it fails.
    fn apply(&mut self, i: u64, change: &Change) {
        let Change { name, other, .. } = change;
        let found = self.names.get(name).copied();
        if let Kind::Create = change.kind {
            if found.is_none() {
                self.names.insert(name.clone(), i);
                self.contents.insert(i, Vec::new());
            }
            return;
        }
        let Some(ino) = found else { return };
        let content = self.contents.get_mut(&ino).unwrap();
        let (at, end) = (change.at, change.at + change.len);
        match change.kind {
            Kind::Create => {}
            Kind::Write => {
                content.resize(content.len().max(end), 0);
                content[at..end].fill(change.byte);
            }
            Kind::Truncate => content.resize(at, 0),
            Kind::Punch => {
                let end = end.min(content.len());
                content[at.min(end)..end].fill(0);
            }
            Kind::Link => {
                self.names.entry(other.clone()).or_insert(ino);
            }
            Kind::Rename => {
                if self.names.get(other) != Some(&ino) {
                    self.unlink(other);
                    self.names.remove(name);
                    self.names.insert(other.clone(), ino);
                }
            }
            Kind::Unlink => self.unlink(name),
        }
    }

    /// Names, link counts and contents are those of `found`.
    fn is(&self, found: &BTreeMap<String, (usize, Vec<u8>)>) -> bool {
        self.names.len() == found.len()
            && self.names.iter().all(|(name, ino)| {
                found.get(name).is_some_and(|(nlink, content)| {
                    *nlink == self.nlink(*ino) && *content == self.contents[ino]
                })
            })
    }
}

enum Kind {
    Create,
    Write,
    Truncate,
    Punch,
    Link,
    Rename,
    Unlink,
}

/// An operation; it may be one that fails.
struct Change {
    kind: Kind,
    name: String,
    other: String,
    at: usize,
    len: usize,
    byte: u8,
}

impl Change {
    fn number(i: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(i);
        let kind = match rng.u8(..16) {
            0 | 1 => Kind::Create,
            2..=8 => Kind::Write,
            9 => Kind::Truncate,
            10 => Kind::Punch,
            11 | 12 => Kind::Link,
            13 | 14 => Kind::Rename,
            _ => Kind::Unlink,
        };
        let mut name = || {
            let dir = if rng.bool() { "a" } else { "b" };
            format!("{dir}/{}", rng.u8(..8))
        };
        Self {
            kind,
            name: name(),
            other: name(),
            at: rng.usize(..60_000) / [1, 100][rng.usize(..2)],
            len: rng.usize(1..60_000),
            byte: rng.u8(1..),
        }
    }

    fn perform(&self, fs: &AminoFs) -> goanna_vfs::Result<()> {
        let user = caller();
        let (dir, name) = parent(fs, &self.name)?;
        let (other_dir, other) = parent(fs, &self.other)?;
        let at = self.at as u64;
        match self.kind {
            Kind::Create => fs.mknod(&user, &dir, name, 0o644, 0).map(drop),
            Kind::Write => {
                let file = open_file(fs, &self.name, libc::O_WRONLY)?;
                let data = vec![self.byte; self.len];
                assert_eq!(file.write(fs, WritePosition::At(at), &data)?, self.len);
                file.close(fs);
                Ok(())
            }
            Kind::Truncate => fs.truncate(&user, &walk(fs, &self.name)?, at),
            Kind::Punch => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                let node = walk(fs, &self.name)?;
                fs.fallocate(&user, &node, mode, at, self.len as u64)
            }
            Kind::Link => fs.link(&user, &walk(fs, &self.name)?, &other_dir, other),
            Kind::Rename => fs.rename(&user, &dir, name, &other_dir, other, 0),
            Kind::Unlink => fs.unlink(&user, &dir, name),
        }
    }
}

/// As `victim`, with random operations, and another thread that syncs whenever so much is dirty that the store has it
/// submitted before the flush point.
#[test]
#[ignore = "run as a process of its own by a test below"]
fn dirty_victim() {
    const DIRTY: u64 = 300 << 10;
    let dir = std::env::var("AMINO_CRASH_DIR").unwrap();
    let engine = EngineKind::from_name(&std::env::var("AMINO_CRASH_ENGINE").unwrap()).unwrap();
    let tight = Options {
        idle_files: 6,
        ..options(engine)
    };
    let fs = AminoFs::open(Path::new(&dir), tight).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"a", 0o755).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"b", 0o755).unwrap();
    fs.sync(None).unwrap();
    let performed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let last = performed.load(Ordering::Acquire);
                if fs.stats().dirty_bytes > DIRTY {
                    fs.sync(None).unwrap();
                    println!("synced {last}");
                }
                std::thread::yield_now();
            }
        });
        for i in 1.. {
            match Change::number(i).perform(&fs) {
                Ok(()) | Err(FsError::Errno(Errno::ENOENT | Errno::EEXIST)) => {}
                Err(errno) => panic!("{errno}"),
            }
            performed.store(i, Ordering::Release);
        }
    });
}

/// With one operation or a few between two flush points, what each reserves is not covered by what others do. (Debug builds of
/// the file system assert that it is enough.)
#[test]
fn each_operation_reserves_what_it_takes() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let tight = Options {
        idle_files: 4,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(&store, &tight);
    fs.mkdir(&caller(), &fs.root(), b"a", 0o755).unwrap();
    fs.mkdir(&caller(), &fs.root(), b"b", 0o755).unwrap();
    let mut tree = Tree::default();
    for i in 1..4000 {
        let mut change = Change::number(i);
        // Few files, so that those between two flush points concern the same.
        for name in [&mut change.name, &mut change.other] {
            let digit = name.pop().map_or(0, |digit| u32::from(digit) % 2);
            *name = format!("{name}{digit}");
        }
        let _ = change.perform(&fs);
        tree.apply(i, &change);
        if i % 7 < 4 {
            fs.sync(None).unwrap();
        }
    }
    assert!(tree.is(&found(&fs)));
    close_and_check(fs, &store);
    let fs = open(&store);
    assert!(tree.is(&found(&fs)));
}

/// Names, link counts and contents.
fn found(fs: &AminoFs) -> BTreeMap<String, (usize, Vec<u8>)> {
    let nlink = |name: &str| {
        fs.getattr(&caller(), &walk(fs, name).unwrap())
            .unwrap()
            .nlink
    };
    state(fs)
        .into_iter()
        .map(|(name, content)| {
            let nlink = nlink(&name) as usize;
            (name, (nlink, content))
        })
        .collect()
}

fn kill_dirty_and_look(engine: EngineKind, after: Duration) {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let synced = kill("dirty_victim", &store, engine, after);
    assert!(synced > 0);
    check(&store);
    let fs = open_with(&store, &options(engine));
    let found = found(&fs);
    let mut tree = Tree::default();
    let matching = (1..synced + 20_000).find(|&i| {
        tree.apply(i, &Change::number(i));
        i >= synced && tree.is(&found)
    });
    assert!(
        matching.is_some(),
        "no prefix from {synced} on gives what was found"
    );
    close_and_check(fs, &store);
}

#[test]
fn killed_processes_leave_a_prefix_of_what_was_submitted_before_a_cut() {
    for round in 0..4 {
        let engine = [EngineKind::Memory, EngineKind::Fjall][round % 2];
        kill_dirty_and_look(engine, Duration::from_millis(100 + 200 * round as u64));
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
