//! mount_setattr(2), which no library has yet.
#![allow(unsafe_code, reason = "a system call without a wrapper")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Bytes of a `struct mount_attr`.
pub const SIZE: usize = size_of::<libc::mount_attr>();

/// Changes the mount at the absolute `path`. Of the flags `AT_RECURSIVE` and `AT_SYMLINK_NOFOLLOW` make sense.
pub fn set(path: &CStr, flags: u32, attributes: &libc::mount_attr) -> Result<(), Errno> {
    set_at(libc::AT_FDCWD, path, flags, attributes)
}

/// Changes the mount that open_tree(2) has returned. Of the flags `AT_RECURSIVE` makes sense.
pub fn set_tree(
    tree: BorrowedFd<'_>,
    flags: u32,
    attributes: &libc::mount_attr,
) -> Result<(), Errno> {
    let flags = flags | libc::AT_EMPTY_PATH.cast_unsigned();
    set_at(tree.as_raw_fd(), c"", flags, attributes)
}

fn set_at(dirfd: i32, path: &CStr, flags: u32, attributes: &libc::mount_attr) -> Result<(), Errno> {
    // SAFETY: `path` ends with a NUL, and the structure has the size that the call is given.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            dirfd,
            path.as_ptr(),
            flags,
            std::ptr::from_ref(attributes),
            SIZE,
        )
    };
    Errno::result(result).map(drop)
}
