//! file_getattr(2) and file_setattr(2), of Linux 6.17 and later, which no library has yet.
#![allow(
    unsafe_code,
    reason = "two system calls without a wrapper, on an array of bytes"
)]

use std::ffi::CStr;

use nix::errno::Errno;

const FILE_GETATTR: libc::c_long = 468;
const FILE_SETATTR: libc::c_long = 469;

/// Bytes of the first version of `struct file_attr`.
pub const SIZE: usize = 24;

/// A `struct file_attr`, as it is in memory: flags u64, size of extents u32, number of extents u32, project u32, size of copied
/// extents u32.
#[repr(C, align(8))]
struct FileAttr([u8; SIZE]);

/// The attributes of the host's object at `path`, without following a symbolic link.
pub fn get(path: &CStr) -> Result<[u8; SIZE], Errno> {
    let mut out = FileAttr([0; SIZE]);
    // SAFETY: `path` ends with a NUL, and `out` has the size that the call is given.
    Errno::result(unsafe {
        libc::syscall(
            FILE_GETATTR,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut out,
            SIZE,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    })?;
    Ok(out.0)
}

/// Sets the attributes of the host's object at `path`, without following a symbolic link.
pub fn set(path: &CStr, attributes: &[u8; SIZE]) -> Result<(), Errno> {
    let given = FileAttr(*attributes);
    // SAFETY: `path` ends with a NUL, and `given` has the size that the call is given.
    Errno::result(unsafe {
        libc::syscall(
            FILE_SETATTR,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw const given,
            SIZE,
            libc::AT_SYMLINK_NOFOLLOW,
        )
    })?;
    Ok(())
}
