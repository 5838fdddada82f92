//! Transactions across several operations: what they see, what others see, what is left of them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use amino_fs::{AminoFs, EngineKind};
use common::{Handle, check, close_and_check, open, open_with, options, root};
use goanna_vfs::{
    Caller, Errno, FileSystem, LOCKED, Node, Result, SetAttr, Spot, TimeSet, Transactions, TxnId,
};
use proptest::prelude::*;

/// Somebody who uses the file system, in a transaction or outside of all.
struct User<'a> {
    fs: &'a AminoFs,
    caller: Caller,
}

impl<'a> User<'a> {
    fn new(fs: &'a AminoFs, tid: i32) -> Self {
        let caller = Caller { tid, ..root() };
        Self { fs, caller }
    }

    fn begin(&mut self) -> TxnId {
        let id = self.fs.begin(self.caller.txn).unwrap();
        self.caller.txn = Some(id);
        id
    }

    /// Ends the current transaction; `outer` is the one around it.
    fn commit(&mut self, outer: Option<TxnId>) -> Result<()> {
        let result = self.fs.commit(self.caller.txn.unwrap());
        self.caller.txn = outer;
        if result? {
            self.fs.harden(None)?;
        }
        Ok(())
    }

    fn abort(&mut self, outer: Option<TxnId>) {
        self.fs.abort(self.caller.txn.unwrap());
        self.caller.txn = outer;
    }

    fn walk(&self, path: &str) -> Result<Node> {
        let mut node = self.fs.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if !node.is_dir() {
                return Err(Errno::ENOTDIR);
            }
            node = self.fs.lookup(&self.caller, &node, name.as_bytes())?;
        }
        Ok(node)
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(Node, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.walk(dir)?;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        Ok((dir, name.as_bytes()))
    }

    fn open(&self, path: &str, flags: i32) -> Result<Handle> {
        let node = self.walk(path)?;
        let fd = self.fs.open(&self.caller, &node, flags)?.fd;
        Ok(Handle { node, fd, flags })
    }

    fn create(&self, path: &str) -> Result<Handle> {
        let (dir, name) = self.parent(path)?;
        let flags = libc::O_RDWR;
        let (node, opened) = self.fs.create(&self.caller, &dir, name, 0o644, flags)?;
        let fd = opened.fd;
        Ok(Handle { node, fd, flags })
    }

    fn write(&self, handle: &Handle, spot: Spot, data: &[u8]) -> Result<usize> {
        use std::os::fd::AsFd;
        let file = goanna_vfs::OpenFile {
            node: &handle.node,
            ofd: handle.fd.as_fd(),
            flags: handle.flags,
        };
        self.fs.write(&self.caller, file, spot, data)
    }

    /// Makes the file, or writes it anew.
    fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        let handle = match self.create(path) {
            Err(Errno::EEXIST) => self.open(path, libc::O_RDWR | libc::O_TRUNC)?,
            other => other?,
        };
        self.write(&handle, Spot::Cursor, data)?;
        handle.close(self.fs);
        Ok(())
    }

    fn put_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.open(path, libc::O_RDWR)?;
        self.write(&handle, Spot::At(offset), data)?;
        handle.close(self.fs);
        Ok(())
    }

    fn truncate(&self, path: &str, size: u64) -> Result<()> {
        let node = self.walk(path)?;
        self.fs.truncate(&self.caller, &node, size)
    }

    fn get_node(&self, node: &Node) -> Result<Vec<u8>> {
        let size = self.fs.getattr(&self.caller, node)?.size as usize;
        let mut data = vec![0; size + 10];
        let got = self.fs.read_at(&self.caller, node, 0, &mut data)?;
        data.truncate(got);
        Ok(data)
    }

    fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.get_node(&self.walk(path)?)
    }

    fn mkdir(&self, path: &str) -> Result<Node> {
        let (dir, name) = self.parent(path)?;
        self.fs.mkdir(&self.caller, &dir, name, 0o755)
    }

    fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.unlink(&self.caller, &dir, name)
    }

    fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.rmdir(&self.caller, &dir, name)
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        let node = self.walk(from)?;
        let (dir, name) = self.parent(to)?;
        self.fs.link(&self.caller, &node, &dir, name)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from_dir, from) = self.parent(from)?;
        let (to_dir, to) = self.parent(to)?;
        self.fs
            .rename(&self.caller, &from_dir, from, &to_dir, to, 0)
    }

    fn names(&self, path: &str) -> Result<Vec<String>> {
        let node = self.walk(path)?;
        let mut names = Vec::new();
        self.fs.readdir(&self.caller, &node, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            true
        })?;
        names.sort();
        Ok(names)
    }

    /// Everything below `path`: content, and links; of directories the number of entries and subdirectories.
    fn tree(&self, path: &str, out: &mut BTreeMap<String, (Option<Runs>, u32)>) {
        for name in self.names(path).unwrap() {
            let full = format!("{path}/{name}");
            let node = self.walk(&full).unwrap();
            let attr = self.fs.getattr(&self.caller, &node).unwrap();
            if node.is_dir() {
                let shown = self.fs.path(&self.caller, &node).unwrap();
                assert_eq!(shown, (full.as_bytes()[1..].to_vec(), false));
                out.insert(full.clone(), (None, attr.nlink));
                self.tree(&full, out);
            } else {
                let data = self.get_node(&node).unwrap();
                out.insert(full, (Some(runs(&data)), attr.nlink));
            }
        }
    }
}

/// Bytes, and how often each comes one after the other: what people can read when a comparison fails.
type Runs = Vec<(u8, usize)>;

fn runs(data: &[u8]) -> Runs {
    data.chunk_by(|a, b| a == b)
        .map(|run| (run[0], run.len()))
        .collect()
}

#[test]
fn nobody_else_sees_a_transaction_until_it_commits() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("old", b"before").unwrap();
    let before = outside.open("old", libc::O_RDONLY).unwrap();
    inside.begin();
    inside.put("new", b"made inside").unwrap();
    inside.put("old", b"after").unwrap();
    inside.mkdir("d").unwrap();
    inside.put("d/deep", b"deep").unwrap();
    assert_eq!(outside.get("new"), Err(Errno::ENOENT));
    assert_eq!(outside.get("old").unwrap(), b"before");
    assert_eq!(outside.names("").unwrap(), ["old"]);
    assert_eq!(
        outside
            .fs
            .getattr(&outside.caller, &fs.root())
            .unwrap()
            .nlink,
        2
    );
    assert_eq!(inside.get("old").unwrap(), b"after");
    assert_eq!(inside.get("d/deep").unwrap(), b"deep");
    assert_eq!(inside.names("").unwrap(), ["d", "new", "old"]);
    assert_eq!(
        inside.fs.getattr(&inside.caller, &fs.root()).unwrap().nlink,
        3
    );
    let native = |len: usize| {
        let mut buf = vec![0; len + 1];
        let got = nix::sys::uio::pread(&before.fd, &mut buf, 0).unwrap();
        buf.truncate(got);
        buf
    };
    assert_eq!(native(6), b"before");
    inside.commit(None).unwrap();
    // By the descriptor that was open all the time, too.
    assert_eq!(native(6), b"after");
    assert_eq!(outside.get("old").unwrap(), b"after");
    assert_eq!(outside.names("").unwrap(), ["d", "new", "old"]);
    assert_eq!(outside.get("d/deep").unwrap(), b"deep");
    before.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn an_abort_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.mkdir("d").unwrap();
    outside.put("d/f", b"content").unwrap();
    let mut before = BTreeMap::new();
    outside.tree("", &mut before);
    let attr = |path: &str| {
        outside
            .fs
            .getattr(&outside.caller, &outside.walk(path).unwrap())
    };
    let (d, f) = (attr("d").unwrap(), attr("d/f").unwrap());
    inside.begin();
    let orphan = inside.create("never").unwrap();
    inside.write(&orphan, Spot::Cursor, b"x").unwrap();
    inside.rename("d/f", "g").unwrap();
    inside.link("g", "d/h").unwrap();
    inside.put_at("g", 5000, b"far").unwrap();
    let node = inside.walk("d").unwrap();
    let set = SetAttr {
        mode: Some(0o700),
        mtime: Some(TimeSet::Now),
        ..SetAttr::default()
    };
    fs.setattr(&inside.caller, &node, &set).unwrap();
    fs.setxattr(&inside.caller, &node, b"user.x", b"1", 0)
        .unwrap();
    inside.abort(None);
    let mut after = BTreeMap::new();
    outside.tree("", &mut after);
    assert_eq!(before, after);
    assert_eq!((attr("d").unwrap(), attr("d/f").unwrap()), (d, f));
    assert_eq!(
        fs.getxattr(&outside.caller, &node, b"user.x"),
        Err(Errno::ENODATA)
    );
    // A file that never was.
    assert_eq!(
        fs.getattr(&outside.caller, &orphan.node),
        Err(Errno::ESTALE)
    );
    assert_eq!(
        outside.write(&orphan, Spot::Cursor, b"y"),
        Err(Errno::ESTALE)
    );
    orphan.close(&fs);
    close_and_check(fs, dir.path());
}

#[test]
fn what_is_written_through_a_mapping_of_a_new_file_is_committed() {
    use std::io::Write;
    let dir = tempfile::tempdir().unwrap();
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("old", &[1; 5000]).unwrap();
    inside.begin();
    let old = inside.open("old", libc::O_RDWR).unwrap();
    assert_eq!(
        fs.mapped_inside(&inside.caller, &old.node),
        Err(Errno::ENODEV)
    );
    old.close(&fs);
    let new = inside.create("new").unwrap();
    inside.truncate("new", 20_000).unwrap();
    fs.mapped_inside(&inside.caller, &new.node).unwrap();
    // As through a mapping: the content object changes without a call.
    let mut object = std::fs::File::from(new.fd.try_clone().unwrap());
    object.write_all(&[7; 9000]).unwrap();
    inside.commit(None).unwrap();
    let mut expected = vec![7; 9000];
    expected.resize(20_000, 0);
    assert_eq!(outside.get("new").unwrap(), expected);
    drop(object);
    new.close(&fs);
    close_and_check(fs, dir.path());
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    assert_eq!(User::new(&fs, 3).get("new").unwrap(), expected);
    close_and_check(fs, dir.path());
}

#[test]
fn who_wants_to_change_the_same_waits() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    outside.put("f", b"1").unwrap();
    inside.begin();
    inside.put("f", b"2").unwrap();
    inside.put("new", b"").unwrap();
    assert_eq!(outside.put("f", b"3"), Err(LOCKED));
    assert_eq!(
        fs.wait(2, Duration::ZERO, Duration::from_millis(1)),
        Ok(false)
    );
    assert_eq!(outside.put("new", b""), Err(LOCKED));
    // Another name in the same directory is nobody's business.
    outside.put("other", b"").unwrap();
    inside.commit(None).unwrap();
    assert_eq!(
        fs.wait(2, Duration::ZERO, Duration::from_millis(1)),
        Ok(true)
    );
    outside.put("f", b"3").unwrap();
    assert_eq!(outside.names("").unwrap(), ["f", "new", "other"]);
    close_and_check(fs, dir.path());
}

#[test]
fn waiting_has_a_limit_and_circles_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fs = open(dir.path());
    let (mut one, mut two) = (User::new(&fs, 1), User::new(&fs, 2));
    for name in ["a", "b"] {
        one.put(name, b"").unwrap();
    }
    one.begin();
    two.begin();
    one.put("a", b"1").unwrap();
    two.put("b", b"2").unwrap();
    assert_eq!(one.put("b", b"1"), Err(LOCKED));
    assert_eq!(two.put("a", b"2"), Err(LOCKED));
    let long = Duration::from_secs(1000);
    assert_eq!(fs.wait(1, long, long), Err(Errno::ETIMEDOUT));
    assert_eq!(fs.status(one.caller.txn.unwrap()).unwrap().conflicts, 1);
    assert_eq!(one.put("b", b"1"), Err(LOCKED));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| fs.wait(1, Duration::ZERO, Duration::from_secs(20)));
        // Who closes the circle is told, at once.
        std::thread::sleep(Duration::from_millis(300));
        let told = fs.wait(2, Duration::ZERO, Duration::from_secs(20));
        assert_eq!(told, Err(Errno::EDEADLK));
        two.abort(None);
        assert_eq!(waiting.join().unwrap(), Ok(true));
    });
    one.put("b", b"1").unwrap();
    one.commit(None).unwrap();
    assert_eq!(two.get("b").unwrap(), b"1");
    close_and_check(fs, dir.path());
}

#[test]
fn a_transaction_that_is_too_large_fails_with_enospc_and_can_be_aborted() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(EngineKind::Memory);
    options.transaction_bytes = 1 << 20;
    let fs = open_with(dir.path(), &options);
    let mut user = User::new(&fs, 1);
    user.begin();
    user.put("f", &[1; 500_000]).unwrap();
    assert_eq!(user.put("g", &[1; 900_000]), Err(Errno::ENOSPC));
    user.abort(None);
    assert_eq!(user.names("").unwrap(), [""; 0]);
    close_and_check(fs, dir.path());
}

#[test]
fn a_commit_without_room_in_the_log_is_reported_and_aborts() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(EngineKind::Fjall);
    options.log_limit_bytes = 64 << 20;
    let fs = open_with(dir.path(), &options);
    let (mut user, other) = (User::new(&fs, 1), User::new(&fs, 2));
    other.put("f", b"before").unwrap();
    user.begin();
    user.put("f", b"after").unwrap();
    let large = user.create("large").unwrap();
    for piece in 0..80 {
        let spot = Spot::At(piece << 20);
        user.write(&large, spot, &[7; 1 << 20]).unwrap();
    }
    assert_eq!(user.commit(None), Err(Errno::ENOSPC));
    assert_eq!(other.names("").unwrap(), ["f"]);
    assert_eq!(other.get("f").unwrap(), b"before");
    assert_eq!(user.write(&large, Spot::At(0), b"x"), Err(Errno::ESTALE));
    large.close(&fs);
    // The store goes on.
    user.begin();
    user.put("f", b"later").unwrap();
    user.commit(None).unwrap();
    assert_eq!(other.get("f").unwrap(), b"later");
    close_and_check(fs, dir.path());
}

#[test]
fn a_committed_transaction_is_on_the_disk_whole_and_an_open_one_is_not() {
    let (dir, crashed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fs = open_with(dir.path(), &options(EngineKind::Fjall));
    let (mut done, mut open_still) = (User::new(&fs, 1), User::new(&fs, 2));
    done.begin();
    open_still.begin();
    for index in 0..100 {
        done.put(&format!("done{index}"), &[1; 6000]).unwrap();
        open_still.put(&format!("open{index}"), &[2; 6000]).unwrap();
    }
    done.commit(None).unwrap();
    // Others' operations after it reach the disk, too, and take nothing of the open one with them.
    done.put("later", b"x").unwrap();
    fs.sync(None).unwrap();
    common::copy_dir(dir.path(), crashed.path());
    open_still.abort(None);
    close_and_check(fs, dir.path());
    let fs = open_with(crashed.path(), &options(EngineKind::Fjall));
    let user = User::new(&fs, 1);
    let names = user.names("").unwrap();
    assert_eq!(names.len(), 101, "{names:?}");
    assert_eq!(user.get("done99").unwrap(), vec![1; 6000]);
    close_and_check(fs, crashed.path());
    check(crashed.path());
}

/// The reference: names to directories or files, files by number.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    names: BTreeMap<String, Option<usize>>,
    files: BTreeMap<usize, Vec<u8>>,
    next: usize,
}

impl Model {
    fn kind(&self, path: &str) -> Option<Option<usize>> {
        self.names.get(path).copied()
    }

    /// What a walk to the parent of `path` says.
    fn parent(&self, path: &str) -> Result<()> {
        let mut at = 0;
        while let Some(slash) = path[at..].find('/') {
            match self.kind(&path[..at + slash]) {
                None => return Err(Errno::ENOENT),
                Some(Some(_)) => return Err(Errno::ENOTDIR),
                Some(None) => at += slash + 1,
            }
        }
        Ok(())
    }

    fn walk(&self, path: &str) -> Result<Option<usize>> {
        self.parent(path)?;
        self.kind(path).ok_or(Errno::ENOENT)
    }

    fn file(&mut self, path: &str) -> Result<&mut Vec<u8>> {
        let id = self.walk(path)?.ok_or(Errno::EISDIR)?;
        Ok(self.files.get_mut(&id).unwrap())
    }

    fn is_empty(&self, dir: &str) -> bool {
        let below = format!("{dir}/");
        !self.names.keys().any(|name| name.starts_with(&below))
    }

    fn apply(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Put(path, data) => {
                let data = bytes(data);
                self.parent(path)?;
                match self.kind(path) {
                    Some(None) => return Err(Errno::EISDIR),
                    Some(Some(id)) => *self.files.get_mut(&id).unwrap() = data,
                    None => {
                        self.files.insert(self.next, data);
                        self.names.insert(path.clone(), Some(self.next));
                        self.next += 1;
                    }
                }
            }
            Step::PutAt(path, offset, data) => {
                let data = bytes(data);
                let file = self.file(path)?;
                if data.is_empty() {
                    // Writing nothing makes no file longer.
                    return Ok(());
                }
                let end = offset + data.len();
                file.resize(file.len().max(end), 0);
                file[*offset..end].copy_from_slice(&data);
            }
            Step::Truncate(path, size) => self.file(path)?.resize(*size, 0),
            Step::Mkdir(path) => {
                self.parent(path)?;
                if self.kind(path).is_some() {
                    return Err(Errno::EEXIST);
                }
                self.names.insert(path.clone(), None);
            }
            Step::Unlink(path) => {
                if self.walk(path)?.is_none() {
                    return Err(Errno::EISDIR);
                }
                self.names.remove(path);
            }
            Step::Rmdir(path) => {
                if self.walk(path)?.is_some() {
                    return Err(Errno::ENOTDIR);
                }
                if !self.is_empty(path) {
                    return Err(Errno::ENOTEMPTY);
                }
                self.names.remove(path);
            }
            Step::Link(from, to) => {
                let id = self.walk(from)?;
                self.parent(to)?;
                let id = id.ok_or(Errno::EPERM)?;
                if self.kind(to).is_some() {
                    return Err(Errno::EEXIST);
                }
                self.names.insert(to.clone(), Some(id));
            }
            Step::Rename(from, to) => return self.rename(from, to),
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.parent(from)?;
        self.parent(to)?;
        let source = self.kind(from).ok_or(Errno::ENOENT)?;
        let target = self.kind(to);
        if source.is_none() && (to == from || to.starts_with(&format!("{from}/"))) {
            return if to == from {
                Ok(())
            } else {
                Err(Errno::EINVAL)
            };
        }
        if target == Some(None) && from.starts_with(&format!("{to}/")) {
            return Err(Errno::ENOTEMPTY);
        }
        match (source, target) {
            (Some(a), Some(Some(b))) if a == b => return Ok(()),
            (None, Some(Some(_))) => return Err(Errno::ENOTDIR),
            (Some(_), Some(None)) => return Err(Errno::EISDIR),
            (None, Some(None)) if !self.is_empty(to) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        let below = format!("{from}/");
        let moved: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| *name == from || name.starts_with(&below))
            .map(|(name, id)| (name.clone(), *id))
            .collect();
        self.names.remove(to);
        for (name, id) in moved {
            self.names.remove(&name);
            self.names
                .insert(format!("{to}{}", &name[from.len()..]), id);
        }
        Ok(())
    }

    fn tree(&self) -> BTreeMap<String, (Option<Runs>, u32)> {
        let links = |id: usize| {
            self.names
                .values()
                .filter(|other| **other == Some(id))
                .count()
        };
        let mut out = BTreeMap::new();
        for (name, id) in &self.names {
            let shown = match id {
                Some(id) => (Some(runs(&self.files[id])), links(*id) as u32),
                None => {
                    let below = format!("{name}/");
                    let is_subdir = |other: &&String| {
                        other.starts_with(&below) && !other[below.len()..].contains('/')
                    };
                    let dirs = self.names.iter().filter(|(_, id)| id.is_none());
                    (
                        None,
                        2 + dirs.map(|(name, _)| name).filter(is_subdir).count() as u32,
                    )
                }
            };
            out.insert(format!("/{name}"), shown);
        }
        out
    }
}

/// Content: a byte, and how many of it.
type Fill = (u8, usize);

fn bytes(fill: &Fill) -> Vec<u8> {
    vec![fill.0; fill.1]
}

#[derive(Debug, Clone)]
enum Step {
    Put(String, Fill),
    PutAt(String, usize, Fill),
    Truncate(String, usize),
    Mkdir(String),
    Unlink(String),
    Rmdir(String),
    Link(String, String),
    Rename(String, String),
}

#[derive(Debug, Clone)]
enum Act {
    Inside(Step),
    Outside(Step),
    Begin,
    Commit,
    Abort,
}

fn perform(user: &User<'_>, step: &Step) -> Result<()> {
    match step {
        Step::Put(path, data) => user.put(path, &bytes(data)),
        Step::PutAt(path, offset, data) => {
            if user.walk(path)?.is_dir() {
                return Err(Errno::EISDIR);
            }
            user.put_at(path, *offset as u64, &bytes(data))
        }
        Step::Truncate(path, size) => user.truncate(path, *size as u64),
        Step::Mkdir(path) => user.mkdir(path).map(drop),
        Step::Unlink(path) => user.unlink(path),
        Step::Rmdir(path) => user.rmdir(path),
        Step::Link(from, to) => user.link(from, to),
        Step::Rename(from, to) => user.rename(from, to),
    }
}

fn path() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec!["a", "b", "c"]);
    prop::collection::vec(name, 1..4).prop_map(|parts| parts.join("/"))
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![0_usize..40, 4000_usize..4200, 9000_usize..9010]
}

fn data() -> impl Strategy<Value = Fill> {
    (1_u8..100, size())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (path(), data()).prop_map(|(p, d)| Step::Put(p, d)),
        2 => (path(), size(), data()).prop_map(|(p, o, d)| Step::PutAt(p, o, d)),
        2 => (path(), size()).prop_map(|(p, s)| Step::Truncate(p, s)),
        4 => path().prop_map(Step::Mkdir),
        2 => path().prop_map(Step::Unlink),
        1 => path().prop_map(Step::Rmdir),
        2 => (path(), path()).prop_map(|(a, b)| Step::Link(a, b)),
        4 => (path(), path()).prop_map(|(a, b)| Step::Rename(a, b)),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        10 => step().prop_map(Act::Inside),
        3 => step().prop_map(Act::Outside),
        2 => Just(Act::Begin),
        1 => Just(Act::Commit),
        1 => Just(Act::Abort),
    ]
}

fn tree_of(user: &User<'_>) -> BTreeMap<String, (Option<Runs>, u32)> {
    let mut tree = BTreeMap::new();
    user.tree("", &mut tree);
    tree
}

/// An open transaction: what it sees, and what it has done.
struct Open {
    id: TxnId,
    seen: Model,
    steps: Vec<Step>,
}

impl Open {
    /// It has committed; `stack` are those around it.
    fn pour(self, stack: &mut [Self], committed: &mut Model) {
        match stack.last_mut() {
            Some(around) => {
                around.seen = self.seen;
                around.steps.extend(self.steps);
            }
            None => *committed = self.seen,
        }
    }
}

/// What the open transactions see when something was committed before all that they did.
fn replay(stack: &mut [Open], committed: &Model) {
    let mut below = committed.clone();
    for open in stack {
        open.seen = below;
        for step in &open.steps {
            let _ = open.seen.apply(step);
        }
        below = open.seen.clone();
    }
}

fn play(engine: EngineKind, acts: &[Act]) {
    let dir = tempfile::tempdir().unwrap();
    let fs = open_with(dir.path(), &options(engine));
    let (mut inside, outside) = (User::new(&fs, 1), User::new(&fs, 2));
    let mut committed = Model::default();
    // The open transactions, outermost first.
    let mut stack: Vec<Open> = Vec::new();
    for (at, act) in acts.iter().enumerate() {
        match act {
            Act::Begin => {
                let seen = stack.last().map_or(&committed, |open| &open.seen).clone();
                let (id, steps) = (inside.begin(), Vec::new());
                stack.push(Open { id, seen, steps });
            }
            Act::Commit | Act::Abort => {
                let Some(open) = stack.pop() else {
                    continue;
                };
                let outer = stack.last().map(|open| open.id);
                if matches!(act, Act::Abort) {
                    inside.abort(outer);
                } else {
                    inside.commit(outer).unwrap();
                    open.pour(&mut stack, &mut committed);
                }
            }
            Act::Inside(step) => {
                let seen = match stack.last_mut() {
                    Some(open) => {
                        open.steps.push(step.clone());
                        &mut open.seen
                    }
                    None => &mut committed,
                };
                assert_eq!(perform(&inside, step), seen.apply(step), "{at}: {step:?}");
            }
            Act::Outside(step) => {
                // What the transactions have touched waits. The rest happens before all of them.
                let result = perform(&outside, step);
                let mut expected = committed.clone();
                match (&result, expected.apply(step)) {
                    (Err(LOCKED), _) => {}
                    (_, theirs) => {
                        assert_eq!(result, theirs, "{at}: outside {step:?}");
                        committed = expected;
                        replay(&mut stack, &committed);
                    }
                }
            }
        }
        if at % 4 == 0 || matches!(act, Act::Commit | Act::Abort) {
            assert_eq!(
                tree_of(&outside),
                committed.tree(),
                "{at}: outside after {act:?}"
            );
        }
    }
    let seen = stack.last().map_or(&committed, |open| &open.seen);
    assert_eq!(tree_of(&inside), seen.tree(), "inside at the end");
    while let Some(open) = stack.pop() {
        inside.commit(stack.last().map(|open| open.id)).unwrap();
        open.pour(&mut stack, &mut committed);
    }
    assert_eq!(tree_of(&outside), committed.tree(), "at the end");
    close_and_check(fs, dir.path());
    let fs = open_with(dir.path(), &options(engine));
    if engine != EngineKind::Memory {
        assert_eq!(
            tree_of(&User::new(&fs, 3)),
            committed.tree(),
            "opened again"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn nested_transactions_behave_like_copies_of_the_tree(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Memory, &acts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_was_committed_is_there_after_opening_again(acts in prop::collection::vec(act(), 1..60)) {
        play(EngineKind::Fjall, &acts);
    }
}
