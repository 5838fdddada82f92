//! Callers, and a directory that is mounted and read natively.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test file uses a part; a test says so by failing"
)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goanna_passfs::PassFs;
use goanna_skip::{Facility, skip};
use goanna_sys::cred;
use goanna_vfs::{Caller, FileSystem, Native, Node, Opened, Result, Stamp};

pub fn me() -> Caller {
    Caller {
        tid: 4321,
        pid: 1234,
        ..Caller::own()
    }
}

/// An ordinary user, if this process may act as one.
pub fn nobody() -> Option<Caller> {
    if !cred::may_change_user() {
        skip(Facility::Root, "only root can act as another user");
        return None;
    }
    Some(Caller {
        uid: 65534,
        gid: 65534,
        groups: Arc::from([]),
        caps: 0,
        ..me()
    })
}

/// The users that these tests can run as: the one that started them, and an ordinary one.
pub fn everybody() -> Vec<Caller> {
    std::iter::once(me()).chain(nobody()).collect()
}

pub struct Dir {
    pub temp: tempfile::TempDir,
    pub fs: PassFs,
}

impl Dir {
    /// A directory that every user may write.
    pub fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let fs = PassFs::new(temp.path()).unwrap();
        Self { temp, fs }
    }

    pub fn host(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub fn get(&self, path: &str) -> Node {
        self.fs.node_at(&me(), path.as_bytes()).unwrap()
    }

    pub fn names(&self, dir: &Node) -> BTreeSet<Vec<u8>> {
        let mut names = BTreeSet::new();
        let result = self.fs.readdir(&me(), dir, 0, &mut |entry| {
            assert!(names.insert(entry.name.to_vec()), "listed twice");
            true
        });
        result.unwrap();
        names
    }
}

pub fn create(dir: &Dir, who: &Caller, name: &str, mode: u32) -> Result<(Node, Opened)> {
    let root = dir.fs.root();
    dir.fs
        .create(who, &root, name.as_bytes(), mode, libc::O_RDWR)
}

pub fn file_of(opened: Opened) -> fs::File {
    assert!(matches!(opened.native, Native::All));
    fs::File::from(opened.into_fd().unwrap())
}

pub fn compare(dir: &Dir, node: &Node, path: &Path) {
    let attr = dir.fs.getattr(&me(), node).unwrap();
    let meta = fs::symlink_metadata(path).unwrap();
    assert_eq!((attr.dev, attr.ino), (meta.dev(), meta.ino()));
    assert_eq!((attr.mode, attr.nlink), (meta.mode(), meta.nlink() as u32));
    assert_eq!((attr.uid, attr.gid), (meta.uid(), meta.gid()));
    assert_eq!((attr.rdev, attr.size), (meta.rdev(), meta.size()));
    assert_eq!(
        (attr.blksize, attr.blocks),
        (meta.blksize() as u32, meta.blocks())
    );
    let stamp = |sec, nsec: i64| Stamp {
        sec,
        nsec: nsec as u32,
    };
    assert_eq!(attr.atime, stamp(meta.atime(), meta.atime_nsec()));
    assert_eq!(attr.mtime, stamp(meta.mtime(), meta.mtime_nsec()));
    assert_eq!(attr.ctime, stamp(meta.ctime(), meta.ctime_nsec()));
    let created = meta.created().ok().map(|time| {
        let time = time.duration_since(std::time::UNIX_EPOCH).unwrap();
        stamp(time.as_secs() as i64, time.subsec_nanos().into())
    });
    assert_eq!(attr.btime, created);
}
