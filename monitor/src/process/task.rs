//! Tasks: for each tracee a descriptor of it, its credentials, and its working directory.
//!
//! The kernel has the credentials, the umask and the working directory; this module keeps copies, which are valid until a call
//! that changes them. Such a call is passed on, so it takes effect after we have seen it: from then until the next call of the
//! same thread, no copies are kept for the whole process, because threads share umask and working directory. Lock order:
//! `by_tid`, then a process's state, then a task's copies; all are leaves to the rest.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Weak};

use goanna_sys::{cred, pidfd, procfs, stat};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Errno, IdMap, IdRange, Result, UserNamespace};
use parking_lot::{Mutex, RwLock};

use super::aio::AioContexts;

/// A working directory: its position, and whether it is on the host.
pub type Cwd = (Pos, bool);

/// The state that the threads of a process share.
#[derive(Debug, Default)]
struct Process {
    state: Mutex<Validity>,
    aio: AioContexts,
}

#[derive(Debug, Default)]
struct Validity {
    /// Copies of an earlier epoch are stale.
    epoch: u64,
    /// Threads with a change in progress.
    changing: Vec<i32>,
}

impl Process {
    /// The epoch of a value that is read now, if a copy of it may be kept.
    fn stable_epoch(&self) -> Option<u64> {
        let state = self.state.lock();
        state.changing.is_empty().then_some(state.epoch)
    }
}

/// A copy of a value of the kernel, and the epoch in which it was made.
type Copied<T> = Mutex<Option<(u64, T)>>;

/// A call as it was received: number and arguments.
pub type Received = (u32, [u64; 6]);

/// One thread of a traced process.
#[derive(Debug)]
pub struct Task {
    /// Thread id.
    pub tid: i32,
    pidfd: Arc<OwnedFd>,
    process: Arc<Process>,
    caller: Copied<Arc<Caller>>,
    cwd: Copied<Cwd>,
    /// The last call, if it was received and may wait.
    left_to_wait: Mutex<Option<Received>>,
    /// Descriptors that the thread has sent us, for the call that it is stopped in.
    fetched: Mutex<FetchedDescriptors>,
}

/// The descriptors for [`Task::descriptor`] that the thread has sent, and the one that it must send.
#[derive(Debug, Default)]
struct FetchedDescriptors {
    fds: HashMap<i32, Result<OwnedFd, Errno>>,
    wanted: Option<i32>,
}

impl Task {
    /// Records the last call received; `None` for a call that does not wait.
    pub fn record_waiting_call(&self, call: Option<Received>) {
        *self.left_to_wait.lock() = call;
    }

    /// The AIO contexts of its process.
    pub fn aio(&self) -> &AioContexts {
        &self.process.aio
    }

    /// The tracee's open file description behind descriptor `fd`, shared with it. EBADF.
    ///
    /// EPERM where pidfd_getfd(2) is refused: then the supervisor calls [`Task::wanted`], and makes the thread send the
    /// descriptor ([`crate::ptracer::inject`]) and repeat its call.
    pub fn descriptor(&self, fd: i32) -> Result<OwnedFd, Errno> {
        match self.own_copy(fd) {
            Err(Errno::EPERM | Errno::ENOSYS) => self.fetched(fd),
            other => other,
        }
    }

    /// Device and inode of the object that descriptor `fd` refers to. EBADF.
    pub fn identity(&self, fd: i32) -> Result<(u64, u64), Errno> {
        self.object(fd).map(|(dev, ino, _)| (dev, ino))
    }

    /// Device, inode and mode of that object. EBADF.
    pub fn object(&self, fd: i32) -> Result<(u64, u64, u32), Errno> {
        match self.own_copy(fd) {
            Ok(ofd) => stat::identity(ofd.as_fd()),
            Err(Errno::EPERM | Errno::ENOSYS) => procfs::fd_object(self.tid, fd),
            Err(errno) => Err(errno),
        }
    }

    /// As [`Task::descriptor`], without the supervisor's help.
    pub fn own_copy(&self, fd: i32) -> Result<OwnedFd, Errno> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        pidfd::getfd(self.pidfd.as_fd(), fd)
    }

    fn fetched(&self, fd: i32) -> Result<OwnedFd, Errno> {
        let mut fetched = self.fetched.lock();
        match fetched.fds.get(&fd) {
            Some(Ok(ofd)) => ofd.try_clone().map_err(crate::errno::errno),
            Some(Err(errno)) => Err(*errno),
            None => {
                procfs::fd_link(self.tid, fd)?;
                fetched.wanted = Some(fd);
                Err(Errno::EPERM)
            }
        }
    }

    /// The descriptor that the thread must send us before its call can be answered.
    pub fn wanted(&self) -> Option<i32> {
        self.fetched.lock().wanted.take()
    }

    /// Stores descriptor `fd`, which the thread has sent, or the error.
    pub fn set_fetched(&self, fd: i32, ofd: Result<OwnedFd, Errno>) {
        self.fetched.lock().fds.insert(fd, ofd);
    }

    /// Drops the descriptors that the thread has sent: its call is answered.
    pub fn forget_fetched(&self) {
        self.fetched.lock().fds.clear();
    }

    /// The credentials and umask of the thread.
    pub fn caller(&self) -> Result<Arc<Caller>, Errno> {
        self.copied(
            &self.caller,
            || credentials(self.tid).map(Arc::new),
            is_settled,
        )
    }

    /// The working directory, which `find` looks up.
    pub fn cwd(&self, find: impl FnOnce() -> Result<Cwd>) -> Result<Cwd> {
        self.copied(&self.cwd, find, |_| true)
    }

    /// The valid copy, or the result of `read`, of which a copy is kept if `keep` allows it.
    fn copied<T: Clone, E>(
        &self,
        copy: &Copied<T>,
        read: impl FnOnce() -> Result<T, E>,
        keep: impl FnOnce(&T) -> bool,
    ) -> Result<T, E> {
        let Some(epoch) = self.process.stable_epoch() else {
            return read();
        };
        if let Some((made, value)) = &*copy.lock()
            && *made == epoch
        {
            return Ok(value.clone());
        }
        let value = read()?;
        if keep(&value) {
            *copy.lock() = Some((epoch, value.clone()));
        }
        Ok(value)
    }
}

/// Whether only the thread itself can change these credentials: another process writes the maps of a new user namespace,
/// each once.
fn is_settled(caller: &Arc<Caller>) -> bool {
    let written = |ns: &Arc<UserNamespace>| !ns.uids.is_empty() && !ns.gids.is_empty();
    caller.user_ns.as_ref().is_none_or(written)
}

/// Runs `f`, which makes host calls, with the credentials and capabilities of `caller`, and with its umask if `f` creates
/// something (and does not wait). A caller in another user namespace has no capabilities then.
pub fn acting_as<R>(
    caller: &Caller,
    umask: Option<u32>,
    f: impl FnOnce() -> Result<R, Errno>,
) -> Result<R, Errno> {
    let credentials = cred::Credentials {
        uid: caller.uid,
        gid: caller.gid,
        groups: &caller.groups,
        caps: if caller.user_ns.is_none() {
            caller.caps
        } else {
            0
        },
    };
    cred::acting_as(&credentials, umask, f)
}

/// The credentials of thread `tid` as the kernel has them now.
pub fn credentials(tid: i32) -> Result<Caller, Errno> {
    let status = procfs::status(tid)?;
    let user_ns = user_namespace(tid)?;
    // access(2) uses capabilities only for root: all permitted ones.
    let root = match &user_ns {
        None => Some(0),
        Some(ns) => ns.uids.outside(0),
    };
    let real_caps = if Some(status.uid[0]) == root {
        status.cap_prm
    } else {
        0
    };
    Ok(Caller {
        tid,
        pid: status.tgid,
        uid: status.uid[3],
        gid: status.gid[3],
        real_uid: status.uid[0],
        real_gid: status.gid[0],
        groups: status.groups.into(),
        caps: status.cap_eff,
        real_caps,
        user_ns,
        umask: status.umask,
        txn: None,
    })
}

/// The user namespace of thread `tid`; `None`: ours.
fn user_namespace(tid: i32) -> Result<Option<Arc<UserNamespace>>, Errno> {
    static OURS: LazyLock<Result<(u64, u64), Errno>> =
        LazyLock::new(|| procfs::user_namespace(std::process::id().cast_signed()));
    match procfs::user_namespace(tid) {
        theirs if theirs == *OURS => return Ok(None),
        Err(Errno::ESRCH) => return Err(Errno::ESRCH),
        // The namespace may not be ours, so its capabilities do not count.
        Err(_) => return Ok(Some(Arc::default())),
        Ok(_) => {}
    }
    let map = |file| -> Result<IdMap, Errno> {
        let ranges = procfs::id_map(tid, file)?.into_iter();
        let range = |[inside, outside, count]: [u32; 3]| IdRange {
            inside,
            outside,
            count,
        };
        Ok(IdMap::new(ranges.map(range).collect()))
    };
    Ok(Some(Arc::new(UserNamespace {
        uids: map("uid_map")?,
        gids: map("gid_map")?,
    })))
}

/// All tracees that have made a call the monitor answers.
#[derive(Debug, Default)]
pub struct Tasks {
    by_tid: RwLock<HashMap<i32, Arc<Task>>>,
    by_pid: Mutex<HashMap<i32, Weak<Process>>>,
    /// The credentials of new processes that have made no call yet: their parents' at fork(2). A leaf in the lock order.
    inherited: Mutex<HashMap<i32, Arc<Caller>>>,
    /// Whether a thread has ever been about to change its credentials.
    changed_credentials: AtomicBool,
}

impl Tasks {
    /// The task `tid`, known or new, at the beginning of a call. ESRCH when it has died.
    pub fn get(&self, tid: i32) -> Result<Arc<Task>, Errno> {
        self.get_if(tid, || true)
    }

    /// As [`Tasks::get`]; for an unknown task, `alive` returns whether it still runs. ESRCH if it has died.
    pub fn get_if(&self, tid: i32, alive: impl FnOnce() -> bool) -> Result<Arc<Task>, Errno> {
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
        let inherited = self.inherited.lock().remove(&tid);
        let caller = match inherited {
            Some(caller) => caller,
            None => Arc::new(credentials(tid)?),
        };
        let process = self.process(caller.pid);
        let epoch = process.stable_epoch().filter(|_| is_settled(&caller));
        let copied = epoch.map(|epoch| (epoch, caller));
        let task = Arc::new(Task {
            tid,
            pidfd: Arc::new(pidfd::open(tid)?),
            process,
            caller: Mutex::new(copied),
            cwd: Mutex::default(),
            left_to_wait: Mutex::default(),
            fetched: Mutex::default(),
        });
        if !alive() {
            return Err(Errno::ESRCH);
        }
        self.by_tid.write().insert(tid, Arc::clone(&task));
        Ok(task)
    }

    /// The last call of `tid`, if it was received and may wait ([`Task::record_waiting_call`]).
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

    /// `child` is a new process with copies of the credentials of `parent`. It cannot change them before its first call, which
    /// comes after [`Tasks::get`]. So the kernel need not be asked for them if those of the parent are known.
    pub fn inherit(&self, parent: i32, child: i32) {
        let Some(parent) = self.by_tid.read().get(&parent).cloned() else {
            return;
        };
        // Another thread of the parent may have changed its umask since the fork.
        if Arc::strong_count(&parent.process) > 1 {
            return;
        }
        let epoch = parent.process.stable_epoch();
        let copy = parent.caller.lock().clone();
        if let Some((made, caller)) = copy
            && epoch == Some(made)
        {
            let caller = Caller {
                tid: child,
                pid: child,
                ..Caller::clone(&caller)
            };
            self.inherited.lock().insert(child, Arc::new(caller));
        }
    }

    /// Thread `tid` has executed a program as the only thread of its process. Its credentials may have changed.
    pub fn executed(&self, tid: i32) {
        let Some(former) = self.by_tid.read().get(&tid).cloned() else {
            self.inherited.lock().remove(&tid);
            return;
        };
        self.remove(tid);
        let task = Task {
            tid,
            pidfd: Arc::clone(&former.pidfd),
            process: Arc::clone(&former.process),
            caller: Mutex::default(),
            cwd: Mutex::default(),
            left_to_wait: Mutex::default(),
            fetched: Mutex::default(),
        };
        self.by_tid.write().insert(tid, Arc::new(task));
    }

    /// `child` is a new process that has umask and working directory in common with `parent`: a change by either makes the
    /// copies of both stale.
    pub fn share_fs(&self, parent: i32, child: i32) -> Result<(), Errno> {
        let parent = self.get(parent)?;
        let shared = Arc::downgrade(&parent.process);
        self.by_pid.lock().insert(child, shared);
        Ok(())
    }

    /// The threads that have umask and directories in common with `task`, which is one of them.
    pub fn sharing_fs(&self, task: &Task) -> Vec<i32> {
        let by_pid = self.by_pid.lock();
        let is_same = |(_, process): &(&i32, &Weak<Process>)| {
            std::ptr::eq(process.as_ptr(), Arc::as_ptr(&task.process))
        };
        let same: Vec<i32> = by_pid.iter().filter(is_same).map(|(pid, _)| *pid).collect();
        drop(by_pid);
        // Those of a process that ends have ended.
        let threads = same.into_iter().filter_map(|pid| procfs::threads(pid).ok());
        let mut threads: Vec<i32> = threads.flatten().collect();
        if !threads.contains(&task.tid) {
            threads.push(task.tid);
        }
        threads
    }

    /// Forgets a thread that has ended or executes another program.
    pub fn remove(&self, tid: i32) {
        self.inherited.lock().remove(&tid);
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

    /// Notes that `task` is about to change ids, capabilities or namespaces.
    pub fn about_to_change_credentials(&self, task: &Task) {
        self.changed_credentials.store(true, Ordering::Relaxed);
        self.about_to_change(task);
    }

    /// Whether all threads have had the same credentials from the beginning. Otherwise a thread may hold descriptors from a
    /// time when it had more rights.
    pub fn have_kept_credentials(&self) -> bool {
        !self.changed_credentials.load(Ordering::Relaxed)
    }
}
