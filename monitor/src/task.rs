//! What the monitor knows of each tracee: how to reach it, and who it is.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_sys::{pidfd, procfs};
use goanna_vfs::{Caller, Errno, Result};
use parking_lot::{Mutex, RwLock};

/// One thread of a traced process.
#[derive(Debug)]
pub struct Task {
    /// Thread id.
    pub tid: i32,
    pidfd: OwnedFd,
    caller: Mutex<Option<Arc<Caller>>>,
    /// A call that changes ids or umask was passed on: what /proc says may be older until this thread's next
    /// call proves that one done.
    changing: AtomicBool,
}

impl Task {
    fn new(tid: i32) -> Result<Self> {
        Ok(Self {
            tid,
            pidfd: pidfd::open(tid)?,
            caller: Mutex::new(None),
            changing: AtomicBool::new(false),
        })
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
        let mut cached = self.caller.lock();
        if let Some(caller) = &*cached {
            return Ok(Arc::clone(caller));
        }
        let status = procfs::status(self.tid)?;
        let caller = Arc::new(Caller {
            tid: self.tid,
            pid: status.tgid,
            uid: status.uid[3],
            gid: status.gid[3],
            real_uid: status.uid[0],
            real_gid: status.gid[0],
            groups: status.groups.into(),
            caps: status.cap_eff,
            umask: status.umask,
        });
        *cached = Some(Arc::clone(&caller));
        Ok(caller)
    }

    fn forget_caller(&self) {
        *self.caller.lock() = None;
    }
}

/// All tracees that have made a call the monitor answers.
#[derive(Debug, Default)]
pub struct Tasks {
    by_tid: RwLock<HashMap<i32, Arc<Task>>>,
}

impl Tasks {
    /// The task `tid`, known or new. ESRCH when it has died.
    pub fn get(&self, tid: i32) -> Result<Arc<Task>> {
        let known = self.by_tid.read().get(&tid).cloned();
        if let Some(task) = known {
            if task.changing.swap(false, Ordering::Relaxed) {
                self.forget_process(&task);
            }
            return Ok(task);
        }
        let task = Arc::new(Task::new(tid)?);
        self.by_tid.write().insert(tid, Arc::clone(&task));
        Ok(task)
    }

    /// Forgets a thread that exited or became another program.
    pub fn remove(&self, tid: i32) {
        self.by_tid.write().remove(&tid);
    }

    /// Notes that `task` is about to change its ids or its process's umask.
    pub fn about_to_change(&self, task: &Task) {
        task.changing.store(true, Ordering::Relaxed);
        task.forget_caller();
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

    /// The umask is the process's (CLONE_FS), so every thread of it must look again.
    fn forget_process(&self, task: &Task) {
        task.forget_caller();
        let Ok(caller) = task.caller() else { return };
        for other in self
            .by_tid
            .read()
            .values()
            .filter(|other| other.tid != task.tid)
        {
            let mut cached = other.caller.lock();
            if cached.as_ref().is_some_and(|c| c.pid == caller.pid) {
                *cached = None;
            }
        }
    }
}
