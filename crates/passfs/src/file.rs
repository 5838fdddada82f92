//! Files: reads and writes without an open descriptor, and links.

use std::os::fd::{BorrowedFd, OwnedFd};

use goanna_vfs::{Caller, Errno, FileKind, Node};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags};

use crate::PassFs;
use crate::Result;
use crate::credentials::{CONTENT, Concerned, ENTRIES};
use crate::dir::below;
use crate::node::{Pin, Proc, os};

impl PassFs {
    pub(crate) fn read(
        &self,
        caller: &Caller,
        node: &Node,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let file = self.open_at(caller, node, libc::O_RDONLY | libc::O_NONBLOCK)?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&file, &mut buf[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(os(errno)),
            }
        }
        Ok(done)
    }

    pub(crate) fn resize(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
        let path = Pin::of(node)?.proc();
        self.as_caller(caller, &[(node, CONTENT)], || {
            nix::unistd::truncate(path.as_c_str(), size)
        })
    }

    pub(crate) fn allocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        match node.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR),
            FileKind::Fifo => return Err(Errno::ESPIPE),
            _ => return Err(Errno::ENODEV),
        }
        let file = self.open_at(caller, node, libc::O_WRONLY | libc::O_NONBLOCK)?;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        rustix::fs::fallocate(&file, mode, offset, len).map_err(os)
    }

    /// fsync(2) with the monitor's own rights: the caller has the file open already.
    pub(crate) fn make_durable(&self, node: Option<&Node>) -> Result<()> {
        let Some(node) = node else {
            return rustix::fs::syncfs(self.open_own(&self.root_node())?).map_err(os);
        };
        match node.kind() {
            FileKind::Regular | FileKind::Directory => {
                rustix::fs::fsync(self.open_own(node)?).map_err(os)
            }
            // As fsync(2) of a pipe or socket; there is no descriptor for the inode itself.
            _ => Err(Errno::EINVAL),
        }
    }

    fn open_own(&self, node: &Node) -> Result<OwnedFd> {
        let path = Pin::of(node)?.proc();
        let base = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let open = |mode| rustix::fs::open(path.as_c_str(), base | mode, Mode::empty());
        match open(OFlags::RDONLY) {
            Err(rustix::io::Errno::ACCESS) if !node.is_dir() => open(OFlags::WRONLY),
            other => other,
        }
        .map_err(os)
    }

    pub(crate) fn create_unnamed(
        &self,
        caller: &Caller,
        dir: &Node,
        mode: u32,
        flags: i32,
    ) -> Result<(Node, OwnedFd)> {
        let pin = Pin::of(dir)?;
        let flags = OFlags::from_bits_retain(flags as u32) | OFlags::TMPFILE | OFlags::CLOEXEC;
        let flags = flags.difference(OFlags::CREATE);
        let fd = self.as_caller_creating(caller, &[(dir, ENTRIES)], || {
            rustix::fs::openat(&pin.fd, c".", flags, Mode::from_bits_retain(mode)).map_err(os)
        })?;
        Ok((self.node_behind(&fd)?, fd))
    }

    pub(crate) fn make_node(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        rdev: u64,
    ) -> Result<Node> {
        let pin = Pin::of(dir)?;
        let file_type = FileType::from_raw_mode(mode & libc::S_IFMT);
        let bits = Mode::from_bits_retain(mode & 0o7777);
        self.as_caller_creating(caller, &[(dir, ENTRIES)], || {
            rustix::fs::mknodat(&pin.fd, name, file_type, bits, rdev).map_err(os)
        })?;
        self.lookup_path(caller, dir, name)
    }

    /// The inode itself gets the name: a symbolic link is not followed. `AT_EMPTY_PATH` would need
    /// `CAP_DAC_READ_SEARCH`.
    pub(crate) fn add_name(
        &self,
        caller: &Caller,
        node: &Node,
        dir: &Node,
        name: &[u8],
    ) -> Result<()> {
        let concerned = [(dir, ENTRIES), (node, CONTENT)];
        self.add_name_to(caller, &concerned, Pin::of(node)?.proc(), dir, name)
    }

    /// EXDEV for a file outside the tree, as between two mounts. A file without a name has the path it was made or
    /// last named at.
    pub(crate) fn add_name_of_open(
        &self,
        caller: &Caller,
        file: BorrowedFd<'_>,
        dir: &Node,
        name: &[u8],
    ) -> Result<()> {
        let file = Proc::of(file);
        let path = file.readlink()?;
        if below(&path, &self.root_path()?).is_none() {
            return Err(Errno::EXDEV);
        }
        self.add_name_to(caller, &[], file, dir, name)
    }

    fn add_name_to(
        &self,
        caller: &Caller,
        concerned: Concerned<'_>,
        file: Proc,
        dir: &Node,
        name: &[u8],
    ) -> Result<()> {
        let to = Pin::of(dir)?;
        self.as_caller(caller, concerned, || {
            let follow = AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(CWD, file.as_c_str(), &to.fd, name, follow).map_err(os)
        })
    }
}
