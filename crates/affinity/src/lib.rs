//! Keeps a thread of another process and the thread that serves it on one CPU.
//!
//! Each wakes the other, and the scheduler puts the one that is woken on an idle CPU. So both interrupt another CPU, and wait for it to leave its idle
//! state: where that is a halted virtual CPU, a wake-up takes 10 to 20 us. On one CPU it takes less than two.
//!
//! [`KeptThreads`] are threads that stop often (ptrace), for as long as they do; [`KeptThread`] is one that waits in a system call, until it continues.
//! Programs do not see the difference; see docs/decisions/0092 and docs/decisions/0120.

mod kept_thread;
mod kept_threads;

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

pub use kept_thread::KeptThread;
pub use kept_threads::KeptThreads;

const OURSELVES: Pid = Pid::from_raw(0);

/// The CPUs of the first thread that was to follow others.
static FOLLOWERS: OnceLock<CpuSet> = OnceLock::new();

/// Lets the calling thread run on all CPUs of the process, where [`KeptThreads`] are in use. A thread inherits the CPU of the one that started it, and a thread
/// that follows others may be on one CPU.
pub fn leave_one_cpu() {
    if let Some(all) = FOLLOWERS.get() {
        give(0, all);
    }
}

/// The CPUs on which thread `tid` may run. `None` if it has ended.
fn cpus(tid: i32) -> Option<CpuSet> {
    sched_getaffinity(Pid::from_raw(tid)).ok()
}

/// Lets a thread run on these CPUs. A thread that has ended needs none.
fn give(tid: i32, cpus: &CpuSet) {
    let _ = sched_setaffinity(Pid::from_raw(tid), cpus);
}

fn count(cpus: &CpuSet) -> usize {
    let all = 0..CpuSet::count();
    all.filter(|&cpu| cpus.is_set(cpu).unwrap_or(false)).count()
}
