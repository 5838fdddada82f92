//! Keeps a tracee on the answering thread's CPU while it takes a descriptor.
//!
//! Installing a descriptor is the one answer for which the answering thread waits: the tracee takes the descriptor in the kernel, and
//! wakes the thread afterwards. For the moment both may run on this CPU only. The tracee stays in its call until it may run on all its CPUs again.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;

use crate::OURSELVES;

/// While this exists, the calling thread and a tracee run on one CPU.
#[derive(Debug)]
pub struct KeptThread {
    tracee: Pid,
    /// The CPUs that each may run on otherwise; `None` for a tracee that may run on one CPU only.
    theirs: Option<CpuSet>,
    ours: CpuSet,
    here: CpuSet,
}

impl KeptThread {
    /// Keeps thread `tid` on the CPU of the calling thread. `None` where both may run on one CPU only, the tracee must not run on this one, or its CPUs must not be
    /// changed.
    pub fn enter(tid: i32) -> Option<Self> {
        let tracee = Pid::from_raw(tid);
        let theirs = sched_getaffinity(tracee).ok()?;
        let ours = sched_getaffinity(OURSELVES).ok()?;
        let cpu = sched_getcpu().ok()?;
        let mut here = CpuSet::new();
        here.set(cpu).ok()?;
        if theirs.is_set(cpu) != Ok(true) || (theirs == here && ours == here) {
            return None;
        }
        let theirs = (theirs != here).then_some(theirs);
        if theirs.is_some() {
            sched_setaffinity(tracee, &here).ok()?;
        }
        let entered = Self {
            tracee,
            theirs,
            ours,
            here,
        };
        sched_setaffinity(OURSELVES, &here).ok()?;
        Some(entered)
    }
}

impl Drop for KeptThread {
    /// Fails for a tracee that has been killed.
    fn drop(&mut self) {
        // Otherwise another process has chosen its CPUs since.
        if let Some(theirs) = &self.theirs
            && sched_getaffinity(self.tracee) == Ok(self.here)
        {
            let _ = sched_setaffinity(self.tracee, theirs);
        }
        let _ = sched_setaffinity(OURSELVES, &self.ours);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::thread;

    use nix::unistd::gettid;

    use super::*;
    use crate::count;

    /// Runs `test` with the thread id of a thread that waits.
    fn beside_a_waiting_thread(test: impl FnOnce(i32)) {
        let (sender, receiver) = channel();
        let (end, ended) = channel::<()>();
        let waiting = thread::spawn(move || {
            sender.send(gettid().as_raw()).unwrap();
            let _ = ended.recv();
        });
        test(receiver.recv().unwrap());
        drop(end);
        waiting.join().unwrap();
    }

    fn cpus(tid: i32) -> CpuSet {
        crate::cpus(tid).unwrap()
    }

    #[test]
    fn both_run_on_one_cpu_for_the_moment_and_on_theirs_afterwards() {
        beside_a_waiting_thread(|tid| {
            let before = cpus(tid);
            let one = KeptThread::enter(tid);
            assert_eq!(one.is_some(), count(&before) > 1);
            assert_eq!(count(&cpus(tid)), 1);
            assert_eq!(cpus(0), cpus(tid));
            drop(one);
            assert_eq!((cpus(tid), cpus(0)), (before, before));
        });
    }

    #[test]
    fn cpus_that_were_chosen_meanwhile_stay() {
        beside_a_waiting_thread(|tid| {
            let before = cpus(tid);
            let Some(one) = KeptThread::enter(tid) else {
                assert_eq!(count(&before), 1);
                return;
            };
            let mut other = before;
            other.unset(sched_getcpu().unwrap()).unwrap();
            sched_setaffinity(Pid::from_raw(tid), &other).unwrap();
            drop(one);
            assert_eq!((cpus(tid), cpus(0)), (other, before));
        });
    }

    #[test]
    fn a_thread_with_one_cpu_stays_there() {
        beside_a_waiting_thread(|tid| {
            let ours = cpus(0);
            let all = 0..CpuSet::count();
            for cpu in all.filter(|&cpu| ours.is_set(cpu) == Ok(true)) {
                let mut one = CpuSet::new();
                one.set(cpu).unwrap();
                sched_setaffinity(Pid::from_raw(tid), &one).unwrap();
                let kept = KeptThread::enter(tid);
                assert_eq!(kept.is_some(), cpus(0) != ours);
                drop(kept);
                assert_eq!((cpus(tid), cpus(0)), (one, ours));
            }
        });
    }

    #[test]
    fn a_thread_that_has_ended_is_none() {
        // Joining a thread does not wait until its number is gone; waiting for a process does.
        let mut process = Command::new("true").spawn().unwrap();
        let ended = process.id().cast_signed();
        process.wait().unwrap();
        let ours = cpus(0);
        assert!(KeptThread::enter(ended).is_none());
        assert_eq!(cpus(0), ours);
    }
}
