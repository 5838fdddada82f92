//! A layer that encodes names: the lower file system holds `66696c65` for `file`, and everything else as it is.
//!
//! The methods with names in them encode and decode (`encodename` and `decodename` of Goanna, section 4.1); all others are
//! forwarded. A name in the lower file system that is not an encoding is not shown.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use goanna_vfs::{
    Caller, DirEntry, Errno, FileSystem, NAME_MAX, Node, Opened, Result, StatFs, forward,
};

/// A file system whose names are encoded in the lower one.
pub struct NamesFs {
    lower: Arc<dyn FileSystem>,
}

impl NamesFs {
    /// A layer over `lower`.
    pub fn new(lower: Arc<dyn FileSystem>) -> Self {
        Self { lower }
    }
}

/// Two hexadecimal digits for each byte. ENAMETOOLONG where the lower file system has no room for them.
fn encode(name: &[u8]) -> Result<Vec<u8>> {
    let text: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    let fits = text.len() <= NAME_MAX;
    fits.then(|| text.into_bytes())
        .ok_or(Errno::ENAMETOOLONG.into())
}

/// The name; `None` for what [`encode`] does not make.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let digits = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let name: Vec<u8> = text.chunks(2).map(digits).collect::<Option<_>>()?;
    (encode(&name).as_deref() == Ok(text)).then_some(name)
}

impl FileSystem for NamesFs {
    forward! {
        lower: lower;
        forward: root checks_access is_read_only opens_host_files largest_file transactions content
            identity parent getattr readlink open read_at tmpfile write write_at truncate fallocate sync
            behind_link host_path on_host host_file setattr flags getxattr setxattr listxattr removexattr;
        own: kind shared_attributes host_dir lookup getattr_at path readdir create mknod mkdir symlink link link_open unlink rmdir rename
            statfs;
    }

    fn kind(&self) -> &'static str {
        "names"
    }

    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        self.lower.lookup(caller, dir, &encode(name)?)
    }

    fn path(&self, caller: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        let (path, is_deleted) = self.lower.path(caller, node)?;
        let names = path.split(|&byte| byte == b'/').map(decode);
        let names = names.collect::<Option<Vec<_>>>().ok_or(Errno::ENOENT)?;
        Ok((names.join(&b'/'), is_deleted))
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.lower.readdir(caller, dir, cookie, &mut |entry| {
            decode(entry.name).is_none_or(|name| {
                sink(DirEntry {
                    name: &name,
                    ..entry
                })
            })
        })
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.lower.create(caller, dir, &encode(name)?, mode, flags)
    }

    fn mknod(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32, dev: u64) -> Result<Node> {
        self.lower.mknod(caller, dir, &encode(name)?, mode, dev)
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        self.lower.mkdir(caller, dir, &encode(name)?, mode)
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        self.lower.symlink(caller, dir, &encode(name)?, target)
    }

    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.lower.link(caller, node, dir, &encode(name)?)
    }

    fn link_open(&self, by: &Caller, file: BorrowedFd<'_>, dir: &Node, name: &[u8]) -> Result<()> {
        self.lower.link_open(by, file, dir, &encode(name)?)
    }

    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.lower.unlink(caller, dir, &encode(name)?)
    }

    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.lower.rmdir(caller, dir, &encode(name)?)
    }

    fn rename(
        &self,
        caller: &Caller,
        from_dir: &Node,
        from: &[u8],
        to_dir: &Node,
        to: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (from, to) = (encode(from)?, encode(to)?);
        self.lower
            .rename(caller, from_dir, &from, to_dir, &to, flags)
    }

    fn statfs(&self, caller: &Caller, node: &Node) -> Result<StatFs> {
        let lower = self.lower.statfs(caller, node)?;
        let name_max = lower.name_max / 2;
        Ok(StatFs { name_max, ..lower })
    }
}
