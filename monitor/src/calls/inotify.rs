//! inotify_add_watch(2), fanotify_mark(2), and directory notifications (`F_NOTIFY`).

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use goanna_sys::lease;
use goanna_vfs::{Errno, Place, Result, ops};
use rustix::fs::inotify::{self, WatchFlags};

use crate::call::{Answer, Call, Target};
use crate::errno::from_rustix;
use crate::process::task::acting_as;
use crate::shadow::Shadow;
use crate::watches::notifications::Request as Notified;
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

/// fcntl(2) with `F_NOTIFY`: the monitor watches the directory, and sends the signals.
pub fn notify_directory(call: &Call<'_>) -> Result<Answer> {
    let fd = call.int(0);
    let shadow = call.open_shadow(fd)?;
    let Some(Shadow::Dir { place, .. }) = shadow.as_deref() else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    let request = Notified {
        by: (caller.pid, fd),
        events: call.uint(2),
        copy: call.task.descriptor(fd)?,
    };
    if !request.is_end() {
        lease::set_owner(request.copy.as_fd(), caller.pid)?;
    }
    let mask = request.mask() | libc::IN_MASK_ADD;
    if !request.is_end() && request.mask() == 0 {
        // There are no such events.
        return Ok(Answer::DONE);
    }
    let watch = |inotify: BorrowedFd<'_>| {
        if let Some(path) = place.mount.fs.host_path(&place.node) {
            let flags = WatchFlags::from_bits_retain(mask);
            return Ok(inotify::add_watch(inotify, &path, flags).map_err(from_rustix)?);
        }
        let request = watches::Request {
            place,
            view: report::view(call, place),
            inotify,
            mask,
            base: &call.monitor.shadows.rundir().path().join("w"),
        };
        call.monitor.watches.add(&caller, &request)
    };
    call.monitor.watches.notify(request, watch)?;
    call.monitor.in_process.unshare_opened();
    Ok(Answer::DONE)
}
