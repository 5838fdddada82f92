//! Extended attributes.

use goanna_sys::tracee;
use goanna_vfs::{Acl, Errno, Result, ops};

use super::by_descriptor;
use crate::call::{Answer, Call, Target};
use crate::watches::report::{self, Touch};

/// Longest attribute name, value and list (linux/limits.h).
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 65536;

/// How a call says which file it means. What else is wrong with its arguments comes first, as in Linux.
type Find = fn(&Call<'_>) -> Result<Target>;

fn followed(call: &Call<'_>) -> Result<Target> {
    call.object(libc::AT_FDCWD, &call.path(0)?, true)
}

fn itself(call: &Call<'_>) -> Result<Target> {
    call.object(libc::AT_FDCWD, &call.path(0)?, false)
}

fn descriptor(call: &Call<'_>) -> Result<Target> {
    by_descriptor(call, call.int(0))
}

fn name(call: &Call<'_>) -> Result<Vec<u8>> {
    match tracee::read_cstr(call.task.tid, call.arg(1), NAME_MAX + 1) {
        Ok(name) if name.is_empty() => Err(Errno::ERANGE.into()),
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE.into()),
        other => Ok(other?),
    }
}

/// Size 0 asks for the length; a buffer too small is ERANGE.
fn put(call: &Call<'_>, buffer: u64, size: u64, bytes: &[u8]) -> Result<Answer> {
    if size > 0 {
        if (size as usize) < bytes.len() {
            return Err(Errno::ERANGE.into());
        }
        call.put(buffer, bytes)?;
    }
    Ok(Answer::Value(bytes.len() as i64))
}

fn get(call: &Call<'_>, find: Find) -> Result<Answer> {
    let name = name(call)?;
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let value = ops::getxattr(&*call.caller()?, &place, &name)?;
    put(call, call.arg(2), call.arg(3), &value)
}

fn set(call: &Call<'_>, find: Find) -> Result<Answer> {
    if call.int(4) & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let name = name(call)?;
    let size = call.arg(3) as usize;
    if size > SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let value = call.read(call.arg(2), size)?;
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    ops::setxattr(&caller, &place, &name, &value, call.int(4))?;
    if name == Acl::ACCESS {
        call.monitor.shadows.guard_anew(&caller, &place)?;
    }
    report::touched(call, &place, Touch::Attrib);
    Ok(Answer::DONE)
}

fn list(call: &Call<'_>, find: Find) -> Result<Answer> {
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let mut bytes = Vec::new();
    for name in ops::listxattr(&*call.caller()?, &place)? {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    if bytes.len() > SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    put(call, call.arg(1), call.arg(2), &bytes)
}

fn remove(call: &Call<'_>, find: Find) -> Result<Answer> {
    let name = name(call)?;
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    ops::removexattr(&caller, &place, &name)?;
    if name == Acl::ACCESS {
        call.monitor.shadows.guard_anew(&caller, &place)?;
    }
    report::touched(call, &place, Touch::Attrib);
    Ok(Answer::DONE)
}

/// getxattr(2)
pub fn getxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(call, followed)
}

/// lgetxattr(2)
pub fn lgetxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(call, itself)
}

/// fgetxattr(2)
pub fn fgetxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(call, descriptor)
}

/// setxattr(2)
pub fn setxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, followed)
}

/// lsetxattr(2)
pub fn lsetxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, itself)
}

/// fsetxattr(2)
pub fn fsetxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, descriptor)
}

/// listxattr(2)
pub fn listxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, followed)
}

/// llistxattr(2)
pub fn llistxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, itself)
}

/// flistxattr(2)
pub fn flistxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, descriptor)
}

/// removexattr(2)
pub fn removexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, followed)
}

/// lremovexattr(2)
pub fn lremovexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, itself)
}

/// fremovexattr(2)
pub fn fremovexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, descriptor)
}
