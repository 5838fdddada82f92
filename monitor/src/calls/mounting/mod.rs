//! mount(2), umount2(2), and the calls on mounts by descriptor, where they concern a mount of the run.
//!
//! The kernel does not see the mounts of a run. It would mount on the host's directory of the same name, which the program does not
//! see, or on the backing object of its working directory, which other programs use. So the monitor makes these calls, with the caller's
//! credentials: in a mount that shows a directory of the host they are about the host's directory, and elsewhere about one that [`hosted`] makes. What is bound from
//! other mounts is in the table of the run's mounts alone.
//!
//! `elsewhere.rs`: the same by a process in another mount namespace, for which the monitor cannot mount.

mod elsewhere;
pub mod hosted;
mod request;
mod tree;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FileKind, MountFlags, Place, Result, caps};
use nix::mount::{MntFlags, MsFlags};
use rustix::fs::CWD;

use crate::call::{Answer, Call, Target};
use crate::calls::open::nonempty;
use crate::errno::from_rustix;
use crate::inprocess::mount_points::shares_mounts;
use crate::process::task::acting_as;
pub use elsewhere::pivot;
use hosted::{host_path, is_in_kernel, is_root, release_unheld};
use request::Request;
pub use tree::{mount_setattr, open_tree, open_tree_attr};

/// EPERM without `CAP_SYS_ADMIN`.
fn may_mount(call: &Call<'_>) -> Result<()> {
    if call.caller()?.capable(caps::SYS_ADMIN) {
        Ok(())
    } else {
        Err(Errno::EPERM.into())
    }
}

/// Flags of the usual kind for those of a call with flags of its own.
fn path_flags(follows: bool, may_be_empty: bool) -> i32 {
    let follow = if follows {
        0
    } else {
        libc::AT_SYMLINK_NOFOLLOW
    };
    let empty = if may_be_empty { libc::AT_EMPTY_PATH } else { 0 };
    follow | empty
}

/// The path on the host of what is mounted at `target`, to change it. EINVAL if nothing is, EOPNOTSUPP for a mount that the run began with.
fn mounted_at(call: &Call<'_>, target: &Place) -> Result<PathBuf> {
    if !is_root(target) {
        return host_path(target).ok_or_else(|| Errno::EINVAL.into());
    }
    let dir = call.monitor.hosted.dir_of(&target.mount);
    dir.ok_or_else(|| Errno::EOPNOTSUPP.into())
}

/// The root directory of what is mounted on `place`, as the kernel looks for the mount that a path names: a working directory can be covered.
fn uncovered(call: &Call<'_>, place: Place) -> Result<Place> {
    let (path, is_removed) = place.mount.fs.path(&*call.caller()?, &place.node)?;
    let mount = call.mounts.at(&place.mount.absolute(&path));
    Ok(match mount.filter(|_| !is_removed) {
        Some(mount) => Place {
            node: mount.fs.root(),
            mount: Arc::clone(mount),
        },
        None => place,
    })
}

/// Mounts over `target` by `mount`, which gets a path on the host.
fn mount_over(
    call: &Call<'_>,
    target: Place,
    source: Option<&[u8]>,
    mount: impl FnOnce(&Path) -> Result<()>,
) -> Result<Answer> {
    let on_host = host_path(&target).filter(|_| !is_root(&target));
    match on_host {
        Some(path) => {
            mount(&path)?;
            // A directory that is bound over itself is another one with the same inode number.
            release_unheld(call.monitor, &target.mount);
        }
        // The kernel would mount a file.
        None if !target.node.is_dir() => return Err(Errno::EOPNOTSUPP.into()),
        None => {
            let source = String::from_utf8_lossy(source.unwrap_or(b"none")).into_owned();
            call.monitor.hosted.add(call, target, source, mount)?;
        }
    }
    Ok(Answer::DONE)
}

/// mount(2) that changes the mount at `target`.
fn change(call: &Call<'_>, request: &Request, target: &Place) -> Result<Answer> {
    if !is_root(target) || target.mount.base.is_none() {
        let path = mounted_at(call, target)?;
        request.perform(call, request.source.as_deref(), &path)?;
    } else if request.changes_file_system() {
        return Err(Errno::EOPNOTSUPP.into());
    } else if request.flags.contains(MsFlags::MS_REMOUNT) {
        let flags = MountFlags::of_options(request.flags.bits());
        call.monitor
            .hosted
            .set_flags(call.monitor, &target.mount, flags)?;
    }
    // No mount of the run has others that follow it.
    Ok(Answer::DONE)
}

/// mount(2): source, target, type, flags, data. EOPNOTSUPP to move a mount that the run began with.
pub fn mount(call: &mut Call<'_>) -> Result<Answer> {
    let request = Request::read(call)?;
    if !shares_mounts(call.task.tid) {
        return elsewhere::mount(call, &request);
    }
    let target = call.object(libc::AT_FDCWD, &call.path(1)?, true)?;
    let Target::At(target) = target else {
        return mount_on_host(call, &request);
    };
    may_mount(call)?;
    if !call.may_wait {
        return Ok(Answer::Wait);
    }
    if request.changes() {
        return change(call, &request, &target);
    }
    let target = uncovered(call, target)?;
    if let Some(source) = request.source_in_run(call)? {
        return bind(call, &request, &source, target);
    }
    if let Some(source) = file_of_host(call, &request, &target)? {
        return bind(call, &request, &source, target);
    }
    let source = request.source_on_host(call)?;
    if !target.node.is_dir() && !request.moves() {
        return Err(Errno::ENOTDIR.into());
    }
    mount_over(call, target, request.source.as_deref(), |path| {
        request.perform(call, source.as_deref(), path)
    })
}

/// The file of the host that is to be bound over the file `target`, which the kernel does not have. ENOTDIR for a directory.
fn file_of_host(call: &Call<'_>, request: &Request, target: &Place) -> Result<Option<Place>> {
    let for_kernel = target.node.is_dir() || host_path(target).is_some() && !is_root(target);
    let binds = request.moves() && !request.flags.contains(MsFlags::MS_MOVE);
    let Some(source) = request.source.as_deref().filter(|_| binds && !for_kernel) else {
        return Ok(None);
    };
    let source = host_place(call, libc::AT_FDCWD, source, 0)?;
    if source.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(Some(source))
}

/// mount(2) with a target on the host.
fn mount_on_host(call: &Call<'_>, request: &Request) -> Result<Answer> {
    let source = request.source.as_deref().filter(|_| request.moves());
    let source = source
        .map(|path| call.object(libc::AT_FDCWD, path, true))
        .transpose()?;
    let source = source.and_then(Target::place);
    let Some(source) = source.filter(|source| !source.mount.is_host()) else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    if request.is_in_run(&source) {
        let target = host_place(call, libc::AT_FDCWD, &call.path(1)?, 0)?;
        return bind(call, request, &source, target);
    }
    let source = request.path_in_mount(call, &source)?;
    let path = request.path_on_host(call, &call.path(1)?)?;
    request.perform(call, Some(&source), Path::new(OsStr::from_bytes(&path)))?;
    Ok(Answer::DONE)
}

/// Binds `source`, for which the kernel has nothing, to `target`, or moves it there. EINVAL to move what is no mount.
fn bind(call: &Call<'_>, request: &Request, source: &Place, target: Place) -> Result<Answer> {
    let hosted = &call.monitor.hosted;
    if request.flags.contains(MsFlags::MS_MOVE) {
        return move_to(call, source, target);
    }
    let recursive = request.flags.contains(MsFlags::MS_REC);
    let copy = hosted.copy(call, source, MountFlags::empty(), recursive)?;
    hosted.attach(call, &copy, target)?;
    Ok(Answer::DONE)
}

fn move_to(call: &Call<'_>, source: &Place, target: Place) -> Result<Answer> {
    if !is_root(source) {
        return Err(Errno::EINVAL.into());
    }
    call.monitor.hosted.move_to(call, &source.mount, target)?;
    Ok(Answer::DONE)
}

/// The place on the host of what `path` leads to from `dirfd`, under the flags `at`.
fn host_place(call: &Call<'_>, dirfd: i32, path: &[u8], at: i32) -> Result<Place> {
    let follows = at & libc::AT_SYMLINK_NOFOLLOW == 0;
    match call.resolve(dirfd, &nonempty(dirfd, path), follows)?.at {
        Pos::Host(path) => call.mounts.host_place(&*call.caller()?, &path),
        Pos::Mounted(place) => Ok(place),
    }
}

/// move_mount(2): dirfd and path of the source, dirfd and path of the target, flags. EOPNOTSUPP to move what the kernel has into a mount, unless only a descriptor refers
/// to it, and to move a mount that the run began with.
pub fn move_mount(call: &mut Call<'_>) -> Result<Answer> {
    use rustix::mount::{MoveMountFlags as Flags, move_mount};

    const KNOWN: u32 = 0x377;
    const BENEATH: u32 = 0x200;
    let flags = Flags::from_bits_retain(call.uint(4));
    if call.uint(4) & !KNOWN != 0 {
        // The kernel refuses them before it looks at a path.
        return Ok(Answer::PassOn);
    }
    let at = |follow, empty| path_flags(flags.contains(follow), flags.contains(empty));
    let (from_flags, to_flags) = (
        at(Flags::MOVE_MOUNT_F_SYMLINKS, Flags::MOVE_MOUNT_F_EMPTY_PATH),
        at(Flags::MOVE_MOUNT_T_SYMLINKS, Flags::MOVE_MOUNT_T_EMPTY_PATH),
    );
    if !shares_mounts(call.task.tid) {
        return elsewhere::move_mount(call, from_flags, to_flags);
    }
    let from = call.path(1)?;
    let source = call.object_at(call.int(0), &from, from_flags)?;
    let target = call.object_at(call.int(2), &call.path(3)?, to_flags)?;
    match (source, target) {
        (Target::PassOn, Target::PassOn) => Ok(Answer::PassOn),
        (Target::PassOn, Target::At(target)) => {
            may_mount(call)?;
            if flags.bits() & BENEATH != 0 {
                return Err(Errno::EOPNOTSUPP.into());
            }
            // A mount that only the descriptor refers to is attached by it.
            let mount = if from.is_empty() {
                call.task.descriptor(call.int(0))?
            } else {
                let follow = from_flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                open_path(call, call.int(0), &from, follow)?
            };
            if target.node.is_dir() != is_directory(&mount)? {
                return Err(Errno::EINVAL.into());
            }
            mount_over(call, target, None, |path| {
                let flags = flags & Flags::MOVE_MOUNT_SET_GROUP | Flags::MOVE_MOUNT_F_EMPTY_PATH;
                Ok(move_mount(&mount, "", CWD, path, flags).map_err(from_rustix)?)
            })
        }
        (Target::At(source), target) => {
            may_mount(call)?;
            if flags.bits() & BENEATH != 0 {
                return Err(Errno::EOPNOTSUPP.into());
            }
            let target = match target {
                Target::At(target) => target,
                Target::PassOn => host_place(call, call.int(2), &call.path(3)?, to_flags)?,
            };
            move_in_run(call, &source, from.is_empty(), target)
        }
    }
}

/// move_mount(2) of `source`, which is in a mount: the descriptor of the call itself, or what a path leads to. EINVAL for what is no mount.
fn move_in_run(
    call: &Call<'_>,
    source: &Place,
    by_descriptor: bool,
    target: Place,
) -> Result<Answer> {
    // By its own place: what is attached nowhere is in no table.
    let shadow = match by_descriptor {
        true => call.shadow(call.int(0))?,
        false => None,
    };
    let place = shadow.as_ref().map_or(source, |shadow| shadow.place());
    match call.monitor.hosted.detached(place) {
        Some(copy) if copy.fs.root().is_dir() != target.node.is_dir() => Err(Errno::EINVAL.into()),
        Some(copy) => {
            call.monitor.hosted.attach(call, &copy, target)?;
            Ok(Answer::DONE)
        }
        None if is_in_kernel(source) && !is_root(source) => move_in_kernel(call, source, &target),
        None => move_to(call, source, target),
    }
}

/// Moves what the kernel has mounted at `source`. EOPNOTSUPP for a target that the kernel does not have.
fn move_in_kernel(call: &Call<'_>, source: &Place, target: &Place) -> Result<Answer> {
    use rustix::mount::{MoveMountFlags, move_mount};

    let path = |place: &Place| {
        let path = place.mount.fs.host_path(&place.node);
        path.filter(|_| is_in_kernel(place))
            .ok_or(Errno::EOPNOTSUPP)
    };
    let (from, to) = (path(source)?, path(target)?);
    acting_as(&*call.caller()?, None, || {
        move_mount(CWD, &from, CWD, &to, MoveMountFlags::empty()).map_err(from_rustix)
    })?;
    for place in [source, target] {
        release_unheld(call.monitor, &place.mount);
    }
    Ok(Answer::DONE)
}

/// fspick(2): dirfd, path, flags. EOPNOTSUPP for a mount that the run began with, EINVAL for what is no mount point.
pub fn fspick(call: &mut Call<'_>) -> Result<Answer> {
    use rustix::mount::{FsPickFlags as Flags, fspick};

    let flags = Flags::from_bits_retain(call.uint(2));
    let at = path_flags(
        !flags.contains(Flags::FSPICK_SYMLINK_NOFOLLOW),
        flags.contains(Flags::FSPICK_EMPTY_PATH),
    );
    if !shares_mounts(call.task.tid) {
        return elsewhere::pick(call, at);
    }
    let target = call.object_at(call.int(0), &call.path(1)?, at)?;
    let Target::At(target) = target else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    let path = mounted_at(call, &target)?;
    let picked = acting_as(&*call.caller()?, None, || {
        let flags = (flags - Flags::FSPICK_EMPTY_PATH) | Flags::FSPICK_CLOEXEC;
        fspick(CWD, &path, flags).map_err(from_rustix)
    })?;
    Ok(Answer::Receive {
        description: picked.into(),
        cloexec: flags.contains(Flags::FSPICK_CLOEXEC),
    })
}

/// A reference to what `path` leads to from `dirfd`, on the host.
fn open_path(call: &Call<'_>, dirfd: i32, path: &[u8], follow: bool) -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};

    let mut flags = OFlags::PATH | OFlags::CLOEXEC;
    flags.set(OFlags::NOFOLLOW, !follow);
    let from = match dirfd {
        libc::AT_FDCWD => None,
        _ if path.first() == Some(&b'/') => None,
        dirfd => Some(call.task.descriptor(dirfd)?),
    };
    let path = match (&from, call.resolve(dirfd, path, follow)?.at) {
        (None, Pos::Host(path)) => path,
        _ => path.to_vec(),
    };
    Ok(acting_as(&*call.caller()?, None, || {
        let opened = match &from {
            Some(dir) => rustix::fs::openat(dir, &path[..], flags, Mode::empty()),
            None => rustix::fs::open(&path[..], flags, Mode::empty()),
        };
        opened.map_err(from_rustix)
    })?)
}

fn is_directory(file: &OwnedFd) -> Result<bool, Errno> {
    let mode = nix::sys::stat::fstat(file)?.st_mode;
    Ok(FileKind::from_mode(mode) == Some(FileKind::Directory))
}

/// umount2(2): target, flags. EBUSY for a mount that the run began with, which its other processes use; EINVAL if `target` is not a mount point.
pub fn umount2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = MntFlags::from_bits(call.int(1)).ok_or(Errno::EINVAL)?;
    if call.notification.is_none() {
        // It would keep the file system busy.
        call.monitor.in_process.end_opens(call.task.tid);
    }
    let follow = !flags.contains(MntFlags::UMOUNT_NOFOLLOW);
    if !shares_mounts(call.task.tid) {
        return elsewhere::umount(call, &call.path(0)?, flags);
    }
    let Target::At(target) = call.object(libc::AT_FDCWD, &call.path(0)?, follow)? else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    if flags.contains(MntFlags::MNT_EXPIRE)
        && flags.intersects(MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
    {
        return Err(Errno::EINVAL.into());
    }
    if !call.may_wait {
        return Ok(Answer::Wait);
    }
    let target = uncovered(call, target)?;
    if !is_root(&target) {
        let path = host_path(&target).ok_or(Errno::EINVAL)?;
        let Place { mount, node } = target;
        // It would keep the file system busy.
        drop(node);
        release_unheld(call.monitor, &mount);
        call.monitor.hosted.unmount(&path, flags)?;
        return Ok(Answer::DONE);
    }
    let Place { mount, node } = target;
    drop(node);
    call.monitor.hosted.remove(call.monitor, &mount, flags)?;
    Ok(Answer::DONE)
}
