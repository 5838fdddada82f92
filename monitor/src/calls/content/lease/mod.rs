//! Operations of fcntl(2) that, unseen by the monitor, would act on a cache object.
//!
//! Leases (`F_SETLEASE`): the kernel signals the holder when another process opens the file, and that process waits until
//! the lease is released, 45 s at most.
//!
//! A file of the host has the host's leases. An open that must wait for a lease does so on a thread of the executor, not in the
//! pool. Once a program of the run has asked for a lease, those for writing do so at once: while the kernel waits there, it does not let the holder keep a lease for reading, as it would after an attempt in
//! the pool. For files with a cache object see `table.rs`.

mod table;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use goanna_sys::descriptor_tables;
use goanna_sys::lease::{self, Owner};
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{Caller, Errno, FsError, Native, Opened, Place, Result, caps, ops};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::fstat;

use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::calls::inotify::notify_directory;
use crate::shadow::Shadow;
use table::Request;
pub use table::{in_use, sweep};

/// The longest time for which a file counts as open after processes could open it themselves, and some more.
const CLAIMS_WAIT: Duration = Duration::from_millis(1500);

/// fcntl(2) with `F_SETLEASE`, `F_GETLEASE`, `F_NOTIFY`, `F_ADD_SEALS` and `F_GET_SEALS`
pub fn control(call: &mut Call<'_>) -> Result<Answer> {
    match call.int(1) {
        libc::F_SETLEASE | libc::F_GETLEASE => lease(call),
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

/// fcntl(2) with `F_SETLEASE` and `F_GETLEASE`
fn lease(call: &Call<'_>) -> Result<Answer> {
    let Descriptor::Shadow(shadow, ofd) = call.descriptor(call.int(0))? else {
        if call.int(1) == libc::F_SETLEASE {
            // The kernel grants no lease while the monitor still has a descriptor that a program is getting, or has got.
            call.monitor.installs.settle_all();
            call.monitor.in_process.sweep_opens();
            if matches!(call.int(2), libc::F_RDLCK | libc::F_WRLCK) {
                call.monitor.leased.store(true, Ordering::Release);
            }
        }
        return Ok(Answer::PassOn);
    };
    call.open_shadow(call.int(0))?;
    let kind = call.int(2);
    let sets = call.int(1) == libc::F_SETLEASE;
    if sets && matches!(kind, libc::F_RDLCK | libc::F_WRLCK | libc::F_UNLCK) {
        may_set(call, shadow.place())?;
    }
    let Shadow::File { place, handle, .. } = &*shadow else {
        return Ok(Answer::PassOn);
    };
    let request = Request {
        ino: place.node.ino(),
        handle,
        by: (call.caller()?.pid, call.int(0)),
        description: ofd.as_fd(),
    };
    if !sets {
        let known = request.target().map(i64::from);
        return Ok(known.map_or(Answer::PassOn, Answer::Value));
    }
    match kind {
        libc::F_RDLCK | libc::F_WRLCK => set(call, &request, &ofd),
        libc::F_UNLCK if request.unlock() => {
            // There is another one in the kernel, if the program had a lease for reading before.
            let _ = lease::set(ofd.as_fd(), libc::F_UNLCK);
            lease::clear_owner(ofd.as_fd())?;
            Ok(Answer::DONE)
        }
        _ => Ok(Answer::PassOn),
    }
}

/// EACCES for another user's file, without CAP_LEASE.
fn may_set(call: &Call<'_>, place: &Place) -> Result<()> {
    let caller = call.caller()?;
    let owner = place.mount.fs.getattr(&caller, &place.node)?.uid;
    if caller.uid == owner || caller.capable(caps::LEASE) {
        return Ok(());
    }
    Err(Errno::EACCES.into())
}

/// EAGAIN while another open is in the way, or waits for the end of the present lease.
fn set(call: &Call<'_>, request: &Request<'_>, ofd: &OwnedFd) -> Result<Answer> {
    let Request { handle, by, .. } = request;
    let caller = call.caller()?;
    table::set_in_use();
    call.monitor.in_process.unshare_opened();
    call.monitor.installs.settle_all();
    if call.int(2) == libc::F_RDLCK {
        if Monitor::access_mode(ofd)? != libc::O_RDONLY {
            return Err(Errno::EAGAIN.into());
        }
        request.share()?;
        // The kernel asks whether the cache object is the caller's.
        if fstat(ofd)?.st_uid == caller.uid || caller.capable(caps::LEASE) {
            return Ok(Answer::PassOn);
        }
        lease::set_owner(ofd.as_fd(), by.0)?;
        lease::set(ofd.as_fd(), libc::F_RDLCK)?;
        return Ok(Answer::DONE);
    }
    if handle.is_claimed() && !call.may_wait {
        return Ok(Answer::Wait);
    }
    wait_for_claims(call, handle)?;
    lease::set_owner(ofd.as_fd(), by.0)?;
    let is_open_elsewhere = || descriptor_tables::is_open_elsewhere(handle.identity(), *by);
    let is_alone = || !handle.is_claimed() && is_open_elsewhere() == Ok(false);
    request.exclude(Owner::of(ofd.as_fd())?, is_alone)?;
    Ok(Answer::DONE)
}

/// Waits until no process is about to open the object without a call, as far as that ends soon. EINTR.
fn wait_for_claims(call: &Call<'_>, handle: &ObjectHandle) -> Result<()> {
    let begun = Instant::now();
    while handle.is_claimed() && begun.elapsed() < CLAIMS_WAIT {
        if call.is_interrupted() {
            return Err(Errno::EINTR.into());
        }
        std::thread::sleep(Duration::from_millis(5));
        call.monitor.in_process.sweep_opens();
    }
    Ok(())
}

/// Opens the existing regular file `place`. `None`: another process has a lease on it, and has been told, or may have one, and
/// the call may not wait here.
pub fn open(call: &Call<'_>, caller: &Caller, place: &Place, flags: i32) -> Result<Option<Opened>> {
    if !place.mount.fs.opens_host_files() {
        return open_cached(call, caller, place, flags);
    }
    if call.may_wait || flags & libc::O_NONBLOCK != 0 {
        return ops::open_existing(caller, place, flags).map(Some);
    }
    if changes(flags) && call.monitor.leased.load(Ordering::Acquire) {
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

fn changes(flags: i32) -> bool {
    flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0
}

/// [`open`], of a file that has a cache object.
fn open_cached(
    call: &Call<'_>,
    caller: &Caller,
    place: &Place,
    flags: i32,
) -> Result<Option<Opened>> {
    let ino = place.node.ino();
    if !table::may_have(ino) {
        let opened = ops::open_existing(caller, place, flags)?;
        // The object counts as open from here on, so that no lease is granted any more.
        if !table::may_have(ino) {
            return Ok(Some(opened));
        }
    }
    loop {
        let opened = match ops::open_existing(caller, place, flags & !libc::O_TRUNC) {
            // The content of a file that may be written and not read may be needed.
            Err(FsError::Errno(Errno::EACCES)) if flags & libc::O_TRUNC != 0 => break,
            opened => opened?,
        };
        let Native::Reads { handle } = &opened.native else {
            return Ok(Some(opened));
        };
        let object = handle.identity();
        if !table::may_be_in_the_way(object, changes(flags)) {
            if flags & libc::O_TRUNC == 0 {
                return Ok(Some(opened));
            }
            break;
        }
        drop(opened);
        if !table::is_in_the_way(object, changes(flags)) {
            continue;
        }
        if flags & libc::O_NONBLOCK != 0 {
            return Err(Errno::EAGAIN.into());
        }
        if !call.may_wait {
            return Ok(None);
        }
        if call.is_interrupted() {
            return Err(Errno::EINTR.into());
        }
        table::wait();
    }
    ops::open_existing(caller, place, flags).map(Some)
}

/// Whether the call, which is about to change the size of `place`, may have to wait for the end of a lease, and may not wait here. If it may, this waits for it, or the kernel does.
pub fn must_wait(call: &Call<'_>, caller: &Caller, place: &Place) -> Result<bool> {
    let is_settled = if place.mount.fs.opens_host_files() {
        call.may_wait
    } else {
        !table::may_have(place.node.ino())
    };
    if is_settled {
        return Ok(false);
    }
    match open(call, caller, place, libc::O_WRONLY) {
        Ok(opened) => Ok(opened.is_none()),
        Err(FsError::Errno(Errno::EINTR)) => Err(Errno::EINTR.into()),
        // The change has the same error, or needs less.
        Err(_) => Ok(false),
    }
}
