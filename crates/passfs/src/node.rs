//! Nodes: the descriptor that each one holds, and its path in `/proc/self/fd`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Result;
use goanna_vfs::{Errno, FileKind, Node};
use rustix::ffi::CStr;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};

/// The errno of a host call.
pub(crate) fn os(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// What the root of an unmounted file system has instead of a descriptor.
#[derive(Debug)]
pub(crate) struct Unmounted;

/// The descriptor (`O_PATH`) that a node holds, and the identity of its inode on the host.
#[derive(Debug)]
pub(crate) struct Pin {
    pub fd: OwnedFd,
    pub dev: u64,
    pub ino: u64,
    kind: FileKind,
}

impl Pin {
    pub fn new(fd: OwnedFd) -> Result<Self> {
        let stat = stat(fd.as_fd(), StatxFlags::TYPE | StatxFlags::INO)?;
        Ok(Self {
            dev: device(stat.stx_dev_major, stat.stx_dev_minor),
            ino: stat.stx_ino,
            kind: FileKind::from_mode(u32::from(stat.stx_mode)).ok_or(Errno::EIO)?,
            fd,
        })
    }

    /// The node of this descriptor in a tree whose root is on device `root_dev`.
    pub fn into_node(self, root_dev: u64) -> Node {
        // A node's number must be its own in the whole back end, and several host file systems have an inode
        // 2: those on other devices than the root are spread over all 64 bits. Attributes report the host's.
        let spread = (self.dev ^ root_dev).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Node::new(self.ino.wrapping_add(spread), self.kind, Arc::new(self))
    }

    /// The pin of one of our nodes. ENOENT for a root that has been unmounted, EBADF for another back end's node, which only a bug can pass.
    pub fn of(node: &Node) -> Result<&Self> {
        node.pin().ok_or_else(|| match node.pin::<Unmounted>() {
            Some(Unmounted) => Errno::ENOENT,
            None => Errno::EBADF,
        })
    }

    pub fn proc(&self) -> Proc {
        Proc::of(self.fd.as_fd())
    }
}

/// statx(2) of the object that a descriptor refers to.
pub(crate) fn stat(fd: BorrowedFd<'_>, mask: StatxFlags) -> Result<Statx> {
    rustix::fs::statx(fd, c"", AtFlags::EMPTY_PATH, mask).map_err(os)
}

pub(crate) fn device(major: u32, minor: u32) -> u64 {
    rustix::fs::makedev(major, minor)
}

/// `/proc/self/fd/N`. Valid while the descriptor is open, in any thread.
#[derive(Clone, Copy)]
pub(crate) struct Proc {
    bytes: [u8; 32],
}

impl Proc {
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        const PREFIX: &[u8; 14] = b"/proc/self/fd/";
        let mut bytes = [0; 32];
        bytes[..14].copy_from_slice(PREFIX);
        // Ten digits at most, so the array ends in NULs.
        let mut digits = [0u8; 10];
        let mut rest = fd.as_raw_fd().unsigned_abs();
        let mut count = 0;
        loop {
            digits[count] = b'0' + (rest % 10) as u8;
            rest /= 10;
            count += 1;
            if rest == 0 {
                break;
            }
        }
        for (to, digit) in bytes[14..].iter_mut().zip(digits[..count].iter().rev()) {
            *to = *digit;
        }
        Self { bytes }
    }

    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"/proc/self/fd")
    }

    /// The file's path as the kernel reports it, with a " (deleted)" suffix if it was removed.
    pub fn readlink(&self) -> Result<Vec<u8>> {
        rustix::fs::readlinkat(CWD, self.as_c_str(), Vec::new())
            .map(std::ffi::CString::into_bytes)
            .map_err(os)
    }
}
