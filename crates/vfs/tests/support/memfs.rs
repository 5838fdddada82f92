//! A minimal file system in memory. It checks no permissions, so that every refusal that a test sees comes from
//! `goanna_vfs::ops`. Contents are sizes only.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use goanna_vfs::{
    Attr, Caller, DirEntry, Errno, FileKind, FileSystem, Native, Node, Opened, Result, SetAttr,
    Stamp, StatFs, TimeSet,
};

#[derive(Default, Clone)]
struct Inode {
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
    size: u64,
    nlink: u32,
    parent: u64,
    atime: Stamp,
    mtime: Stamp,
    target: Vec<u8>,
    entries: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Inode {
    fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap()
    }

    fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }
}

#[derive(Default)]
struct State {
    inodes: HashMap<u64, Inode>,
    last: u64,
}

impl State {
    fn get(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).unwrap()
    }

    fn dir(&mut self, node: &Node) -> Result<&mut Inode> {
        let inode = self.get(node.ino());
        if !inode.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(inode)
    }

    fn entry(&mut self, dir: &Node, name: &[u8]) -> Result<u64> {
        let dir = self.dir(dir)?;
        dir.entries.get(name).copied().ok_or(Errno::ENOENT.into())
    }

    fn node(&mut self, ino: u64) -> Node {
        Node::bare(ino, self.get(ino).kind())
    }

    fn add(&mut self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        let parent = dir.ino();
        let in_dir = self.dir(dir)?;
        if in_dir.entries.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        if in_dir.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        let mut inode = Inode {
            mode,
            uid: caller.uid,
            gid: caller.gid,
            nlink: 1,
            parent,
            ..Inode::default()
        };
        if inode.kind() != FileKind::Symlink {
            inode.mode &= !(caller.umask & 0o777);
        }
        if in_dir.mode & libc::S_ISGID != 0 {
            inode.gid = in_dir.gid;
            if inode.is_dir() {
                inode.mode |= libc::S_ISGID;
            }
        }
        if inode.is_dir() {
            inode.nlink = 2;
            in_dir.nlink += 1;
        }
        self.last += 1;
        let ino = self.last;
        self.insert(parent, name, ino);
        self.inodes.insert(ino, inode);
        Ok(self.node(ino))
    }

    /// Takes the name away, and the directory's own links with it.
    fn drop_name(&mut self, dir: u64, name: &[u8]) {
        let ino = self.remove(dir, name);
        if self.get(ino).is_dir() {
            self.get(ino).nlink = 0;
            self.get(dir).nlink -= 1;
        } else {
            self.get(ino).nlink -= 1;
        }
    }

    fn put(&mut self, dir: u64, name: &[u8], ino: u64) {
        self.insert(dir, name, ino);
        let inode = self.get(ino);
        if inode.is_dir() {
            let old = std::mem::replace(&mut inode.parent, dir);
            self.get(old).nlink -= 1;
            self.get(dir).nlink += 1;
        }
    }

    fn insert(&mut self, dir: u64, name: &[u8], ino: u64) {
        let dir = self.get(dir);
        dir.mtime = Stamp::now();
        dir.entries.insert(name.to_vec(), ino);
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> u64 {
        let dir = self.get(dir);
        dir.mtime = Stamp::now();
        dir.entries.remove(name).unwrap()
    }

    fn is_above(&mut self, ancestor: u64, mut dir: u64) -> bool {
        loop {
            if dir == ancestor {
                return true;
            }
            let parent = self.get(dir).parent;
            if parent == dir {
                return false;
            }
            dir = parent;
        }
    }
}

pub struct MemFs {
    state: Mutex<State>,
    /// Nothing can be written from now on.
    pub read_only: AtomicBool,
}

impl Default for MemFs {
    fn default() -> Self {
        let mut state = State {
            last: 1,
            ..State::default()
        };
        let root = Inode {
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            parent: 1,
            ..Inode::default()
        };
        state.inodes.insert(1, root);
        Self {
            state: Mutex::new(state),
            read_only: AtomicBool::new(false),
        }
    }
}

impl MemFs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn opened() -> Opened {
    Opened {
        description: OwnedFd::from(File::open("/dev/null").unwrap()).into(),
        native: Native::All,
    }
}

fn when(time: TimeSet) -> Stamp {
    match time {
        TimeSet::Now => Stamp::now(),
        TimeSet::At(stamp) => stamp,
    }
}

fn known_xattr(name: &[u8]) -> Result<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if known.iter().any(|prefix| name.starts_with(prefix)) {
        Ok(())
    } else {
        Err(Errno::EOPNOTSUPP.into())
    }
}

impl FileSystem for MemFs {
    fn kind(&self) -> &'static str {
        "mem"
    }

    fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    fn root(&self) -> Node {
        Node::bare(1, FileKind::Directory)
    }

    fn lookup(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        let mut state = self.state();
        let ino = state.entry(dir, name)?;
        Ok(state.node(ino))
    }

    fn parent(&self, _: &Caller, dir: &Node) -> Result<Node> {
        let mut state = self.state();
        let parent = state.dir(dir)?.parent;
        Ok(state.node(parent))
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        let state = self.state();
        let (mut path, mut ino) = (Vec::new(), node.ino());
        while ino != 1 {
            let name = |inode: &Inode| {
                let found = inode.entries.iter().find(|(_, child)| **child == ino);
                found.map(|(name, _)| name.clone())
            };
            let parent = state
                .inodes
                .iter()
                .find_map(|(at, inode)| Some((*at, name(inode)?)));
            let (parent, name) = parent.ok_or(Errno::ENOENT)?;
            path = if path.is_empty() {
                name
            } else {
                [name, path].join(&b'/')
            };
            ino = parent;
        }
        Ok((path, false))
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        let inode = self.state().get(node.ino()).clone();
        Ok(Attr {
            dev: 1,
            ino: node.ino(),
            mode: inode.mode,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            blksize: 4096,
            blocks: 0,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: Stamp::default(),
            btime: None,
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        })
    }

    fn readlink(&self, _: &Caller, node: &Node) -> Result<Vec<u8>> {
        if node.kind() != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        Ok(self.state().get(node.ino()).target.clone())
    }

    fn readdir(
        &self,
        _: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut state = self.state();
        let entries = state.dir(dir)?.entries.clone();
        for (at, (name, ino)) in (1..).zip(entries) {
            let kind = state.get(ino).kind();
            let entry = DirEntry {
                name: &name,
                ino,
                kind,
                cookie: at,
            };
            if at > cookie && !sink(entry) {
                break;
            }
        }
        Ok(())
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        if flags & libc::O_TRUNC != 0 {
            self.truncate(caller, node, 0)?;
        }
        Ok(opened())
    }

    fn read_at(&self, _: &Caller, _: &Node, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::ENOSYS.into())
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        _: i32,
    ) -> Result<(Node, Opened)> {
        let node = self.state().add(caller, dir, name, libc::S_IFREG | mode)?;
        Ok((node, opened()))
    }

    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        let mut state = self.state();
        let node = state.add(caller, dir, name, mode)?;
        state.get(node.ino()).rdev = rdev;
        Ok(node)
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        self.state().add(caller, dir, name, libc::S_IFDIR | mode)
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        let mut state = self.state();
        let node = state.add(caller, dir, name, libc::S_IFLNK | 0o777)?;
        let inode = state.get(node.ino());
        inode.target = target.to_vec();
        inode.size = target.len() as u64;
        Ok(node)
    }

    fn link(&self, _: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        if state.dir(dir)?.entries.contains_key(name) {
            return Err(Errno::EEXIST.into());
        }
        state.get(node.ino()).nlink += 1;
        state.insert(dir.ino(), name, node.ino());
        Ok(())
    }

    fn unlink(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        let ino = state.entry(dir, name)?;
        if state.get(ino).is_dir() {
            return Err(Errno::EISDIR.into());
        }
        state.drop_name(dir.ino(), name);
        Ok(())
    }

    fn rmdir(&self, _: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        let ino = state.entry(dir, name)?;
        if !state.get(ino).is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if !state.get(ino).entries.is_empty() {
            return Err(Errno::ENOTEMPTY.into());
        }
        state.drop_name(dir.ino(), name);
        Ok(())
    }

    fn rename(
        &self,
        _: &Caller,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        let mut state = self.state();
        let source = state.entry(from_dir, from)?;
        let target = state.entry(to_dir, to).ok();
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if flags & libc::RENAME_NOREPLACE != 0 && target.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if exchange && target.is_none() {
            return Err(Errno::ENOENT.into());
        }
        if state.is_above(source, to_dir.ino()) {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = target {
            if state.is_above(target, from_dir.ino()) {
                return Err(if exchange {
                    Errno::EINVAL.into()
                } else {
                    Errno::ENOTEMPTY.into()
                });
            }
            if target == source {
                return Ok(());
            }
        }
        match target {
            Some(target) if exchange => {
                state.put(from_dir.ino(), from, target);
                state.put(to_dir.ino(), to, source);
                return Ok(());
            }
            Some(target) => {
                match (state.get(source).is_dir(), state.get(target).is_dir()) {
                    (true, false) => return Err(Errno::ENOTDIR.into()),
                    (false, true) => return Err(Errno::EISDIR.into()),
                    _ => {}
                }
                if !state.get(target).entries.is_empty() {
                    return Err(Errno::ENOTEMPTY.into());
                }
                state.drop_name(to_dir.ino(), to);
            }
            None => {}
        }
        state.remove(from_dir.ino(), from);
        state.put(to_dir.ino(), to, source);
        Ok(())
    }

    fn truncate(&self, _: &Caller, node: &Node, size: u64) -> Result<()> {
        let mut state = self.state();
        let inode = state.get(node.ino());
        (inode.size, inode.mtime) = (size, Stamp::now());
        Ok(())
    }

    fn setattr(&self, _: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        let mut state = self.state();
        let inode = state.get(node.ino());
        if let Some(mode) = set.mode {
            inode.mode = inode.mode & libc::S_IFMT | mode;
        }
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        inode.atime = set.atime.map_or(inode.atime, when);
        inode.mtime = set.mtime.map_or(inode.mtime, when);
        Ok(())
    }

    fn statfs(&self, _: &Caller, _: &Node) -> Result<StatFs> {
        Ok(StatFs::default())
    }

    fn getxattr(&self, _: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        known_xattr(name)?;
        let mut state = self.state();
        let value = state.get(node.ino()).xattrs.get(name).cloned();
        value.ok_or(Errno::ENODATA.into())
    }

    fn setxattr(
        &self,
        _: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        known_xattr(name)?;
        let mut state = self.state();
        let xattrs = &mut state.get(node.ino()).xattrs;
        let there = xattrs.contains_key(name);
        if flags & libc::XATTR_CREATE != 0 && there {
            return Err(Errno::EEXIST.into());
        }
        if flags & libc::XATTR_REPLACE != 0 && !there {
            return Err(Errno::ENODATA.into());
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn listxattr(&self, _: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        Ok(self
            .state()
            .get(node.ino())
            .xattrs
            .keys()
            .cloned()
            .collect())
    }

    fn removexattr(&self, _: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        known_xattr(name)?;
        let removed = self.state().get(node.ino()).xattrs.remove(name);
        removed.map(drop).ok_or(Errno::ENODATA.into())
    }
}
