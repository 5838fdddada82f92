//! The root directories of processes that have called chroot(2) or pivot_root(2).
//!
//! The kernel cannot enter a directory in a mount, so it keeps the root directory that all processes of the run began with, and the monitor resolves absolute paths, all
//! of which notify. In a mount namespace of its own, a process can have another directory of the host as its root in the kernel, too
//! (docs/decisions/0138).
//!
//! The lock is a leaf; a root's lock comes after it.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_vfs::walk::{Pos, Root};
use parking_lot::{Mutex, RwLock};

/// What is known of a root directory.
#[derive(Debug, Clone, Default)]
enum Known {
    /// It is that of the run.
    #[default]
    OfRun,
    /// It is the kernel's root directory of the process, which may be another one than that of the run.
    InKernel,
    /// The process believes to have this one. The kernel's is that of the run.
    Kept(Pos),
}

/// The root directory of the threads that share it (`CLONE_FS`).
type Shared = Arc<Mutex<Known>>;

/// The root directories of all threads.
#[derive(Debug, Default)]
pub struct Roots {
    any: AtomicBool,
    by_tid: RwLock<HashMap<i32, Shared>>,
}

impl Roots {
    fn known(&self, tid: i32) -> Known {
        if !self.any.load(Ordering::Acquire) {
            return Known::OfRun;
        }
        let root = self.by_tid.read().get(&tid).cloned();
        root.map_or(Known::OfRun, |root| root.lock().clone())
    }

    /// The root directory of thread `tid`; `None`: that of the run.
    pub fn of(&self, tid: i32) -> Option<Root> {
        match self.known(tid) {
            Known::OfRun => None,
            Known::InKernel => kernels_root(tid),
            Known::Kept(at) => Some(Root {
                at,
                is_in_kernel: false,
            }),
        }
    }

    /// Whether the monitor keeps a root directory for thread `tid` of which the kernel does not know.
    pub fn keeps(&self, tid: i32) -> bool {
        matches!(self.known(tid), Known::Kept(_))
    }

    /// Whether the kernel may have changed the root directory of thread `tid`, and may do so again.
    pub fn are_in_kernel(&self, tid: i32) -> bool {
        matches!(self.known(tid), Known::InKernel)
    }

    /// Changes the root directory of thread `tid`, which it has in common with `others`, unless they have separate ones by now; `None`: to that of the run.
    pub fn change(&self, tid: i32, others: &[i32], root: Option<Pos>) {
        if root.is_none() && !self.any.load(Ordering::Acquire) {
            return;
        }
        self.set(tid, others, root.map_or(Known::OfRun, Known::Kept));
    }

    /// The kernel is about to change the root directory of thread `tid`, which it has in common with `others`.
    pub fn changes_in_kernel(&self, tid: i32, others: &[i32]) {
        if !self.keeps(tid) {
            self.set(tid, others, Known::InKernel);
        }
    }

    fn set(&self, tid: i32, others: &[i32], root: Known) {
        self.any.store(true, Ordering::Release);
        let mut by_tid = self.by_tid.write();
        let shared = match by_tid.get(&tid) {
            Some(known) => Arc::clone(known),
            None => {
                let new = Shared::default();
                for other in others.iter().chain([&tid]) {
                    by_tid.entry(*other).or_insert_with(|| Arc::clone(&new));
                }
                new
            }
        };
        drop(by_tid);
        let former = std::mem::replace(&mut *shared.lock(), root);
        // Without a lock: it may be the last reference to a directory.
        drop(former);
    }

    /// Thread `tid` has a root directory of its own from now on (`unshare(CLONE_FS)`), at first the same.
    pub fn separate(&self, tid: i32) {
        self.any.store(true, Ordering::Release);
        let mut by_tid = self.by_tid.write();
        let root = by_tid.get(&tid).map(|root| root.lock().clone());
        by_tid.insert(tid, Arc::new(Mutex::new(root.unwrap_or_default())));
    }

    /// `child` starts with the root directory of `parent`, and has it in common with it if `shares`.
    pub fn inherit(&self, parent: i32, child: i32, shares: bool) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut by_tid = self.by_tid.write();
        if let Some(root) = by_tid.get(&parent).cloned() {
            let own = || Arc::new(Mutex::new(root.lock().clone()));
            let root = if shares { Arc::clone(&root) } else { own() };
            by_tid.insert(child, root);
        }
    }

    /// Thread `former` has executed a program, and is `tid` now.
    pub fn executed(&self, tid: i32, former: i32) {
        if tid == former || !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut by_tid = self.by_tid.write();
        let root = by_tid.remove(&former);
        let replaced = match root {
            Some(root) => by_tid.insert(tid, root),
            None => by_tid.remove(&tid),
        };
        drop(by_tid);
        drop(replaced);
    }

    /// Thread `tid` has ended.
    pub fn ended(&self, tid: i32) {
        if self.any.load(Ordering::Acquire) {
            let root = self.by_tid.write().remove(&tid);
            drop(root);
        }
    }
}

/// The kernel's root directory of thread `tid`; `None` where it is that of the run, also by a bind mount.
fn kernels_root(tid: i32) -> Option<Root> {
    let path = format!("/proc/{tid}/root");
    let of = |path: &str| fs::metadata(path).map(|meta| (meta.dev(), meta.ino()));
    match (of("/"), of(&path)) {
        (Ok(own), Ok(its)) if own != its => Some(Root {
            at: Pos::Host(path.into_bytes()),
            is_in_kernel: true,
        }),
        _ => None,
    }
}

/// The canonical `path` as a process sees it whose root directory is `root`.
pub fn below(root: &[u8], path: &[u8]) -> Vec<u8> {
    match path.strip_prefix(root) {
        Some(b"") => b"/".to_vec(),
        Some(rest) if rest.first() == Some(&b'/') => rest.to_vec(),
        // The root has a /proc of its own, then.
        _ if path.starts_with(b"/proc/") => path.to_vec(),
        // As the kernel's d_path().
        _ => [b"(unreachable)", path].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root() {
        let seen = |path: &str| String::from_utf8(below(b"/m/root", path.as_bytes())).unwrap();
        assert_eq!(seen("/m/root"), "/");
        assert_eq!(seen("/m/root/a"), "/a");
        assert_eq!(seen("/m/roots"), "(unreachable)/m/roots");
        assert_eq!(seen("/proc/1"), "/proc/1");
    }

    fn at(path: &str) -> Option<Pos> {
        Some(Pos::Host(path.as_bytes().to_vec()))
    }

    #[test]
    fn threads_share_a_root_and_processes_inherit_it() {
        let roots = Roots::default();
        let of = |tid| {
            roots.of(tid).map(|root| match root.at {
                Pos::Host(path) => String::from_utf8(path).unwrap(),
                Pos::Mounted(_) => String::new(),
            })
        };
        let is = |tid, path: &str| assert_eq!(of(tid).as_deref(), Some(path));
        roots.change(1, &[1], None);
        assert_eq!(of(1), None);
        roots.change(1, &[1, 2], at("/a"));
        roots.inherit(1, 3, true);
        roots.inherit(1, 4, false);
        roots.inherit(9, 5, false);
        roots.change(2, &[1, 2], at("/b"));
        is(1, "/b");
        is(3, "/b");
        is(4, "/a");
        assert_eq!(of(5), None);
        roots.executed(1, 3);
        is(1, "/b");
        assert_eq!(of(3), None);
        roots.ended(4);
        assert_eq!(of(4), None);
        roots.separate(2);
        roots.change(1, &[1, 2], None);
        assert_eq!(of(1), None);
        is(2, "/b");
        roots.separate(6);
        roots.change(7, &[6, 7, 8], at("/c"));
        assert_eq!(of(6), None);
        is(8, "/c");
    }
}
