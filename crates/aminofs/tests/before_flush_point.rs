//! What is submitted of a file before a flush point, and when its idle content is dropped, while operations continue; and what
//! is reserved for a flush point.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{FileSystem, WritePosition};

/// More than the store collects at a flush point without having it submitted before.
const BULK: usize = 300 << 10;

const FILES: usize = 3;

/// Names and contents of one thread's files. A name is never used again, so one that comes back stays.
struct Worker<'a> {
    fs: &'a AminoFs,
    rng: fastrand::Rng,
    prefix: String,
    made: u64,
    files: Vec<(String, Vec<u8>)>,
}

impl<'a> Worker<'a> {
    fn new(fs: &'a AminoFs, seed: u64) -> Self {
        let mut worker = Self {
            fs,
            rng: fastrand::Rng::with_seed(seed),
            prefix: format!("w{seed}"),
            made: 0,
            files: Vec::new(),
        };
        for _ in 0..FILES {
            let file = worker.make();
            worker.files.push(file);
        }
        worker
    }

    fn fresh_name(&mut self) -> String {
        self.made += 1;
        let dir = if self.rng.bool() { "a" } else { "b" };
        format!("{dir}/{}-{}", self.prefix, self.made)
    }

    fn content(&mut self) -> Vec<u8> {
        let len = [10, 500, 5_000, 20_000][self.rng.usize(..4)];
        vec![self.rng.u8(1..); len]
    }

    fn make(&mut self) -> (String, Vec<u8>) {
        let (name, content) = (self.fresh_name(), self.content());
        write_file(self.fs, &name, &content).unwrap();
        (name, content)
    }

    fn rename(&mut self, file: usize) {
        let to = self.fresh_name();
        let (from_dir, from_name) = parent(self.fs, &self.files[file].0).unwrap();
        let (to_dir, to_name) = parent(self.fs, &to).unwrap();
        self.fs
            .rename(&caller(), &from_dir, from_name, &to_dir, to_name, 0)
            .unwrap();
        self.files[file].0 = to;
    }

    fn unlink(&self, name: &str) {
        let (dir, name) = parent(self.fs, name).unwrap();
        self.fs.unlink(&caller(), &dir, name).unwrap();
    }

    /// A second name, and away with one of the two.
    fn link(&mut self, file: usize) {
        let name = self.fresh_name();
        let node = walk(self.fs, &self.files[file].0).unwrap();
        let (dir, last) = parent(self.fs, &name).unwrap();
        self.fs.link(&caller(), &node, &dir, last).unwrap();
        if self.rng.bool() {
            self.truncate(file);
        }
        if self.rng.bool() {
            self.unlink(&name);
        } else {
            let old = std::mem::replace(&mut self.files[file].0, name);
            self.unlink(&old);
        }
    }

    /// Without opening the file: it is idle afterwards.
    fn truncate(&mut self, file: usize) {
        let (name, content) = &mut self.files[file];
        let size = self.rng.usize(..=20_000);
        content.resize(size, 0);
        let node = walk(self.fs, name).unwrap();
        self.fs.truncate(&caller(), &node, size as u64).unwrap();
    }

    fn write(&mut self, file: usize) {
        let data = self.content();
        let at = self.rng.usize(..10_000);
        let (name, content) = &mut self.files[file];
        let open = open_file(self.fs, name, libc::O_RDWR).unwrap();
        open.write(self.fs, WritePosition::At(at as u64), &data)
            .unwrap();
        open.close(self.fs);
        if content.len() < at + data.len() {
            content.resize(at + data.len(), 0);
        }
        content[at..at + data.len()].copy_from_slice(&data);
    }

    fn step(&mut self) {
        let file = self.rng.usize(..FILES);
        match self.rng.u8(..10) {
            0..=3 => {
                self.truncate(file);
                self.rename(file);
            }
            4 => self.write(file),
            5 => self.truncate(file),
            6 | 7 => self.link(file),
            8 => {
                self.unlink(&self.files[file].0);
                self.files[file] = self.make();
            }
            _ => {
                let (name, content) = &self.files[file];
                assert!(read_file(self.fs, name).unwrap() == *content, "{name}");
            }
        }
    }
}

fn assert_files(fs: &AminoFs, files: &BTreeMap<String, Vec<u8>>) {
    let mut found = Vec::new();
    for dir in ["a", "b"] {
        found.extend(
            names(fs, dir)
                .into_iter()
                .map(|name| format!("{dir}/{name}")),
        );
    }
    assert!(found.iter().eq(files.keys()), "{found:?} is not {files:?}");
    for (name, content) in files {
        let node = walk(fs, name).unwrap();
        assert!(read_direct(fs, &node).unwrap() == *content, "{name}");
    }
}

/// A rename submits the new name before the inode knows of it; a thread that submitted the inode's state in between would store
/// the old name back.
#[test]
fn names_that_went_stay_away() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let tight = Options {
        idle_files: 1,
        dentries: 64,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(&path, &tight);
    for dir in [&b"a"[..], b"b", b"bulk"] {
        fs.mkdir(&caller(), &fs.root(), dir, 0o755).unwrap();
    }
    let end = Instant::now() + Duration::from_secs(3);
    let (done, syncs) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut files = BTreeMap::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let bulk = create(&fs, "bulk/open").unwrap();
            while !done.load(Ordering::Relaxed) {
                let data = vec![fastrand::u8(1..); BULK];
                bulk.write(&fs, WritePosition::At(0), &data).unwrap();
                fs.sync(None).unwrap();
                syncs.fetch_add(1, Ordering::Relaxed);
            }
            bulk.close(&fs);
        });
        let workers: Vec<_> = (0..4)
            .map(|seed| {
                let fs = &fs;
                scope.spawn(move || {
                    let mut worker = Worker::new(fs, seed);
                    while Instant::now() < end {
                        worker.step();
                    }
                    (worker.files, worker.made)
                })
            })
            .collect();
        for worker in workers {
            let (mine, made) = worker.join().unwrap();
            assert!(made > 100, "hardly anything was done");
            files.extend(mine);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(syncs.load(Ordering::Relaxed) > 10);
    assert_files(&fs, &files);
    close_and_check(fs, &path);
    let fs = open(&path);
    assert_files(&fs, &files);
}

/// Pages that are cut off or punched out and written again are stored, not only deleted: what is reserved covers that.
/// (Debug builds of the file system assert it.)
#[test]
fn pages_erased_and_written_again() {
    const LEN: usize = 800_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let fs = open(&path);
    let zero_range = libc::FALLOC_FL_ZERO_RANGE;
    let mut expected = vec![1; LEN];
    write_file(&fs, "f", &expected).unwrap();
    fs.sync(None).unwrap();
    // Cut off and grown before it is written.
    expected.fill(0);
    expected[..LEN / 2].fill(2);
    write_file(&fs, "f", &expected[..LEN / 2]).unwrap();
    let dirty = fs.stats().dirty_bytes;
    assert!(dirty >= LEN as u64 / 2, "{dirty}");
    let node = walk(&fs, "f").unwrap();
    fs.truncate(&caller(), &node, LEN as u64).unwrap();
    fs.sync(None).unwrap();
    assert!(read_direct(&fs, &node).unwrap() == expected);
    // Punched out, in part written again.
    let (from, to) = (1000, 300_000);
    fs.fallocate(
        &caller(),
        &node,
        zero_range,
        from as u64,
        (to - from) as u64,
    )
    .unwrap();
    expected[from..to].fill(0);
    let file = open_file(&fs, "f", libc::O_RDWR).unwrap();
    file.write(&fs, WritePosition::At(40_000), &[3; 200_000])
        .unwrap();
    expected[40_000..240_000].fill(3);
    file.close(&fs);
    fs.sync(None).unwrap();
    drop(node);
    close_and_check(fs, &path);
    let fs = open(&path);
    assert!(read_file(&fs, "f").unwrap() == expected);
}
