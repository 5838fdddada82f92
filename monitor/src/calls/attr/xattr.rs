//! Extended attributes.

use goanna_vfs::{Acl, Errno, Place, Result, ops};

use super::by_descriptor;
use crate::call::{Answer, Call, Target, words};
use crate::calls::stat::path_or_null;
use crate::watches::report::{self, Touch};

/// Longest attribute name, value and list (linux/limits.h).
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 65536;

/// The longest structure of arguments that a program may give, and its first version: value u64, size u32, flags u32.
const ARGS: usize = 16;

/// Finds the file that a call names. As in Linux, it is called after all other arguments were checked.
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

fn at(call: &Call<'_>) -> Result<Target> {
    path_or_descriptor(call, call.int(2))
}

/// As [`at`]: listxattrat(2) and removexattrat(2) take `AT_FDCWD` for a descriptor where the path is empty (EBADF).
fn at_descriptor(call: &Call<'_>) -> Result<Target> {
    let is_empty = call.int(2) & libc::AT_EMPTY_PATH != 0
        && path_or_null(call, 1, libc::AT_EMPTY_PATH)?.is_empty();
    if is_empty && call.int(0) < 0 {
        return Err(Errno::EBADF.into());
    }
    at(call)
}

/// The flags at argument `index` of a call that takes `AT_SYMLINK_NOFOLLOW` and `AT_EMPTY_PATH`. EINVAL for others.
pub(super) fn at_flags(call: &Call<'_>, index: usize) -> Result<i32> {
    let flags = call.int(index);
    if flags & !(libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL.into());
    }
    Ok(flags)
}

/// The file that the directory descriptor and the path in the first two arguments name. With an empty path, or NULL,
/// under `AT_EMPTY_PATH` it is that of the descriptor, which must not be an O_PATH one (EBADF).
pub(super) fn path_or_descriptor(call: &Call<'_>, flags: i32) -> Result<Target> {
    let path = path_or_null(call, 1, flags)?;
    let is_empty = path.is_empty() && flags & libc::AT_EMPTY_PATH != 0;
    if is_empty && call.int(0) >= 0 {
        return by_descriptor(call, call.int(0));
    }
    call.object_at(call.int(0), &path, flags)
}

fn name(call: &Call<'_>, index: usize) -> Result<Vec<u8>> {
    match call.memory.read_string(call.arg(index), NAME_MAX + 1) {
        Ok(name) if name.is_empty() => Err(Errno::ERANGE.into()),
        Err(Errno::ENAMETOOLONG) => Err(Errno::ERANGE.into()),
        other => Ok(other?),
    }
}

/// The address and the length of the program's value or list, and the flags of a change.
struct Buffer {
    address: u64,
    size: u64,
    flags: i32,
}

impl Buffer {
    /// In the arguments themselves.
    fn of_arguments(call: &Call<'_>) -> Self {
        Self {
            address: call.arg(2),
            size: call.arg(3),
            flags: call.int(4),
        }
    }

    /// In the `struct xattr_args` of setxattrat(2) and getxattrat(2). EINVAL, E2BIG, EFAULT.
    fn of_structure(call: &Call<'_>) -> Result<Self> {
        let args: [u8; ARGS] = call.read_structure(call.arg(4), call.arg(5))?;
        let [address, size_and_flags] = words(&args);
        Ok(Self {
            address,
            size: size_and_flags & u64::from(u32::MAX),
            flags: (size_and_flags >> 32) as i32,
        })
    }

    /// Copies `bytes` to the program. A size of 0 only asks for the length; ERANGE for a buffer that is too small.
    fn put(&self, call: &Call<'_>, bytes: &[u8]) -> Result<Answer> {
        if self.size > 0 {
            if (self.size as usize) < bytes.len() {
                return Err(Errno::ERANGE.into());
            }
            call.put(self.address, bytes)?;
        }
        Ok(Answer::Value(bytes.len() as i64))
    }
}

fn get(call: &Call<'_>, find: Find, name: &[u8], buffer: &Buffer) -> Result<Answer> {
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let value = ops::getxattr(&*call.caller()?, &place, name)?;
    buffer.put(call, &value)
}

fn set(call: &Call<'_>, find: Find, named: usize, given: &Buffer) -> Result<Answer> {
    if given.flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let name = name(call, named)?;
    let size = given.size as usize;
    if size > SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    let value = call.read(given.address, size)?;
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    let caller = call.caller()?;
    ops::setxattr(&caller, &place, &name, &value, given.flags)?;
    changed(call, &place, &name)
}

/// Updates the backing object and reports the event after an attribute has changed.
fn changed(call: &Call<'_>, place: &Place, name: &[u8]) -> Result<Answer> {
    if name == Acl::ACCESS {
        let caller = call.caller()?;
        call.monitor.shadows.update_permissions(&caller, place)?;
    }
    report::touched(call, place, Touch::Attrib);
    Ok(Answer::DONE)
}

fn list(call: &Call<'_>, find: Find, buffer: &Buffer) -> Result<Answer> {
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
    buffer.put(call, &bytes)
}

/// The buffer of a listxattr(2).
fn list_buffer(call: &Call<'_>, index: usize) -> Buffer {
    Buffer {
        address: call.arg(index),
        size: call.arg(index + 1),
        flags: 0,
    }
}

fn remove(call: &Call<'_>, find: Find, named: usize) -> Result<Answer> {
    let name = name(call, named)?;
    let Target::At(place) = find(call)? else {
        return Ok(Answer::PassOn);
    };
    ops::removexattr(&*call.caller()?, &place, &name)?;
    changed(call, &place, &name)
}

/// getxattr(2)
pub fn getxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(call, followed, &name(call, 1)?, &Buffer::of_arguments(call))
}

/// lgetxattr(2)
pub fn lgetxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(call, itself, &name(call, 1)?, &Buffer::of_arguments(call))
}

/// fgetxattr(2)
pub fn fgetxattr(call: &mut Call<'_>) -> Result<Answer> {
    get(
        call,
        descriptor,
        &name(call, 1)?,
        &Buffer::of_arguments(call),
    )
}

/// setxattr(2)
pub fn setxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, followed, 1, &Buffer::of_arguments(call))
}

/// lsetxattr(2)
pub fn lsetxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, itself, 1, &Buffer::of_arguments(call))
}

/// fsetxattr(2)
pub fn fsetxattr(call: &mut Call<'_>) -> Result<Answer> {
    set(call, descriptor, 1, &Buffer::of_arguments(call))
}

/// listxattr(2)
pub fn listxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, followed, &list_buffer(call, 1))
}

/// llistxattr(2)
pub fn llistxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, itself, &list_buffer(call, 1))
}

/// flistxattr(2)
pub fn flistxattr(call: &mut Call<'_>) -> Result<Answer> {
    list(call, descriptor, &list_buffer(call, 1))
}

/// removexattr(2)
pub fn removexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, followed, 1)
}

/// lremovexattr(2)
pub fn lremovexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, itself, 1)
}

/// fremovexattr(2)
pub fn fremovexattr(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, descriptor, 1)
}

/// setxattrat(2): dirfd, path, flags, name, structure of the other arguments, its size.
pub fn setxattrat(call: &mut Call<'_>) -> Result<Answer> {
    let given = Buffer::of_structure(call)?;
    at_flags(call, 2)?;
    set(call, at, 3, &given)
}

/// getxattrat(2): the arguments of [`setxattrat`].
pub fn getxattrat(call: &mut Call<'_>) -> Result<Answer> {
    let buffer = Buffer::of_structure(call)?;
    at_flags(call, 2)?;
    if buffer.flags != 0 {
        return Err(Errno::EINVAL.into());
    }
    get(call, at, &name(call, 3)?, &buffer)
}

/// listxattrat(2): dirfd, path, flags, list, its size.
pub fn listxattrat(call: &mut Call<'_>) -> Result<Answer> {
    at_flags(call, 2)?;
    list(call, at_descriptor, &list_buffer(call, 3))
}

/// removexattrat(2): dirfd, path, flags, name.
pub fn removexattrat(call: &mut Call<'_>) -> Result<Answer> {
    at_flags(call, 2)?;
    remove(call, at_descriptor, 3)
}
