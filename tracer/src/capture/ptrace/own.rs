//! Calls that the tracer must see for its own sake, whether they are wanted or not: those that change the user, the session or the name that
//! it reports of a thread, those by which a program gets a seccomp filter of its own, and those that ask for CPUs or set some.

use crate::capture::filter::PRCTL_SEEN;
use crate::select::CallSet;

/// The tracer's own work after a call has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracerAction {
    /// Nothing.
    Nothing,
    /// Read again the user, session and name of the thread.
    Subject,
    /// Read again the user, session and name of the thread, and the root directories of all threads: some share one.
    Namespaces,
    /// Read again the root directories of all threads.
    Root,
    /// Read again the user, session and name of each thread of the process.
    Process,
    /// Nothing; but before the call all threads must have their own CPUs.
    Cpus,
    /// Stop each call of the thread: its own filter may decide about a call before ours.
    Filtered,
    /// Stop each call of the process's threads.
    AllFiltered,
}

const SUBJECT: [i64; 6] = [
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
];

const NAMESPACES: [i64; 2] = [libc::SYS_unshare, libc::SYS_setns];

const CPUS: [i64; 2] = [libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity];

const ROOT: [i64; 2] = [libc::SYS_chroot, libc::SYS_pivot_root];

/// The calls for which [`TracerAction::of`] can return more than `Nothing`, except prctl(2).
pub fn calls() -> CallSet {
    let others = [libc::SYS_setsid, libc::SYS_seccomp];
    let all = [&SUBJECT[..], &NAMESPACES, &ROOT, &CPUS, &others].concat();
    all.into_iter().map(|nr| nr as u32).collect()
}

impl TracerAction {
    /// The tracer's own work after call `nr` with `args` has succeeded.
    pub fn of(nr: u32, args: &[u64; 6]) -> Self {
        let [operation, flags, ..] = *args;
        match i64::from(nr) {
            nr if SUBJECT.contains(&nr) => Self::Subject,
            nr if NAMESPACES.contains(&nr) => Self::Namespaces,
            nr if ROOT.contains(&nr) => Self::Root,
            nr if CPUS.contains(&nr) => Self::Cpus,
            libc::SYS_setsid => Self::Process,
            libc::SYS_seccomp => match operation as u32 {
                libc::SECCOMP_SET_MODE_FILTER if flags & libc::SECCOMP_FILTER_FLAG_TSYNC != 0 => {
                    Self::AllFiltered
                }
                libc::SECCOMP_SET_MODE_FILTER | libc::SECCOMP_SET_MODE_STRICT => Self::Filtered,
                _ => Self::Nothing,
            },
            libc::SYS_prctl if operation as u32 == PRCTL_SEEN[0] => Self::Process,
            libc::SYS_prctl if operation as u32 == PRCTL_SEEN[1] => Self::Filtered,
            _ => Self::Nothing,
        }
    }
}
