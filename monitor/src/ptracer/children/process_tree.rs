//! The process of each traced thread, and the parent of that process.
//!
//! The supervisor learns both from the report of a new child. So when a process ends, it need not read `/proc/TID/status`, unless the
//! parent ended first: then the kernel has given the process another parent.

use std::collections::HashMap;

/// A traced thread.
#[derive(Debug, Clone, Copy)]
struct ThreadEntry {
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
pub struct ProcessTree {
    by_tid: HashMap<i32, ThreadEntry>,
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

impl ProcessTree {
    /// Process `pid` is the command.
    pub fn command(&mut self, pid: i32) {
        self.insert(pid, pid, None);
    }

    /// Thread `creator` has started `child` by clone(2) with `flags`.
    pub fn child_started(&mut self, creator: i32, child: i32, flags: u64) {
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
        let entry = ThreadEntry {
            number: self.last_number,
            process,
            parent,
            has_ended: false,
        };
        self.by_tid.insert(tid, entry);
    }

    /// The parent of the process whose first thread is `tid`.
    pub fn parent(&self, tid: i32) -> Parent {
        let Some(entry) = self.by_tid.get(&tid) else {
            return Parent::Unknown;
        };
        if entry.process != tid {
            return Parent::None;
        }
        let lives = |&(pid, number): &(i32, u64)| {
            let parent = self.by_tid.get(&pid);
            parent.is_some_and(|parent| parent.number == number && !parent.has_ended)
        };
        match entry.parent.filter(lives) {
            Some((pid, _)) => Parent::Process(pid),
            None => Parent::Unknown,
        }
    }

    /// Thread `tid` has ended, and may not be reaped yet: its children have another parent.
    pub fn ended(&mut self, tid: i32) {
        if let Some(entry) = self.by_tid.get_mut(&tid) {
            entry.has_ended = true;
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

    fn family() -> ProcessTree {
        let mut tree = ProcessTree::default();
        tree.command(1);
        tree.child_started(1, 2, 0);
        tree.child_started(2, 3, THREAD);
        tree.child_started(3, 4, 0);
        tree.child_started(4, 5, SIBLING);
        tree
    }

    #[test]
    fn the_parent_of_a_process_is_the_process_of_the_thread_that_started_it() {
        let tree = family();
        assert_eq!(tree.parent(2), Parent::Process(1));
        assert_eq!(tree.parent(3), Parent::None, "a thread");
        assert_eq!(tree.parent(4), Parent::Process(2), "by a thread");
        assert_eq!(tree.parent(5), Parent::Process(2), "by CLONE_PARENT");
        assert_eq!(tree.parent(1), Parent::Unknown, "the command");
    }

    #[test]
    fn a_process_whose_parent_has_ended_has_an_unknown_one() {
        let mut tree = family();
        tree.ended(2);
        assert_eq!(tree.parent(4), Parent::Unknown, "not reaped");
        tree.forget(2);
        assert_eq!(tree.parent(4), Parent::Unknown);
        assert_eq!(tree.parent(5), Parent::Unknown);
        // A later process has the id of the one that has ended.
        tree.child_started(1, 2, 0);
        assert_eq!(tree.parent(4), Parent::Unknown);
    }
}
