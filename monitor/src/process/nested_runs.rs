//! Runs inside of the run: the processes of each see further mounts, which may cover those of the processes around them.
//!
//! A process enters a nested run by a request ([`goanna_sys::txncall::Op::EnterRun`]); the processes that it starts are in it, too, as they
//! would be in a mount namespace. The run ends with its last process, and its mounts with it (docs/decisions/0137).
//!
//! Lock order: `changing` comes before all locks of the monitor and of back ends; `by_tid` and `ended` are leaves. A thread waits for files of the host
//! while it holds `changing`, never for a tracee.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_vfs::{Caller, Mount, MountTable, Mounts};
use parking_lot::{Mutex, RwLock};

/// Makes the mounts of nested runs. The text of requests and answers is the implementer's.
pub trait Nesting: Send + Sync {
    /// The mounts that `request` asks for, in addition to `outer`, which `caller` sees; `None` if they cannot be made. `reused` are the mounts of other nested
    /// runs. The first part is the answer for the program.
    fn begin(
        &self,
        request: &[u8],
        outer: &Mounts,
        reused: &[Arc<Mount>],
        caller: &Caller,
    ) -> (Vec<u8>, Option<Mounts>);

    /// Brings the changes in `mounts` to the disk, and closes those that are not in use, as the flag says. Returns the answer for the program.
    fn end(&self, mounts: &[(Arc<Mount>, bool)]) -> Vec<u8>;
}

/// A run inside of the run.
#[derive(Debug)]
pub struct NestedRun {
    /// What its processes see.
    pub mounts: MountTable,
    /// The run around it; `None` for the run itself.
    outer: Option<Arc<Self>>,
}

/// The runs inside of a run.
pub struct NestedRuns {
    /// `None`: there can be none.
    pub nesting: Option<Arc<dyn Nesting>>,
    /// Held while one begins or ends.
    pub changing: Mutex<()>,
    any: AtomicBool,
    /// By thread.
    by_tid: RwLock<HashMap<i32, Arc<NestedRun>>>,
    /// Runs that have no process any more, but still have mounts.
    ended: Mutex<Vec<Arc<NestedRun>>>,
}

impl fmt::Debug for NestedRuns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.by_tid.read().fmt(f)
    }
}

impl NestedRuns {
    /// None yet. `nesting` makes their mounts.
    pub fn new(nesting: Option<Arc<dyn Nesting>>) -> Self {
        Self {
            nesting,
            changing: Mutex::default(),
            any: AtomicBool::new(false),
            by_tid: RwLock::default(),
            ended: Mutex::default(),
        }
    }

    /// The innermost one that thread `tid` is in.
    pub fn of(&self, tid: i32) -> Option<Arc<NestedRun>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        self.by_tid.read().get(&tid).cloned()
    }

    /// Thread `tid`, if it `is_alive`, is in a new run with `mounts` from now on. Whether it is.
    pub fn enter(&self, tid: i32, mounts: Mounts, is_alive: impl FnOnce() -> bool) -> bool {
        self.any.store(true, Ordering::Release);
        let mut by_tid = self.by_tid.write();
        let entered = NestedRun {
            mounts: MountTable::new(mounts),
            outer: by_tid.get(&tid).cloned(),
        };
        let is_alive = is_alive();
        if is_alive {
            by_tid.insert(tid, Arc::new(entered));
        }
        is_alive
    }

    /// Thread `tid` is in the run around its own again, and its own one is returned, which the caller ends if no process is in it.
    pub fn leave(&self, tid: i32) -> Option<Arc<NestedRun>> {
        let mut by_tid = self.by_tid.write();
        let left = by_tid.remove(&tid)?;
        if let Some(outer) = &left.outer {
            by_tid.insert(tid, Arc::clone(outer));
        }
        Some(left)
    }

    /// Thread `child` is in the runs that `parent` is in.
    pub fn inherit(&self, parent: i32, child: i32) {
        if let Some(run) = self.of(parent) {
            self.by_tid.write().insert(child, run);
        }
    }

    /// Thread `former` has executed a program, and is `tid` now.
    pub fn executed(&self, tid: i32, former: i32) {
        if tid == former || !self.any.load(Ordering::Acquire) {
            return;
        }
        self.ended(tid);
        let mut by_tid = self.by_tid.write();
        if let Some(run) = by_tid.remove(&former) {
            by_tid.insert(tid, run);
        }
    }

    /// Thread `tid` has ended.
    pub fn ended(&self, tid: i32) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut next = self.by_tid.write().remove(&tid);
        while let Some(run) = next {
            next = run.outer.clone();
            if self.has_processes(&run) {
                return;
            }
            self.ended.lock().push(run);
        }
    }

    /// The run has ended, and its mounts are still there.
    pub fn add_ended(&self, run: Arc<NestedRun>) {
        self.ended.lock().push(run);
    }

    /// Takes those that have ended.
    pub fn take_ended(&self) -> Vec<Arc<NestedRun>> {
        std::mem::take(&mut *self.ended.lock())
    }

    /// Whether a process is in `run`, or in one inside of it.
    pub fn has_processes(&self, run: &Arc<NestedRun>) -> bool {
        let by_tid = self.by_tid.read();
        by_tid
            .values()
            .any(|of| of.and_around().any(|around| Arc::ptr_eq(around, run)))
    }

    /// The tables of all that have processes.
    pub fn all(&self) -> Vec<Arc<NestedRun>> {
        let mut all: Vec<Arc<NestedRun>> = Vec::new();
        for run in self.by_tid.read().values() {
            for run in run.and_around() {
                if !all.iter().any(|known| Arc::ptr_eq(known, run)) {
                    all.push(Arc::clone(run));
                }
            }
        }
        all
    }
}

impl NestedRun {
    /// Itself, and those around it.
    pub fn and_around(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |run| run.outer.as_ref())
    }

    /// Its mounts that the processes around it do not see.
    pub fn own_mounts(&self, outermost: &MountTable) -> Vec<Arc<Mount>> {
        let outer = match &self.outer {
            Some(outer) => outer.mounts.current(),
            None => outermost.current(),
        };
        let is_outer = |mount: &Mount| outer.iter().any(|other| other.number == mount.number);
        let mounts = self.mounts.current();
        let own = mounts.iter().filter(|mount| !is_outer(mount));
        own.cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use goanna_vfs::{FileSystem, SynthFs};

    use super::*;

    fn mounts() -> Mounts {
        let host: Arc<dyn FileSystem> = Arc::new(SynthFs::new(1));
        Mounts::new(host)
    }

    fn with_one(outer: &Mounts, target: &[u8]) -> Mounts {
        let mut mounts = outer.branch();
        let fs: Arc<dyn FileSystem> = Arc::new(SynthFs::new(2));
        mounts.cover(target.to_vec(), fs, String::new());
        mounts
    }

    #[test]
    fn a_run_is_over_when_its_last_process_has_ended() {
        let runs = NestedRuns::new(None);
        assert!(runs.enter(1, mounts(), || true));
        runs.inherit(1, 2);
        runs.inherit(3, 4);
        assert!(runs.of(2).is_some() && runs.of(4).is_none());
        runs.executed(5, 2);
        assert!(runs.of(2).is_none());
        let left = runs.leave(1).unwrap();
        assert!(runs.has_processes(&left) && runs.leave(1).is_none());
        runs.ended(5);
        assert!(!runs.has_processes(&left));
        assert!(Arc::ptr_eq(&left, runs.take_ended().first().unwrap()));
        assert!(runs.take_ended().is_empty());
        assert!(!runs.enter(6, mounts(), || false) && runs.of(6).is_none());
    }

    #[test]
    fn a_run_lasts_while_one_inside_of_it_does() {
        let runs = NestedRuns::new(None);
        let outermost = MountTable::new(mounts());
        runs.enter(1, with_one(&outermost.current(), b"/a"), || true);
        let outer = runs.of(1).unwrap();
        runs.inherit(1, 2);
        runs.enter(2, with_one(&outer.mounts.current(), b"/b"), || true);
        let inner = runs.of(2).unwrap();
        let own = |run: &NestedRun| -> Vec<Vec<u8>> {
            let own = run.own_mounts(&outermost).into_iter();
            own.map(|mount| mount.target.clone()).collect()
        };
        assert_eq!(
            (own(&outer), own(&inner)),
            (vec![b"/a".to_vec()], vec![b"/b".to_vec()])
        );
        runs.ended(1);
        assert!(runs.take_ended().is_empty() && runs.has_processes(&outer));
        assert_eq!(runs.all().len(), 2);
        runs.ended(2);
        let ended = runs.take_ended();
        assert!(Arc::ptr_eq(&ended[0], &inner) && Arc::ptr_eq(&ended[1], &outer));
    }
}
