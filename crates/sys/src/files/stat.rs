//! Identity of an open file.
#![allow(
    unsafe_code,
    reason = "fstat(2) into an uninitialised buffer, statx(2) into bytes"
)]

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Device, inode and mode (type and permission bits) of the object that `fd` refers to; works for `O_PATH` descriptors, too.
pub fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64, u32), Errno> {
    let raw = fstat(fd)?;
    Ok((raw.st_dev, raw.st_ino, raw.st_mode))
}

/// fstat(2).
pub fn fstat(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    let mut raw = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `raw` has space for a stat.
    Errno::result(unsafe { libc::fstat(fd.as_raw_fd(), raw.as_mut_ptr()) })?;
    // SAFETY: fstat has succeeded, so it has filled the whole buffer.
    Ok(unsafe { raw.assume_init() })
}

/// A `struct statx`, as it is in memory.
#[repr(C, align(8))]
struct StatxBytes([u8; 256]);

/// statx(2) of the host's object at `path`, without following a symbolic link, with all fields that this kernel knows.
pub fn statx(path: &CStr, mask: u32) -> Result<[u8; 256], Errno> {
    const { assert!(size_of::<libc::statx>() == size_of::<StatxBytes>()) };
    let mut out = StatxBytes([0; 256]);
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `path` ends with a NUL, and `out` has the size and the alignment of a struct statx, whose fields are integers.
    Errno::result(unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            mask,
            &raw mut out,
        )
    })?;
    Ok(out.0)
}
