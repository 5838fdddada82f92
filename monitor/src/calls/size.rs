//! Sizes and allocation.

use goanna_vfs::{Errno, Place, Result, ops};

use super::outgrow::after_growth;
use super::rw::Output;
use crate::call::{Answer, Call, Target};

/// RLIMIT_FSIZE bounds growth, with its signal.
fn within_limit(call: &Call<'_>, place: &Place, size: u64) -> Result<()> {
    let limit = goanna_sys::limits::prlimit_fsize(call.task.tid).unwrap_or(libc::RLIM_INFINITY);
    if size > limit && size > place.mount.fs.getattr(&*call.caller()?, &place.node)?.size {
        call.monitor.signal(call.task.tid, libc::SIGXFSZ);
        return Err(Errno::EFBIG);
    }
    Ok(())
}

/// truncate(2)
pub fn truncate(call: &mut Call<'_>) -> Result<Answer> {
    let size = call.arg(1) as i64;
    let Target::At(place) = call.object(libc::AT_FDCWD, &call.path(0)?, true)? else {
        return Ok(Answer::PassOn);
    };
    if call.monitor.programs.running(&place) {
        return Err(Errno::ETXTBSY);
    }
    let caller = call.caller()?;
    if let Ok(size) = u64::try_from(size) {
        within_limit(call, &place, size)?;
    }
    ops::truncate(&caller, &place, size)?;
    Ok(Answer::DONE)
}

/// ftruncate(2): judged by the descriptor's access mode, not by permissions. EINVAL, as Linux has it, for one
/// that is not open for writing.
pub fn ftruncate(call: &mut Call<'_>) -> Result<Answer> {
    let size = u64::try_from(call.arg(1) as i64).map_err(|_| Errno::EINVAL)?;
    let output = match Output::of(call, call.int(0)) {
        Ok(Some(output)) => output,
        Ok(None) => return Ok(Answer::PassOn),
        Err(Errno::EBADF) if call.descriptor(call.int(0)).is_ok() => return Err(Errno::EINVAL),
        Err(errno) => return Err(errno),
    };
    within_limit(call, &output.place, size)?;
    let caller = call.caller()?;
    output
        .place
        .mount
        .fs
        .truncate(&caller, &output.place.node, size)?;
    ops::drop_set_id(&caller, &output.place)?;
    after_growth(call, call.int(0), &output);
    Ok(Answer::DONE)
}

/// fallocate(2)
pub fn fallocate(call: &mut Call<'_>) -> Result<Answer> {
    let Some(output) = Output::of(call, call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    let offset = u64::try_from(call.arg(2) as i64).map_err(|_| Errno::EINVAL)?;
    let len = u64::try_from(call.arg(3) as i64).map_err(|_| Errno::EINVAL)?;
    if len == 0 {
        return Err(Errno::EINVAL);
    }
    let end = offset
        .checked_add(len)
        .filter(|&end| end <= i64::MAX as u64)
        .ok_or(Errno::EFBIG)?;
    let mode = call.int(1);
    if mode & libc::FALLOC_FL_KEEP_SIZE == 0 {
        within_limit(call, &output.place, end)?;
    }
    output
        .place
        .mount
        .fs
        .fallocate(&*call.caller()?, &output.place.node, mode, offset, len)?;
    after_growth(call, call.int(0), &output);
    Ok(Answer::DONE)
}
