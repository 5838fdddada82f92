//! /proc as a caller sees it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use goanna_vfs::walk::{Pos, ProcessView};
use goanna_vfs::{Errno, Place, Result, caps};

use super::through_mount::in_read_only_mount;
use crate::Monitor;

/// /proc as one task sees it, for walks.
pub struct TaskView<'m> {
    pub(super) monitor: &'m Monitor,
    pub(super) pid: i32,
    pub(super) tid: i32,
}

impl ProcessView for TaskView<'_> {
    fn magic_link(&self, path: &[u8]) -> Option<Pos> {
        if path.ends_with(b"/root") {
            // For the kernel, tracees have the monitor's root, unless they have called pivot_root(2) or chroot(2) in a mount namespace of their own.
            let of = thread_of(path);
            let is_own = of == Some(self.pid) || of == Some(self.tid);
            return match of
                .and_then(|tid| self.monitor.root_of(if is_own { self.tid } else { tid }))
            {
                Some(root) if root.is_in_kernel && !is_own => None,
                Some(root) => Some(root.at),
                None => Some(Pos::root()),
            };
        }
        if is_mapping(path) && !self.may_open_mappings() {
            return None;
        }
        let place = match self.monitor.behind_magic_link(path) {
            Some(place) => self.seen(place),
            None => in_read_only_mount(&self.monitor.mounts_of(self.tid).0, path)?,
        };
        Some(Pos::Mounted(place))
    }

    fn self_ids(&self) -> (i32, i32) {
        (self.pid, self.tid)
    }
}

impl TaskView<'_> {
    /// What a tracee has open, in a mount that the caller sees.
    fn seen(&self, place: Place) -> Place {
        if !self.monitor.roots.may_have_left(self.tid) {
            return place;
        }
        let (mounts, _) = self.monitor.mounts_of(self.tid);
        let task = self.monitor.tasks.get(self.tid);
        match task.and_then(|task| task.caller()) {
            Ok(caller) => mounts.seen(&caller, &place),
            Err(_) => place,
        }
    }

    /// As the kernel's `proc_map_files_get_link`.
    fn may_open_mappings(&self) -> bool {
        let task = self.monitor.tasks.get(self.tid);
        let caller = task.and_then(|task| task.caller());
        caller.is_ok_and(|caller| {
            caller.capable(caps::SYS_ADMIN) || caller.capable(caps::CHECKPOINT_RESTORE)
        })
    }
}

/// The thread or process of the directory of /proc in which the canonical `path` lies.
pub fn thread_of(path: &[u8]) -> Option<i32> {
    let mut parts = path.split(|&byte| byte == b'/').skip(2);
    let (process, task, thread) = (parts.next()?, parts.next(), parts.next());
    let id = if task == Some(b"task") {
        thread?
    } else {
        process
    };
    std::str::from_utf8(id).ok()?.parse().ok()
}

/// Whether the magic link is of a mapped file.
fn is_mapping(path: &[u8]) -> bool {
    let mut parts = path.rsplit(|&byte| byte == b'/').skip(1);
    parts.next() == Some(b"map_files")
}

impl Monitor {
    /// The virtual object that a magic link of /proc leads to: a tracee's working directory, descriptor or program.
    pub fn behind_magic_link(&self, path: &[u8]) -> Option<Place> {
        let meta = std::fs::metadata(OsStr::from_bytes(path)).ok()?;
        let identity = (meta.dev(), meta.ino());
        if path.ends_with(b"/exe") {
            return self.programs.behind(identity);
        }
        self.shadows
            .find(identity)
            .map(|shadow| shadow.place().clone())
    }

    /// `F_GETFL` of an open file description, and whether it can be written through.
    pub fn writable(ofd: &OwnedFd) -> Result<(bool, i32), Errno> {
        use nix::fcntl::{FcntlArg, fcntl};
        let flags = fcntl(ofd.as_fd(), FcntlArg::F_GETFL)?;
        Ok((flags & libc::O_ACCMODE != libc::O_RDONLY, flags))
    }

    /// `O_RDONLY`, `O_WRONLY` or `O_RDWR` of an open file description.
    pub fn access_mode(ofd: &OwnedFd) -> Result<i32, Errno> {
        Ok(Self::writable(ofd)?.1 & libc::O_ACCMODE)
    }
}
