//! Children of this process.
#![allow(unsafe_code, reason = "kill(2) and waitpid(2)")]

use nix::errno::Errno;

/// Ends child `pid`, which nothing else waits for.
pub(crate) fn reap(pid: i32) {
    // SAFETY: `pid` is our child and not reaped yet, so the number is its own.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        while libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) < 0
            && Errno::last() == Errno::EINTR
        {}
    }
}
