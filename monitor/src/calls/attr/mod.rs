//! Permissions, owners and times.

pub mod flags;
pub mod xattr;

use goanna_vfs::{Errno, Result, Stamp, TimeSet, ops};

use crate::Monitor;
use crate::call::{Answer, Call, Target};
use crate::watches::report::{self, Touch};

/// The object of a call on a descriptor; an O_PATH one is refused (EBADF).
pub(super) fn by_descriptor(call: &Call<'_>, fd: i32) -> Result<Target> {
    if let Some(shadow) = call.open_shadow(fd)? {
        return Ok(Target::At(call.place_of(&shadow)?));
    }
    let target = call.host_file(fd);
    let is_path =
        || Ok::<_, Errno>(Monitor::writable(&call.task.descriptor(fd)?)?.1 & libc::O_PATH != 0);
    if matches!(target, Target::At(_)) && is_path()? {
        return Err(Errno::EBADF.into());
    }
    Ok(target)
}

fn set_mode(call: &Call<'_>, target: Target, mode: u32) -> Result<Answer> {
    let Target::At(place) = target else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    ops::chmod(&caller, &place, mode & 0o7777)?;
    report::touched(call, &place, Touch::Attrib);
    call.monitor.shadows.update_permissions(&caller, &place)?;
    Ok(Answer::DONE)
}

/// chmod(2)
pub fn chmod(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
    set_mode(call, target, call.uint(1))
}

/// fchmod(2)
pub fn fchmod(call: &mut Call<'_>) -> Result<Answer> {
    let target = by_descriptor(call, call.int(0))?;
    set_mode(call, target, call.uint(1))
}

/// fchmodat(2), which takes no flags.
pub fn fchmodat(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(call.int(0), &call.path(1)?, true)?;
    set_mode(call, target, call.uint(2))
}

/// fchmodat2(2)
pub fn fchmodat2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(3);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = call.object_at(call.int(0), &call.path(1)?, flags)?;
    set_mode(call, target, call.uint(2))
}

fn set_owner(call: &Call<'_>, target: Target, uid: u32, gid: u32) -> Result<Answer> {
    let Target::At(place) = target else {
        return Ok(Answer::PassOn);
    };
    let given = |id: u32| (id != u32::MAX).then_some(id);
    let caller = call.caller()?;
    ops::chown(&caller, &place, given(uid), given(gid))?;
    if given(uid).or(given(gid)).is_some() {
        report::touched(call, &place, Touch::Attrib);
    }
    call.monitor.shadows.update_permissions(&caller, &place)?;
    Ok(Answer::DONE)
}

/// chown(2)
pub fn chown(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
    set_owner(call, target, call.uint(1), call.uint(2))
}

/// lchown(2)
pub fn lchown(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, false)?;
    set_owner(call, target, call.uint(1), call.uint(2))
}

/// fchown(2)
pub fn fchown(call: &mut Call<'_>) -> Result<Answer> {
    let target = by_descriptor(call, call.int(0))?;
    set_owner(call, target, call.uint(1), call.uint(2))
}

/// fchownat(2)
pub fn fchownat(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(4);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let target = call.object_at(call.int(0), &call.path(1)?, flags)?;
    set_owner(call, target, call.uint(2), call.uint(3))
}

/// Access and modification time in the arguments of a call.
type Times = (Option<TimeSet>, Option<TimeSet>);

fn set_times(call: &Call<'_>, target: Target, times: Times) -> Result<Answer> {
    let Target::At(place) = target else {
        return Ok(Answer::PassOn);
    };
    ops::utimens(&*call.caller()?, &place, times.0, times.1)?;
    let touch = match times {
        (Some(_), None) => Touch::Access,
        (None, Some(_)) => Touch::Modify,
        _ => Touch::Attrib,
    };
    report::touched(call, &place, touch);
    Ok(Answer::DONE)
}

/// Two pairs of 64-bit words at `address`.
fn pairs(call: &Call<'_>, address: u64) -> Result<[(i64, i64); 2]> {
    let bytes: [u8; 32] = call.read_array(address)?;
    let mut words = bytes.chunks_exact(8).map(|word| {
        let word: [u8; 8] = word.try_into().unwrap_or_default();
        i64::from_ne_bytes(word)
    });
    let mut pair = || (words.next().unwrap_or(0), words.next().unwrap_or(0));
    Ok([pair(), pair()])
}

const NOW: Times = (Some(TimeSet::Now), Some(TimeSet::Now));

/// The inner result is EINVAL for invalid times: Linux checks them after the path.
fn timespecs(call: &Call<'_>, address: u64) -> Result<Result<Times, Errno>> {
    if address == 0 {
        return Ok(Ok(NOW));
    }
    let one = |(sec, nsec): (i64, i64)| match nsec {
        libc::UTIME_NOW => Ok(Some(TimeSet::Now)),
        libc::UTIME_OMIT => Ok(None),
        0..=999_999_999 => Ok(Some(TimeSet::At(Stamp {
            sec,
            nsec: nsec as u32,
        }))),
        _ => Err(Errno::EINVAL),
    };
    let [atime, mtime] = pairs(call, address)?;
    Ok(one(atime).and_then(|atime| Ok((atime, one(mtime)?))))
}

fn timevals(call: &Call<'_>, address: u64) -> Result<Times> {
    if address == 0 {
        return Ok(NOW);
    }
    let one = |(sec, usec): (i64, i64)| match usec {
        0..=999_999 => Ok(Some(TimeSet::At(Stamp {
            sec,
            nsec: 1000 * usec as u32,
        }))),
        _ => Err(Errno::EINVAL),
    };
    let [atime, mtime] = pairs(call, address)?;
    Ok((one(atime)?, one(mtime)?))
}

/// utimensat(2): a NULL path means the descriptor itself.
pub fn utimensat(call: &mut Call<'_>) -> Result<Answer> {
    let flags = call.int(3);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let times = timespecs(call, call.arg(2))?;
    if times == Ok((None, None)) {
        return Ok(Answer::DONE);
    }
    let target = if call.arg(1) == 0 && call.int(0) != libc::AT_FDCWD {
        if flags != 0 {
            return Err(Errno::EINVAL.into());
        }
        by_descriptor(call, call.int(0))?
    } else {
        call.object_at(call.int(0), &call.path(1)?, flags)?
    };
    if matches!(target, Target::PassOn) {
        return Ok(Answer::PassOn);
    }
    set_times(call, target, times?)
}

/// utime(2), in whole seconds.
pub fn utime(call: &mut Call<'_>) -> Result<Answer> {
    let address = call.arg(1);
    let at = |word: u64| {
        Some(TimeSet::At(Stamp {
            sec: word as i64,
            nsec: 0,
        }))
    };
    let times = match address {
        0 => NOW,
        _ => (
            at(call.read_u64(address)?),
            at(call.read_u64(address.wrapping_add(8))?),
        ),
    };
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
    set_times(call, target, times)
}

/// utimes(2)
pub fn utimes(call: &mut Call<'_>) -> Result<Answer> {
    let times = timevals(call, call.arg(1))?;
    let target = call.object(libc::AT_FDCWD, &call.path(0)?, true)?;
    set_times(call, target, times)
}

/// futimesat(2)
pub fn futimesat(call: &mut Call<'_>) -> Result<Answer> {
    let times = timevals(call, call.arg(2))?;
    let target = match call.arg(1) {
        0 if call.int(0) != libc::AT_FDCWD => by_descriptor(call, call.int(0))?,
        _ => call.object(call.int(0), &call.path(1)?, true)?,
    };
    set_times(call, target, times)
}
