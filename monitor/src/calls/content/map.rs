//! File mappings. The kernel maps the cache object, so shared mappings, reads and writes of all processes are coherent; the
//! back end must only know that content can change without a call.
//!
//! In an explicit transaction a private mapping has the content that the transaction has at that moment. A shared mapping is
//! refused if it would differ from the result of reads, or if an abort could not undo writes through it: ENODEV, as on file
//! systems without shared mappings. A run transaction has cache objects of its own.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use goanna_vfs::{Errno, Place, Result, file_flags};

use super::read::Content;
use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::shadow::Shadow;

/// Maximum size in bytes of a changed content that can be mapped: it is copied into the tracee.
const COPY_MAX: usize = 1 << 30;

/// mmap(2) of a file: with MAP_SHARED, and any by a participant of a transaction.
pub fn mmap(call: &mut Call<'_>) -> Result<Answer> {
    // The kernel reports a bad descriptor, in the order of the errors of mmap.
    let Ok(Descriptor::Shadow(shadow, ofd)) = call.descriptor(call.int(4)) else {
        return Ok(Answer::PassOn);
    };
    let shared = call.int(3) & libc::MAP_SHARED != 0;
    if shared && matches!(&*shadow, Shadow::Reference { .. }) {
        return Err(Errno::EBADF.into());
    }
    if is_inside(call, shadow.place())? {
        return map_inside(call, &shadow, &ofd, shared);
    }
    if shared
        && let Shadow::File { place, .. } = &*shadow
        && Monitor::access_mode(&ofd)? == libc::O_RDWR
    {
        unless_append_only(call, place)?;
        share(call, place)?;
    }
    Ok(Answer::PassOn)
}

/// EACCES for a shared mapping of an append-only file through a descriptor that may write.
fn unless_append_only(call: &Call<'_>, place: &Place) -> Result<()> {
    let attr = place.mount.fs.getattr(&*call.caller()?, &place.node)?;
    if attr.flags & file_flags::APPEND_ONLY != 0 {
        return Err(Errno::EACCES.into());
    }
    Ok(())
}

/// Whether the caller changes the file as a participant of a transaction.
fn is_inside(call: &Call<'_>, place: &Place) -> Result<bool> {
    Ok(call.monitor.participants.cover(&place.mount) && call.caller()?.txn.is_some())
}

/// Records that the file's cache object can change without a call from now on. ENODEV where an abort could not undo that.
pub fn share(call: &Call<'_>, place: &Place) -> Result<()> {
    if let Some(content) = place.mount.fs.content() {
        content.map_shared(&*call.caller()?, &place.node)?;
        call.monitor.in_process.file_is_mapped(place);
    }
    call.monitor.mapped.store(true, Ordering::Relaxed);
    Ok(())
}

fn map_inside(call: &Call<'_>, shadow: &Shadow, ofd: &OwnedFd, shared: bool) -> Result<Answer> {
    let content = Content::of(call, call.int(4))?;
    let Shadow::File { place, .. } = shadow else {
        return Ok(Answer::PassOn);
    };
    let writable = Monitor::access_mode(ofd)? == libc::O_RDWR;
    match content {
        _ if shared && writable => {
            unless_append_only(call, place)?;
            share(call, place)?;
            Ok(Answer::PassOn)
        }
        None => Ok(Answer::PassOn),
        Some(_) if shared => Err(Errno::ENODEV.into()),
        Some(content) => {
            let wanted = usize::try_from(call.arg(1)).unwrap_or(usize::MAX);
            let len = usize::try_from(content.size()?).unwrap_or(usize::MAX);
            if wanted.min(len) > COPY_MAX {
                return Err(Errno::ENOMEM.into());
            }
            Ok(Answer::MapCopy(content.at(call.arg(5), wanted.min(len))?))
        }
    }
}
