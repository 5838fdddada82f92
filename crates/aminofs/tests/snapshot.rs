//! Snapshots as file systems: each shows one state that was committed, however long it is kept and whatever happens since.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use amino_fs::{AminoFs, EngineKind, fsck};
use common::user::User;
use common::*;
use goanna_vfs::{
    Attr, CachedContent, Errno, FileKind, FileSystem, Node, OpenFile, SetAttr, WritePosition,
};

const ENGINES: [EngineKind; 3] = [EngineKind::Fjall, EngineKind::Sled, EngineKind::Memory];

/// What a file system shows of one file.
#[derive(Debug, PartialEq)]
struct Shown {
    attr: Attr,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Everything below the root, by path.
fn tree(fs: &AminoFs) -> BTreeMap<String, Shown> {
    let mut shown = BTreeMap::new();
    let mut left = vec![(String::new(), fs.root())];
    while let Some((path, node)) = left.pop() {
        let content = match node.kind() {
            FileKind::Regular => read_direct(fs, &node).unwrap(),
            FileKind::Symlink => fs.readlink(&root(), &node).unwrap(),
            _ => Vec::new(),
        };
        if node.is_dir() {
            for name in names(fs, &path) {
                let path = format!("{path}/{name}");
                left.push((path.clone(), walk(fs, &path).unwrap()));
            }
        }
        let xattrs = fs.listxattr(&root(), &node).unwrap().into_iter();
        let xattrs = xattrs.map(|name| {
            let value = fs.getxattr(&root(), &node, &name).unwrap();
            (name, value)
        });
        let attr = Attr {
            // Of a file that is not in use, holes count.
            blocks: 0,
            ..fs.getattr(&root(), &node).unwrap()
        };
        let xattrs = xattrs.collect();
        shown.insert(
            path,
            Shown {
                attr,
                content,
                xattrs,
            },
        );
    }
    shown
}

fn random_data(rng: &mut fastrand::Rng) -> Vec<u8> {
    let len = [10, 5000, 20_000, 200_000][rng.usize(..4)];
    vec![rng.u8(..); rng.usize(..len)]
}

/// One change of few names. Errors of names that are not there, or are, do not matter.
fn change(fs: &AminoFs, rng: &mut fastrand::Rng) {
    let paths = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a"];
    let (path, other) = (paths[rng.usize(..8)], paths[rng.usize(..8)]);
    let user = root();
    let _ = match rng.u8(..10) {
        0..3 => write_file(fs, path, &random_data(rng)),
        3 => parent(fs, path).and_then(|(dir, name)| fs.unlink(&user, &dir, name)),
        4 => parent(fs, path).and_then(|(dir, name)| fs.mkdir(&user, &dir, name, 0o755).map(drop)),
        5 => parent(fs, path).and_then(|(dir, name)| fs.rmdir(&user, &dir, name)),
        6 => parent(fs, path).and_then(|(from, name)| {
            let (to, to_name) = parent(fs, other)?;
            fs.rename(&user, &from, name, &to, to_name, 0)
        }),
        7 => walk(fs, path).and_then(|node| {
            let (dir, name) = parent(fs, other)?;
            fs.link(&user, &node, &dir, name)
        }),
        8 => walk(fs, path).and_then(|node| {
            let value = [rng.u8(..); 100];
            fs.setxattr(&user, &node, b"trusted.x", &value, 0)
        }),
        _ => walk(fs, path).and_then(|node| match node.kind() {
            FileKind::Regular => fs.truncate(&user, &node, rng.u64(..50_000)),
            _ => parent(fs, path).and_then(|(dir, name)| {
                let name = [name, b"-link"].concat();
                fs.symlink(&user, &dir, &name, path.as_bytes()).map(drop)
            }),
        }),
    };
}

#[test]
fn a_snapshot_stays_as_it_was_through_changes_checkpoints_and_removals() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let fs = open_with(&store, &options(engine));
        let mut rng = fastrand::Rng::with_seed(3);
        let mut kept = Vec::new();
        for round in 0..40 {
            (0..15).for_each(|_| change(&fs, &mut rng));
            if kept.len() < 5 && round % 4 == 0 {
                let then = tree(&fs);
                kept.push((round, fs.snapshot().unwrap(), then));
            }
            if round % 5 == 2 {
                // More than the log may have, so that a checkpoint follows; sled's log may have less.
                let bytes = if engine == EngineKind::Sled {
                    40 << 20
                } else {
                    4 << 20
                };
                write_file(&fs, "large", &vec![round; bytes]).unwrap();
                fs.sync(None).unwrap();
                write_file(&fs, "large", b"").unwrap();
            }
            for (taken, snapshot, then) in &kept {
                assert!(tree(snapshot) == *then, "{engine:?} {taken} {round}");
            }
            if kept.len() == 5 && rng.u8(..3) == 0 {
                kept.swap_remove(rng.usize(..5));
            }
        }
        // A snapshot of a snapshot shows the store as it is now.
        let (_, snapshot, _) = kept.pop().unwrap();
        assert!(tree(&snapshot.snapshot().unwrap()) == tree(&fs));
        drop(kept);
        snapshot.close().unwrap();
        drop(snapshot);
        write_file(&fs, "still", b"open").unwrap();
        close_and_check(fs, &store);
    }
}

#[test]
fn a_snapshot_can_be_read_in_every_way_and_not_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let fs = open(&store);
    let user = root();
    fs.mkdir(&user, &fs.root(), b"d", 0o755).unwrap();
    write_file(&fs, "d/f", b"then").unwrap();
    let mapped = open_file(&fs, "d/f", libc::O_RDWR).unwrap();
    let snapshot = fs.snapshot().unwrap();
    mapped.write(&fs, WritePosition::At(0), b"now!").unwrap();
    assert!(snapshot.is_read_only() && !fs.is_read_only());
    assert!(goanna_vfs::FileSystem::transactions(&*snapshot).is_none());
    assert_eq!(read_file(&snapshot, "d/f").unwrap(), b"then");
    let file = open_file(&snapshot, "d/f", libc::O_RDONLY).unwrap();
    snapshot.map_shared(&user, &file.node).unwrap();
    snapshot.sync(Some(&file.node)).unwrap();
    snapshot.sync(None).unwrap();
    let (node, top) = (walk(&snapshot, "d/f").unwrap(), snapshot.root());
    let open_file = OpenFile {
        node: &node,
        ofd: std::os::fd::AsFd::as_fd(&file.fd),
        flags: libc::O_RDWR,
    };
    let dir_node = walk(&snapshot, "d").unwrap();
    let results = [
        snapshot
            .create(&user, &top, b"n", 0o600, libc::O_RDWR)
            .map(drop),
        snapshot.tmpfile(&user, &top, 0o600, libc::O_RDWR).map(drop),
        snapshot
            .mknod(&user, &top, b"n", libc::S_IFIFO, 0)
            .map(drop),
        snapshot.mkdir(&user, &top, b"n", 0o700).map(drop),
        snapshot.symlink(&user, &top, b"n", b"t").map(drop),
        snapshot.link(&user, &node, &top, b"n"),
        snapshot.unlink(&user, &dir_node, b"f"),
        snapshot.rmdir(&user, &top, b"d"),
        snapshot.rename(&user, &top, b"d", &top, b"e", 0),
        snapshot
            .write(&user, open_file, WritePosition::At(0), b"x")
            .map(drop),
        snapshot
            .open(&user, &node, libc::O_RDWR | libc::O_TRUNC)
            .map(drop),
        snapshot.truncate(&user, &node, 0),
        snapshot.fallocate(&user, &node, 0, 0, 9),
        snapshot.setattr(
            &user,
            &node,
            &SetAttr {
                mode: Some(0),
                ..SetAttr::default()
            },
        ),
        snapshot.setxattr(&user, &node, b"user.a", b"1", 0),
        snapshot.removexattr(&user, &node, b"user.a"),
        snapshot.import_new(&user, &top, b"n", 0o600).map(drop),
    ];
    for (number, result) in results.into_iter().enumerate() {
        assert_eq!(result, Err(Errno::EROFS.into()), "{number}");
    }
    file.close(&snapshot);
    assert_eq!(read_file(&snapshot, "d/f").unwrap(), b"then");
    mapped.close(&fs);
    assert_eq!(read_file(&fs, "d/f").unwrap(), b"now!");
    drop((node, top, dir_node, snapshot));
    close_and_check(fs, &store);
}

fn amount(fs: &AminoFs, node: &Node) -> u64 {
    let raw = read_direct(fs, node).unwrap();
    u64::from_le_bytes(raw[..8].try_into().unwrap())
}

/// A check of a snapshot sees what the snapshot shows, and finds nothing wrong, while files come and go.
#[test]
fn transactions_show_whole_in_snapshots_and_checks_are_clean_under_load() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let fs = open_with(&store, &options(engine));
        // Large ones, whose pages are records of their own.
        let content = |amount: u64| [&amount.to_le_bytes()[..], &[1; 60_000]].concat();
        write_file(&fs, "a", &content(1000)).unwrap();
        write_file(&fs, "b", &content(1000)).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut user = User::new(&fs, 7);
                let mut rng = fastrand::Rng::with_seed(1);
                let (a, b) = (walk(&fs, "a").unwrap(), walk(&fs, "b").unwrap());
                while !over.load(SeqCst) {
                    let moved = rng.u64(..50);
                    let (from, to) = (amount(&fs, &a), amount(&fs, &b));
                    user.begin();
                    let outcome = user
                        .put("a", &content(from.wrapping_sub(moved)))
                        .and_then(|()| user.put("b", &content(to.wrapping_add(moved))));
                    if outcome.is_ok() && rng.u8(..4) > 0 {
                        user.commit(None).unwrap();
                    } else {
                        user.abort(None);
                    }
                }
            });
            scope.spawn(|| {
                let mut rng = fastrand::Rng::with_seed(2);
                fs.mkdir(&root(), &fs.root(), b"d", 0o755).unwrap();
                while !over.load(SeqCst) {
                    let path = format!("d/{}", rng.u8(..20));
                    let _ = write_file(&fs, &path, &random_data(&mut rng));
                    let (dir, name) = parent(&fs, &format!("d/{}", rng.u8(..20)))
                        .map(|(dir, name)| (dir, name.to_vec()))
                        .unwrap();
                    let _ = fs.unlink(&root(), &dir, &name);
                }
            });
            let mut seen = std::collections::BTreeSet::new();
            for round in 0..60 {
                let snapshot = fs.snapshot().unwrap();
                let (a, b) = (walk(&snapshot, "a").unwrap(), walk(&snapshot, "b").unwrap());
                let first = amount(&snapshot, &a);
                std::thread::sleep(Duration::from_millis(2));
                assert_eq!(
                    first.wrapping_add(amount(&snapshot, &b)),
                    2000,
                    "{engine:?} {round}"
                );
                seen.insert(first);
                let report = fsck::check(fs.store(), &mut |_| {}).unwrap();
                assert!(
                    report.is_clean(),
                    "{engine:?} {round}: {:?}",
                    report.findings
                );
            }
            over.store(true, SeqCst);
            assert!(seen.len() > 1, "nothing was moved meanwhile");
        });
        close_and_check(fs, &store);
    }
}
