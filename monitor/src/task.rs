//! What the monitor knows of each tracee: how to reach it, who it is, and where it stands.
//!
//! Credentials, umask and working directory are the kernel's knowledge; what is kept here is a copy, valid
//! until a call that changes them. Such a call is passed on, so it takes effect after we saw it: from then until
//! the same thread's next call nothing is kept for its whole process, because threads share umask and working
//! directory. Lock order: `by_tid`, then a process's state, then a task's copies; all are leaves to the rest.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use goanna_sys::{pidfd, procfs};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Errno, Result};
use parking_lot::{Mutex, RwLock};

use crate::restart::Received;

/// A working directory: where it is, and whether it is the host's.
pub type Cwd = (Pos, bool);

/// What the threads of a process have in common.
#[derive(Debug, Default)]
struct Process {
    state: Mutex<Validity>,
}

#[derive(Debug, Default)]
struct Validity {
    /// Copies of an earlier epoch are stale.
    epoch: u64,
    /// Threads with a change under way.
    changing: Vec<i32>,
}

impl Process {
    /// The epoch of what is read now, if it may be kept.
    fn stable_epoch(&self) -> Option<u64> {
        let state = self.state.lock();
        state.changing.is_empty().then_some(state.epoch)
    }
}

/// A copy of the kernel's knowledge, and the epoch it was made in.
type Copied<T> = Mutex<Option<(u64, T)>>;

/// One thread of a traced process.
#[derive(Debug)]
pub struct Task {
    /// Thread id.
    pub tid: i32,
    pidfd: OwnedFd,
    process: Arc<Process>,
    caller: Copied<Arc<Caller>>,
    cwd: Copied<Cwd>,
    /// The last call that was received and left to wait.
    left_to_wait: Mutex<Option<Received>>,
}

impl Task {
    /// Notes the last call received: one that may wait now, or (`None`) one that does not.
    pub fn note_left_to_wait(&self, call: Option<Received>) {
        *self.left_to_wait.lock() = call;
    }

    /// The tracee's open file description behind descriptor `fd`, shared with it. EBADF.
    pub fn descriptor(&self, fd: i32) -> Result<OwnedFd> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        pidfd::getfd(self.pidfd.as_fd(), fd)
    }

    /// The credentials and umask of the thread.
    pub fn caller(&self) -> Result<Arc<Caller>> {
        self.copied(&self.caller, || credentials(self.tid).map(Arc::new))
    }

    /// The working directory, which `find` looks up.
    pub fn cwd(&self, find: impl FnOnce() -> Result<Cwd>) -> Result<Cwd> {
        self.copied(&self.cwd, find)
    }

    fn copied<T: Clone>(&self, copy: &Copied<T>, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(epoch) = self.process.stable_epoch() else {
            return read();
        };
        if let Some((made, value)) = &*copy.lock()
            && *made == epoch
        {
            return Ok(value.clone());
        }
        let value = read()?;
        *copy.lock() = Some((epoch, value.clone()));
        Ok(value)
    }
}

/// The credentials of thread `tid` as the kernel has them now.
pub fn credentials(tid: i32) -> Result<Caller> {
    let status = procfs::status(tid)?;
    Ok(Caller {
        tid,
        pid: status.tgid,
        uid: status.uid[3],
        gid: status.gid[3],
        real_uid: status.uid[0],
        real_gid: status.gid[0],
        groups: status.groups.into(),
        caps: status.cap_eff,
        umask: status.umask,
        txn: None,
    })
}

/// All tracees that have made a call the monitor answers.
#[derive(Debug, Default)]
pub struct Tasks {
    by_tid: RwLock<HashMap<i32, Arc<Task>>>,
    by_pid: Mutex<HashMap<i32, Weak<Process>>>,
}

impl Tasks {
    /// The task `tid`, known or new, at the beginning of a call. ESRCH when it has died.
    pub fn get(&self, tid: i32) -> Result<Arc<Task>> {
        self.get_if(tid, || true)
    }

    /// As [`Tasks::get`]; `alive` tells of a task that is not known whether it has died and not been reaped. ESRCH then.
    pub fn get_if(&self, tid: i32, alive: impl FnOnce() -> bool) -> Result<Arc<Task>> {
        let known = self.by_tid.read().get(&tid).cloned();
        if let Some(task) = known {
            let mut state = task.process.state.lock();
            if !state.changing.is_empty() && state.changing.contains(&tid) {
                state.changing.retain(|&changing| changing != tid);
                state.epoch += 1;
            }
            drop(state);
            return Ok(task);
        }
        let caller = credentials(tid)?;
        let process = self.process(caller.pid);
        let copied = process
            .stable_epoch()
            .map(|epoch| (epoch, Arc::new(caller)));
        let task = Arc::new(Task {
            tid,
            pidfd: pidfd::open(tid)?,
            process,
            caller: Mutex::new(copied),
            cwd: Mutex::default(),
            left_to_wait: Mutex::default(),
        });
        if !alive() {
            return Err(Errno::ESRCH);
        }
        self.by_tid.write().insert(tid, Arc::clone(&task));
        Ok(task)
    }

    /// See [`Task::note_left_to_wait`].
    pub fn left_to_wait(&self, tid: i32) -> Option<Received> {
        let task = self.by_tid.read().get(&tid).cloned();
        task.and_then(|task| *task.left_to_wait.lock())
    }

    fn process(&self, pid: i32) -> Arc<Process> {
        let mut by_pid = self.by_pid.lock();
        if let Some(process) = by_pid.get(&pid).and_then(Weak::upgrade) {
            return process;
        }
        let process = Arc::default();
        by_pid.insert(pid, Arc::downgrade(&process));
        process
    }

    /// `child` is a new process that has umask and working directory in common with `parent`: a change by either makes the
    /// copies of both stale.
    pub fn share_fs(&self, parent: i32, child: i32) -> Result<()> {
        let parent = self.get(parent)?;
        let shared = Arc::downgrade(&parent.process);
        self.by_pid.lock().insert(child, shared);
        Ok(())
    }

    /// Forgets a thread that exited or became another program.
    pub fn remove(&self, tid: i32) {
        let removed = self.by_tid.write().remove(&tid);
        if let Some(task) = removed {
            let mut state = task.process.state.lock();
            state.changing.retain(|&changing| changing != tid);
            state.epoch += 1;
        }
        let mut by_pid = self.by_pid.lock();
        if by_pid
            .get(&tid)
            .is_some_and(|process| process.strong_count() == 0)
        {
            by_pid.remove(&tid);
        }
    }

    /// Notes that `task` is about to change ids, umask or working directory.
    pub fn about_to_change(&self, task: &Task) {
        let mut state = task.process.state.lock();
        state.epoch += 1;
        state.changing.push(task.tid);
    }

    /// Process ids of all known tasks, each once.
    pub fn processes(&self) -> Vec<i32> {
        let tasks: Vec<_> = self.by_tid.read().values().cloned().collect();
        let mut pids: Vec<i32> = tasks
            .iter()
            .filter_map(|task| task.caller().ok().map(|c| c.pid))
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }
}
