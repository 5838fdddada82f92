//! Durability.

use std::ops::Range;
use std::sync::atomic::Ordering;

use goanna_sys::mappings;
use goanna_vfs::{Errno, FsError, Place, Result, ops};

use crate::Monitor;
use crate::call::{Answer, Call, Descriptor};
use crate::shadow::{Shadow, names_only};

/// sync(2): every back end, then the host. It reports no errors, as in Linux.
pub fn sync(call: &mut Call<'_>) -> Result<Answer> {
    let inside = call.caller()?.txn.is_some();
    for mount in call.mounts.iter() {
        if inside && call.monitor.participants.cover(mount) {
            // The changes reach the disk with the transaction.
            continue;
        }
        let _ = mount.fs.sync(None);
    }
    Ok(Answer::PassOn)
}

/// Whether the caller's changes reach the disk with its transaction, or not at all.
pub fn with_commit(call: &Call<'_>, place: &Place) -> Result<bool> {
    Ok(call.caller()?.txn.is_some() && call.monitor.participants.cover(&place.mount))
}

/// fsync(2) and the like, if it `waits`; else it only checks the descriptor.
fn sync_inode(call: &Call<'_>, waits: bool) -> Result<Answer> {
    let Some(shadow) = call.open_shadow(call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    match &*shadow {
        Shadow::File { place, .. } | Shadow::Dir { place, .. } => {
            if waits && !with_commit(call, place)? {
                place.mount.fs.sync(Some(&place.node))?;
            }
            Ok(Answer::DONE)
        }
        // The kernel answers for a fifo.
        Shadow::Special { .. } => Ok(Answer::PassOn),
        Shadow::Snapshot { .. } => Err(Errno::EINVAL.into()),
        Shadow::Reference { .. } => Err(Errno::EBADF.into()),
    }
}

/// fsync(2)
pub fn fsync(call: &mut Call<'_>) -> Result<Answer> {
    sync_inode(call, true)
}

/// fdatasync(2)
pub fn fdatasync(call: &mut Call<'_>) -> Result<Answer> {
    sync_inode(call, true)
}

/// sync_file_range(2): with SYNC_FILE_RANGE_WAIT_AFTER it makes the whole file durable, which is more than the program asks for. A call that starts the write-out, or waits for one
/// that was started, does nothing: back ends write without being asked to, and dpkg makes both calls for each file before it calls fsync(2).
pub fn sync_file_range(call: &mut Call<'_>) -> Result<Answer> {
    let known = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (offset, len) = (call.arg(1) as i64, call.arg(2) as i64);
    let is_range = offset >= 0 && len >= 0 && offset.checked_add(len).is_some();
    if call.uint(3) & !known != 0 || !is_range {
        return Err(Errno::EINVAL.into());
    }
    sync_inode(call, call.uint(3) & libc::SYNC_FILE_RANGE_WAIT_AFTER != 0)
}

/// syncfs(2). EBADF for an `O_PATH` descriptor.
pub fn syncfs(call: &mut Call<'_>) -> Result<Answer> {
    let Descriptor::Shadow(shadow, ofd) = call.descriptor(call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    if names_only(&ofd)? {
        return Err(Errno::EBADF.into());
    }
    if !with_commit(call, shadow.place())? {
        shadow.place().mount.fs.sync(None)?;
    }
    Ok(Answer::DONE)
}

/// msync(2): the back end gets the writes through mappings in the range; with MS_SYNC it makes them durable. The
/// kernel checks the range.
pub fn msync(call: &mut Call<'_>) -> Result<Answer> {
    let durable = call.int(2) & libc::MS_SYNC != 0;
    if !call.monitor.mapped.load(Ordering::Relaxed) {
        return Ok(Answer::PassOn);
    }
    let (start, len) = (call.arg(0), call.arg(1));
    let end = start.saturating_add(len);
    for mapping in mappings::of_range(call.task.tid, start, end)? {
        let (from, to) = (start.max(mapping.start), end.min(mapping.end));
        let Some(shadow) = call.monitor.shadows.mapped((mapping.dev, mapping.ino)) else {
            continue;
        };
        let offset = |address: u64| mapping.offset.saturating_add(address - mapping.start);
        sync_range(call, shadow.place(), offset(from)..offset(to), durable)?;
    }
    Ok(Answer::PassOn)
}

fn sync_range(call: &Call<'_>, place: &Place, range: Range<u64>, durable: bool) -> Result<()> {
    let participants = &call.monitor.participants;
    if participants.is_run() && participants.cover(&place.mount) {
        // The mapped object belongs to the run transaction, and reaches the disk with it.
        return Ok(());
    }
    let Some(content) = place.mount.fs.content() else {
        return Ok(());
    };
    match content.sync_mapped(&place.node, range, durable) {
        // A file that a transaction has made and mapped reaches the disk with it.
        Err(FsError::Errno(Errno::ESTALE)) => Ok(()),
        other => other,
    }
}

/// cachestat(2): the cache object answers. EPERM for a file that the caller neither owns nor may write, by a descriptor for reading.
pub fn cachestat(call: &mut Call<'_>) -> Result<Answer> {
    const RANGE: usize = 16;
    let Descriptor::Shadow(shadow, ofd) = call.descriptor(call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    call.open_shadow(call.int(0))?;
    let (Shadow::File { place, .. } | Shadow::Dir { place, .. }) = &*shadow else {
        return Ok(Answer::PassOn);
    };
    call.read(call.arg(1), RANGE)?;
    let (is_writable, _) = Monitor::writable(&ofd)?;
    let caller = call.caller()?;
    if !is_writable && !caller.owns(&place.mount.fs.getattr(&caller, &place.node)?) {
        ops::access(&caller, place, libc::W_OK).map_err(|_| Errno::EPERM)?;
    }
    Ok(Answer::PassOn)
}
