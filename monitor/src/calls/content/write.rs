//! Writes. Reads of virtual files run in the kernel, on the cache object, except for participants of transactions ([`super::read`]).

use std::sync::Arc;

use goanna_vfs::{Errno, Result, WritePosition, file_flags};

use super::buffers::{many, one, verify_range};
use super::output::Output;
use super::sync::with_commit;
use crate::call::{Answer, Call};
use crate::shadow::Shadow;

/// Bytes that one operation of a back end writes at most: as many as a transaction may change. A longer write is several
/// operations.
const OPERATION: usize = 1 << 30;

/// Writes the tracee's `segments` to descriptor `fd`.
fn write_segments(
    call: &Call<'_>,
    fd: i32,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    position: WritePosition,
) -> Result<Answer> {
    let Some(output) = Output::of(call, fd)? else {
        return Ok(Answer::PassOn);
    };
    write_to(call, fd, &output, segments, position)
}

/// Writes the tracee's `segments` to `output`, which is descriptor `fd`.
fn write_to(
    call: &Call<'_>,
    fd: i32,
    output: &Output,
    segments: impl FnOnce() -> Result<Vec<(u64, usize)>>,
    position: WritePosition,
) -> Result<Answer> {
    let segments = within(segments()?, position)?;
    let total: usize = segments.iter().map(|(_, len)| len).sum();
    let mut done = 0;
    while done < total {
        let outcome = read_segments(call, &segments, done).and_then(|data| {
            let position = match position {
                WritePosition::At(offset) => {
                    WritePosition::At(offset.checked_add(done as u64).ok_or(Errno::EFBIG)?)
                }
                position => position,
            };
            Ok((output.write(call, position, &data)?, data.len()))
        });
        match outcome {
            Ok((written, len)) => {
                done += written;
                if written < len {
                    break;
                }
            }
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    super::outgrow::after_growth(call, fd, output, done as u64);
    if done > 0 {
        let inside = &call.monitor.in_process;
        inside.grant_after_write(call, output, position, done as u64);
    }
    Ok(Answer::Value(done as i64))
}

/// What the tracee's `segments` hold after their first `done` bytes: as much as one operation writes, up to what cannot be
/// read. EFAULT when that is nothing; ENOMEM.
fn read_segments(call: &Call<'_>, segments: &[(u64, usize)], done: usize) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    let rest = skip(segments, done);
    call.memory.read_buffers(&rest, &mut data, OPERATION)?;
    if data.is_empty() {
        return Err(Errno::EFAULT.into());
    }
    Ok(data)
}

/// What is left of `segments` after their first `done` bytes.
pub fn skip(segments: &[(u64, usize)], mut done: usize) -> Vec<(u64, usize)> {
    let mut rest = Vec::with_capacity(segments.len());
    for &(address, len) in segments {
        let skipped = done.min(len);
        done -= skipped;
        if skipped < len {
            rest.push((address + skipped as u64, len - skipped));
        }
    }
    rest
}

/// `segments`, if a write of them to `position` is within the range of offsets. EINVAL.
fn within(segments: Vec<(u64, usize)>, position: WritePosition) -> Result<Vec<(u64, usize)>> {
    if let WritePosition::At(offset) = position {
        verify_range(offset, &segments)?;
    }
    Ok(segments)
}

fn offset(value: u64) -> Result<WritePosition> {
    if (value as i64) < 0 {
        Err(Errno::EINVAL.into())
    } else {
        Ok(WritePosition::At(value))
    }
}

/// write(2)
pub fn write(call: &mut Call<'_>) -> Result<Answer> {
    write_segments(call, call.int(0), || one(call), WritePosition::Cursor)
}

/// pwrite64(2)
pub fn pwrite64(call: &mut Call<'_>) -> Result<Answer> {
    let position = offset(call.arg(3))?;
    write_segments(call, call.int(0), || one(call), position)
}

/// writev(2)
pub fn writev(call: &mut Call<'_>) -> Result<Answer> {
    write_segments(call, call.int(0), || many(call), WritePosition::Cursor)
}

/// pwritev(2)
pub fn pwritev(call: &mut Call<'_>) -> Result<Answer> {
    let position = offset(call.arg(3))?;
    write_segments(call, call.int(0), || many(call), position)
}

/// pwritev2(2): offset -1 means the description's own; RWF_APPEND, RWF_SYNC and RWF_DSYNC are honoured,
/// so is RWF_NOAPPEND; RWF_HIPRI, RWF_DONTCACHE and RWF_NOSIGNAL are hints here. RWF_NOWAIT is EOPNOTSUPP, as of ext4 without O_DIRECT.
pub fn pwritev2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(5);
    const RWF_NOAPPEND: i32 = 0x20;
    const RWF_DONTCACHE: i32 = 0x80;
    const RWF_NOSIGNAL: i32 = 0x100;
    let known = libc::RWF_HIPRI
        | libc::RWF_DSYNC
        | libc::RWF_SYNC
        | libc::RWF_APPEND
        | RWF_NOAPPEND
        | RWF_DONTCACHE
        | RWF_NOSIGNAL;
    let given = match call.arg(3) {
        u64::MAX => WritePosition::Cursor,
        value => offset(value)?,
    };
    let position = if flags & libc::RWF_APPEND == 0 {
        given
    } else {
        WritePosition::End
    };
    let Some(mut output) = Output::of(call, call.int(0))? else {
        return Ok(Answer::PassOn);
    };
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if flags & RWF_NOAPPEND != 0 {
        if flags & libc::RWF_APPEND != 0 {
            return Err(Errno::EINVAL.into());
        }
        let flags = output
            .place
            .mount
            .fs
            .flags(&*call.caller()?, &output.place.node)?;
        if flags & file_flags::APPEND_ONLY != 0 {
            return Err(Errno::EPERM.into());
        }
        output.flags &= !libc::O_APPEND;
    }
    let segments = || within(many(call)?, given);
    let answer = write_to(call, call.int(0), &output, segments, position)?;
    if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 && matches!(answer, Answer::Value(1..)) {
        let shadow: Option<Arc<Shadow>> = call.shadow(call.int(0))?;
        if let Some(shadow) = shadow
            && !with_commit(call, shadow.place())?
        {
            shadow.place().mount.fs.sync(Some(&shadow.place().node))?;
        }
    }
    Ok(answer)
}
