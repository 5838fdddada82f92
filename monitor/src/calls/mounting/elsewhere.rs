//! mount(2), umount2(2), and the calls on mounts by descriptor, by processes in mount namespaces of their own.
//!
//! Such a process mounts for its namespace alone, and only the process itself can. So it makes the call, with arguments of ours
//! ([`Namespaces`](crate::process::namespaces::Namespaces), docs/decisions/0140):
//!
//! - It binds a backing object instead of a directory or file of the run. The monitor recognises the mount by the name of that.
//! - It mounts on a backing object instead of a directory or file of the run. The monitor knows what is covered by the name of that.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, MountFlags, Place, Result, caps};
use nix::mount::{MntFlags, MsFlags};

use super::hosted::{is_root, release_unheld};
use super::path_flags;
use super::request::Request;
use crate::answer::Argument;
use crate::call::{Answer, Call, Resolved, Target};
use crate::errno::errno;
use crate::inprocess::mount_points::shares_mounts;
use crate::shadow::run_directory::random_name;

/// What the kernel is to use instead of a path.
enum Found {
    /// The same path.
    Same,
    /// This path, under which it has the object.
    Path(Vec<u8>),
    /// This path, under which it has a backing object instead of what a process has bound. The file system is that of the run-time directory.
    Bound(Vec<u8>),
    /// It does not have the object, which is in a mount of the run.
    InRun(Place),
}

impl Found {
    /// What `path` leads to from `dirfd`, under `AT_EMPTY_PATH` and `AT_SYMLINK_NOFOLLOW` in `flags`.
    fn at(call: &Call<'_>, dirfd: i32, path: &[u8], flags: i32) -> Result<Self> {
        if path.is_empty() && dirfd != libc::AT_FDCWD {
            let namespaces = &call.monitor.namespaces;
            let is_detached = namespaces.bound_as(call.task.identity(dirfd)?).is_some();
            return Ok(match call.object_at(dirfd, path, flags)? {
                Target::At(_) if is_detached => Self::Same,
                Target::At(place) if !place.mount.is_host() => Self::in_run(call, place),
                _ => Self::Same,
            });
        }
        let is_here = path.is_empty() && flags & libc::AT_EMPTY_PATH != 0;
        let path = if is_here { b"." } else { path };
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let Resolved { at, native } = call.resolve(dirfd, path, follow)?;
        Ok(match at {
            Pos::Host(_) if native => Self::Same,
            Pos::Host(path) => Self::Path(call.path_in_kernel(path)),
            Pos::Mounted(place) => Self::in_run(call, place),
        })
    }

    /// What `path` leads to from the working directory.
    fn by_path(call: &Call<'_>, path: &[u8]) -> Result<Self> {
        Self::at(call, libc::AT_FDCWD, path, 0)
    }

    fn in_run(call: &Call<'_>, place: Place) -> Self {
        match &place.mount.in_kernel {
            Some(in_kernel) if is_root(&place) => {
                Self::Bound(call.path_in_kernel(in_kernel.path.clone()))
            }
            _ => Self::InRun(place),
        }
    }

    /// Whether the caller may change mounts there; false where the kernel says so, which has it. EPERM.
    fn may_be_changed(&self, call: &Call<'_>) -> Result<bool> {
        match self {
            _ if call.caller()?.has(caps::SYS_ADMIN) => Ok(true),
            Self::Same => Ok(false),
            _ => Err(Errno::EPERM.into()),
        }
    }
}

/// What a call changes of a mount.
#[derive(PartialEq, Eq)]
enum Change {
    /// The file system, wherever else that is mounted.
    FileSystem,
    /// The mount alone. `Some`: only whether it is read-only.
    Mount(Option<bool>),
}

impl Change {
    fn of(request: &Request) -> Self {
        let is_read_only = request.flags.contains(MsFlags::MS_RDONLY);
        let remounts = request.flags.contains(MsFlags::MS_REMOUNT);
        match request.changes_file_system() {
            true => Self::FileSystem,
            false => Self::Mount(remounts.then_some(is_read_only)),
        }
    }
}

/// mount(2) of `request`. EOPNOTSUPP where the kernel would have to move or change a mount that the run began with.
pub(super) fn mount(call: &Call<'_>, request: &Request) -> Result<Answer> {
    let target = Found::by_path(call, &call.path(1)?)?;
    if request.changes() {
        return change(call, target, &Change::of(request));
    }
    if !target.may_be_changed(call)? {
        return Ok(Answer::PassOn);
    }
    let source = match &request.source {
        Some(source) if request.moves() => Found::by_path(call, source)?,
        _ => Found::Same,
    };
    if matches!((&source, &target), (Found::Same, Found::Same)) {
        return Ok(Answer::PassOn);
    }
    may_mount(call)?;
    if let Found::InRun(target) = &target {
        may_mount_on(request, &source, target)?;
    }
    let mut arguments = Vec::from_iter(mounted_on(call, 1, target)?);
    match source {
        Found::Same => {}
        Found::Path(source) | Found::Bound(source) => arguments.push((0, Argument::Text(source))),
        Found::InRun(_) if request.flags.contains(MsFlags::MS_MOVE) => {
            return Err(Errno::EOPNOTSUPP.into());
        }
        Found::InRun(source) => {
            let object = backing_object(call, &source)?;
            let flags = Argument::Value(MsFlags::MS_BIND.bits());
            arguments.extend([(0, Argument::Text(object)), (3, flags)]);
        }
    }
    Ok(Answer::WithArguments(arguments))
}

/// open_tree(2) and open_tree_attr(2) of a copy: dirfd, path, flags.
pub(super) fn open_tree(call: &Call<'_>, at: i32) -> Result<Answer> {
    let source = Found::at(call, call.int(0), &call.path(1)?, at)?;
    if !source.may_be_changed(call)? {
        return Ok(Answer::PassOn);
    }
    let path = match source {
        Found::Same => return Ok(Answer::PassOn),
        Found::Path(path) | Found::Bound(path) => path,
        Found::InRun(source) => {
            may_mount(call)?;
            backing_object(call, &source)?
        }
    };
    Ok(with_path(1, path))
}

/// move_mount(2): dirfd and path of the source with the flags `from`, dirfd and path of the target with the flags `to`.
pub(super) fn move_mount(call: &Call<'_>, from: i32, to: i32) -> Result<Answer> {
    let source = Found::at(call, call.int(0), &call.path(1)?, from)?;
    let target = Found::at(call, call.int(2), &call.path(3)?, to)?;
    if !target.may_be_changed(call)? {
        return Ok(Answer::PassOn);
    }
    if matches!((&source, &target), (Found::Same, Found::Same)) {
        return Ok(Answer::PassOn);
    }
    may_mount(call)?;
    let mut arguments = Vec::new();
    match source {
        Found::Same => {}
        Found::Path(source) | Found::Bound(source) => arguments.push((1, Argument::Text(source))),
        // A mount that the run began with.
        Found::InRun(source) if is_root(&source) => return Err(Errno::EOPNOTSUPP.into()),
        Found::InRun(_) => return Err(Errno::EINVAL.into()),
    }
    arguments.extend(mounted_on(call, 3, target)?);
    Ok(Answer::WithArguments(arguments))
}

/// fspick(2): dirfd, path.
pub(super) fn pick(call: &Call<'_>, at: i32) -> Result<Answer> {
    let target = Found::at(call, call.int(0), &call.path(1)?, at)?;
    change(call, target, &Change::FileSystem)
}

/// mount_setattr(2): dirfd, path. `read_only`: whether the mount becomes read-only, if nothing else changes.
pub(super) fn set_attributes(call: &Call<'_>, at: i32, read_only: Option<bool>) -> Result<Answer> {
    let target = Found::at(call, call.int(0), &call.path(1)?, at)?;
    change(call, target, &Change::Mount(read_only))
}

/// A call that makes `change` at `target`, which is its argument 1. EINVAL if nothing is mounted there. EOPNOTSUPP if the kernel has nothing there, or another file
/// system, unless the mount is already as it is to be.
fn change(call: &Call<'_>, target: Found, change: &Change) -> Result<Answer> {
    if !target.may_be_changed(call)? {
        return Ok(Answer::PassOn);
    }
    match target {
        Found::Same => Ok(Answer::PassOn),
        Found::Bound(_) if *change == Change::FileSystem => Err(Errno::EOPNOTSUPP.into()),
        Found::Path(target) | Found::Bound(target) => Ok(with_path(1, target)),
        Found::InRun(target) if !is_root(&target) => Err(Errno::EINVAL.into()),
        Found::InRun(target) => {
            let is_read_only = target.mount.flags.contains(MountFlags::READ_ONLY);
            // Container runtimes repeat for each mount what they have set for the one around it.
            match *change == Change::Mount(Some(is_read_only)) {
                true => Ok(Answer::DONE),
                false => Err(Errno::EOPNOTSUPP.into()),
            }
        }
    }
}

/// The call with `path` as its argument `at`.
fn with_path(at: usize, path: Vec<u8>) -> Answer {
    Answer::WithArguments(vec![(at, Argument::Text(path))])
}

/// The caller is about to mount something of the run, or in it. EPERM where processes outside of the run matter.
fn may_mount(call: &Call<'_>) -> Result<()> {
    let monitor = call.monitor;
    if !monitor.outside.allows_all() {
        return Err(Errno::EPERM.into());
    }
    for tid in monitor.alive.all() {
        if !shares_mounts(tid) {
            // The kernel would answer its calls from the backing object.
            monitor.in_process.exclude(tid);
        }
    }
    Ok(())
}

/// umount2(2) of what is mounted at `path`. EBUSY for a mount that the run began with, EINVAL if nothing is mounted there.
pub(super) fn umount(call: &Call<'_>, path: &[u8], flags: MntFlags) -> Result<Answer> {
    let at = path_flags(!flags.contains(MntFlags::UMOUNT_NOFOLLOW), false);
    let target = match Found::at(call, libc::AT_FDCWD, path, at)? {
        Found::Same => return Ok(Answer::PassOn),
        Found::Path(target) | Found::Bound(target) => target,
        Found::InRun(place) if is_root(&place) => return Err(Errno::EBUSY.into()),
        Found::InRun(_) => return Err(Errno::EINVAL.into()),
    };
    // They would keep its file system busy.
    call.monitor.namespaces.forget();
    release_unheld(call.monitor, call.mounts.host());
    Ok(with_path(0, target))
}

/// The directories of pivot_root(2) as the kernel finds them. EINVAL for a directory in a mount of the run for which the kernel has nothing.
pub fn pivot(call: &Call<'_>) -> Result<Answer> {
    let (new, old) = (call.path(0)?, call.path(1)?);
    let (new, old) = (Found::by_path(call, &new)?, Found::by_path(call, &old)?);
    let mut arguments = Vec::new();
    match new {
        Found::Same if matches!(old, Found::Same) => return Ok(Answer::PassOn),
        Found::Same => {}
        Found::Path(new) | Found::Bound(new) => arguments.push((0, Argument::Text(new))),
        Found::InRun(_) => return Err(Errno::EINVAL.into()),
    }
    if matches!(&old, Found::InRun(place) if !place.node.is_dir()) {
        return Err(Errno::ENOTDIR.into());
    }
    arguments.extend(mounted_on(call, 1, old)?);
    Ok(Answer::WithArguments(arguments))
}

/// ENOTDIR where a directory would cover something else, or the reverse. The kernel says so of what it has itself.
fn may_mount_on(request: &Request, source: &Found, target: &Place) -> Result<(), Errno> {
    let is_dir = match source {
        Found::InRun(source) => source.node.is_dir(),
        // The mount point is of the target's kind, so the kernel compares.
        _ if request.moves() => return Ok(()),
        _ => true,
    };
    if is_dir == target.node.is_dir() {
        Ok(())
    } else {
        Err(Errno::ENOTDIR)
    }
}

/// The argument `at` of a call that mounts something on `target`, unless it stays as it is.
fn mounted_on(call: &Call<'_>, at: usize, target: Found) -> Result<Option<(usize, Argument)>> {
    let path = match target {
        Found::Same => return Ok(None),
        Found::Path(path) | Found::Bound(path) => path,
        Found::InRun(target) => mount_point(call, target)?,
    };
    Ok(Some((at, Argument::Text(path))))
}

/// The caller's path of a new backing object, for a mount on `target`: in the backing directory of the mount that `target` is in, so that it goes with that, or in the
/// run-time directory. EOPNOTSUPP where the caller cannot reach that.
fn mount_point(call: &Call<'_>, target: Place) -> Result<Vec<u8>> {
    let namespaces = &call.monitor.namespaces;
    let backing = namespaces.backing_of(&target.mount);
    let object = match (&target.mount.in_kernel, backing) {
        (Some(in_kernel), Some(dir)) => {
            let seen = call.path_in_kernel(in_kernel.path.clone());
            Object::in_directory(&dir, &seen, target.node.is_dir())?
        }
        _ => Object::new(call, target.node.is_dir())?,
    };
    namespaces.cover(object.name, target);
    Ok(object.seen)
}

/// The caller's path of a new backing object, to be bound instead of `source`. EOPNOTSUPP for something of the host that the kernel finds by no path, and where the
/// caller has covered the run-time directory.
fn backing_object(call: &Call<'_>, source: &Place) -> Result<Vec<u8>> {
    if source.mount.is_host() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let object = Object::new(call, source.node.is_dir())?;
    let namespaces = &call.monitor.namespaces;
    namespaces.bind((object.name, object.path), source, &call.mounts)?;
    Ok(object.seen)
}

/// A backing object: an empty directory or file of the run-time directory.
struct Object {
    path: PathBuf,
    /// The path by which the caller finds it.
    seen: Vec<u8>,
    name: String,
}

impl Object {
    /// A new one. EOPNOTSUPP where the caller has covered the run-time directory.
    fn new(call: &Call<'_>, is_dir: bool) -> Result<Self> {
        let monitor = call.monitor;
        let found = monitor.namespaces.directory(call.task.tid);
        let (dir, seen) = found.ok_or(Errno::EOPNOTSUPP)?;
        let rundir = monitor.shadows.rundir();
        rundir.allow_traversal(call.caller()?.uid).map_err(errno)?;
        Self::in_directory(&dir, &seen, is_dir)
    }

    /// A new one in `dir`, which the caller finds as `seen`.
    fn in_directory(dir: &Path, seen: &[u8], is_dir: bool) -> Result<Self> {
        let name = random_name().map_err(errno)?;
        let path = dir.join(&name);
        if is_dir {
            let mut builder = DirBuilder::new();
            builder.mode(0o711).create(&path).map_err(errno)?;
        } else {
            File::create_new(&path).map_err(errno)?;
        }
        let separator: &[u8] = if seen == b"/" { b"" } else { b"/" };
        Ok(Self {
            path,
            seen: [seen, separator, name.as_bytes()].concat(),
            name,
        })
    }
}
