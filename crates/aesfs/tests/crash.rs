//! The process is killed at every change of the encrypted directory that an operation makes, and half-way in every write. Afterwards each file has
//! its old or its new content, or is refused with EIO and its plain path; the check finds the remains; no other file is affected.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use goanna_aesfs::format::content::Cipher;
use goanna_aesfs::format::names::NameKind;
use goanna_aesfs::{Finding, Problem};
use goanna_sys::memfile;
use goanna_vfs::{Errno, FileKind, FileSystem, Node, Result, SetAttr};
use support::dying::Dying;
use support::{Mounted, NAMES, Place};

/// Blocks in whole, and a short one.
const SIZE: usize = 10_000;

const LONG: [u8; 200] = [b'l'; 200];
const OTHER_LONG: [u8; 210] = [b'm'; 210];

/// The file that a program finds at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Directory,
    File(Vec<u8>),
    Link(Vec<u8>),
    /// EIO.
    Refused,
}

type Tree = BTreeMap<Vec<u8>, Entry>;
type Operation = fn(&Mounted) -> Result<()>;

fn described(entry: &Entry) -> String {
    match entry {
        Entry::File(data) => format!("a file of {} bytes", data.len()),
        other => format!("{other:?}"),
    }
}

fn content(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| seed.wrapping_add((at / 7) as u8) | 1)
        .collect()
}

/// The tree that every operation begins with.
fn prepare(mounted: &Mounted) {
    let root = mounted.fs.root();
    mounted.put(b"f", &content(1, SIZE));
    mounted.put(b"other", &content(60, SIZE));
    mounted.put(b"empty", b"");
    mounted.put(&LONG, &content(120, 5000));
    for (name, inside) in [(&b"d"[..], true), (b"e", false)] {
        let dir = mounted
            .fs
            .mkdir(&mounted.caller, &root, name, 0o755)
            .unwrap();
        if inside {
            let file = mounted.try_create(&dir, b"in").unwrap();
            mounted.write(&file, 0, &content(200, 100)).unwrap();
            mounted.close(file);
        }
    }
}

fn write(mounted: &Mounted, at: u64, len: usize) -> Result<()> {
    let file = mounted.open(b"f", libc::O_RDWR)?;
    let written = mounted.write(&file, at, &vec![0xee; len]);
    mounted.close(file);
    written.map(drop)
}

fn truncate(mounted: &Mounted, size: u64) -> Result<()> {
    let node = mounted.lookup(b"f")?;
    mounted.fs.truncate(&mounted.caller, &node, size)
}

fn allocate(mounted: &Mounted, mode: i32, offset: u64, len: u64) -> Result<()> {
    let node = mounted.lookup(b"f")?;
    mounted
        .fs
        .fallocate(&mounted.caller, &node, mode, offset, len)
}

fn create(mounted: &Mounted, name: &[u8], data: &[u8]) -> Result<()> {
    let file = mounted.try_create(&mounted.fs.root(), name)?;
    let written = mounted.write(&file, 0, data);
    mounted.close(file);
    written.map(drop)
}

fn rename(mounted: &Mounted, from: &[u8], to: &[u8], flags: u32) -> Result<()> {
    let root = mounted.fs.root();
    mounted
        .fs
        .rename(&mounted.caller, &root, from, &root, to, flags)
}

fn map(mounted: &Mounted) -> Result<()> {
    let file = mounted.open(b"f", libc::O_RDWR)?;
    let cache = mounted.fs.content().unwrap();
    cache.map_shared(&mounted.caller, &file.node)?;
    // Like a program's write through its mapping, which the monitor does not see.
    memfile::pwrite(file.opened.fd()?.as_fd(), &[0xee; 6000], 1000)?;
    let synced = mounted.fs.sync(Some(&file.node));
    mounted.close(file);
    synced
}

/// Operations on contents.
const CONTENTS: [(&str, Operation); 19] = [
    ("write in a block", |m| write(m, 5000, 100)),
    ("write a whole block", |m| write(m, 4096, 4096)),
    ("write across blocks", |m| write(m, 4000, 5000)),
    ("append", |m| write(m, SIZE as u64, 100)),
    ("append across blocks", |m| write(m, SIZE as u64, 9000)),
    ("write beyond the end", |m| write(m, 30_001, 100)),
    ("cut in a block", |m| truncate(m, 5000)),
    ("cut between blocks", |m| truncate(m, 4096)),
    ("empty", |m| truncate(m, 0)),
    ("grow in a block", |m| truncate(m, 12_000)),
    ("grow by a hole", |m| truncate(m, 50_001)),
    ("grow to a block's end", |m| truncate(m, 40_960)),
    ("punch", |m| {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        allocate(m, mode, 100, 9000)
    }),
    ("allocate", |m| allocate(m, 0, 0, 20_000)),
    ("collapse", |m| {
        allocate(m, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)
    }),
    ("insert", |m| {
        allocate(m, libc::FALLOC_FL_INSERT_RANGE, 4096, 4096)
    }),
    ("open with O_TRUNC", |m| {
        m.close(m.open(b"f", libc::O_RDWR | libc::O_TRUNC)?);
        Ok(())
    }),
    ("write the first byte", |m| {
        let file = m.open(b"empty", libc::O_RDWR)?;
        let written = m.write(&file, 0, b"first");
        m.close(file);
        written.map(drop)
    }),
    ("write through a mapping", map),
];

/// Operations on names.
const ENTRIES: [(&str, Operation); 23] = [
    ("create", |m| create(m, b"new", &content(90, 5000))),
    ("create long", |m| create(m, &OTHER_LONG, b"long")),
    ("unlink", |m| m.fs.unlink(&m.caller, &m.fs.root(), b"f")),
    ("unlink long", |m| {
        m.fs.unlink(&m.caller, &m.fs.root(), &LONG)
    }),
    ("mkdir", |m| {
        let root = m.fs.root();
        m.fs.mkdir(&m.caller, &root, b"new", 0o755).map(drop)
    }),
    ("mkdir without rights", |m| {
        let root = m.fs.root();
        m.fs.mkdir(&m.caller, &root, b"new", 0o055).map(drop)
    }),
    ("mkdir long", |m| {
        let root = m.fs.root();
        m.fs.mkdir(&m.caller, &root, &OTHER_LONG, 0o755).map(drop)
    }),
    ("rmdir", |m| m.fs.rmdir(&m.caller, &m.fs.root(), b"e")),
    ("rename", |m| rename(m, b"f", b"new", 0)),
    ("rename over", |m| rename(m, b"f", b"other", 0)),
    ("rename to long", |m| rename(m, b"f", &OTHER_LONG, 0)),
    ("rename over long", |m| rename(m, b"f", &LONG, 0)),
    ("rename from long", |m| rename(m, &LONG, b"new", 0)),
    ("rename long to long", |m| rename(m, &LONG, &OTHER_LONG, 0)),
    ("rename long over", |m| rename(m, &LONG, b"f", 0)),
    ("rename a directory", |m| rename(m, b"d", b"new", 0)),
    ("rename a directory to long", |m| {
        rename(m, b"d", &OTHER_LONG, 0)
    }),
    ("rename over a directory", |m| rename(m, b"d", b"e", 0)),
    ("exchange", |m| {
        rename(m, b"d", &LONG, libc::RENAME_EXCHANGE)
    }),
    ("symlink", |m| {
        let root = m.fs.root();
        m.fs.symlink(&m.caller, &root, b"new", b"target").map(drop)
    }),
    ("link long", |m| {
        let node = m.lookup(b"f")?;
        m.fs.link(&m.caller, &node, &m.fs.root(), &OTHER_LONG)
    }),
    ("set an attribute", |m| {
        let node = m.lookup(b"f")?;
        m.fs.setxattr(&m.caller, &node, b"user.x", b"value", 0)
    }),
    ("chmod", |m| {
        let set = SetAttr {
            mode: Some(0o600),
            ..SetAttr::default()
        };
        m.fs.setattr(&m.caller, &m.lookup(b"f")?, &set)
    }),
];

/// All that a program finds below `dir`.
fn walk(mounted: &Mounted, dir: &Node, path: &[u8], tree: &mut Tree) {
    let mut names = Vec::new();
    let listed = mounted.fs.readdir(&mounted.caller, dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    });
    listed.unwrap_or_else(|error| panic!("{}: {error:?}", String::from_utf8_lossy(path)));
    for name in names {
        let path = [path, &name].concat();
        let node = mounted.fs.lookup(&mounted.caller, dir, &name).unwrap();
        let entry = match node.kind() {
            FileKind::Directory => {
                walk(mounted, &node, &[&path[..], b"/"].concat(), tree);
                Entry::Directory
            }
            FileKind::Symlink => mounted
                .fs
                .readlink(&mounted.caller, &node)
                .map_or(Entry::Refused, Entry::Link),
            _ => match mounted.fs.open(&mounted.caller, &node, libc::O_RDONLY) {
                Ok(opened) => {
                    let len = mounted.size(&node) as usize;
                    let mut data = vec![0; len + 1];
                    let got = memfile::pread(opened.fd().unwrap().as_fd(), &mut data, 0).unwrap();
                    data.truncate(got);
                    assert_eq!(got, len, "{}", String::from_utf8_lossy(&path));
                    Entry::File(data)
                }
                Err(error) => {
                    assert_eq!(error, Errno::EIO);
                    let reported = mounted.reported();
                    assert!(reported.iter().any(|(it, _)| *it == path), "{reported:?}");
                    Entry::Refused
                }
            },
        };
        tree.insert(path, entry);
    }
}

fn tree(place: &Place) -> Tree {
    let mut tree = Tree::new();
    let mounted = place.mount();
    walk(&mounted, &mounted.fs.root(), b"", &mut tree);
    tree
}

/// Whether each block of `now` is that of `old` or of `new`. Bytes behind the end of the old one are zeros. Bytes behind the end of the new one
/// are the old content, if the file was not truncated yet.
fn is_between(old: &[u8], new: &[u8], now: &[u8]) -> bool {
    let (least, most) = (old.len().min(new.len()), old.len().max(new.len()));
    let mut over = [new, old.get(new.len()..).unwrap_or_default()].concat();
    over.resize(most, 0);
    let old: Vec<u8> = old
        .iter()
        .copied()
        .chain(std::iter::repeat(0))
        .take(most)
        .collect();
    (least..=most).contains(&now.len())
        && now.chunks(4096).enumerate().all(|(number, block)| {
            let at = number * 4096;
            let is_block_of = |of: &[u8]| of.get(at..at + block.len()) == Some(block);
            is_block_of(&old) || is_block_of(&over)
        })
}

fn files(tree: &Tree) -> BTreeSet<&[u8]> {
    let contents = tree.values().filter_map(|entry| match entry {
        Entry::File(data) if !data.is_empty() => Some(&data[..]),
        _ => None,
    });
    contents.collect()
}

/// The tree after the process died is between those before and after the operation.
fn judge(old: &Tree, new: &Tree, now: &Tree, findings: &[Finding], at: &str) {
    for (path, entry) in now {
        let name = String::from_utf8_lossy(path);
        let known: Vec<&Entry> = [old, new].iter().filter_map(|it| it.get(path)).collect();
        let is_right = match entry {
            _ if known.contains(&entry) => true,
            Entry::Refused => findings
                .iter()
                .any(|it| it.path == *path && matches!(it.problem, Problem::Damaged(_))),
            Entry::File(data) => match known[..] {
                [Entry::File(old), Entry::File(new)] => is_between(old, new, data),
                [Entry::File(new)] => is_between(b"", new, data),
                _ => false,
            },
            Entry::Directory | Entry::Link(_) => false,
        };
        assert!(is_right, "{at}: {name} is {}", described(entry));
        let is_unaffected = old.get(path) == new.get(path);
        assert!(
            !is_unaffected || known.contains(&entry),
            "{at}: {name} was not changed by the operation, and is {}",
            described(entry)
        );
    }
    // No file is lost that exists before and after the operation.
    let (before, after, found) = (files(old), files(new), files(now));
    for data in before.intersection(&after) {
        assert!(found.contains(data), "{at}: a file is lost");
    }
    for (path, entry) in old {
        let stays = new.get(path) == Some(entry);
        let name = String::from_utf8_lossy(path);
        assert!(
            !stays || now.get(path) == Some(entry),
            "{at}: {name} is lost"
        );
    }
}

/// Whether the lower directory has remains of the operation that belong to no entry.
fn has_remains(place: &Place) -> bool {
    let names: Vec<String> = std::fs::read_dir(place.dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.iter().any(|name| {
        let entry = name.strip_suffix(".name");
        name.starts_with("gocryptfs.tmp.") || entry.is_some_and(|it| !names.iter().any(|n| n == it))
    })
}

/// Kills the process at every step of `operation`. Returns the number of steps.
fn killed_at_every_step(what: &str, operation: Operation, kind: (Cipher, NameKind)) -> u64 {
    let made = || {
        let place = Place::new(kind.0, kind.1);
        prepare(&place.mount());
        place
    };
    let place = made();
    let old = tree(&place);
    operation(&place.mount()).unwrap();
    let new = tree(&place);
    for steps in 0..200 {
        let mut died = false;
        for torn in [0, 1, 8, 15] {
            let place = made();
            let dying = Arc::new(Dying::new(place.host(), steps, torn));
            let mounted = place.mount_over(Arc::clone(&dying) as Arc<dyn FileSystem>);
            let result = operation(&mounted);
            drop(mounted);
            died = dying.is_dead();
            let at = format!("{what}, killed at step {steps}, {torn}/16 of a write: {result:?}");
            let findings = place.findings();
            let now = tree(&place);
            judge(&old, &new, &now, &findings, &at);
            if has_remains(&place) {
                assert!(!findings.is_empty(), "{at}: the check found nothing");
            }
            let refused = now.values().any(|entry| *entry == Entry::Refused);
            assert_eq!(
                refused,
                findings
                    .iter()
                    .any(|it| matches!(it.problem, Problem::Damaged(_))),
                "{at}: {findings:?}"
            );
            if !died {
                assert_eq!(findings, [], "{at}");
                assert!(now == new, "{at}");
                break;
            }
        }
        if !died {
            return steps;
        }
    }
    panic!("{what} does not end");
}

#[test]
fn a_kill_at_every_step_leaves_old_or_new_content_or_an_error() {
    for kind in [(Cipher::Gcm, NAMES), (Cipher::XChaCha, NameKind::Plain)] {
        for (what, operation) in CONTENTS {
            let steps = killed_at_every_step(what, operation, kind);
            assert!(steps > 0, "{what} changes something");
        }
    }
}

#[test]
fn a_kill_at_every_step_leaves_old_or_new_names() {
    for (what, operation) in ENTRIES {
        let steps = killed_at_every_step(what, operation, (Cipher::Gcm, NAMES));
        assert!(steps > 0, "{what} changes something");
    }
}
