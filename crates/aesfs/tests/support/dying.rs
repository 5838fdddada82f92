//! A lower file system that stops changing anything at a chosen step, as if the process had been killed there.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_sys::memfile;
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{
    Caller, Errno, FileSystem, Native, Node, OpenFile, Opened, Result, SetAttr, WritePosition,
    forward,
};

/// Counts the operations that change the lower directory, and fails the one at which the process dies and all after it. The
/// caller's reactions to the errors change nothing either: these operations fail, too.
pub struct Dying {
    lower: Arc<dyn FileSystem>,
    /// Changes until the process dies.
    left: AtomicU64,
    /// How much of the write at which it dies reaches the file: this many 16ths.
    torn: usize,
}

/// The outcome of a change.
enum Fate {
    Done,
    /// The process dies in it.
    Last,
    Never,
}

impl Dying {
    pub fn new(lower: Arc<dyn FileSystem>, steps: u64, torn: usize) -> Self {
        Self {
            lower,
            left: AtomicU64::new(steps),
            torn,
        }
    }

    /// Whether the process has died.
    pub fn is_dead(&self) -> bool {
        self.left.load(Ordering::Relaxed) == u64::MAX
    }

    fn fate(&self) -> Fate {
        let next = |left| match left {
            u64::MAX => None,
            0 => Some(u64::MAX),
            left => Some(left - 1),
        };
        match self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
        {
            Ok(0) => Fate::Last,
            Ok(_) => Fate::Done,
            Err(_) => Fate::Never,
        }
    }

    fn step(&self) -> Result<()> {
        match self.fate() {
            Fate::Done => Ok(()),
            Fate::Last | Fate::Never => Err(Errno::EIO.into()),
        }
    }

    /// The descriptor of a file, with all its changes sent to this file system.
    fn watched(opened: Opened) -> Result<Opened> {
        let reader = memfile::reopen(opened.fd()?.as_fd(), libc::O_RDONLY)?;
        let handle = Arc::new(ObjectHandle::new(reader)?);
        Ok(Opened {
            description: opened.description,
            native: Native::Reads { handle },
        })
    }
}

impl FileSystem for Dying {
    forward! {
        lower: lower;
        forward: root checks_access is_read_only opens_host_files largest_file transactions content identity lookup parent path
            getattr getattr_at readlink readdir read_at sync behind_link host_path flags statfs getxattr listxattr link_open write_at;
        own: kind shared_attributes on_host host_file host_dir open create tmpfile mknod mkdir symlink link unlink rmdir rename write truncate fallocate setattr setxattr removexattr;
    }

    fn kind(&self) -> &'static str {
        "dying"
    }

    fn open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        Self::watched(self.lower.open(caller, node, flags)?)
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.step()?;
        let (node, opened) = self.lower.create(caller, dir, name, mode, flags)?;
        Ok((node, Self::watched(opened)?))
    }

    fn tmpfile(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, Opened)> {
        self.step()?;
        let (node, opened) = self.lower.tmpfile(caller, dir, mode, flags)?;
        Ok((node, Self::watched(opened)?))
    }

    fn mknod(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        self.step()?;
        self.lower.mknod(caller, dir, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        self.step()?;
        self.lower.mkdir(caller, dir, name, mode)
    }

    fn symlink(&self, caller: &Caller, dir: &Node, name: &[u8], target: &[u8]) -> Result<Node> {
        self.step()?;
        self.lower.symlink(caller, dir, name, target)
    }

    fn link(&self, caller: &Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        self.step()?;
        self.lower.link(caller, node, dir, name)
    }

    fn unlink(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.step()?;
        self.lower.unlink(caller, dir, name)
    }

    fn rmdir(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<()> {
        self.step()?;
        self.lower.rmdir(caller, dir, name)
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
        self.step()?;
        self.lower.rename(caller, from_dir, from, to_dir, to, flags)
    }

    fn write(
        &self,
        _: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        let WritePosition::At(offset) = position else {
            return Err(Errno::EINVAL.into());
        };
        match self.fate() {
            Fate::Done => Ok(memfile::pwrite(file.ofd, data, offset)?),
            Fate::Last => {
                let stored = data.get(..data.len() * self.torn / 16).unwrap_or_default();
                memfile::pwrite(file.ofd, stored, offset)?;
                Err(Errno::EIO.into())
            }
            Fate::Never => Err(Errno::EIO.into()),
        }
    }

    fn truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        self.step()?;
        self.lower.truncate(caller, node, size)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.step()?;
        self.lower.fallocate(caller, node, mode, offset, len)
    }

    fn setattr(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        self.step()?;
        self.lower.setattr(caller, node, set)
    }

    fn setxattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        self.step()?;
        self.lower.setxattr(caller, node, name, value, flags)
    }

    fn removexattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        self.step()?;
        self.lower.removexattr(caller, node, name)
    }
}
