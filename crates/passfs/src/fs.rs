//! The operations of `FileSystem` on a host directory: one short method each, which names the file with the work.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;

use goanna_vfs::{
    Attr, Caller, DirEntry, FileSystem, Identity, Native, Node, OnHost, Opened, Result, SetAttr,
    StatFs,
};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};

use crate::PassFs;
use crate::credentials::{DAC, ENTRIES};
use crate::node::{Pin, os};

/// The lower file itself: all its calls run without us.
fn native(fd: std::os::fd::OwnedFd) -> Opened {
    Opened {
        description: fd.into(),
        native: Native::All,
    }
}

impl FileSystem for PassFs {
    fn kind(&self) -> &'static str {
        "pass"
    }

    fn root(&self) -> Node {
        self.root_node()
    }

    fn checks_access(&self) -> bool {
        true
    }

    fn opens_host_files(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<&dyn Identity> {
        Some(self)
    }

    fn lookup(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        Ok(self.lookup_path(caller, dir, name)?)
    }

    fn behind_link(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Node> {
        Ok(self.open_path(caller, dir, name, OFlags::empty())?)
    }

    fn parent(&self, caller: &Caller, dir: &Node) -> Result<Node> {
        Ok(self.parent_of(caller, dir)?)
    }

    fn path(&self, _: &Caller, node: &Node) -> Result<(Vec<u8>, bool)> {
        Ok(self.relative_path(node)?)
    }

    fn getattr(&self, _: &Caller, node: &Node) -> Result<Attr> {
        Ok(self.attributes(node)?)
    }

    fn getattr_at(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Option<Attr>> {
        Ok(Some(self.attributes_at(caller, dir, name)?))
    }

    fn readlink(&self, caller: &Caller, node: &Node) -> Result<Vec<u8>> {
        Ok(self.link_text(caller, node)?)
    }

    fn readdir(
        &self,
        caller: &Caller,
        dir: &Node,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Ok(self.list(caller, dir, cookie, sink)?)
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        Ok(self.open_at(caller, node, flags).map(native)?)
    }

    fn read_at(&self, caller: &Caller, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.read(caller, node, offset, buf)?)
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let (node, fd) = self.create_at(caller, dir, name, mode, flags)?;
        Ok((node, native(fd)))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        let (node, fd) = self.create_unnamed(caller, dir, mode, flags)?;
        Ok((node, native(fd)))
    }

    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        Ok(self.make_node(caller, dir, name, mode, rdev)?)
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        let pin = Pin::of(dir)?;
        self.as_caller_creating(caller, &[(dir, ENTRIES)], || {
            rustix::fs::mkdirat(&pin.fd, name, Mode::from_bits_retain(mode)).map_err(os)
        })?;
        Ok(self.lookup_path(caller, dir, name)?)
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        let pin = Pin::of(dir)?;
        self.as_caller_creating(caller, &[(dir, ENTRIES)], || {
            rustix::fs::symlinkat(target, &pin.fd, name).map_err(os)
        })?;
        Ok(self.lookup_path(caller, dir, name)?)
    }

    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        Ok(self.add_name(caller, node, dir, name)?)
    }

    fn link_open(
        &self,
        caller: &Caller,
        file: BorrowedFd<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<()> {
        Ok(self.add_name_of_open(caller, file, dir, name)?)
    }

    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let pin = Pin::of(dir)?;
        let (victim, caps) = self.victim(caller, dir, name);
        Ok(
            self.as_caller(caller, &[(dir, ENTRIES), (&victim, caps)], || {
                rustix::fs::unlinkat(&pin.fd, name, AtFlags::empty()).map_err(os)
            })?,
        )
    }

    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let pin = Pin::of(dir)?;
        let (victim, caps) = self.victim(caller, dir, name);
        Ok(
            self.as_caller(caller, &[(dir, ENTRIES), (&victim, caps)], || {
                rustix::fs::unlinkat(&pin.fd, name, AtFlags::REMOVEDIR).map_err(os)
            })?,
        )
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
        let (from_pin, to_pin) = (Pin::of(from_dir)?, Pin::of(to_dir)?);
        let flags = RenameFlags::from_bits_retain(flags);
        // RENAME_WHITEOUT makes a device node, whose mode the umask does not touch.
        let (source, owner) = self.victim(caller, from_dir, from);
        // A directory that moves is written to: its `..` changes.
        let moves = if source.is_dir() { DAC } else { 0 };
        let (target, replaces) = self.victim(caller, to_dir, to);
        let concerned = [
            (from_dir, ENTRIES),
            (to_dir, ENTRIES),
            (&source, owner | moves),
            (&target, replaces),
        ];
        Ok(self.as_caller(caller, &concerned, || {
            rustix::fs::renameat_with(&from_pin.fd, from, &to_pin.fd, to, flags).map_err(os)
        })?)
    }

    fn truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        Ok(self.resize(caller, node, size)?)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        Ok(self.allocate(caller, node, mode, offset, len)?)
    }

    fn sync(&self, node: Option<&Node>) -> Result<()> {
        Ok(self.make_durable(node)?)
    }

    fn host_path(&self, node: &Node) -> Option<std::path::PathBuf> {
        // A removed name leads nowhere, or to another file by now.
        let (path, deleted) = self.absolute_path(node).ok()?;
        // A pipe, for example, never had a name.
        let has_name = path.first() == Some(&b'/');
        if !has_name || !deleted && !self.leads_here(&path, node) {
            let own = std::process::id();
            return Some(format!("/proc/{own}/fd/{}", Pin::of(node).ok()?.fd.as_raw_fd()).into());
        }
        (!deleted).then(|| std::ffi::OsString::from_vec(path).into())
    }

    fn on_host(&self, node: &Node) -> Option<OnHost> {
        let (path, deleted) = self.absolute_path(node).ok()?;
        let has_name = !deleted && path.first() == Some(&b'/');
        Some(OnHost {
            path: has_name.then(|| std::ffi::OsString::from_vec(path).into())?,
            attr: self.attributes(node).ok()?,
        })
    }

    fn host_file<'n>(&self, node: &'n Node) -> Option<BorrowedFd<'n>> {
        Some(Pin::of(node).ok()?.fd.as_fd())
    }

    fn host_dir<'n>(&self, dir: &'n Node) -> Option<BorrowedFd<'n>> {
        self.host_file(dir)
    }

    fn setattr(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        Ok(self.change(caller, node, set)?)
    }

    fn flags(&self, caller: &Caller, node: &Node) -> Result<u32> {
        Ok(self.host_flags(caller, node)?)
    }

    fn statfs(&self, _: &Caller, node: &Node) -> Result<StatFs> {
        Ok(self.figures(node)?)
    }

    fn getxattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.xattr(caller, node, name)?)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        Ok(self.set_xattr(caller, node, name, value, flags)?)
    }

    fn listxattr(&self, caller: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        Ok(self.xattr_names(caller, node)?)
    }

    fn removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        Ok(self.remove_xattr(caller, node, name)?)
    }
}
