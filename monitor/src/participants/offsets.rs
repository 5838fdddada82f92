//! The file offsets of a process's descriptors when a transaction begins; an abort restores them.

use std::os::fd::AsFd;

use goanna_sys::{pidfd, procfs};
use goanna_vfs::Result;
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek};

/// A descriptor, and its offset when the transaction began.
#[derive(Debug, Clone)]
pub struct Offset {
    pid: i32,
    fd: i32,
    object: (u64, u64),
    at: i64,
}

impl Offset {
    /// Whether `other`, a descriptor of the parent process, is likely one of the same open file
    /// description.
    pub fn is_twin(&self, other: &Self) -> bool {
        (self.fd, self.object, self.at) == (other.fd, other.object, other.at)
    }
}

/// The offsets of those descriptors of process `pid` whose objects are, according to `is_ours`, of a mount.
pub fn offsets(pid: i32, is_ours: impl Fn((u64, u64)) -> bool) -> Vec<Offset> {
    let Ok(process) = pidfd::open(pid) else {
        return Vec::new();
    };
    let offset = |fd: i32| {
        let ofd = pidfd::getfd(process.as_fd(), fd).ok()?;
        let stat = fstat(&ofd).ok()?;
        let object = (stat.st_dev, stat.st_ino);
        let at = lseek(&ofd, 0, Whence::SeekCur).ok()?;
        is_ours(object).then_some(Offset {
            pid,
            fd,
            object,
            at,
        })
    };
    let fds = procfs::fds(pid).unwrap_or_default();
    fds.into_iter().filter_map(offset).collect()
}

/// Restores the offsets of descriptors. Skips descriptors that were closed, or refer to another file by
/// now.
pub(super) fn restore(offsets: Vec<Offset>) {
    for Offset {
        pid,
        fd,
        object,
        at,
    } in offsets
    {
        let back = || -> Result<()> {
            let ofd = pidfd::copy(pid, fd)?;
            let stat = fstat(&ofd)?;
            if (stat.st_dev, stat.st_ino) == object {
                lseek(&ofd, at, Whence::SeekSet)?;
            }
            Ok(())
        };
        // The process may have ended.
        let _ = back();
    }
}
