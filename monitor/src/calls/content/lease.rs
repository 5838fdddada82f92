//! Operations of fcntl(2) that, unseen by the monitor, would act on a cache object.
//!
//! Leases (`F_SETLEASE`): the kernel signals the holder when another process opens the file, and that process waits until
//! the lease is released, 45 s at most.
//!
//! A file of the host has the host's leases. An open that must wait for a lease does so on a thread of the executor, not in the
//! pool. Once a program of the run has asked for a lease, those for writing do so at once: while the kernel waits there, it does not let the holder keep a lease for reading, as it would after an attempt in
//! the pool. Files in a store can have none: their cache objects are opened for work that must not wait, such as a commit.

use std::sync::atomic::Ordering;

use goanna_vfs::{Caller, Errno, FsError, Opened, Place, Result, caps, ops};
use nix::fcntl::{FcntlArg, OFlag, fcntl};

use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::calls::inotify::notify_directory;
use crate::shadow::Shadow;

/// fcntl(2) with `F_SETLEASE`, `F_NOTIFY`, `F_ADD_SEALS` and `F_GET_SEALS`
pub fn control(call: &mut Call<'_>) -> Result<Answer> {
    match call.int(1) {
        libc::F_SETLEASE => set(call),
        libc::F_NOTIFY => notify_directory(call),
        libc::F_ADD_SEALS | libc::F_GET_SEALS => seals(call),
        _ => Ok(Answer::PassOn),
    }
}

/// Refuses seals: only memfds have them, and those of a cache object belong to the monitor.
fn seals(call: &Call<'_>) -> Result<Answer> {
    let Descriptor::Shadow(shadow, ofd) = call.descriptor(call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    match &*shadow {
        Shadow::Reference { .. } => Err(Errno::EBADF.into()),
        Shadow::File { .. } => {
            let adds = call.int(1) == libc::F_ADD_SEALS;
            if adds && Monitor::access_mode(&ofd)? == libc::O_RDONLY {
                return Err(Errno::EPERM.into());
            }
            Err(Errno::EINVAL.into())
        }
        _ => Ok(Answer::PassOn),
    }
}

fn set(call: &Call<'_>) -> Result<Answer> {
    let Descriptor::Shadow(shadow, _) = call.descriptor(call.int(0))? else {
        // The kernel grants no lease while the monitor still has a descriptor that a program is getting, or has got.
        call.monitor.installs.settle_all();
        call.monitor.in_process.sweep_opens();
        if matches!(call.int(2), libc::F_RDLCK | libc::F_WRLCK) {
            call.monitor.leased.store(true, Ordering::Release);
        }
        return Ok(Answer::PassOn);
    };
    let place = match &*shadow {
        Shadow::File { place, .. } => place,
        Shadow::Reference { .. } => return Err(Errno::EBADF.into()),
        _ => return Ok(Answer::PassOn),
    };
    if !matches!(call.int(2), libc::F_RDLCK | libc::F_WRLCK) {
        return Ok(Answer::PassOn);
    }
    let caller = call.caller()?;
    let owner = place.mount.fs.getattr(&caller, &place.node)?.uid;
    if caller.uid != owner && !caller.capable(caps::LEASE) {
        return Err(Errno::EACCES.into());
    }
    // As if another process had the file open: the monitor has.
    Err(Errno::EAGAIN.into())
}

/// Opens the existing regular file `place`. `None`: another process has a lease on it, which the kernel has signalled, or may have one, and
/// the call may not wait here.
pub fn open(call: &Call<'_>, caller: &Caller, place: &Place, flags: i32) -> Result<Option<Opened>> {
    let may_meet_lease = place.mount.fs.opens_host_files();
    if call.may_wait || !may_meet_lease || flags & libc::O_NONBLOCK != 0 {
        return ops::open_existing(caller, place, flags).map(Some);
    }
    if flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0 && call.monitor.leased.load(Ordering::Acquire)
    {
        return Ok(None);
    }
    let opened = match ops::open_existing(caller, place, flags | libc::O_NONBLOCK) {
        Err(FsError::Errno(Errno::EAGAIN)) => return Ok(None),
        opened => opened?,
    };
    let fd = opened.fd()?;
    let status = fcntl(fd, FcntlArg::F_GETFL)?;
    let status = OFlag::from_bits_retain(status) - OFlag::O_NONBLOCK;
    fcntl(fd, FcntlArg::F_SETFL(status))?;
    Ok(Some(opened))
}

/// Whether the call, which is about to change the size of `place`, may have to wait for the end of a lease, and may not wait here.
pub fn must_wait(call: &Call<'_>, caller: &Caller, place: &Place) -> bool {
    !call.may_wait
        && place.mount.fs.opens_host_files()
        && matches!(open(call, caller, place, libc::O_WRONLY), Ok(None))
}
