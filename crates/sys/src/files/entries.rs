//! Entries of a host directory, as the kernel writes them.
#![allow(unsafe_code, reason = "getdents(2) and getdents64(2) into a buffer")]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// The call that reads the entries. Each of the two has a layout of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntriesCall {
    /// getdents(2).
    Old,
    /// getdents64(2).
    New,
}

/// Reads entries of the directory `fd` from its position on, at most `capacity` bytes. Empty at the end. EINVAL when the
/// next entry does not fit, ENOENT for a removed directory.
pub fn read(call: EntriesCall, fd: BorrowedFd<'_>, capacity: usize) -> Result<Vec<u8>, Errno> {
    let number = match call {
        EntriesCall::Old => libc::SYS_getdents,
        EntriesCall::New => libc::SYS_getdents64,
    };
    let mut bytes = vec![0_u8; capacity];
    // SAFETY: `bytes` has space for its length, which the kernel does not exceed.
    let got = unsafe { libc::syscall(number, fd.as_raw_fd(), bytes.as_mut_ptr(), bytes.len()) };
    bytes.truncate(Errno::result(got)? as usize);
    Ok(bytes)
}
