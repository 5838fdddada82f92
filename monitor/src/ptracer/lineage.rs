//! The process of each traced thread, and the parent of that process.
//!
//! The supervisor learns both from the report of a new child. So when a process ends, it need not read `/proc/TID/status`, unless the
//! parent ended first: then the kernel has given the process another parent.

use std::collections::HashMap;

/// A traced thread.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// Differs from that of an earlier thread with the same thread id.
    number: u64,
    /// The process that it belongs to.
    process: i32,
    /// The process that gets SIGCHLD when this process ends, and the number of its first thread. `None`: the supervisor does not know it.
    parent: Option<(i32, u64)>,
    has_ended: bool,
}

/// All threads that the supervisor has seen begin.
#[derive(Debug, Default)]
pub struct Lineage {
    by_tid: HashMap<i32, Member>,
    last_number: u64,
}

/// The parent of a thread's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parent {
    /// This process.
    Process(i32),
    /// The thread is not the first one of its process, so no process gets SIGCHLD for its end.
    None,
    /// The supervisor does not know it: the kernel must be asked.
    Unknown,
}

impl Lineage {
    /// Process `pid` is the command.
    pub fn command(&mut self, pid: i32) {
        self.insert(pid, pid, None);
    }

    /// Thread `creator` has started `child` by clone(2) with `flags`.
    pub fn born(&mut self, creator: i32, child: i32, flags: u64) {
        let has = |flag: i32| flags & flag as u64 != 0;
        let Some(creator) = self.by_tid.get(&creator).copied() else {
            return;
        };
        if has(libc::CLONE_THREAD) {
            self.insert(child, creator.process, creator.parent);
        } else if has(libc::CLONE_PARENT) {
            self.insert(child, child, creator.parent);
        } else {
            let parent = self.by_tid.get(&creator.process);
            let parent = parent.map(|parent| (creator.process, parent.number));
            self.insert(child, child, parent);
        }
    }

    fn insert(&mut self, tid: i32, process: i32, parent: Option<(i32, u64)>) {
        self.last_number += 1;
        let member = Member {
            number: self.last_number,
            process,
            parent,
            has_ended: false,
        };
        self.by_tid.insert(tid, member);
    }

    /// The parent of the process whose first thread is `tid`.
    pub fn parent(&self, tid: i32) -> Parent {
        let Some(member) = self.by_tid.get(&tid) else {
            return Parent::Unknown;
        };
        if member.process != tid {
            return Parent::None;
        }
        let lives = |&(pid, number): &(i32, u64)| {
            let parent = self.by_tid.get(&pid);
            parent.is_some_and(|parent| parent.number == number && !parent.has_ended)
        };
        match member.parent.filter(lives) {
            Some((pid, _)) => Parent::Process(pid),
            None => Parent::Unknown,
        }
    }

    /// Thread `tid` has ended, and may not be reaped yet: its children have another parent.
    pub fn ended(&mut self, tid: i32) {
        if let Some(member) = self.by_tid.get_mut(&tid) {
            member.has_ended = true;
        }
    }

    /// Thread `tid` was reaped, or has taken the id of its process's first thread by execve(2).
    pub fn forget(&mut self, tid: i32) {
        self.by_tid.remove(&tid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: u64 = libc::CLONE_THREAD as u64;
    const SIBLING: u64 = libc::CLONE_PARENT as u64;

    fn family() -> Lineage {
        let mut lineage = Lineage::default();
        lineage.command(1);
        lineage.born(1, 2, 0);
        lineage.born(2, 3, THREAD);
        lineage.born(3, 4, 0);
        lineage.born(4, 5, SIBLING);
        lineage
    }

    #[test]
    fn the_parent_of_a_process_is_the_process_of_the_thread_that_started_it() {
        let lineage = family();
        assert_eq!(lineage.parent(2), Parent::Process(1));
        assert_eq!(lineage.parent(3), Parent::None, "a thread");
        assert_eq!(lineage.parent(4), Parent::Process(2), "by a thread");
        assert_eq!(lineage.parent(5), Parent::Process(2), "by CLONE_PARENT");
        assert_eq!(lineage.parent(1), Parent::Unknown, "the command");
    }

    #[test]
    fn a_process_whose_parent_has_ended_has_an_unknown_one() {
        let mut lineage = family();
        lineage.ended(2);
        assert_eq!(lineage.parent(4), Parent::Unknown, "not reaped");
        lineage.forget(2);
        assert_eq!(lineage.parent(4), Parent::Unknown);
        assert_eq!(lineage.parent(5), Parent::Unknown);
        // A later process has the id of the one that has ended.
        lineage.born(1, 2, 0);
        assert_eq!(lineage.parent(4), Parent::Unknown);
    }
}
