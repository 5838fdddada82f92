//! The pass-through back end: a directory of the host (Goanna paper, section 3.5).
//!
//! Every operation is a host call, relative to descriptors and with the caller's credentials, so the
//! host's kernel checks permissions, ACLs, quotas and everything else ([`goanna_vfs::FileSystem::checks_access`] is true).
//! An open file is the host's file itself ([`goanna_vfs::Native::All`]): its data calls run without the monitor.
//!
//! A [`Node`] holds an `O_PATH` descriptor, which follows its inode through every rename. Operations without a call on
//! such a descriptor (chmod, truncate, extended attributes, link, open) go through `/proc/self/fd/N`: the
//! kernel resolves it to the inode itself and follows no further link, so it also reaches a symbolic link's
//! own extended attributes and link count.
//!
//! A layered back end owns a [`PassFs`] and overrides names and data; [`PassFs::open_at`],
//! [`PassFs::create_at`] and [`PassFs::node_of`] are its tools.

mod attr;
mod credentials;
mod dir;
mod file;
mod fs;
mod identity;
mod mount_type;
mod node;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goanna_vfs::{Caller, Errno, FileKind, HostDirectory, Node};
use parking_lot::RwLock;
use rustix::fs::{CWD, Mode, OFlags, StatxFlags};

pub use mount_type::PassBackend;

use credentials::{CONTENT, ENTRIES};
use node::{Pin, Proc, Unmounted, os};

/// The result of a host call, which never waits for the lock of a transaction.
type Result<T> = std::result::Result<T, Errno>;

/// The reason why a directory could not be passed through.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be opened as a directory.
    #[error("cannot pass {} through: {}", dir.display(), errno.desc())]
    Directory {
        /// The directory as given.
        dir: PathBuf,
        /// ENOENT, ENOTDIR, EACCES and the like.
        errno: Errno,
    },
    /// `/proc` is not mounted or not ours: descriptors cannot be reached by name.
    #[error("cannot pass {} through: /proc/self/fd is not usable: {}", dir.display(), errno.desc())]
    Proc {
        /// The directory as given.
        dir: PathBuf,
        /// The error of reading `/proc/self/fd`.
        errno: Errno,
    },
}

fn open_directory(dir: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(dir, flags, Mode::empty()).map_err(os)
}

/// A directory of the host and all below it, mounts of the host included.
#[derive(Debug)]
pub struct PassFs {
    root: RwLock<Node>,
    root_id: (u64, u64),
    /// The ID of the mount that the root directory is in.
    mount_id: u64,
    is_host: bool,
}

impl PassFs {
    /// Passes `dir` through; a symbolic link is followed. The directory may be renamed later.
    pub fn new(dir: &Path) -> std::result::Result<Self, Error> {
        // Read before any thread changes its credentials.
        let _ = goanna_sys::cred::own_ids();
        let directory = |errno| Error::Directory {
            dir: dir.to_owned(),
            errno,
        };
        let fd = open_directory(dir).map_err(directory)?;
        let path = Proc::of(fd.as_fd())
            .readlink()
            .map_err(|errno| Error::Proc {
                dir: dir.to_owned(),
                errno,
            })?;
        let pin = Pin::new(fd).map_err(directory)?;
        let root_id = (pin.dev, pin.ino);
        let found = node::stat(pin.fd.as_fd(), StatxFlags::MNT_ID).map_err(directory)?;
        Ok(Self {
            root: RwLock::new(pin.into_node(root_id.0)),
            root_id,
            mount_id: found.stx_mnt_id,
            is_host: path == b"/",
        })
    }

    /// As [`PassFs::new`], for mounts that programs make.
    pub fn shared(dir: &Path) -> Result<Arc<dyn HostDirectory>> {
        let opened = Self::new(dir).map_err(|error| match error {
            Error::Directory { errno, .. } | Error::Proc { errno, .. } => errno,
        })?;
        Ok(Arc::new(opened))
    }

    fn root_node(&self) -> Node {
        self.root.read().clone()
    }

    /// A root without a descriptor.
    fn without_pin(&self) -> Node {
        Node::new(self.root_id.1, FileKind::Directory, Arc::new(Unmounted))
    }

    /// The host's own tree.
    pub fn host() -> std::result::Result<Self, Error> {
        Self::new(Path::new("/"))
    }

    /// The inode at `path`, an absolute path of this tree (of the host, for [`PassFs::host`]) that is known
    /// to hold no symbolic link and no `..`: one open instead of a walk. A link in the last place is not
    /// followed. ENOENT, ENOTDIR, EACCES.
    pub fn node_at(&self, caller: &Caller, path: &[u8]) -> Result<Node> {
        let start = path.iter().position(|&b| b != b'/').unwrap_or(path.len());
        let relative = &path[start..];
        if relative.is_empty() {
            return Ok(self.root_node());
        }
        self.lookup_path(caller, &self.root_node(), relative)
    }

    /// A node for an `O_PATH` descriptor of something in this tree.
    pub fn node_of(&self, fd: OwnedFd) -> Result<Node> {
        Ok(Pin::new(fd)?.into_node(self.root_id.0))
    }

    /// Opens `node` as `caller` with the access mode and status flags of `flags`. The descriptor is
    /// close-on-exec.
    pub fn open_at(&self, caller: &Caller, node: &Node, flags: i32) -> Result<OwnedFd> {
        let pin = Pin::of(node)?;
        let settled = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECTORY;
        let flags = OFlags::from_bits_retain((flags & !settled) as u32);
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
        self.as_caller(caller, &[(node, CONTENT)], || {
            rustix::fs::openat(CWD, pin.proc().as_c_str(), flags, Mode::empty()).map_err(os)
        })
    }

    /// Creates the regular file `name` in `dir` as `caller`, with its umask, and opens it with `flags`.
    pub fn create_at(
        &self,
        caller: &Caller,
        dir: &Node,
        name: &[u8],
        mode: u32,
        flags: i32,
    ) -> Result<(Node, OwnedFd)> {
        let pin = Pin::of(dir)?;
        // O_EXCL follows no link; O_NOFOLLOW would stay among the status flags that the program sees.
        let flags = OFlags::from_bits_retain(flags as u32)
            | OFlags::CREATE
            | OFlags::EXCL
            | OFlags::CLOEXEC
            | OFlags::NOCTTY;
        let fd = self.as_caller_creating(caller, &[(dir, ENTRIES)], || {
            rustix::fs::openat(&pin.fd, name, flags, Mode::from_bits_retain(mode)).map_err(os)
        })?;
        Ok((self.node_behind(&fd)?, fd))
    }

    /// The node of an open file, without a second look-up of its name.
    fn node_behind(&self, fd: &OwnedFd) -> Result<Node> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = rustix::fs::openat(CWD, Proc::of(fd.as_fd()).as_c_str(), flags, Mode::empty())
            .map_err(os)?;
        self.node_of(path)
    }

    /// One open of `relative` below `dir`, as `caller`, without following a link in the last place.
    fn lookup_path(&self, caller: &Caller, dir: &Node, relative: &[u8]) -> Result<Node> {
        self.open_path(caller, dir, relative, OFlags::NOFOLLOW)
    }

    fn open_path(
        &self,
        caller: &Caller,
        dir: &Node,
        relative: &[u8],
        flags: OFlags,
    ) -> Result<Node> {
        let pin = Pin::of(dir)?;
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let fd = self.as_caller(caller, &[(dir, ENTRIES)], || {
            rustix::fs::openat(&pin.fd, relative, flags, Mode::empty()).map_err(os)
        })?;
        self.node_of(fd)
    }
}

impl HostDirectory for PassFs {
    fn while_closed(&self, dir: &Path, unmount: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let mut root = self.root.write();
        *root = self.without_pin();
        let Err(failure) = unmount() else {
            return Ok(());
        };
        let pin = Pin::new(open_directory(dir)?)?;
        if (pin.dev, pin.ino) != self.root_id {
            return Err(Errno::ESTALE);
        }
        *root = pin.into_node(self.root_id.0);
        Err(failure)
    }
}
