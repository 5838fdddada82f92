//! The mounts of the host that programs of a run have made in its mounts.
//!
//! The kernel mounts the file system on a directory that nothing else uses, `m/RANDOM` in the run-time directory. A file system that shows this
//! directory of the host is in the table of mounts instead of the directory that the program named. It ends with the run.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, HostDirectory, Mount, OpenHostDirectory, Place, Result};
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;

use crate::call::Call;
use crate::errno::errno;
use crate::state::Monitor;

/// How often, and at what intervals, an unmount is tried while calls that have begun before keep the file system busy.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// The mounts of the host that programs have made in mounts of the run.
///
/// Lock order: `mounts`, the root of a [`HostDirectory`], the table of mounts; the locks of other back ends come after `mounts`. No call waits for a tracee under it, but for file systems of the host.
#[derive(Debug)]
pub struct Hosted {
    /// `None` where there can be none.
    open: Option<OpenHostDirectory>,
    mounts: Mutex<Vec<HostedMount>>,
    /// What umount2(2) with MNT_EXPIRE has found unused. Our own look at it takes the kernel's mark away. The lock is a leaf.
    expiring: Mutex<HashSet<PathBuf>>,
}

struct HostedMount {
    mount: Arc<Mount>,
    fs: Arc<dyn HostDirectory>,
    /// Where the kernel has mounted it.
    dir: PathBuf,
    /// The directory that it covers.
    covered: Place,
}

impl std::fmt::Debug for HostedMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} at {}", self.mount, self.dir.display())
    }
}

impl Hosted {
    /// None yet. `open` opens the directories on which they are mounted.
    pub fn new(open: Option<OpenHostDirectory>) -> Self {
        Self {
            open,
            mounts: Mutex::default(),
            expiring: Mutex::default(),
        }
    }

    /// Mounts by `mount`, which gets a directory of the host, over the directory `target`. EOPNOTSUPP where that is not possible, ENOENT if `target` has been
    /// removed.
    pub fn add(
        &self,
        call: &Call<'_>,
        target: Place,
        source: String,
        mount: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let open = self.open.ok_or(Errno::EOPNOTSUPP)?;
        let (path, is_removed) = Pos::Mounted(target.clone()).path(&*call.caller()?)?;
        if is_removed {
            return Err(Errno::ENOENT.into());
        }
        let monitor = call.monitor;
        let mut mounts = self.mounts.lock();
        let is_below =
            |one: &&HostedMount| one.mount.number == target.mount.number && is_root(&target);
        // On the same directory, so that the kernel sees what is below.
        let dir = match mounts.iter().find(is_below) {
            Some(one) => one.dir.clone(),
            None => monitor.shadows.rundir().mount_point().map_err(errno)?,
        };
        let opened = mount(&dir).and_then(|()| {
            open(&dir).map_err(|errno| {
                let _ = umount2(&dir, MntFlags::MNT_DETACH);
                errno.into()
            })
        });
        let fs = match opened {
            Ok(fs) => fs,
            Err(error) => {
                let _ = std::fs::remove_dir(&dir);
                return Err(error);
            }
        };
        cover(monitor, &target, true);
        let shown = Arc::clone(&fs) as _;
        let mount = monitor.change_mounts(call.task.tid, |table| table.cover(path, shown, source));
        mounts.push(HostedMount {
            mount,
            fs,
            dir,
            covered: target,
        });
        Ok(())
    }

    /// Where the kernel has mounted `mount`; `None` for a mount of another kind.
    pub fn dir_of(&self, mount: &Mount) -> Option<PathBuf> {
        let mounts = self.mounts.lock();
        let mut found = mounts.iter().filter(|one| one.mount.number == mount.number);
        found.next().map(|one| one.dir.clone())
    }

    /// umount2(2) of what the kernel has mounted on `path`. The caller has no node in it.
    pub fn unmount(&self, path: &Path, flags: MntFlags) -> Result<(), Errno> {
        let mut flags = flags | MntFlags::UMOUNT_NOFOLLOW;
        if self.expiring.lock().remove(path) {
            flags.remove(MntFlags::MNT_EXPIRE);
        }
        let mut result = umount2(path, flags);
        // Calls that have begun before may still look at it.
        for _ in 0..ATTEMPTS {
            if result != Err(Errno::EBUSY) {
                break;
            }
            thread::sleep(PAUSE);
            result = umount2(path, flags);
        }
        if result == Err(Errno::EAGAIN) {
            self.expiring.lock().insert(path.to_owned());
        }
        result
    }

    /// Unmounts all of them: no program is left. The removal of the run-time directory tries once more what fails here.
    pub fn end(&self, monitor: &Monitor) {
        loop {
            let last = self.mounts.lock().last().map(|one| Arc::clone(&one.mount));
            let Some(mount) = last else { return };
            let unmount = |flags| self.remove(monitor, &mount, flags);
            // The first attempt also frees the device before the run ends.
            if unmount(MntFlags::empty()).is_err() && unmount(MntFlags::MNT_DETACH).is_err() {
                return;
            }
        }
    }

    /// umount2(2) of `mount` with `flags`. The caller has no node in it. EBUSY for a mount of another kind, and while programs use it.
    pub fn remove(&self, monitor: &Monitor, mount: &Mount, flags: MntFlags) -> Result<()> {
        let mut mounts = self.mounts.lock();
        let is_it = |one: &HostedMount| one.mount.number == mount.number;
        let at = mounts.iter().position(is_it).ok_or(Errno::EBUSY)?;
        let one = mounts.get(at).ok_or(Errno::EBUSY)?;
        let take_out = || monitor.remove_mount(mount);
        if flags.contains(MntFlags::MNT_DETACH) {
            self.unmount(&one.dir, flags)?;
            take_out();
        } else {
            // They are found again by their paths from the root.
            release_unheld(monitor, mount);
            one.fs.while_closed(&one.dir, &mut || {
                self.unmount(&one.dir, flags)?;
                take_out();
                Ok(())
            })?;
        }
        let one = mounts.remove(at);
        cover(monitor, &one.covered, false);
        // Something else may be mounted there.
        let _ = std::fs::remove_dir(&one.dir);
        Ok(())
    }
}

/// Lets go of what no program uses in `mount`.
pub fn release_unheld(monitor: &Monitor, mount: &Mount) {
    let threads = monitor.alive.all();
    monitor.programs.release_unheld(mount, &threads);
    monitor.shadows.release_unheld(mount, threads);
}

/// Records in the back end of `dir` whether something is mounted on it: programs may find the back end's files without the monitor.
fn cover(monitor: &Monitor, dir: &Place, is_covered: bool) {
    monitor.in_process.cover(if is_covered { 1 } else { -1 });
    if let Some(shared) = dir.mount.fs.shared_attributes() {
        shared.set_covered(&dir.node, is_covered);
    }
}

/// The path of a directory or file in a mount that shows the host's, under which the kernel finds the same. `None` in other mounts.
pub fn host_path(place: &Place) -> Option<PathBuf> {
    place.mount.fs.host_dir(&place.node)?;
    place.mount.fs.host_path(&place.node)
}

/// Whether the kernel can use it as a part of its own tree: it is in a mount that shows the host's, or on the host itself.
pub fn is_in_kernel(place: &Place) -> bool {
    place.mount.is_host() || place.mount.fs.host_dir(&place.node).is_some()
}

/// Whether it is the root of its mount.
pub fn is_root(place: &Place) -> bool {
    place.node.ino() == place.mount.fs.root().ino()
}
