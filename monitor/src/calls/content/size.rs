//! Sizes and allocation.

use goanna_vfs::{Errno, FsError, Place, Result, ops};

use super::lease;
use super::outgrow::after_growth;
use super::output::{Output, within_limit};
use crate::call::{Answer, Call, Descriptor, Target};
use crate::shadow::Shadow;
use crate::watches::report::{self, Touch};

/// The limit bounds growth only: a file that is too large already may stay so.
fn may_become(call: &Call<'_>, place: &Place, size: u64) -> Result<()> {
    within_limit(call, |limit| {
        let grows = || -> Result<bool> {
            let attr = place.mount.fs.getattr(&*call.caller()?, &place.node)?;
            Ok(size > attr.size)
        };
        Ok(if size > limit && grows()? {
            0
        } else {
            u64::MAX
        })
    })?;
    Ok(())
}

/// truncate(2)
pub fn truncate(call: &mut Call<'_>) -> Result<Answer> {
    let size = call.arg(1) as i64;
    if size < 0 {
        return Err(Errno::EINVAL.into());
    }
    let Target::At(place) = call.object(libc::AT_FDCWD, &call.path(0)?, true)? else {
        return Ok(Answer::PassOn);
    };
    if call.monitor.programs.running(&place) {
        return Err(Errno::ETXTBSY.into());
    }
    let caller = call.caller()?;
    if let Ok(size) = u64::try_from(size) {
        may_become(call, &place, size)?;
    }
    if lease::must_wait(call, &caller, &place)? {
        return Ok(Answer::Wait);
    }
    ops::truncate(&caller, &place, size)?;
    report::touched(call, &place, Touch::Modify);
    Ok(Answer::DONE)
}

/// ftruncate(2): the descriptor's access mode decides, not the file's permissions. EINVAL, as in Linux, for a descriptor
/// that is not open for writing, but EBADF for an O_PATH one.
pub fn ftruncate(call: &mut Call<'_>) -> Result<Answer> {
    let size = u64::try_from(call.arg(1) as i64).map_err(|_| Errno::EINVAL)?;
    let output = match Output::of(call, call.int(0)) {
        Ok(Some(output)) => output,
        Ok(None) => return Ok(Answer::PassOn),
        Err(FsError::Errno(Errno::EBADF)) => {
            return Err(match call.shadow(call.int(0))?.as_deref() {
                Some(Shadow::Reference { .. }) => Errno::EBADF.into(),
                _ => Errno::EINVAL.into(),
            });
        }
        Err(errno) => return Err(errno),
    };
    may_become(call, &output.place, size)?;
    let caller = call.caller()?;
    let (fs, node) = (&output.place.mount.fs, &output.place.node);
    let truncated = fs
        .content()
        .and_then(|content| content.truncate_open(&caller, node, size));
    truncated.unwrap_or_else(|| fs.truncate(&caller, node, size))?;
    report::touched(call, &output.place, Touch::Modify);
    ops::drop_set_id(&caller, &output.place)?;
    after_growth(call, call.int(0), &output, size);
    Ok(Answer::DONE)
}

/// fallocate(2)
pub fn fallocate(call: &mut Call<'_>) -> Result<Answer> {
    if matches!(call.descriptor(call.int(0))?, Descriptor::Native) {
        return Ok(Answer::PassOn);
    }
    allocate(call, call.int(1), call.arg(2) as i64, call.arg(3) as i64)
}

/// fallocate(2) of the call's first argument, which is a shadow's descriptor.
pub fn allocate(call: &Call<'_>, mode: i32, offset: i64, len: i64) -> Result<Answer> {
    // Linux checks these before it checks whether the descriptor may write.
    const KEEP_SIZE: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const SHIFTS: i32 = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;
    let offset = u64::try_from(offset).map_err(|_| Errno::EINVAL)?;
    let len = u64::try_from(len).map_err(|_| Errno::EINVAL)?;
    if len == 0 {
        return Err(Errno::EINVAL.into());
    }
    let possible = match mode & !KEEP_SIZE {
        libc::FALLOC_FL_PUNCH_HOLE => mode & KEEP_SIZE != 0,
        libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE => mode & KEEP_SIZE == 0,
        0 | libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_UNSHARE_RANGE => true,
        _ => false,
    };
    if !possible {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let Some(output) = Output::of(call, call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    let end = offset
        .checked_add(len)
        .filter(|&end| end <= i64::MAX as u64)
        .ok_or(Errno::EFBIG)?;
    if mode & (libc::FALLOC_FL_KEEP_SIZE | SHIFTS) == 0 {
        may_become(call, &output.place, end)?;
    }
    output
        .place
        .mount
        .fs
        .fallocate(&*call.caller()?, &output.place.node, mode, offset, len)?;
    report::touched(call, &output.place, Touch::Modify);
    after_growth(call, call.int(0), &output, len);
    Ok(Answer::DONE)
}
