//! Many threads at once, reading directories that change, and writing through mappings.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;

use amino_fs::{AminoFs, Durability, EngineKind, Options};
use goanna_vfs::{CachedContent, Errno, FileSystem, SetAttr, WritePosition};

/// The errors of operations that race.
const RACES: [Errno; 9] = [
    Errno::ENOENT,
    Errno::EEXIST,
    Errno::ENOTDIR,
    Errno::EISDIR,
    Errno::ENOTEMPTY,
    Errno::EINVAL,
    Errno::EPERM,
    Errno::ENXIO,
    // A file was deleted between walk and read.
    Errno::ESTALE,
];

/// Random operations on few names by many threads. Expected errors are those of races; the rest is a failure.
fn hammer(fs: &AminoFs, seed: u64, steps: u32) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let user = root();
    let mut open: Vec<Handle> = Vec::new();
    for _ in 0..steps {
        let names = ["a", "b", "c", "d/a", "d/b", "e/a", "d", "e"];
        let (path, other) = (names[rng.usize(..8)], names[rng.usize(..8)]);
        let result = match rng.u8(..12) {
            0 | 1 => create(fs, path).map(|file| open.push(file)),
            2 => open_file(fs, path, libc::O_RDWR).map(|file| open.push(file)),
            3 | 4 if !open.is_empty() => {
                let file = &open[rng.usize(..open.len())];
                let data = vec![rng.u8(..); rng.usize(1..30_000)];
                file.write(fs, WritePosition::At(rng.u64(..50_000)), &data)
                    .map(drop)
            }
            5 => parent(fs, path).and_then(|(dir, name)| fs.unlink(&user, &dir, name)),
            6 => parent(fs, path)
                .and_then(|(dir, name)| fs.mkdir(&user, &dir, name, 0o755).map(drop)),
            7 => parent(fs, path).and_then(|(dir, name)| fs.rmdir(&user, &dir, name)),
            8 => parent(fs, path).and_then(|(from, name)| {
                let (to, to_name) = parent(fs, other)?;
                let flags = if rng.bool() { libc::RENAME_EXCHANGE } else { 0 };
                fs.rename(&user, &from, name, &to, to_name, flags)
            }),
            9 => walk(fs, path).and_then(|node| {
                let (dir, name) = parent(fs, other)?;
                fs.link(&user, &node, &dir, name)
            }),
            10 => walk(fs, path).and_then(|node| {
                let set = SetAttr {
                    mode: Some(rng.u32(..0o1000)),
                    ..SetAttr::default()
                };
                fs.setattr(&user, &node, &set)?;
                if rng.bool() {
                    fs.truncate(&user, &node, rng.u64(..60_000))?;
                }
                fs.setxattr(&user, &node, b"trusted.x", &[rng.u8(..)], 0)
            }),
            _ => walk(fs, path).and_then(|node| {
                let attr = fs.getattr(&user, &node)?;
                assert_eq!(attr.kind(), node.kind());
                if node.is_dir() {
                    return fs.readdir(&user, &node, 0, &mut |_| true);
                }
                let mut buf = vec![0; 70_000];
                fs.read_at(&user, &node, 0, &mut buf).map(drop)
            }),
        };
        if let Err(error) = result {
            let errno = error.errno().unwrap();
            assert!(RACES.contains(&errno), "{errno}");
        }
        if open.len() > 6 {
            open.swap_remove(rng.usize(..6)).close(fs);
        }
        if rng.u32(..300) == 0 {
            fs.sync(None).unwrap();
        }
    }
    for file in open {
        file.close(fs);
    }
}

fn hammer_store(options: Options, path: &Path, steps: u32) {
    let fs = open_with(path, &options);
    std::thread::scope(|scope| {
        for seed in 0..8 {
            let fs = &fs;
            scope.spawn(move || hammer(fs, seed, steps));
        }
    });
    let used = fs.stats();
    assert!(used.dentries > 0, "{used:?}");
    close_and_check(fs, path);
    // And everything can be read.
    let fs = open_any(path);
    let mut left = vec![fs.root()];
    while let Some(dir) = left.pop() {
        for (name, ino, _) in list(&fs, &dir) {
            let node = fs.lookup(&caller(), &dir, &name).unwrap();
            assert_eq!(node.ino(), ino);
            if node.is_dir() {
                left.push(node);
            } else {
                read_direct(&fs, &node).unwrap();
            }
        }
    }
}

fn open_any(path: &Path) -> Arc<AminoFs> {
    open_with(path, &Options::default())
}

#[test]
fn eight_threads() {
    let dir = tempfile::tempdir().unwrap();
    hammer_store(options(EngineKind::Fjall), &dir.path().join("fjall"), 2000);
    // Hardly any caches: everything is dropped and loaded all the time.
    let tight = Options {
        dentries: 1,
        idle_files: 1,
        ..options(EngineKind::Memory)
    };
    hammer_store(tight, &dir.path().join("memory"), 2000);
    let acid = Options {
        durability: Durability::Acid,
        ..options(EngineKind::Memory)
    };
    hammer_store(acid, &dir.path().join("acid"), 100);
}

#[test]
fn readdir_sees_lasting_entries_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let fs = open(&path);
    let user = caller();
    let top = fs.mkdir(&user, &fs.root(), b"d", 0o755).unwrap();
    let lasting: BTreeSet<Vec<u8>> = (0..500).map(|i| format!("l{i}").into_bytes()).collect();
    for name in &lasting {
        fs.mknod(&user, &top, name, 0o644, 0).unwrap();
    }
    let stop = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                let (a, b) = (format!("t{i}"), format!("u{i}"));
                fs.mknod(&user, &top, a.as_bytes(), 0o644, 0).unwrap();
                fs.rename(&user, &top, a.as_bytes(), &top, b.as_bytes(), 0)
                    .unwrap();
                fs.unlink(&user, &top, b.as_bytes()).unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..100 {
            let (mut seen, mut cookie) = (Vec::new(), 0);
            // In small steps, as getdents64 with a small buffer.
            loop {
                let mut got = 0;
                fs.readdir(&user, &top, cookie, &mut |entry| {
                    assert!(entry.cookie > cookie);
                    cookie = entry.cookie;
                    seen.push(entry.name.to_vec());
                    got += 1;
                    got < 20
                })
                .unwrap();
                if got == 0 {
                    break;
                }
                // A program that creates entries faster than they are read must not keep the loop going.
                if seen.len() > 1000 {
                    break;
                }
            }
            let lasting_seen: Vec<_> = seen.iter().filter(|name| lasting.contains(*name)).collect();
            assert_eq!(lasting_seen.len(), lasting.len());
            assert_eq!(
                lasting_seen.into_iter().cloned().collect::<BTreeSet<_>>(),
                lasting
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(rounds.load(Ordering::Relaxed) > 0);
    drop(top);
    close_and_check(fs, &path);
    // Loaded from the store the directory is the same.
    let fs = open(&path);
    let found: BTreeSet<_> = list(&fs, &walk(&fs, "d").unwrap())
        .into_iter()
        .map(|e| e.0)
        .collect();
    assert_eq!(found, lasting);
}

/// A shared writable mapping of an open file, for the time of a closure.
fn with_mapping(file: &Handle, len: usize, write: impl FnOnce(&memmap::Mapping)) {
    let mapping = memmap::Mapping::new(file.fd.as_fd(), len);
    write(&mapping);
}

/// Writing through a mapping needs `unsafe`, which is allowed in `crates/sys` only; a child program does it.
mod memmap {
    use std::os::fd::{AsRawFd, BorrowedFd};
    use std::process::Command;

    pub struct Mapping {
        path: String,
        len: usize,
    }

    impl Mapping {
        pub fn new(fd: BorrowedFd<'_>, len: usize) -> Self {
            let path = format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
            Self { path, len }
        }

        /// Writes `byte` at `offset` through a mapping.
        pub fn poke(&self, offset: usize, byte: u8) {
            let program = "import mmap,sys\nf=open(sys.argv[1],'r+b')\n\
                m=mmap.mmap(f.fileno(),int(sys.argv[2]))\nm[int(sys.argv[3])]=int(sys.argv[4])\n";
            let status = Command::new("python3")
                .args(["-c", program, &self.path])
                .args([self.len.to_string(), offset.to_string(), byte.to_string()])
                .status()
                .unwrap();
            assert!(status.success());
        }
    }
}

#[test]
fn what_mappings_write_is_picked_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let fs = open(&path);
    let mut expected = vec![1; 100_000];
    write_file(&fs, "big", &expected).unwrap();
    write_file(&fs, "small", &[1; 100]).unwrap();
    fs.sync(None).unwrap();
    let big = open_file(&fs, "big", libc::O_RDWR).unwrap();
    let small = open_file(&fs, "small", libc::O_RDWR).unwrap();
    fs.map_shared(&caller(), &big.node).unwrap();
    fs.map_shared(&caller(), &small.node).unwrap();
    let before = fs.getattr(&caller(), &big.node).unwrap();
    std::thread::sleep(Duration::from_millis(2));
    with_mapping(&big, 100_000, |mapping| mapping.poke(50_000, 9));
    with_mapping(&small, 100, |mapping| mapping.poke(50, 9));
    expected[50_000] = 9;
    fs.sync_mapped(&big.node, 0..u64::MAX, false).unwrap();
    assert!(fs.getattr(&caller(), &big.node).unwrap().mtime > before.mtime);
    fs.sync(Some(&small.node)).unwrap();
    // A copy of the store as it is on the disk now.
    let copy = dir.path().join("copy");
    fs.sync(None).unwrap();
    copy_dir(&path, &copy);
    {
        let fs = open(&copy);
        assert!(read_file(&fs, "big").unwrap() == expected);
        assert_eq!(read_file(&fs, "small").unwrap()[50], 9);
    }
    // The last writes before the mapping ends.
    with_mapping(&big, 100_000, |mapping| mapping.poke(99_999, 8));
    expected[99_999] = 8;
    big.close(&fs);
    // And without anybody asking.
    with_mapping(&small, 100, |mapping| mapping.poke(51, 7));
    let seen = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        fs.sync(None).unwrap();
        fs.stats().dirty_inodes == 0
    });
    assert!(seen);
    small.close(&fs);
    close_and_check(fs, &path);
    let fs = open(&path);
    assert!(read_file(&fs, "big").unwrap() == expected);
    assert_eq!(read_file(&fs, "small").unwrap()[51], 7);
}

/// msync(2) looks at its range only: comparing all of a 64 MiB file with the store took 52 ms for a page.
#[test]
fn msync_makes_the_pages_of_its_range_durable() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let fs = open_with(&path, &options(EngineKind::Fjall));
    let len = 4 << 20;
    write_file(&fs, "f", &vec![1; len]).unwrap();
    fs.sync(None).unwrap();
    let file = open_file(&fs, "f", libc::O_RDWR).unwrap();
    fs.map_shared(&caller(), &file.node).unwrap();
    with_mapping(&file, len, |mapping| mapping.poke(3 << 20, 9));
    fs.sync_mapped(&file.node, 0..1 << 20, true).unwrap();
    fs.sync_mapped(&file.node, 3 << 20..(3 << 20) + 1, true)
        .unwrap();
    copy_dir(&path, &copy);
    let copied = open_with(&copy, &options(EngineKind::Fjall));
    assert_eq!(read_file(&copied, "f").unwrap()[3 << 20], 9);
    close_and_check(copied, &copy);
    file.close(&fs);
    close_and_check(fs, &path);
}

/// What msync(2) costs depends on its range and not on the size of the mapping: pages outside of the range are not compared, so
/// changes there are not found yet.
#[test]
fn msync_compares_the_pages_of_its_range_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // The store compares all pages itself at this interval.
    let seldom = Options {
        flush_interval: Duration::from_secs(3600),
        ..options(EngineKind::Memory)
    };
    let fs = open_with(&path, &seldom);
    let len = 1 << 20;
    write_file(&fs, "f", &vec![1; len]).unwrap();
    let file = open_file(&fs, "f", libc::O_RDWR).unwrap();
    fs.map_shared(&caller(), &file.node).unwrap();
    fs.sync(Some(&file.node)).unwrap();
    with_mapping(&file, len, |mapping| {
        mapping.poke(256 << 10, 2);
        mapping.poke(768 << 10, 2);
    });
    let dirty = |range| {
        fs.sync_mapped(&file.node, range, false).unwrap();
        fs.stats().dirty_bytes
    };
    let one = dirty(768 << 10..(768 << 10) + 1);
    assert_eq!(
        dirty(0..len as u64),
        one + u64::from(amino_schema::PAGE_SIZE)
    );
    file.close(&fs);
    close_and_check(fs, &path);
}

#[test]
fn unused_contents_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let few = Options {
        idle_files: 5,
        ..options(EngineKind::Memory)
    };
    let fs = open_with(&path, &few);
    // Also while nothing was stored yet.
    for i in 0..100 {
        write_file(&fs, &format!("f{i}"), &[i; 20_000]).unwrap();
        assert!(fs.stats().idle_files <= 6, "{:?}", fs.stats());
    }
    for i in 0..100 {
        assert_eq!(read_file(&fs, &format!("f{i}")).unwrap(), [i; 20_000]);
    }
    close_and_check(fs, &path);
    let fs = open(&path);
    for i in 0..100 {
        assert_eq!(read_file(&fs, &format!("f{i}")).unwrap(), [i; 20_000]);
    }
}
