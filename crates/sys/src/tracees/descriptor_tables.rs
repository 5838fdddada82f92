//! The descriptor tables of a process: its threads have one in common, unless one of them has called unshare(2) with `CLONE_FILES`.
#![allow(unsafe_code, reason = "kcmp(2)")]

use nix::errno::Errno;

/// `KCMP_FILES` of kcmp(2).
const FILES: libc::c_int = 2;

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
    // SAFETY: integers only.
    let order = unsafe { libc::syscall(libc::SYS_kcmp, one, other, FILES, 0, 0) };
    Errno::result(order).map(|order| order == 0)
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
}
