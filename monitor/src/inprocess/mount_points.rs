//! Whether the mount points of a run exist on the host, and the watch for the first one that appears.
//!
//! Where none exists, the kernel cannot walk into one: not by a symbolic link either. So a stub may keep what a call finds without a
//! look at the links on its way (docs/decisions/0118).

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use goanna_vfs::Mounts;
use nix::unistd::read;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::Monitor;

/// No process has stubs yet.
const UNASKED: u8 = 0;
/// The first process with stubs asks.
const ASKED: u8 = 1;
/// Not known, and not looked for again.
const UNKNOWN: u8 = 2;
/// None exists, and the directory that they would be in is watched.
const ABSENT: u8 = 3;
/// One has appeared since, or may have.
const APPEARED: u8 = 4;

/// The mount points of a run, and whether any exists on the host.
#[derive(Debug)]
pub struct MountPoints {
    /// Their paths; none where one of them is not in the root directory. A directory on the way to another one can be replaced.
    paths: Vec<PathBuf>,
    state: AtomicU8,
}

impl MountPoints {
    /// Those of `mounts`.
    pub fn of(mounts: &Mounts) -> Self {
        let paths = mounts
            .on_host()
            .map(|(_, name, _)| Path::new("/").join(OsStr::from_bytes(name)));
        Self {
            paths: if are_in_root(mounts) {
                paths.collect()
            } else {
                Vec::new()
            },
            state: AtomicU8::new(UNASKED),
        }
    }

    /// Whether a process with stubs has asked.
    pub fn is_asked(&self) -> bool {
        self.state.load(SeqCst) != UNASKED
    }

    /// A process has stubs.
    pub fn ask(&self) {
        self.change(UNASKED, ASKED);
    }

    /// Takes the request to look for the mount points. False if there is none, or another caller has taken it.
    pub fn take_request(&self) -> bool {
        self.state.load(SeqCst) == ASKED && self.change(ASKED, UNKNOWN)
    }

    /// Whether no mount point exists on the host.
    pub fn are_absent(&self) -> bool {
        self.state.load(SeqCst) == ABSENT
    }

    /// Whether a mount point may have appeared after stubs were set to assume that none exists.
    pub fn have_appeared(&self) -> bool {
        self.state.load(SeqCst) == APPEARED
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, SeqCst, SeqCst)
            .is_ok()
    }

    /// Whether it helps to watch for them: they are in one directory, where thread `tid` sees what we see.
    pub fn can_be_watched(&self, tid: i32) -> bool {
        !self.paths.is_empty() && shares_mounts(tid)
    }

    /// Watches for the mount points. Returns whether none exists; false if they cannot be watched.
    pub fn watch(&self, monitor: &Arc<Monitor>) -> bool {
        let Ok(inotify) = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK) else {
            return false;
        };
        let news = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        if inotify::add_watch(&inotify, "/", news).is_err() || self.any_exists() {
            return false;
        }
        // Before the wait, whose end looks at it.
        self.change(UNKNOWN, ABSENT);
        if !wait(monitor, inotify) {
            self.forget();
        }
        self.are_absent()
    }

    /// Looks again; whether still none exists.
    pub fn look(&self) -> bool {
        if self.any_exists() {
            self.forget();
        }
        self.are_absent()
    }

    /// From now on one may exist.
    pub fn forget(&self) {
        self.change(ABSENT, APPEARED);
    }

    fn any_exists(&self) -> bool {
        let is_missing = |path: &PathBuf| {
            let found = fs::symlink_metadata(path);
            found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        !self.paths.iter().all(is_missing)
    }
}

/// Whether all mount points are in the root directory, whose place no other directory takes.
pub fn are_in_root(mounts: &Mounts) -> bool {
    mounts.on_host().all(|(dir, ..)| dir.is_empty())
}

/// Whether thread `tid` sees the same mounts as this process.
pub fn shares_mounts(tid: i32) -> bool {
    let own = fs::read_link("/proc/self/ns/mnt");
    let its = fs::read_link(format!("/proc/{tid}/ns/mnt"));
    matches!((own, its), (Ok(own), Ok(its)) if own == its)
}

/// Looks again when something has been made in the watched directory. Whether that can be waited for.
fn wait(monitor: &Arc<Monitor>, inotify: OwnedFd) -> bool {
    let Ok(again) = inotify.try_clone() else {
        return false;
    };
    let weak: Weak<Monitor> = Arc::downgrade(monitor);
    let job = Box::new(move || {
        let mut events = [0; 4096];
        while matches!(read(&again, &mut events), Ok(1..)) {}
        let Some(monitor) = weak.upgrade() else {
            return;
        };
        if monitor.in_process.mount_points_are_absent() && !wait(&monitor, again) {
            // What cannot be watched any more may change.
            monitor.in_process.forget_mount_points();
        }
    });
    monitor.executor.when_readable(inotify, job).is_ok()
}
