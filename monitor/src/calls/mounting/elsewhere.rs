//! mount(2) and umount2(2) by processes in mount namespaces of their own.
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
use super::request::Request;
use crate::answer::Mounting;
use crate::call::{Answer, Call, Resolved};
use crate::errno::errno;
use crate::inprocess::mount_points::shares_mounts;
use crate::shadow::run_directory::random_name;

/// Whether `target` is the root directory of a mount for which the kernel has one, too: calls on it are about that.
pub fn is_in_place(target: &Place) -> bool {
    target.mount.in_kernel.is_some() && is_root(target)
}

/// What the kernel is to use instead of a path.
enum Found {
    /// The same path.
    Same,
    /// This path, under which it has the object.
    Path(Vec<u8>),
    /// It does not have the object, which is in a mount of the run.
    InRun(Place),
}

fn find(call: &Call<'_>, path: &[u8], follow: bool) -> Result<Found> {
    let Resolved { at, native } = call.resolve(libc::AT_FDCWD, path, follow)?;
    Ok(match at {
        Pos::Host(_) if native => Found::Same,
        Pos::Host(path) => Found::Path(call.path_in_kernel(path)),
        Pos::Mounted(place) => match &place.mount.in_kernel {
            Some(in_kernel) if is_root(&place) => {
                Found::Path(call.path_in_kernel(in_kernel.path.clone()))
            }
            _ => Found::InRun(place),
        },
    })
}

/// mount(2) of `request`. EOPNOTSUPP where the kernel would have to move or change a mount that the run began with.
pub(super) fn mount(call: &Call<'_>, request: &Request) -> Result<Answer> {
    let path = call.path(1)?;
    let target = find(call, &path, true)?;
    if !call.caller()?.has(caps::SYS_ADMIN) {
        return match target {
            Found::Same => Ok(Answer::PassOn),
            Found::Path(_) | Found::InRun(_) => Err(Errno::EPERM.into()),
        };
    }
    if request.changes() {
        return match target {
            Found::Same => Ok(Answer::PassOn),
            Found::Path(target) => Ok(request.at(None, target)),
            Found::InRun(target) => change(request, &target),
        };
    }
    let source = match &request.source {
        Some(source) if request.moves() => find(call, source, true)?,
        _ => Found::Same,
    };
    if matches!((&source, &target), (Found::Same, Found::Same)) {
        return Ok(Answer::PassOn);
    }
    let monitor = call.monitor;
    if !monitor.outside.allows_all() {
        return Err(Errno::EPERM.into());
    }
    let target = match target {
        Found::Same => path,
        Found::Path(target) => target,
        Found::InRun(target) => {
            may_mount_on(request, &source, &target)?;
            mount_point(call, target)?
        }
    };
    for tid in monitor.alive.all() {
        if !shares_mounts(tid) {
            // The kernel would answer its calls from the backing object.
            monitor.in_process.exclude(tid);
        }
    }
    match source {
        Found::Same => Ok(request.at(None, target)),
        Found::Path(source) => Ok(request.at(Some(source), target)),
        Found::InRun(_) if request.flags.contains(MsFlags::MS_MOVE) => {
            Err(Errno::EOPNOTSUPP.into())
        }
        Found::InRun(source) if source.mount.is_host() => Err(Errno::EOPNOTSUPP.into()),
        Found::InRun(source) => bind(call, &source, target),
    }
}

/// umount2(2) of what is mounted at `path`. EBUSY for a mount that the run began with, EINVAL if nothing is mounted there.
pub(super) fn umount(call: &Call<'_>, path: &[u8], flags: MntFlags) -> Result<Answer> {
    let follow = !flags.contains(MntFlags::UMOUNT_NOFOLLOW);
    let target = match find(call, path, follow)? {
        Found::Same => return Ok(Answer::PassOn),
        Found::Path(target) => target,
        Found::InRun(place) if is_root(&place) => return Err(Errno::EBUSY.into()),
        Found::InRun(_) => return Err(Errno::EINVAL.into()),
    };
    // They would keep its file system busy.
    call.monitor.namespaces.forget();
    release_unheld(call.monitor, call.mounts.host());
    Ok(Answer::Mounting(Mounting::Unmount { target }))
}

/// The directories of pivot_root(2) as the kernel finds them. EINVAL for a directory in a mount of the run for which the kernel has nothing.
pub fn pivot(call: &Call<'_>) -> Result<Answer> {
    let (new, old) = (call.path(0)?, call.path(1)?);
    let dir = |path: &[u8]| find(call, path, true);
    let (to, put) = match (dir(&new)?, dir(&old)?) {
        (Found::Same, Found::Same) => return Ok(Answer::PassOn),
        (Found::InRun(_), _) => return Err(Errno::EINVAL.into()),
        found => found,
    };
    Ok(Answer::Mounting(Mounting::Pivot {
        new: match to {
            Found::Path(path) => path,
            Found::Same | Found::InRun(_) => new,
        },
        old: match put {
            Found::Path(path) => path,
            Found::Same => old,
            Found::InRun(place) if !place.node.is_dir() => return Err(Errno::ENOTDIR.into()),
            Found::InRun(place) => mount_point(call, place)?,
        },
    }))
}

/// Changes what is mounted at `target`, for which the kernel has nothing. EINVAL if nothing is.
fn change(request: &Request, target: &Place) -> Result<Answer> {
    if !is_root(target) {
        return Err(Errno::EINVAL.into());
    }
    // Container runtimes repeat for each mount what they have set for the one around it.
    let stays = MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
    let is_read_only = target.mount.flags.contains(MountFlags::READ_ONLY);
    let is_so = request.flags.contains(MsFlags::MS_RDONLY) == is_read_only;
    if request.flags.contains(stays) && is_so {
        return Ok(Answer::DONE);
    }
    Err(Errno::EOPNOTSUPP.into())
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

/// Has the caller bind a backing object instead of `source`.
fn bind(call: &Call<'_>, source: &Place, target: Vec<u8>) -> Result<Answer> {
    let object = Object::new(call, source.node.is_dir())?;
    call.monitor
        .namespaces
        .bind((object.name, object.path), source, &call.mounts);
    Ok(Answer::Mounting(Mounting::Mount {
        source: Some(object.seen),
        target,
        kind: None,
        flags: MsFlags::MS_BIND.bits(),
        data: None,
    }))
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
