//! The descriptor tables of processes, and the open file descriptions in them. The threads of a process have one table in common, unless one of them has called
//! unshare(2) with `CLONE_FILES`.
#![allow(unsafe_code, reason = "kcmp(2)")]

use nix::errno::Errno;

use crate::procfs;

/// `KCMP_FILE` of kcmp(2).
const FILE: libc::c_int = 0;
/// `KCMP_FILES` of kcmp(2).
const FILES: libc::c_int = 2;

/// A descriptor of a thread: its thread ID, and the number.
pub type OfThread = (i32, i32);

/// One thread for each descriptor table of `threads`, which belong to one process. Tables that the kernel cannot compare count as
/// different.
pub fn with_own_tables(threads: &[i32]) -> Vec<i32> {
    let mut found: Vec<i32> = Vec::new();
    for thread in threads {
        let is_new = |other: &i32| have_common_table(*thread, *other) != Ok(true);
        if found.iter().all(is_new) {
            found.push(*thread);
        }
    }
    found
}

/// Whether two threads have one descriptor table. EPERM without the right to trace them, ENOSYS for a kernel without kcmp(2), ESRCH.
fn have_common_table(one: i32, other: i32) -> Result<bool, Errno> {
    are_equal(FILES, (one, 0), (other, 0))
}

/// Whether two descriptors refer to one open file description. EBADF; EPERM without the right to trace the threads, ENOSYS for a kernel without kcmp(2), ESRCH.
pub fn have_common_description(one: OfThread, other: OfThread) -> Result<bool, Errno> {
    are_equal(FILE, one, other)
}

/// kcmp(2) of two threads: whether they have the same of a kind (`KCMP_*`). For [`FILE`] also with the numbers of the descriptors.
pub(crate) fn are_equal(kind: libc::c_int, one: OfThread, other: OfThread) -> Result<bool, Errno> {
    // SAFETY: integers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one.0, other.0, kind, one.1, other.1) };
    Errno::result(order).map(|order| order == 0)
}

/// Whether a process, other than this one, has the file with this `(st_dev, st_ino)` open by another open file description than that of `own`. Those that only name
/// the file (O_PATH) do not count, nor do descriptors that wait in a socket. Of processes that this one may not trace, nothing is known.
pub fn is_open_elsewhere(identity: (u64, u64), own: OfThread) -> Result<bool, Errno> {
    let this = std::process::id().cast_signed();
    // stat(2) of other files may have to wait for their file system.
    let name = procfs::fd_link(own.0, own.1)?;
    for process in procfs::processes()? {
        if process == this || have_common_table(process, this) == Ok(true) {
            continue;
        }
        let has_name = |fd: i32| procfs::fd_link(process, fd).is_ok_and(|link| link == name);
        let is_file = |fd: &i32| has_name(*fd) && procfs::fd_identity(process, *fd) == Ok(identity);
        let fds = procfs::fds(process).unwrap_or_default();
        for fd in fds.into_iter().filter(is_file) {
            let names_only =
                procfs::description_flags(process, fd).is_ok_and(|flags| flags & libc::O_PATH != 0);
            if !names_only && have_common_description((process, fd), own) == Ok(false) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use nix::sched::{CloneFlags, unshare};
    use nix::unistd::gettid;

    use super::*;

    #[test]
    fn a_thread_with_a_table_of_its_own_is_found() {
        let (started, ids) = channel();
        let mut waiting = Vec::new();
        for has_own in [false, true, false] {
            let started = started.clone();
            let (end, ended) = channel::<()>();
            let thread = thread::spawn(move || {
                if has_own {
                    unshare(CloneFlags::CLONE_FILES).unwrap();
                }
                started.send((gettid().as_raw(), has_own)).unwrap();
                let _ = ended.recv();
            });
            waiting.push((thread, end));
        }
        let (mut all, mut own) = (vec![gettid().as_raw()], vec![gettid().as_raw()]);
        for (tid, has_own) in ids.iter().take(3) {
            all.push(tid);
            own.extend(has_own.then_some(tid));
        }
        assert_eq!(with_own_tables(&all), own);
        for (thread, end) in waiting {
            drop(end);
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_file_that_another_process_has_open_is_found() {
        use std::os::fd::{AsFd, AsRawFd, OwnedFd};
        use std::process::{Command, Stdio};

        let file = crate::memfile::create(c"test").unwrap();
        let (dev, ino, _) = crate::stat::identity(file.as_fd()).unwrap();
        let own = (std::process::id().cast_signed(), file.as_raw_fd());
        let reopened = |flags| crate::memfile::reopen(file.as_fd(), flags).unwrap();
        let is_found_in = |input: OwnedFd| {
            let mut sleep = Command::new("sleep");
            let mut child = sleep.arg("60").stdin(Stdio::from(input)).spawn().unwrap();
            let found = is_open_elsewhere((dev, ino), own);
            child.kill().unwrap();
            child.wait().unwrap();
            found
        };
        assert_eq!(is_open_elsewhere((dev, ino), own), Ok(false));
        assert_eq!(is_found_in(file.try_clone().unwrap()), Ok(false));
        assert_eq!(is_found_in(reopened(libc::O_PATH)), Ok(false));
        assert_eq!(is_found_in(reopened(libc::O_RDONLY)), Ok(true));
        assert_eq!(is_open_elsewhere((dev, ino), own), Ok(false));
    }
}
