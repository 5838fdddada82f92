//! The map of attributes that programs read themselves says what the file system says, whatever happens, or nothing.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amino_fs::AminoFs;
use common::*;
use goanna_sys::stub::map::AttributeMap;
use goanna_vfs::{
    Errno, FileSystem, Node, Result, SetAttr, SharedAttributes, Transactions, WritePosition,
};

const SIZE: usize = 48;
const PATHS: [&str; 12] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "f/e", "f/e/a", "l",
];

fn shared(fs: &AminoFs) -> &dyn SharedAttributes {
    fs.content().unwrap().shared_attributes().unwrap()
}

/// What stat(2) says, for a walk that meets no link. Blocks depend on whether the content is in memory.
fn truth(fs: &AminoFs, path: &str) -> Result<[u8; 144], Errno> {
    let found = walk(fs, path).and_then(|node| fs.getattr(&caller(), &node));
    found
        .map(|attr| attr.to_stat())
        .map_err(|error| error.errno().unwrap())
}

/// What the map says.
fn mapped(map: &AttributeMap, run: u64, path: &str) -> Option<Result<[u8; 144], Errno>> {
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
                assert_eq!(stat, fs.getattr(&root(), &file.node).unwrap().to_stat());
            }
            file.close(&fs);
        }
    }
    assert!(known > 5000, "{known}");
    close_and_check(fs, dir.path());
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
    let run = map.new_id();
    let over = Arc::new(AtomicBool::new(false));
    let size = |stat: &[u8; 144]| word(stat, SIZE);
    let reader = |fs: Arc<AminoFs>,
                  map: Arc<AttributeMap>,
                  over: Arc<AtomicBool>,
                  paths: [&'static str; 2]| {
        let mut hits = 0u64;
        while !over.load(Ordering::Relaxed) {
            // Both files have the same size after a commit; "a" may be ahead by itself.
            share(&fs, run, paths[0]);
            share(&fs, run, paths[1]);
            let first = size(&truth(&fs, paths[0]).unwrap());
            let Some(said) = mapped(&map, run, paths[0]) else {
                continue;
            };
            let said = size(&said.unwrap());
            assert!(first <= said, "{first} {said}");
            let last = size(&truth(&fs, paths[0]).unwrap());
            assert!(said <= last, "{said} {last}");
            hits += 1;
        }
        hits
    };
    // "b" is never ahead of "a".
    let pairs = |fs: Arc<AminoFs>, map: Arc<AttributeMap>, over: Arc<AtomicBool>| {
        let mut hits = 0u64;
        while !over.load(Ordering::Relaxed) {
            share(&fs, run, "d/a");
            let b = size(&truth(&fs, "d/b").unwrap());
            if let Some(a) = mapped(&map, run, "d/a") {
                let a = size(&a.unwrap());
                assert!(b <= a, "{b} {a}");
                hits += 1;
            }
        }
        hits
    };
    // What a program reads natively from a cache object is never ahead of the map.
    let natively = |fs: Arc<AminoFs>, map: Arc<AttributeMap>, over: Arc<AtomicBool>| {
        let file = open_file(&fs, "d/c", libc::O_RDONLY).unwrap();
        let mut hits = 0u64;
        while !over.load(Ordering::Relaxed) {
            let now = nix::sys::stat::fstat(&file.fd).unwrap();
            shared(&fs).share_object(&file.node, 0, now.st_ino);
            let now = nix::sys::stat::fstat(&file.fd).unwrap().st_size as u64;
            if let Some(said) = map
                .object(0, nix::sys::stat::fstat(&file.fd).unwrap().st_ino)
                .and_then(|slot| map.read(slot))
            {
                assert!(now <= size(&said), "{now} {}", size(&said));
                hits += 1;
            }
        }
        hits
    };
    std::thread::scope(|scope| {
        let both = || (Arc::clone(&fs), Arc::clone(&map), Arc::clone(&over));
        let mut readers = Vec::new();
        for paths in [["d/a", "d/b"], ["d/b", "d/a"]] {
            let (fs, map, over) = both();
            readers.push(scope.spawn(move || reader(fs, map, over, paths)));
        }
        let (of, map_of, over_of) = both();
        readers.push(scope.spawn(move || pairs(of, map_of, over_of)));
        let (of, map_of, over_of) = both();
        readers.push(scope.spawn(move || natively(of, map_of, over_of)));
        let c = open_file(&fs, "d/c", libc::O_RDWR).unwrap();
        let user = root();
        let folder = walk(&fs, "d").unwrap();
        for round in 2..80u64 {
            let data = vec![1; round as usize];
            for step in 0..50 {
                c.write(&fs, WritePosition::At(round * 50 + step), b"x")
                    .unwrap();
            }
            match round % 3 {
                0 => {
                    // In one transaction: "a" and "b" become alike.
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
                    let file = open_file(&fs, "d/a", libc::O_RDWR).unwrap();
                    file.write(&fs, WritePosition::At(0), &data).unwrap();
                    file.close(&fs);
                }
                _ => {
                    write_file(&fs, "d/new", &data).unwrap();
                    fs.rename(&user, &folder, b"new", &folder, b"a", 0).unwrap();
                }
            }
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
