//! The rules of `goanna_vfs::ops` against the kernel: the same random operations, by callers of every sort, on
//! a file system in memory that checks no permissions (so `ops` does) and on a pass-through directory (so the kernel
//! does). Every errno must be the same, and every attribute afterwards.
//!
//! Needs root, because it acts as three users; for other users the test is recorded as skipped.
#![allow(clippy::unwrap_used, reason = "a test says so by failing")]

#[path = "../../vfs/tests/support/memfs.rs"]
mod memfs;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use goanna_passfs::PassFs;
use goanna_skip::{Facility, skip};
use goanna_vfs::{Caller, FileSystem, FsError, Mounts, Place, Result, Stamp, TimeSet, ops};
use memfs::MemFs;

const NAMES: [&str; 4] = ["a", "b", "s", "t"];
const DIRS: [&str; 7] = ["d", "e", "f", "d/s", "e/s", "d/s/t", "f/t"];
const MODES: [u32; 10] = [
    0o777, 0o1777, 0o755, 0o2775, 0o700, 0o3777, 0o4755, 0o6750, 0o2640, 0o070,
];

#[derive(Debug, Clone)]
enum Op {
    Create(u32),
    Open(i32),
    Mknod(u32, u64),
    Mkdir(u32),
    Symlink,
    Link(String, String),
    Unlink,
    Rmdir,
    Rename(String, String, u32),
    Chmod(u32),
    Chown(Option<u32>, Option<u32>),
    Utimens(Option<TimeSet>, Option<TimeSet>),
    Truncate(i64),
    Access(i32),
    Readdir,
    GetXattr(&'static str),
    SetXattr(&'static str, i32),
    ListXattr,
    RemoveXattr(&'static str),
}

struct Side {
    root: Place,
    pass: Option<Arc<PassFs>>,
}

fn place(mount_of: &Place, node: goanna_vfs::Node) -> Place {
    Place {
        mount: Arc::clone(&mount_of.mount),
        node,
    }
}

impl Side {
    fn new(fs: Arc<dyn FileSystem>, pass: Option<Arc<PassFs>>) -> Self {
        let mounts = Mounts::new(Arc::clone(&fs));
        let root = Place {
            mount: Arc::clone(mounts.host()),
            node: fs.root(),
        };
        Self { root, pass }
    }

    fn walk(&self, caller: &Caller, path: &str) -> Result<Place> {
        let mut at = self.root.clone();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let node = ops::lookup(caller, &at, name.as_bytes())?;
            at = place(&at, node);
        }
        Ok(at)
    }

    fn run(&self, caller: &Caller, dir: &str, name: &str, op: &Op) -> Result<String> {
        let done = |result: Result<()>| result.map(|()| String::new());
        let dir = self.walk(caller, dir)?;
        let bytes = name.as_bytes();
        match op {
            Op::Create(mode) => {
                return ops::create(caller, &dir, bytes, *mode, libc::O_RDWR)
                    .map(|_| String::new());
            }
            Op::Mknod(mode, rdev) => {
                return ops::mknod(caller, &dir, bytes, *mode, *rdev).map(|_| String::new());
            }
            Op::Mkdir(mode) => {
                return ops::mkdir(caller, &dir, bytes, *mode).map(|_| String::new());
            }
            Op::Symlink => {
                return ops::symlink(caller, &dir, bytes, b"nowhere").map(|_| String::new());
            }
            Op::Link(from, from_name) => {
                let from = self.walk(caller, from)?;
                let node = ops::lookup(caller, &from, from_name.as_bytes())?;
                return done(ops::link(caller, &place(&from, node), &dir, bytes));
            }
            Op::Unlink => return done(ops::unlink(caller, &dir, bytes)),
            Op::Rmdir => return done(ops::rmdir(caller, &dir, bytes)),
            Op::Rename(to, to_name, flags) => {
                let to = self.walk(caller, to)?;
                let to_name = to_name.as_bytes();
                return done(ops::rename(caller, &dir, bytes, &to, to_name, *flags));
            }
            _ => {}
        }
        let node = ops::lookup(caller, &dir, bytes)?;
        self.on_file(caller, &place(&dir, node), op)
    }

    fn on_file(&self, caller: &Caller, file: &Place, op: &Op) -> Result<String> {
        let result = match op {
            Op::Open(flags) => ops::open_existing(caller, file, *flags).map(drop),
            Op::Chmod(mode) => ops::chmod(caller, file, *mode),
            Op::Chown(uid, gid) => ops::chown(caller, file, *uid, *gid),
            Op::Utimens(atime, mtime) => ops::utimens(caller, file, *atime, *mtime),
            Op::Truncate(size) => ops::truncate(caller, file, *size),
            Op::Access(mask) => match &self.pass {
                // Not through ops, which checks this one by mode bits everywhere.
                Some(pass) => Ok(pass.access(caller, &file.node, *mask)?),
                None => ops::access(caller, file, *mask),
            },
            Op::Readdir => ops::readdir_check(caller, file)
                .and_then(|()| file.mount.fs.readdir(caller, &file.node, 0, &mut |_| true)),
            Op::SetXattr(name, flags) => {
                ops::setxattr(caller, file, name.as_bytes(), b"value", *flags)
            }
            Op::RemoveXattr(name) => ops::removexattr(caller, file, name.as_bytes()),
            Op::GetXattr(name) => {
                return ops::getxattr(caller, file, name.as_bytes()).map(|v| format!("{v:?}"));
            }
            Op::ListXattr => {
                let mut names = ops::listxattr(caller, file)?;
                names.sort();
                return Ok(format!("{names:?}"));
            }
            other => unreachable!("{other:?}"),
        };
        result.map(|()| String::new())
    }

    /// All that programs can see of the tree, one line an entry.
    fn snapshot(&self, root: &Caller) -> Vec<String> {
        let mut lines = Vec::new();
        let mut todo = vec![(String::new(), self.root.clone())];
        while let Some((path, at)) = todo.pop() {
            let attr = at.mount.fs.getattr(root, &at.node).unwrap();
            lines.push(format!(
                "{path} {:o} {}:{} links {} rdev {} size {} mtime {}",
                attr.mode,
                attr.uid,
                attr.gid,
                attr.nlink,
                attr.rdev,
                if at.node.is_dir() { 0 } else { attr.size },
                if attr.mtime.sec == 77 { 77 } else { 0 },
            ));
            if !at.node.is_dir() {
                continue;
            }
            let mut names = Vec::new();
            let fs = &at.mount.fs;
            fs.readdir(root, &at.node, 0, &mut |entry| {
                names.push((entry.name.to_vec(), entry.kind));
                true
            })
            .unwrap();
            for (name, kind) in names {
                let node = fs.lookup(root, &at.node, &name).unwrap();
                assert_eq!(node.kind(), kind);
                let path = format!("{path}/{}", String::from_utf8_lossy(&name));
                todo.push((path, place(&at, node)));
            }
        }
        lines.sort();
        lines
    }
}

fn caller(uid: u32, groups: &[u32], caps: u64) -> Caller {
    Caller {
        groups: Arc::from(groups),
        caps,
        real_caps: caps,
        ..Caller::with_ids(uid, uid)
    }
}

struct Random(fastrand::Rng);

impl Random {
    fn of<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.0.usize(..from.len())].clone()
    }

    fn dir(&mut self) -> String {
        self.of(&DIRS).to_owned()
    }

    fn name(&mut self) -> String {
        self.of(&NAMES).to_owned()
    }

    fn id(&mut self) -> Option<u32> {
        self.of(&[None, Some(0), Some(1000), Some(65534), Some(50)])
    }

    fn time(&mut self) -> Option<TimeSet> {
        let at = Stamp { sec: 77, nsec: 0 };
        self.of(&[None, Some(TimeSet::Now), Some(TimeSet::At(at))])
    }

    fn xattr(&mut self) -> &'static str {
        self.of(&["user.a", "trusted.a", "security.a", "plain", "system.x"])
    }

    fn op(&mut self) -> Op {
        let mode = self.of(&MODES);
        match self.0.u32(..24) {
            0 | 1 => Op::Create(mode),
            2 => {
                let access = self.of(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR]);
                let more = self.of(&[0, libc::O_TRUNC, libc::O_NOATIME]);
                Op::Open(access | more)
            }
            3 => {
                let kinds = [
                    0,
                    libc::S_IFREG,
                    libc::S_IFIFO,
                    libc::S_IFSOCK,
                    libc::S_IFCHR,
                    libc::S_IFBLK,
                    libc::S_IFDIR,
                    libc::S_IFLNK,
                    0o030_000,
                ];
                Op::Mknod(self.of(&kinds) | mode, self.of(&[0, 0x103]))
            }
            4 | 5 => Op::Mkdir(mode),
            6 => Op::Symlink,
            7 | 8 => Op::Link(self.dir(), self.name()),
            9 => Op::Unlink,
            10 => Op::Rmdir,
            11..=13 => {
                let flags = self.of(&[0, 0, 1, 2, 3, 8]);
                Op::Rename(self.dir(), self.name(), flags)
            }
            14 | 15 => Op::Chmod(mode),
            16 | 17 => Op::Chown(self.id(), self.id()),
            18 => Op::Utimens(self.time(), self.time()),
            19 => Op::Truncate(self.of(&[-1, 0, 5000])),
            20 => Op::Access(self.0.i32(0..8)),
            21 => self.of(&[Op::Readdir, Op::ListXattr]),
            22 => Op::SetXattr(self.xattr(), self.of(&[0, 1, 2])),
            _ => {
                let name = self.xattr();
                self.of(&[Op::GetXattr(name), Op::RemoveXattr(name)])
            }
        }
    }
}

fn run(seed: u64, steps: usize, seen: &mut std::collections::BTreeMap<String, usize>) {
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let pass = Arc::new(PassFs::new(temp.path()).unwrap());
    let sides = [
        Side::new(Arc::new(MemFs::default()), None),
        Side::new(Arc::clone(&pass) as _, Some(pass)),
    ];
    let callers = [
        caller(0, &[], u64::MAX),
        caller(1000, &[50], 0),
        caller(65534, &[50, 1000], 0),
        // Root that has given its capabilities away.
        caller(0, &[], 0),
    ];
    let mut random = Random(fastrand::Rng::with_seed(seed));
    for dir in DIRS {
        let (parent, name) = dir.rsplit_once('/').unwrap_or(("", dir));
        let mode = random.of(&MODES) | 0o011;
        let owner = random.of(&[0, 1000, 65534]);
        for side in &sides {
            side.run(&callers[0], parent, name, &Op::Mkdir(0o777))
                .unwrap();
            let own = Op::Chown(Some(owner), Some(random.of(&[50])));
            side.run(&callers[0], parent, name, &own).unwrap();
            side.run(&callers[0], parent, name, &Op::Chmod(mode))
                .unwrap();
        }
    }
    let mut log = Vec::new();
    for step in 0..steps {
        let mut who = random.of(&callers);
        who.umask = random.of(&[0, 0o022, 0o077]);
        let (dir, name, op) = (random.dir(), random.name(), random.op());
        let results = [0, 1].map(|i| sides[i].run(&who, &dir, &name, &op));
        log.push(format!("{} {:#x} {dir}/{name} {op:?}", who.uid, who.caps));
        let tail = &log[log.len().saturating_sub(12)..];
        if results[0] != results[1] || (results[0].is_ok() && step % 4 == 0) {
            let [mem, real] = [0, 1].map(|i| sides[i].snapshot(&callers[0]));
            assert_eq!(mem, real, "seed {seed} step {step}: {results:?}\n{tail:#?}");
        }
        assert_eq!(
            results[0],
            results[1],
            "seed {seed} step {step}, ours and the kernel's\n{tail:#?}\n{:#?}",
            sides[1].snapshot(&callers[0])
        );
        let kind = format!("{op:?}");
        let kind = kind.split('(').next().unwrap_or_default();
        let outcome = results[0]
            .as_ref()
            .err()
            .map_or_else(|| "ok".to_owned(), FsError::to_string);
        *seen.entry(format!("{kind}: {outcome}")).or_default() += 1;
    }
}

#[test]
fn rules_agree_with_the_kernel() {
    if !goanna_sys::cred::may_change_user() {
        skip(Facility::Root, "only root can become another user");
        return;
    }
    let mut seen = std::collections::BTreeMap::new();
    for seed in 0..12 {
        run(seed, 2500, &mut seen);
    }
    println!("{seen:#?}");
    // The comparison is worth nothing if the interesting outcomes never come up.
    let fs_errors = ["Create: ok", "Rename: ok", "Link: ok", "Chmod: ok"];
    for outcome in fs_errors {
        assert!(
            seen.get(outcome).is_some_and(|&n| n > 20),
            "{outcome}: {seen:?}"
        );
    }
}
