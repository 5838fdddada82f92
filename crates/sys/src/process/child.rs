//! Children of this process.
#![allow(unsafe_code, reason = "kill(2), waitpid(2) and signal(2)")]

use nix::errno::Errno;

/// Makes wait(2) report the ends of children that are started from now on. It does not where SIGCHLD is ignored, as some programs leave it to those that they
/// execute: ECHILD.
pub fn report_ends() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

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
