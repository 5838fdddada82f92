//! A user of the file system: calls it as the monitor does on a process's behalf.

use std::os::fd::{AsFd, OwnedFd};

use amino_fs::AminoFs;
use goanna_vfs::{
    CachedContent, Caller, Errno, FileKind, FileSystem, OpenFile, Result, SetAttr, TxnId,
    WritePosition,
};

use super::Layout;
use super::model::{DIR_PERM, FILE_PERM};
use super::op::{Calls, Kind, Stat, perform};

/// The attribute that operations set.
const MARK: &[u8] = b"user.mark";

/// Longest content that operations make, in bytes.
const CONTENT_MAX: usize = 4096;

/// An object that was opened before a history began, and stays open.
struct Held {
    node: goanna_vfs::Node,
    /// Of files.
    fd: Option<OwnedFd>,
}

/// The directory of one history in a store, with the open objects in it.
pub struct Site<'a> {
    /// The store.
    pub fs: &'a AminoFs,
    name: String,
    top: goanna_vfs::Node,
    held: Vec<Held>,
}

impl<'a> Site<'a> {
    /// Makes a directory `name`, and in it the files of `layout`.
    pub fn new(fs: &'a AminoFs, name: &str, layout: &Layout) -> Self {
        let caller = caller(0, None);
        fs.mkdir(&caller, &fs.root(), name.as_bytes(), DIR_PERM)
            .unwrap();
        let mut site = Self::open(fs, name);
        for op in layout.make {
            perform(&mut site.user(0, None), op).unwrap();
        }
        for path in layout.held {
            let node = path.split('/').fold(site.top.clone(), |dir, name| {
                fs.lookup(&caller, &dir, name.as_bytes()).unwrap()
            });
            let is_file = node.kind() == FileKind::Regular;
            let fd = is_file.then(|| {
                fs.open(&caller, &node, libc::O_RDWR)
                    .unwrap()
                    .description
                    .into_fd()
                    .unwrap()
            });
            site.held.push(Held { node, fd });
        }
        site
    }

    /// An existing directory, with no open object.
    pub fn open(fs: &'a AminoFs, name: &str) -> Self {
        let top = fs.lookup(&caller(0, None), &fs.root(), name.as_bytes());
        Self {
            fs,
            name: name.to_owned(),
            top: top.unwrap(),
            held: Vec::new(),
        }
    }

    /// Thread `tid`, within a transaction or outside of all.
    pub fn user(&self, tid: i32, txn: Option<TxnId>) -> User<'_> {
        User {
            site: self,
            caller: caller(tid, txn),
        }
    }

    /// Closes the open objects.
    pub fn close(self) {
        for Held { node, fd } in self.held {
            if fd.is_some() {
                drop(fd);
                self.fs.released(&node);
            }
        }
    }
}

fn caller(tid: i32, txn: Option<TxnId>) -> Caller {
    Caller {
        tid,
        pid: tid,
        groups: [0].into(),
        umask: 0,
        txn,
        ..Caller::with_ids(0, 0)
    }
}

/// See the module's documentation.
pub struct User<'a> {
    site: &'a Site<'a>,
    caller: Caller,
}

/// An object that a user has reached by a path walk, or has open.
#[derive(Clone)]
pub struct Reached {
    node: goanna_vfs::Node,
    held: Option<usize>,
}

impl From<goanna_vfs::Node> for Reached {
    fn from(node: goanna_vfs::Node) -> Self {
        Self { node, held: None }
    }
}

impl User<'_> {
    fn fs(&self) -> &AminoFs {
        self.site.fs
    }

    fn write_to(
        &self,
        node: &goanna_vfs::Node,
        fd: &OwnedFd,
        position: WritePosition,
        byte: u8,
    ) -> Result<()> {
        let file = OpenFile {
            node,
            ofd: fd.as_fd(),
            flags: libc::O_RDWR,
        };
        let written = self.fs().write(&self.caller, file, position, &[byte])?;
        assert_eq!(written, 1);
        Ok(())
    }
}

fn kind(kind: FileKind) -> Kind {
    match kind {
        FileKind::Directory => Kind::Dir,
        FileKind::Regular => Kind::File,
        other => unreachable!("nothing makes a {other:?}"),
    }
}

impl Calls for User<'_> {
    type Node = Reached;

    fn start(&self, held: Option<usize>) -> Reached {
        let node = match held {
            Some(number) => &self.site.held[number].node,
            None => &self.site.top,
        };
        let node = node.clone();
        Reached { node, held }
    }

    fn held(&self) -> usize {
        self.site.held.len()
    }

    fn kind(&self, node: &Reached) -> Kind {
        kind(node.node.kind())
    }

    fn lookup(&mut self, dir: &Reached, name: &str) -> Result<Reached> {
        let node = self.fs().lookup(&self.caller, &dir.node, name.as_bytes())?;
        Ok(node.into())
    }

    fn parent(&mut self, dir: &Reached) -> Result<Reached> {
        if dir.node.ino() == self.site.top.ino() {
            return Ok(dir.clone());
        }
        Ok(self.fs().parent(&self.caller, &dir.node)?.into())
    }

    fn path(&mut self, dir: &Reached) -> Result<(String, bool)> {
        let (path, deleted) = self.fs().path(&self.caller, &dir.node)?;
        let path = String::from_utf8(path).unwrap();
        let below = path.strip_prefix(&self.site.name).unwrap_or(&path);
        Ok((below.trim_start_matches('/').to_owned(), deleted))
    }

    fn read(&mut self, file: &Reached) -> Result<Vec<u8>> {
        let mut data = vec![0; CONTENT_MAX];
        let got = self.fs().read_at(&self.caller, &file.node, 0, &mut data)?;
        data.truncate(got);
        Ok(data)
    }

    fn stat(&mut self, node: &Reached) -> Result<Stat> {
        let attr = self.fs().getattr(&self.caller, &node.node)?;
        let kind = kind(attr.kind());
        Ok(Stat {
            kind,
            perm: attr.perm(),
            nlink: attr.nlink,
            size: if kind == Kind::File { attr.size } else { 0 },
        })
    }

    fn list(&mut self, dir: &Reached) -> Result<Vec<(String, Kind)>> {
        let mut names = Vec::new();
        self.fs()
            .readdir(&self.caller, &dir.node, 0, &mut |entry| {
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                names.push((name, kind(entry.kind)));
                true
            })?;
        names.sort();
        Ok(names)
    }

    fn get_mark(&mut self, node: &Reached) -> Result<Vec<u8>> {
        self.fs().getxattr(&self.caller, &node.node, MARK)
    }

    fn create(&mut self, dir: &Reached, name: &str) -> Result<Reached> {
        let name = name.as_bytes();
        let flags = libc::O_RDWR;
        let (node, opened) = self
            .fs()
            .create(&self.caller, &dir.node, name, FILE_PERM, flags)?;
        drop(opened);
        self.fs().released(&node);
        Ok(node.into())
    }

    fn write(&mut self, file: &Reached, at: Option<u64>, byte: u8) -> Result<()> {
        let position = at.map_or(WritePosition::End, WritePosition::At);
        if let Some(held) = file.held.map(|number| &self.site.held[number]) {
            let fd = held.fd.as_ref().ok_or(Errno::EISDIR)?;
            return self.write_to(&held.node, fd, position, byte);
        }
        let opened = self.fs().open(&self.caller, &file.node, libc::O_RDWR)?;
        let result = self.write_to(&file.node, opened.fd().unwrap(), position, byte);
        drop(opened);
        self.fs().released(&file.node);
        result
    }

    fn truncate(&mut self, file: &Reached, size: u64) -> Result<()> {
        self.fs().truncate(&self.caller, &file.node, size)
    }

    fn chmod(&mut self, node: &Reached, perm: u32) -> Result<()> {
        let set = SetAttr {
            mode: Some(perm),
            ..SetAttr::default()
        };
        self.fs().setattr(&self.caller, &node.node, &set)
    }

    fn mark(&mut self, node: &Reached, byte: u8) -> Result<()> {
        let value = &[byte];
        self.fs().setxattr(&self.caller, &node.node, MARK, value, 0)
    }

    fn mkdir(&mut self, dir: &Reached, name: &str) -> Result<()> {
        let name = name.as_bytes();
        let made = self.fs().mkdir(&self.caller, &dir.node, name, DIR_PERM);
        made.map(drop)
    }

    fn unlink(&mut self, dir: &Reached, name: &str) -> Result<()> {
        self.fs().unlink(&self.caller, &dir.node, name.as_bytes())
    }

    fn rmdir(&mut self, dir: &Reached, name: &str) -> Result<()> {
        self.fs().rmdir(&self.caller, &dir.node, name.as_bytes())
    }

    fn link(&mut self, file: &Reached, dir: &Reached, name: &str) -> Result<()> {
        let name = name.as_bytes();
        self.fs().link(&self.caller, &file.node, &dir.node, name)
    }

    fn rename(&mut self, from: (&Reached, &str), to: (&Reached, &str), swap: bool) -> Result<()> {
        let (from_dir, from) = (&from.0.node, from.1.as_bytes());
        let (to_dir, to) = (&to.0.node, to.1.as_bytes());
        let flags = if swap { libc::RENAME_EXCHANGE } else { 0 };
        self.fs()
            .rename(&self.caller, from_dir, from, to_dir, to, flags)
    }
}
