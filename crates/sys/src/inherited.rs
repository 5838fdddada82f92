//! Descriptors that a process was started with.
#![allow(unsafe_code, reason = "close_range(2)")]

use nix::errno::Errno;

/// Closes all descriptors but standard input, output and error: a process that outlives who started it must not keep the
/// pipes of others open. To be called before the process has opened any itself. `ENOSYS`: Linux before 5.9.
pub fn close() -> Result<(), Errno> {
    // SAFETY: integers only; the caller has no descriptors of its own yet.
    let r = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Errno::result(r).map(drop)
}
