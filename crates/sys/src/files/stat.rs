//! Identity of an open file.
#![allow(unsafe_code, reason = "fstat(2) into an uninitialised buffer")]

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Device, inode and mode (type and permission bits) of what `fd` refers to; `O_PATH` descriptors too.
pub fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64, u32), Errno> {
    let raw = fstat(fd)?;
    Ok((raw.st_dev, raw.st_ino, raw.st_mode))
}

/// fstat(2).
pub fn fstat(fd: BorrowedFd<'_>) -> Result<libc::stat, Errno> {
    let mut raw = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `raw` has room for a stat.
    Errno::result(unsafe { libc::fstat(fd.as_raw_fd(), raw.as_mut_ptr()) })?;
    // SAFETY: fstat has succeeded, so it has filled the whole buffer.
    Ok(unsafe { raw.assume_init() })
}
