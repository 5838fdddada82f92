//! Ids and versions of files: through reuse of inode numbers, crashes, reopening and transactions; and what is reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use amino_fs::{AminoFs, EngineKind};
use common::user::User;
use common::*;
use goanna_sys::memfile;
use goanna_vfs::{
    CachedContent, Change, FileId, FileSystem, Identity, Node, SetAttr, Subscriber, WritePosition,
};

fn version(fs: &AminoFs, node: &Node) -> u64 {
    fs.getattr(&root(), node).unwrap().version
}

fn id(fs: &AminoFs, node: &Node) -> FileId {
    fs.file_id(&root(), node).unwrap()
}

/// Keeps the last version reported of each file.
#[derive(Default)]
struct Reports(Mutex<BTreeMap<FileId, u64>>);

impl Subscriber for Reports {
    fn changed(&self, changes: &[Change]) {
        let mut all = self.0.lock().unwrap();
        for change in changes {
            let last = all.entry(change.file).or_default();
            *last = change.version.max(*last);
        }
    }

    fn lost(&self) {
        unreachable!("the store is in this process");
    }
}

impl Reports {
    fn of(fs: &AminoFs) -> Arc<Self> {
        let reports = Arc::<Self>::default();
        let weak: std::sync::Weak<Self> = Arc::downgrade(&reports);
        fs.subscribe(weak).unwrap();
        reports
    }

    fn take(&self) -> BTreeMap<FileId, u64> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Runs `change`, which must give each of `nodes` a larger version, and report these nodes with them and no others.
fn changes(fs: &AminoFs, reports: &Reports, nodes: &[&Node], what: &str, change: impl FnOnce()) {
    let before: Vec<_> = nodes.iter().map(|node| version(fs, node)).collect();
    reports.take();
    change();
    let mut expected = BTreeMap::new();
    for (node, before) in nodes.iter().zip(before) {
        let after = version(fs, node);
        assert!(after > before, "{what}: {node:?}");
        expected.insert(id(fs, node), after);
    }
    assert_eq!(reports.take(), expected, "{what}");
}

#[test]
fn every_change_has_a_version_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let fs = open(&store);
    let user = root();
    let top = fs.root();
    let reports = Reports::of(&fs);
    let d = fs.mkdir(&user, &top, b"d", 0o755).unwrap();
    write_file(&fs, "f", b"x").unwrap();
    let f = walk(&fs, "f").unwrap();
    let open = open_file(&fs, "f", libc::O_RDWR).unwrap();
    let changes = |nodes: &[&Node], what: &str, change: &dyn Fn()| {
        changes(&fs, &reports, nodes, what, change);
    };
    changes(&[&f], "write", &|| {
        open.write(&fs, WritePosition::At(3), b"yyy").unwrap();
    });
    changes(&[&f], "truncate", &|| fs.truncate(&user, &f, 5000).unwrap());
    changes(&[&f], "fallocate", &|| {
        fs.fallocate(&user, &f, 0, 0, 9000).unwrap()
    });
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    changes(&[&f], "setattr", &|| fs.setattr(&user, &f, &mode).unwrap());
    changes(&[&d], "setattr of a directory", &|| {
        fs.setattr(&user, &d, &mode).unwrap()
    });
    changes(&[&f], "setxattr", &|| {
        fs.setxattr(&user, &f, b"user.a", b"1", 0).unwrap()
    });
    changes(&[&f], "removexattr", &|| {
        fs.removexattr(&user, &f, b"user.a").unwrap()
    });
    names(&fs, &reports, &f, &d);
    let n = walk(&fs, "n").unwrap();
    changes(&[&n], "O_TRUNC", &|| {
        fs.open(&user, &n, libc::O_RDWR | libc::O_TRUNC)
            .map(drop)
            .unwrap();
    });
    changes(&[&n, &f, &top], "rename over", &|| {
        fs.rename(&user, &top, b"f", &top, b"n", 0).unwrap()
    });
    // What changes nothing has no version.
    let before = version(&fs, &f);
    reports.take();
    read_file(&fs, "n").unwrap();
    fs.sync(None).unwrap();
    assert_eq!((version(&fs, &f), reports.take().len()), (before, 0));
    changes(&[&f], "a mapping, at msync", &|| {
        fs.map_shared(&user, &f).unwrap();
        memfile::pwrite(open.fd.as_fd(), b"zz", 0).unwrap();
        fs.sync_mapped(&f, 0..4096, false).unwrap();
    });
    drop(reports);
    open.close(&fs);
    drop((f, d, n, top));
    close_and_check(fs, &store);
}

/// Changes of names: of the file `f`, which is "/f", in the directory `d`, which is "/d", and in the root directory.
fn names(fs: &AminoFs, reports: &Reports, f: &Node, d: &Node) {
    let (user, top) = (root(), fs.root());
    let changes = |nodes: &[&Node], what: &str, change: &dyn Fn()| {
        changes(fs, reports, nodes, what, change);
    };
    changes(&[f, d], "link", &|| fs.link(&user, f, d, b"g").unwrap());
    changes(&[f, d], "rename", &|| {
        fs.rename(&user, d, b"g", d, b"h", 0).unwrap()
    });
    changes(&[f, d, &top], "rename across", &|| {
        fs.rename(&user, d, b"h", &top, b"h", 0).unwrap();
    });
    changes(&[f, d, &top], "exchange", &|| {
        fs.rename(&user, &top, b"h", &top, b"d", libc::RENAME_EXCHANGE)
            .unwrap();
    });
    changes(&[f, &top], "unlink", &|| {
        fs.unlink(&user, &top, b"d").unwrap()
    });
    changes(&[&top], "create", &|| write_new(fs, "n"));
    changes(&[&top], "mkdir", &|| {
        fs.mkdir(&user, &top, b"e", 0o755).map(drop).unwrap()
    });
    changes(&[&top], "symlink", &|| {
        fs.symlink(&user, &top, b"s", b"t").map(drop).unwrap()
    });
    changes(&[&top], "mknod", &|| {
        fs.mknod(&user, &top, b"p", libc::S_IFIFO | 0o600, 0)
            .map(drop)
            .unwrap();
    });
}

fn write_new(fs: &AminoFs, path: &str) {
    create(fs, path).unwrap().close(fs);
}

#[test]
fn a_commit_is_reported_as_a_whole_and_an_abort_never() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let fs = open(&store);
    write_file(&fs, "f", b"old").unwrap();
    fs.mkdir(&root(), &fs.root(), b"d", 0o755).unwrap();
    let (f, d) = (walk(&fs, "f").unwrap(), walk(&fs, "d").unwrap());
    let reports = Reports::of(&fs);
    let mut user = User::new(&fs, 5);
    let mut inside = Vec::new();
    for (name, commits) in [("d/1", false), ("d/2", true), ("d/3", false)] {
        let before = (version(&fs, &f), version(&fs, &d));
        let outer = user.begin();
        user.put("f", b"new").unwrap();
        user.begin();
        user.put(name, b"x").unwrap();
        user.commit(Some(outer)).unwrap();
        let own = |node| fs.getattr(&user.caller, node).unwrap().version;
        // The transaction sees versions of what it changed; no other caller sees them.
        let now = (own(&f), own(&d));
        assert!(now.0 > before.0 && now.1 > before.1, "{now:?} {before:?}");
        inside.extend([own(&f), own(&d)]);
        assert_eq!((version(&fs, &f), version(&fs, &d)), before);
        assert_eq!(reports.take().len(), 0);
        if commits {
            user.commit(None).unwrap();
            let after = (version(&fs, &f), version(&fs, &d));
            assert!(inside.iter().all(|&seen| seen < after.0 && seen < after.1));
            let expected = BTreeMap::from([(id(&fs, &f), after.0), (id(&fs, &d), after.1)]);
            let mut reported = reports.take();
            reported.retain(|file, _| expected.contains_key(file));
            assert_eq!(reported, expected);
        } else {
            user.abort(None);
            assert_eq!((version(&fs, &f), version(&fs, &d)), before);
            assert_eq!(reports.take().len(), 0);
        }
    }
    drop((f, d));
    close_and_check(fs, &store);
}

/// Makes and removes something, and returns its inode number.
fn last_number(fs: &AminoFs) -> u64 {
    let (user, top) = (root(), fs.root());
    let made = fs.mknod(&user, &top, b"p", libc::S_IFIFO, 0).unwrap();
    fs.unlink(&user, &top, b"p").unwrap();
    made.ino()
}

/// A crash takes back the last changes: the inode number is given once more, and the file is what it was.
#[test]
fn ids_and_versions_are_never_given_twice_whatever_a_crash_takes_back() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let (store, copy) = (dir.path().join("store"), dir.path().join("copy"));
        let fs = open_with(&store, &options(engine));
        write_file(&fs, "f", b"one").unwrap();
        // Numbers are reserved 4096 at a time: the next file's reservation is lost with it.
        while walk(&fs, "f").unwrap().ino() + 4095 > last_number(&fs) {}
        fs.sync(None).unwrap();
        copy_dir(&store, &copy);
        // Seen by others, and lost.
        write_file(&fs, "f", b"two").unwrap();
        write_file(&fs, "lost", b"two").unwrap();
        let (f, lost) = (walk(&fs, "f").unwrap(), walk(&fs, "lost").unwrap());
        let seen = (
            id(&fs, &f),
            version(&fs, &f),
            id(&fs, &lost),
            version(&fs, &lost),
        );
        drop((f, lost, fs));

        let (mut last, mut ids) = (seen.1.max(seen.3), vec![seen.2]);
        for round in 0..3 {
            let fs = open_with(&copy, &options(engine));
            let f = walk(&fs, "f").unwrap();
            assert_eq!(id(&fs, &f), seen.0, "{engine:?} {round}");
            let now = version(&fs, &f);
            assert!(now > last, "{engine:?} {round}: {now} after {last}");
            assert_eq!(version(&fs.snapshot().unwrap(), &f), now);
            let name = format!("new{round}");
            write_file(&fs, &name, b"x").unwrap();
            let new = walk(&fs, &name).unwrap();
            let new_id = id(&fs, &new);
            assert_eq!(round == 0, new_id.inode == seen.2.inode, "{new_id:?}");
            assert!(!ids.contains(&new_id));
            ids.push(new_id);
            write_file(&fs, "f", b"three").unwrap();
            last = version(&fs, &f);
            assert!(last > now);
            drop((f, new));
            // After a proper end nothing is lost, and versions stay.
            fs.close().unwrap();
            drop(fs);
            let fs = open_with(&copy, &options(engine));
            let f = walk(&fs, "f").unwrap();
            assert_eq!((id(&fs, &f), version(&fs, &f)), (seen.0, last));
            assert_eq!(id(&fs, &walk(&fs, &name).unwrap()), new_id);
            write_file(&fs, "f", b"four").unwrap();
            assert!(version(&fs, &f) > last);
            last = version(&fs, &f);
            drop(f);
            fs.sync(None).unwrap();
            // As a kill leaves it.
            let killed = dir.path().join(format!("killed{round}"));
            copy_dir(&copy, &killed);
            drop(fs);
            std::fs::remove_dir_all(&copy).unwrap();
            std::fs::rename(&killed, &copy).unwrap();
        }
        check(&copy);
    }
}
