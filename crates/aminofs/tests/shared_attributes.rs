//! The map of attributes that programs read themselves says what the file system says, whatever happens, or nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};

use amino_fs::AminoFs;
use amino_schema::ROOT_INO;
use common::*;
use goanna_sys::stub::map::{AttributeMap, Attributes, STATX_SIZE};
use goanna_vfs::{
    Attr, Errno, FileSystem, Node, Result, SetAttr, SharedAttributes, Transactions, WritePosition,
};

const SIZE: usize = 48;
const PATHS: [&str; 12] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "f/e", "f/e/a", "l",
];

fn shared(fs: &AminoFs) -> &dyn SharedAttributes {
    fs.shared_attributes().unwrap()
}

/// What programs are shown of a file. The ID of the mount is another one in each run.
fn shown(attr: &Attr) -> Attributes {
    let statx = attr.to_statx(attr.ino == ROOT_INO);
    let mut statx: [u8; STATX_SIZE] = *statx.first_chunk().unwrap();
    let mask = u32::from_ne_bytes(*statx.first_chunk().unwrap()) | libc::STATX_MNT_ID;
    statx[..4].copy_from_slice(&mask.to_ne_bytes());
    let stat = attr.to_stat();
    Attributes { stat, statx }
}

/// What stat(2) and statx(2) say, for a walk that meets no link. Blocks depend on whether the content is in memory.
fn truth(fs: &AminoFs, path: &str) -> Result<Attributes, Errno> {
    let found = walk(fs, path).and_then(|node| fs.getattr(&caller(), &node));
    found
        .map(|attr| shown(&attr))
        .map_err(|error| error.errno().unwrap())
}

/// What the map says.
fn mapped(map: &AttributeMap, run: u64, path: &str) -> Option<Result<Attributes, Errno>> {
    match map.find(run, format!("/amino/{path}").as_bytes())? {
        Some(slot) => map.read(slot).map(Ok),
        None => Some(Err(Errno::ENOENT)),
    }
}

fn share(fs: &AminoFs, run: u64, path: &str) {
    let whole = format!("/amino/{path}");
    shared(fs).share_path(Some(run), whole.as_bytes(), &fs.root(), path.as_bytes());
}

fn word(stat: &[u8; 144], at: usize) -> u64 {
    u64::from_ne_bytes(*stat[at..].first_chunk().unwrap())
}

fn set_mode(fs: &AminoFs, node: &Node, mode: u32) -> Result<()> {
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs.setattr(&root(), node, &set)
}

/// One random operation; most that fail do so because of what is there.
fn step(fs: &AminoFs, rng: &mut fastrand::Rng, open: &mut Vec<Handle>) -> Result<()> {
    let (path, other) = (PATHS[rng.usize(..12)], PATHS[rng.usize(..12)]);
    let user = root();
    match rng.u8(..16) {
        0 | 1 => create(fs, path).map(|file| open.push(file)),
        2 => open_file(fs, path, libc::O_RDWR | libc::O_TRUNC).map(|file| open.push(file)),
        3 => open_file(fs, path, libc::O_RDWR).map(|file| open.push(file)),
        4 | 5 if !open.is_empty() => {
            let file = &open[rng.usize(..open.len())];
            let data = vec![1; rng.usize(1..9000)];
            file.write(fs, WritePosition::At(rng.u64(..9000)), &data)
                .map(drop)
        }
        6 => parent(fs, path).and_then(|(dir, name)| fs.unlink(&user, &dir, name)),
        7 | 8 => {
            parent(fs, path).and_then(|(dir, name)| fs.mkdir(&user, &dir, name, 0o755).map(drop))
        }
        9 => parent(fs, path).and_then(|(dir, name)| fs.rmdir(&user, &dir, name)),
        10 | 11 => parent(fs, path).and_then(|(from, name)| {
            let (to, to_name) = parent(fs, other)?;
            let flags = if rng.bool() { libc::RENAME_EXCHANGE } else { 0 };
            fs.rename(&user, &from, name, &to, to_name, flags)
        }),
        12 => walk(fs, path).and_then(|node| {
            let (dir, name) = parent(fs, other)?;
            fs.link(&user, &node, &dir, name)
        }),
        13 => walk(fs, path)
            .and_then(|node| set_mode(fs, &node, [0o755, 0o700, 0o644][rng.usize(..3)])),
        14 => walk(fs, path).and_then(|node| fs.truncate(&user, &node, rng.u64(..20_000))),
        _ => {
            for file in open.drain(..) {
                file.close(fs);
            }
            Ok(())
        }
    }
}

/// Compares all paths; how many of them the map knew.
fn compare(fs: &AminoFs, map: &AttributeMap, run: u64, seed: u64) -> usize {
    let known = PATHS.iter().filter(|path| {
        let Some(said) = mapped(map, run, path) else {
            return false;
        };
        assert_eq!(said, truth(fs, path), "{path}, seed {seed}");
        // Every user may go there.
        let mut dir = fs.root();
        for name in path.split('/') {
            assert_eq!(
                fs.getattr(&root(), &dir).unwrap().mode & 0o111,
                0o111,
                "{path}, seed {seed}"
            );
            match fs.lookup(&root(), &dir, name.as_bytes()) {
                Ok(next) => dir = next,
                Err(_) => break,
            }
        }
        true
    });
    known.count()
}

#[test]
fn the_map_says_what_the_file_system_says() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let map = shared(&fs).map().unwrap();
    let run = map.new_id();
    let mut known = 0;
    for seed in 0..60 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut open = Vec::new();
        for _ in 0..120 {
            for _ in 0..3 {
                share(&fs, run, PATHS[rng.usize(..PATHS.len())]);
            }
            let _ = step(&fs, &mut rng, &mut open);
            known += compare(&fs, &map, run, seed);
            if rng.u8(..20) == 0 {
                // What is done inside is not seen, and nothing is answered meanwhile.
                let txn = fs.begin(None).unwrap();
                share(&fs, run, "d");
                assert_eq!(compare(&fs, &map, run, seed), 0);
                let _ = fs.mkdir(
                    &goanna_vfs::Caller {
                        txn: Some(txn),
                        ..root()
                    },
                    &fs.root(),
                    b"d",
                    0o755,
                );
                if rng.bool() {
                    fs.commit(txn).unwrap();
                } else {
                    fs.abort(txn);
                }
                known += compare(&fs, &map, run, seed);
            }
        }
        for file in open {
            // By descriptor, too.
            let ino = nix::sys::stat::fstat(&file.fd).unwrap().st_ino;
            shared(&fs).share_object(&file.node, 0, ino);
            if let Some(stat) = map.object(0, ino).and_then(|slot| map.read(slot)) {
                assert_eq!(stat, shown(&fs.getattr(&root(), &file.node).unwrap()));
            }
            file.close(&fs);
        }
    }
    assert!(known > 5000, "{known}");
    close_and_check(fs, dir.path());
}

/// What readers that run beside changes ask: the file system, and the map of attributes.
struct Asked<'a> {
    fs: &'a AminoFs,
    map: &'a AttributeMap,
    run: u64,
    over: &'a AtomicBool,
}

impl Asked<'_> {
    fn size(&self, path: &str) -> u64 {
        word(&truth(self.fs, path).unwrap().stat, SIZE)
    }

    fn mapped_size(&self, path: &str) -> Option<u64> {
        mapped(self.map, self.run, path).map(|stat| word(&stat.unwrap().stat, SIZE))
    }

    /// Counts the times that `look` compared something, until the changes are over.
    fn count(&self, look: impl Fn() -> bool) -> u64 {
        let mut hits = 0;
        while !self.over.load(Ordering::Relaxed) {
            hits += u64::from(look());
        }
        hits
    }

    /// Asks the file system, the map and the file system again for the size of `path`; `other` is shared beside it.
    fn in_turn(&self, path: &str, other: &str) -> u64 {
        self.count(|| {
            share(self.fs, self.run, path);
            share(self.fs, self.run, other);
            let first = self.size(path);
            let Some(said) = self.mapped_size(path) else {
                return false;
            };
            assert!(first <= said, "{first} {said}");
            let last = self.size(path);
            assert!(said <= last, "{said} {last}");
            true
        })
    }

    /// `behind` is never larger than `ahead`.
    fn pairs(&self, ahead: &str, behind: &str) -> u64 {
        self.count(|| {
            share(self.fs, self.run, ahead);
            let behind = self.size(behind);
            let ahead = self.mapped_size(ahead);
            assert!(
                ahead.is_none_or(|ahead| behind <= ahead),
                "{behind} {ahead:?}"
            );
            ahead.is_some()
        })
    }

    /// What a program reads natively from a cache object is never ahead of the map.
    fn natively(&self, path: &str) -> u64 {
        let file = open_file(self.fs, path, libc::O_RDONLY).unwrap();
        let stat = || nix::sys::stat::fstat(&file.fd).unwrap();
        let hits = self.count(|| {
            shared(self.fs).share_object(&file.node, 0, stat().st_ino);
            let now = stat().st_size as u64;
            let slot = self.map.object(0, stat().st_ino);
            let said = slot.and_then(|slot| self.map.read(slot));
            if let Some(said) = &said {
                assert!(
                    now <= word(&said.stat, SIZE),
                    "{now} {}",
                    word(&said.stat, SIZE)
                );
            }
            said.is_some()
        });
        file.close(self.fs);
        hits
    }
}

/// Lets "d/a" and "d/b" grow: both in one transaction, "d/a" by itself, or by a larger file that takes its name.
fn grow(fs: &AminoFs, round: u64) {
    let folder = walk(fs, "d").unwrap();
    let data = vec![1; round as usize];
    match round % 3 {
        0 => {
            let txn = fs.begin(None).unwrap();
            let inside = goanna_vfs::Caller {
                txn: Some(txn),
                ..root()
            };
            for name in [b"a", b"b"] {
                let node = fs.lookup(&inside, &folder, name).unwrap();
                fs.truncate(&inside, &node, round).unwrap();
            }
            fs.commit(txn).unwrap();
        }
        1 => {
            let file = open_file(fs, "d/a", libc::O_RDWR).unwrap();
            file.write(fs, WritePosition::At(0), &data).unwrap();
            file.close(fs);
        }
        _ => {
            write_file(fs, "d/new", &data).unwrap();
            fs.rename(&root(), &folder, b"new", &folder, b"a", 0)
                .unwrap();
        }
    }
}

/// A file's size only grows: by appends, by a larger file that takes its name, and in transactions together with another file's. A reader
/// that asks the file system and the map in turn never sees it shrink.
#[test]
fn readers_of_the_map_and_of_the_file_system_see_time_go_forward() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    fs.mkdir(&root(), &fs.root(), b"d", 0o755).unwrap();
    for path in ["d/a", "d/b", "d/c"] {
        write_file(&fs, path, b"x").unwrap();
    }
    let map = shared(&fs).map().unwrap();
    let over = AtomicBool::new(false);
    let asked = Asked {
        fs: &fs,
        map: &map,
        run: map.new_id(),
        over: &over,
    };
    std::thread::scope(|scope| {
        let readers = [
            scope.spawn(|| asked.in_turn("d/a", "d/b")),
            scope.spawn(|| asked.in_turn("d/b", "d/a")),
            scope.spawn(|| asked.pairs("d/a", "d/b")),
            scope.spawn(|| asked.natively("d/c")),
        ];
        let c = open_file(&fs, "d/c", libc::O_RDWR).unwrap();
        for round in 2..80u64 {
            for step in 0..50 {
                c.write(&fs, WritePosition::At(round * 50 + step), b"x")
                    .unwrap();
            }
            grow(&fs, round);
            for _ in 0..20 {
                std::thread::yield_now();
            }
        }
        over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    close_and_check(fs, dir.path());
}
