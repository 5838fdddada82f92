//! inotify_add_watch(2), fanotify_mark(2), and directory notifications (`F_NOTIFY`).

use std::os::fd::AsFd;
use std::path::PathBuf;

use goanna_vfs::{Errno, Place, Result, ops};
use rustix::fs::inotify::{self, WatchFlags};

use crate::call::{Answer, Call, Target};
use crate::errno::from_rustix;
use crate::process::task::acting_as;
use crate::shadow::Shadow;
use crate::watches::{self, is_inotify, report};

/// inotify_add_watch(2): the monitor adds the watch to the tracee's inotify, on the host object that stands for the file.
pub fn add_watch(call: &mut Call<'_>) -> Result<Answer> {
    let mask = call.uint(2);
    let follow = mask & libc::IN_DONT_FOLLOW == 0;
    let both = libc::IN_MASK_ADD | libc::IN_MASK_CREATE;
    if mask == 0 || mask & both == both || !is_inotify(call.task.tid, call.int(0)) {
        // Errors of these arguments come before errors of the path.
        return Ok(Answer::PassOn);
    }
    let place = match call.object(libc::AT_FDCWD, &call.path(1)?, follow)? {
        Target::PassOn => return Ok(Answer::PassOn),
        Target::At(place) => place,
    };
    if mask & libc::IN_ONLYDIR != 0 && !place.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    let caller = call.caller()?;
    ops::access(&caller, &place, libc::R_OK)?;
    let inotify = call.task.descriptor(call.int(0))?;
    if let Some(path) = place.mount.fs.host_path(&place.node) {
        return on_host(call, inotify.as_fd(), path, mask);
    }
    let request = watches::Request {
        place: &place,
        view: report::view(call, &place),
        inotify: inotify.as_fd(),
        mask,
        base: &call.monitor.shadows.rundir().path().join("w"),
    };
    let watch = call.monitor.watches.add(&caller, &request)?;
    // Nobody would report opens that do not notify.
    call.monitor.in_process.unshare_opened();
    Ok(Answer::Value(watch.into()))
}

/// A watch on a host file that a mount shows: the kernel reports its events.
fn on_host(
    call: &Call<'_>,
    inotify: std::os::fd::BorrowedFd<'_>,
    path: PathBuf,
    mask: u32,
) -> Result<Answer> {
    // The path has been walked to its end.
    let flags = WatchFlags::from_bits_retain(mask | libc::IN_DONT_FOLLOW);
    let added = acting_as(&*call.caller()?, None, || {
        let added = inotify::add_watch(inotify, &path, flags);
        added.map_err(from_rustix)
    });
    Ok(Answer::Value(added?.into()))
}

/// fanotify_mark(2): EOPNOTSUPP in a mount, as for a file system whose files have no handles.
pub fn fanotify_mark(call: &mut Call<'_>) -> Result<Answer> {
    if call.uint(1) & libc::FAN_MARK_FLUSH != 0 {
        return Ok(Answer::PassOn);
    }
    let is_ours = if call.arg(4) == 0 {
        call.int(3) >= 0 && call.shadow(call.int(3))?.is_some()
    } else {
        let follow = call.uint(1) & libc::FAN_MARK_DONT_FOLLOW == 0;
        let path = call.path(4)?;
        matches!(call.object(call.int(3), &path, follow)?, Target::At(place) if is_virtual(&place))
    };
    if is_ours {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(Answer::PassOn)
}

fn is_virtual(place: &Place) -> bool {
    !place.mount.is_host()
}

/// fcntl(2) with `F_NOTIFY`: EINVAL for a directory in a mount, as on a kernel without this operation.
pub fn notify_directory(call: &Call<'_>) -> Result<Answer> {
    match call.shadow(call.int(0))?.as_deref() {
        Some(Shadow::Dir { .. }) => Err(Errno::EINVAL.into()),
        _ => Ok(Answer::PassOn),
    }
}
