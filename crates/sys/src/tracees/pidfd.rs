//! pidfd_open(2) and pidfd_getfd(2).
#![allow(unsafe_code, reason = "system calls libc has no wrapper for")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;

use crate::procfs;

/// `PIDFD_THREAD` (Linux 6.9): the descriptor names one thread, which need not be its group's leader.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// Opens a descriptor for thread `tid`. Before Linux 6.9 the descriptor is for the thread's process, which has the
/// same descriptor table unless the thread unshared it. `ESRCH`: no such thread.
pub fn open(tid: i32) -> Result<OwnedFd, Errno> {
    match open_raw(tid, PIDFD_THREAD) {
        Err(Errno::EINVAL) => match open_raw(tid, 0) {
            // The thread is not a leader: EINVAL or, on later kernels, ENOENT.
            Err(Errno::EINVAL | Errno::ENOENT) => open_raw(procfs::status(tid)?.tgid, 0),
            other => other,
        },
        other => other,
    }
}

/// Opens a descriptor for process `pid`. `ESRCH`: no such process.
pub fn open_process(pid: i32) -> Result<OwnedFd, Errno> {
    open_raw(pid, 0)
}

fn open_raw(pid: i32, flags: libc::c_int) -> Result<OwnedFd, Errno> {
    // SAFETY: takes integers only.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) };
    let fd = Errno::result(fd)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Sends `signal` to the process behind `pidfd`, which is of [`open_process`]. `ESRCH`: it has been reaped.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> Result<(), Errno> {
    // SAFETY: integers, and a null pointer, which stands for no details.
    let r = unsafe {
        let details = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            details,
            0,
        )
    };
    Errno::result(r).map(drop)
}

/// Copies descriptor `fd` of the task behind `pidfd` (close-on-exec here; same open file description). `EBADF`:
/// the task has no such descriptor; `ESRCH`: the task is gone; `EPERM`: we may not ptrace it.
pub fn getfd(pidfd: BorrowedFd<'_>, fd: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: takes integers only.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) };
    let copy = Errno::result(copy)?;
    // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as i32) })
}

/// Copies descriptor `fd` of thread `tid`: [`open`] and [`getfd`].
pub fn copy(tid: i32, fd: i32) -> Result<OwnedFd, Errno> {
    getfd(open(tid)?.as_fd(), fd)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_signal_reaches_the_process_until_it_is_reaped() {
        let _alone = crate::object_handle::DESCRIPTORS
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = open_process(child.id().cast_signed()).unwrap();
        send_signal(process.as_fd(), libc::SIGTERM).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        let late = send_signal(process.as_fd(), libc::SIGTERM);
        assert_eq!(late, Err(Errno::ESRCH));
    }
}
