//! The mounts that programs of a run have made in its mounts. They end with the run.
//!
//! - A file system that the kernel has: it mounts that on a directory that nothing else uses, `m/RANDOM` in the run-time directory. A file system that shows this
//!   directory of the host is in the table of mounts instead of the directory that the program named.
//! - What is bound from a mount, for which the kernel has nothing, and files of the host over files in a mount ([`Mount::of_part`]).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, HostDirectory, Mount, MountFlags, OpenHostDirectory, Place, Result};
use nix::mount::{MntFlags, umount2};
use parking_lot::Mutex;

use crate::call::Call;
use crate::errno::errno;
use crate::state::Monitor;

/// How often, and at what intervals, an unmount is tried while calls that have begun before keep the file system busy.
const ATTEMPTS: u32 = 10;
const PAUSE: Duration = Duration::from_millis(1);

/// From this number of copies on that are attached nowhere, older ones are forgotten if no process has them open.
const DETACHED_MAX: usize = 64;

/// The mounts that programs have made in mounts of the run.
///
/// Lock order: `mounts`, the root of a [`HostDirectory`], the table of mounts; the locks of other back ends come after `mounts`. No call waits for a tracee under it, but for file systems of the host.
#[derive(Debug)]
pub struct Hosted {
    /// `None` where there can be none.
    open: Option<OpenHostDirectory>,
    mounts: Mutex<Vec<MadeMount>>,
    /// Copies that are attached nowhere. The lock is a leaf.
    detached: Mutex<Vec<Arc<Mount>>>,
    /// What umount2(2) with MNT_EXPIRE has found unused. Our own look at it takes the kernel's mark away. The lock is a leaf.
    expiring: Mutex<HashSet<PathBuf>>,
}

struct MadeMount {
    mount: Arc<Mount>,
    /// What it covers.
    covered: Place,
    /// The kernel's mount, unless it is bound from a mount of the run.
    in_kernel: Option<HostedMount>,
}

struct HostedMount {
    fs: Arc<dyn HostDirectory>,
    /// Where the kernel has mounted it.
    dir: PathBuf,
}

impl std::fmt::Debug for MadeMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let dir = self.in_kernel.as_ref().map(|hosted| hosted.dir.display());
        match dir {
            Some(dir) => write!(f, "{:?} at {dir}", self.mount),
            None => write!(f, "{:?}", self.mount),
        }
    }
}

impl Hosted {
    /// None yet. `open` opens the directories on which they are mounted.
    pub fn new(open: Option<OpenHostDirectory>) -> Self {
        Self {
            open,
            mounts: Mutex::default(),
            detached: Mutex::default(),
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
        let path = path_of(call, &target)?;
        let monitor = call.monitor;
        let mut mounts = self.mounts.lock();
        let is_below =
            |one: &&MadeMount| one.mount.number == target.mount.number && is_root(&target);
        // On the same directory, so that the kernel sees what is below.
        let below = mounts.iter().find(is_below);
        let dir = match below.and_then(|one| one.in_kernel.as_ref()) {
            Some(hosted) => hosted.dir.clone(),
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
        mounts.push(MadeMount {
            mount,
            covered: target,
            in_kernel: Some(HostedMount { fs, dir }),
        });
        Ok(())
    }

    /// A copy of what is at `place` with `flags`, which is attached nowhere. EOPNOTSUPP for a directory of the host, for one that leads to a mount point and exists on no
    /// file system, and if it is to be `recursive` and something is mounted inside.
    pub fn copy(
        &self,
        call: &Call<'_>,
        place: &Place,
        flags: MountFlags,
        recursive: bool,
    ) -> Result<Arc<Mount>> {
        // The kernel may have mounts inside of a directory.
        let is_shown = place.mount.is_host() && place.node.is_dir() || place.mount.is_synthetic();
        if is_shown || recursive && has_mounts_inside(call, place)? {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let number = call.mounts.take_number();
        let copy = Arc::new(Mount::of_part(place, b"/".to_vec(), flags, number));
        self.forget_unused(call.monitor);
        self.detached.lock().push(Arc::clone(&copy));
        Ok(copy)
    }

    /// Forgets copies that no process has open any more. The descriptors of the newest ones may not be open yet.
    fn forget_unused(&self, monitor: &Monitor) {
        let mut older = self.detached.lock().clone();
        if older.len() < DETACHED_MAX {
            return;
        }
        older.truncate(DETACHED_MAX / 2);
        older.retain(|copy| !is_open(monitor, copy));
        let is_unused = |copy: &Arc<Mount>| older.iter().any(|other| Arc::ptr_eq(copy, other));
        self.detached.lock().retain(|copy| !is_unused(copy));
    }

    /// The copy that is attached nowhere and has `place`.
    pub fn detached(&self, place: &Place) -> Option<Arc<Mount>> {
        let detached = self.detached.lock();
        let is_it = |copy: &&Arc<Mount>| copy.number == place.mount.number;
        detached.iter().find(is_it).cloned()
    }

    /// Mounts `copy` over the directory or file `target`. ENOTDIR if only one of them is a directory, ENOENT if `target` has been removed, EOPNOTSUPP for the root
    /// directory of the host.
    pub fn attach(&self, call: &Call<'_>, copy: &Mount, target: Place) -> Result<()> {
        let path = mount_point(call, &target)?;
        if copy.fs.root().is_dir() != target.node.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let (monitor, mount) = (call.monitor, Arc::new(copy.changed(path, copy.flags)));
        tell_of(call, &target, &mount);
        self.detached
            .lock()
            .retain(|other| other.number != copy.number);
        let mut mounts = self.mounts.lock();
        cover(monitor, &target, true);
        monitor.change_mounts(call.task.tid, |table| table.attach(Arc::clone(&mount)));
        mounts.push(MadeMount {
            mount,
            covered: target,
            in_kernel: None,
        });
        Ok(())
    }

    /// Moves `mount`, and what is mounted inside, over the directory or file `target`. EINVAL if only one of them is a directory, ELOOP for a target inside, ENOENT and
    /// EOPNOTSUPP as [`Hosted::attach`], and EOPNOTSUPP for a mount that the run began with.
    pub fn move_to(&self, call: &Call<'_>, mount: &Mount, target: Place) -> Result<()> {
        let path = mount_point(call, &target)?;
        if mount.fs.root().is_dir() != target.node.is_dir() {
            return Err(Errno::EINVAL.into());
        }
        let mut mounts = self.mounts.lock();
        let is_it = |one: &MadeMount| one.mount.number == mount.number;
        let found = mounts.iter().find(|one| is_it(one));
        let from = found.ok_or(Errno::EOPNOTSUPP)?.mount.target.clone();
        // Those inside come after those that they are in.
        let mut inside = HashSet::from([mount.number]);
        for one in &*mounts {
            if inside.contains(&one.covered.mount.number) {
                inside.insert(one.mount.number);
            }
        }
        if inside.contains(&target.mount.number) {
            return Err(Errno::ELOOP.into());
        }
        // So that this stays true.
        mounts.sort_by_key(|one| inside.contains(&one.mount.number));
        let first = mounts.partition_point(|one| !inside.contains(&one.mount.number));
        let (_, moved) = mounts.split_at_mut(first);
        for one in &mut *moved {
            let rest = one.mount.target.strip_prefix(&from[..]).unwrap_or_default();
            let place = [&path, rest].concat();
            one.mount = Arc::new(one.mount.changed(place, one.mount.flags));
        }
        let changed: Vec<_> = moved.iter().map(|one| Arc::clone(&one.mount)).collect();
        if let Some(one) = moved.first_mut() {
            tell_of(call, &target, &one.mount);
            cover(call.monitor, &target, true);
            call.monitor.replace_mounts(&changed);
            let covered = std::mem::replace(&mut one.covered, target);
            cover(call.monitor, &covered, false);
        }
        Ok(())
    }

    /// Gives what is bound as `mount` other flags. EPERM to take away those that the mount has of which it shows a part; EOPNOTSUPP for a mount of another kind.
    pub fn set_flags(&self, monitor: &Monitor, mount: &Mount, flags: MountFlags) -> Result<()> {
        let base = mount.base.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        if !flags.contains(base.restrictions()) {
            return Err(Errno::EPERM.into());
        }
        let is_it = |other: &&mut Arc<Mount>| other.number == mount.number;
        if let Some(copy) = self.detached.lock().iter_mut().find(is_it) {
            *copy = Arc::new(copy.changed(copy.target.clone(), flags));
            return Ok(());
        }
        let mut mounts = self.mounts.lock();
        let made = mounts.iter_mut().map(|one| &mut one.mount).find(is_it);
        let made = made.ok_or(Errno::EOPNOTSUPP)?;
        *made = Arc::new(made.changed(made.target.clone(), flags));
        monitor.replace_mounts(std::slice::from_ref(made));
        Ok(())
    }

    /// Where the kernel has mounted `mount`; `None` for a mount of another kind.
    pub fn dir_of(&self, mount: &Mount) -> Option<PathBuf> {
        let mounts = self.mounts.lock();
        let found = mounts.iter().find(|one| one.mount.number == mount.number)?;
        found.in_kernel.as_ref().map(|hosted| hosted.dir.clone())
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
        self.remove_from(&mut mounts, monitor, mount, flags)
    }

    /// Marks what is bound as `mount` as unused, or takes the mark away. Returns whether it has it now.
    fn begins_to_expire(&self, mount: &Mount) -> bool {
        let path = PathBuf::from(OsStr::from_bytes(&mount.target));
        let mut expiring = self.expiring.lock();
        !expiring.remove(&path) && expiring.insert(path)
    }

    fn remove_from(
        &self,
        mounts: &mut Vec<MadeMount>,
        monitor: &Monitor,
        mount: &Mount,
        flags: MntFlags,
    ) -> Result<()> {
        let is_it = |one: &MadeMount| one.mount.number == mount.number;
        let detaches = flags.contains(MntFlags::MNT_DETACH);
        // The kernel does not know what is bound inside of a mount of its own.
        let inside = |one: &&MadeMount| one.covered.mount.number == mount.number;
        while let Some(one) = mounts.iter().rfind(inside) {
            let inner = Arc::clone(&one.mount);
            if !detaches {
                return Err(Errno::EBUSY.into());
            }
            self.remove_from(mounts, monitor, &inner, flags)?;
        }
        let one = mounts.iter().find(|one| is_it(one)).ok_or(Errno::EBUSY)?;
        let take_out = || monitor.remove_mount(mount);
        match &one.in_kernel {
            None if !detaches && is_open(monitor, mount) => return Err(Errno::EBUSY.into()),
            None if flags.contains(MntFlags::MNT_EXPIRE) && self.begins_to_expire(&one.mount) => {
                return Err(Errno::EAGAIN.into());
            }
            None => take_out(),
            Some(hosted) if detaches => {
                self.unmount(&hosted.dir, flags)?;
                take_out();
            }
            Some(hosted) => {
                // They are found again by their paths from the root.
                release_unheld(monitor, mount);
                hosted.fs.while_closed(&hosted.dir, &mut || {
                    self.unmount(&hosted.dir, flags)?;
                    take_out();
                    Ok(())
                })?;
            }
        }
        cover(monitor, &one.covered, false);
        if let Some(hosted) = &one.in_kernel {
            // Something else may be mounted there.
            let _ = std::fs::remove_dir(&hosted.dir);
        }
        mounts.retain(|one| !is_it(one));
        Ok(())
    }
}

/// `mount` is about to be mounted at `target`. If that is on the host, the stubs of all processes do not know it.
fn tell_of(call: &Call<'_>, target: &Place, mount: &Arc<Mount>) {
    if !target.mount.is_host() {
        return;
    }
    let monitor = call.monitor;
    let mut mounts = (*call.mounts).clone();
    mounts.attach(Arc::clone(mount));
    let mut told = HashSet::new();
    // A child that a process has made before it was told knows nothing. One that it makes later inherits what it knows.
    loop {
        let mut new = monitor.alive.all();
        new.retain(|&tid| told.insert(tid));
        if new.is_empty() {
            return;
        }
        for tid in new {
            monitor.in_process.sees(tid, &mounts);
        }
    }
}

/// The canonical path of the mount point `target`. ENOENT if that name has been removed, EOPNOTSUPP for the root directory of the host.
fn mount_point(call: &Call<'_>, target: &Place) -> Result<Vec<u8>> {
    let path = path_of(call, target)?;
    if path == b"/" {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(path)
}

/// The canonical path of `target`. ENOENT if that name has been removed.
fn path_of(call: &Call<'_>, target: &Place) -> Result<Vec<u8>> {
    let (path, is_removed) = Pos::Mounted(target.clone()).path(&*call.caller()?)?;
    if is_removed {
        return Err(Errno::ENOENT.into());
    }
    Ok(path)
}

/// Whether anything is mounted inside of the directory `place`.
fn has_mounts_inside(call: &Call<'_>, place: &Place) -> Result<bool> {
    let mut dir = path_of(call, place)?;
    dir.push(b'/');
    let is_inside = |mount: &Arc<Mount>| mount.target.starts_with(&dir);
    Ok(place.node.is_dir() && call.mounts.iter().any(is_inside))
}

/// Whether a process has a descriptor of something in `mount`.
pub fn is_open(monitor: &Monitor, mount: &Mount) -> bool {
    release_unheld(monitor, mount);
    monitor.shadows.sweep_files();
    monitor.shadows.any_in(mount)
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
