//! mount(2) by processes in mount namespaces of their own.
//!
//! Such a process mounts for its namespace alone, and only the process itself can. So it makes the call, and what it binds from a mount of the run has a mount of the
//! kernel in its place there, by which the monitor finds it again ([`Namespaces`](crate::process::namespaces::Namespaces), docs/decisions/0140).

use std::fs::File;
use std::path::Path;

use goanna_vfs::{Errno, MountFlags, Place, Result, caps};
use nix::mount::MsFlags;

use super::hosted::is_root;
use super::request::Request;
use crate::answer::MountArguments;
use crate::call::{Answer, Call, Target};
use crate::errno::errno;
use crate::inprocess::mount_points::shares_mounts;
use crate::process::namespaces::source_of;

/// Whether the kernel has a mount in the place of the mount whose root directory `target` is: calls on it are about that.
pub fn is_in_place(target: &Place) -> bool {
    target.mount.kernel_id.is_some() && is_root(target)
}

/// mount(2) of `request` on `target`. EOPNOTSUPP where the target is in a mount, and for a mount that the run began with.
pub(super) fn mount(call: &Call<'_>, request: &Request, target: &Target) -> Result<Answer> {
    match target {
        Target::At(target) if request.changes() => change(call, request, target),
        Target::At(target) if !is_in_place(target) => Err(Errno::EOPNOTSUPP.into()),
        _ => match (request.moves(), &request.source) {
            (true, Some(source)) => match call.object(libc::AT_FDCWD, source, true)? {
                Target::PassOn => Ok(Answer::PassOn),
                Target::At(source) => bind(call, request, &source),
            },
            _ => Ok(Answer::PassOn),
        },
    }
}

/// Changes what is mounted at `target`. EINVAL if nothing is.
fn change(call: &Call<'_>, request: &Request, target: &Place) -> Result<Answer> {
    if !is_root(target) {
        return Err(Errno::EINVAL.into());
    }
    if is_in_place(target) {
        return Ok(Answer::PassOn);
    }
    if !call.caller()?.has(caps::SYS_ADMIN) {
        return Err(Errno::EPERM.into());
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

/// Binds `source`, which is in a mount, on a directory or file of the host.
fn bind(call: &Call<'_>, request: &Request, source: &Place) -> Result<Answer> {
    if request.flags.contains(MsFlags::MS_MOVE) {
        return match is_in_place(source) {
            true => Ok(Answer::PassOn),
            false => Err(Errno::EOPNOTSUPP.into()),
        };
    }
    if source.mount.is_host() {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let monitor = call.monitor;
    if !monitor.outside.allows_all() {
        return Err(Errno::EPERM.into());
    }
    let arguments = if source.node.is_dir() {
        directory(call, source)?
    } else {
        file(call, source)?
    };
    for tid in monitor.alive.all() {
        if !shares_mounts(tid) {
            // The kernel would answer its calls from the mount in the place of this one.
            monitor.in_process.exclude(tid);
        }
    }
    Ok(Answer::Mount(arguments))
}

/// In the place of a directory: an empty file system with the name of the part as its source.
fn directory(call: &Call<'_>, source: &Place) -> Result<MountArguments> {
    let name = call.monitor.shadows.rundir().unguessable("m");
    let name = name.map_err(errno)?;
    let name = name_of(&name)?;
    let mut flags = MsFlags::empty();
    let of_source = source.mount.flags;
    flags.set(
        MsFlags::MS_RDONLY,
        of_source.contains(MountFlags::READ_ONLY),
    );
    flags.set(MsFlags::MS_NOEXEC, of_source.contains(MountFlags::NO_EXEC));
    let arguments = MountArguments {
        source: source_of(&name),
        target: call.path(1)?,
        kind: b"tmpfs".to_vec(),
        flags: flags.bits(),
        data: b"size=4k,mode=0755".to_vec(),
    };
    call.monitor.namespaces.add(name, source, &call.mounts);
    Ok(arguments)
}

/// In the place of a file: an empty file of the run-time directory with the name of the part. EOPNOTSUPP where the process cannot reach the run-time directory.
fn file(call: &Call<'_>, source: &Place) -> Result<MountArguments> {
    let monitor = call.monitor;
    let rundir = monitor.shadows.rundir();
    let path = rundir.unguessable("m").map_err(errno)?;
    let (name, dir) = (name_of(&path)?, path.parent().ok_or(Errno::EIO)?);
    let seen = monitor.namespaces.path_of(call.task.tid, dir);
    let mut seen = seen.ok_or(Errno::EOPNOTSUPP)?;
    rundir.allow_traversal(call.caller()?.uid).map_err(errno)?;
    File::create_new(&path).map_err(errno)?;
    seen.push(b'/');
    seen.extend(name.as_bytes());
    monitor.namespaces.add(name, source, &call.mounts);
    Ok(MountArguments {
        source: seen,
        target: call.path(1)?,
        kind: b"none".to_vec(),
        flags: MsFlags::MS_BIND.bits(),
        data: Vec::new(),
    })
}

fn name_of(path: &Path) -> Result<String, Errno> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.ok_or(Errno::EIO)?.to_owned())
}
