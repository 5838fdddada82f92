//! A user of the file system within transactions and outside of them.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its part, and fails by panicking"
)]

use std::collections::BTreeMap;

use amino_fs::AminoFs;
use goanna_vfs::{
    Caller, Errno, FileSystem, FsError, Node, Result, Transactions, TxnId, WritePosition,
};

use super::{Handle, root};

/// A user of the file system, in a transaction or outside of all.
pub struct User<'a> {
    pub fs: &'a AminoFs,
    pub caller: Caller,
}

impl<'a> User<'a> {
    pub fn new(fs: &'a AminoFs, tid: i32) -> Self {
        let caller = Caller { tid, ..root() };
        Self { fs, caller }
    }

    pub fn begin(&mut self) -> TxnId {
        let id = self.fs.begin(self.caller.txn).unwrap();
        self.caller.txn = Some(id);
        id
    }

    /// Ends the current transaction; `outer` is the one around it.
    pub fn commit(&mut self, outer: Option<TxnId>) -> Result<()> {
        let result = self.fs.commit(self.caller.txn.unwrap());
        self.caller.txn = outer;
        if result? {
            self.fs.make_durable(None)?;
        }
        Ok(())
    }

    pub fn abort(&mut self, outer: Option<TxnId>) {
        self.fs.abort(self.caller.txn.unwrap());
        self.caller.txn = outer;
    }

    pub fn walk(&self, path: &str) -> Result<Node> {
        let mut node = self.fs.root();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            if !node.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            node = self.fs.lookup(&self.caller, &node, name.as_bytes())?;
        }
        Ok(node)
    }

    pub fn parent<'p>(&self, path: &'p str) -> Result<(Node, &'p [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.walk(dir)?;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok((dir, name.as_bytes()))
    }

    pub fn open(&self, path: &str, flags: i32) -> Result<Handle> {
        let node = self.walk(path)?;
        let fd = self.fs.open(&self.caller, &node, flags)?.into_fd()?;
        Ok(Handle { node, fd, flags })
    }

    pub fn create(&self, path: &str) -> Result<Handle> {
        let (dir, name) = self.parent(path)?;
        let flags = libc::O_RDWR;
        let (node, opened) = self.fs.create(&self.caller, &dir, name, 0o644, flags)?;
        let fd = opened.into_fd()?;
        Ok(Handle { node, fd, flags })
    }

    pub fn write(&self, handle: &Handle, position: WritePosition, data: &[u8]) -> Result<usize> {
        use std::os::fd::AsFd;
        let file = goanna_vfs::OpenFile {
            node: &handle.node,
            ofd: handle.fd.as_fd(),
            flags: handle.flags,
        };
        self.fs.write(&self.caller, file, position, data)
    }

    /// Makes the file, or rewrites it.
    pub fn put(&self, path: &str, data: &[u8]) -> Result<()> {
        let handle = match self.create(path) {
            Err(FsError::Errno(Errno::EEXIST)) => self.open(path, libc::O_RDWR | libc::O_TRUNC)?,
            other => other?,
        };
        self.write(&handle, WritePosition::Cursor, data)?;
        handle.close(self.fs);
        Ok(())
    }

    pub fn put_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<()> {
        let handle = self.open(path, libc::O_RDWR)?;
        self.write(&handle, WritePosition::At(offset), data)?;
        handle.close(self.fs);
        Ok(())
    }

    pub fn truncate(&self, path: &str, size: u64) -> Result<()> {
        let node = self.walk(path)?;
        self.fs.truncate(&self.caller, &node, size)
    }

    pub fn get_node(&self, node: &Node) -> Result<Vec<u8>> {
        let size = self.fs.getattr(&self.caller, node)?.size as usize;
        let mut data = vec![0; size + 10];
        let got = self.fs.read_at(&self.caller, node, 0, &mut data)?;
        data.truncate(got);
        Ok(data)
    }

    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.get_node(&self.walk(path)?)
    }

    pub fn mkdir(&self, path: &str) -> Result<Node> {
        let (dir, name) = self.parent(path)?;
        self.fs.mkdir(&self.caller, &dir, name, 0o755)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.unlink(&self.caller, &dir, name)
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.fs.rmdir(&self.caller, &dir, name)
    }

    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        let node = self.walk(from)?;
        let (dir, name) = self.parent(to)?;
        self.fs.link(&self.caller, &node, &dir, name)
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from_dir, from) = self.parent(from)?;
        let (to_dir, to) = self.parent(to)?;
        self.fs
            .rename(&self.caller, &from_dir, from, &to_dir, to, 0)
    }

    pub fn names(&self, path: &str) -> Result<Vec<String>> {
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
    pub fn tree(&self, path: &str, out: &mut BTreeMap<String, (Option<Runs>, u32)>) {
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
pub type Runs = Vec<(u8, usize)>;

pub fn runs(data: &[u8]) -> Runs {
    data.chunk_by(|a, b| a == b)
        .map(|run| (run[0], run.len()))
        .collect()
}
