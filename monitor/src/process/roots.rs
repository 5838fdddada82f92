//! The root directories of processes that have called chroot(2), and which processes have left the mount namespace of the run.
//!
//! The kernel cannot enter a directory in a mount, so it keeps the root directory that all processes of the run began with, and the monitor resolves absolute paths, all
//! of which notify. In a mount namespace of its own, a process can have another directory of the host as its root in the kernel, too
//! (docs/decisions/0138): [`namespaces`](super::namespaces) asks the kernel for that.
//!
//! The lock is a leaf; a directory's lock comes after it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use goanna_vfs::walk::{Pos, Root};
use parking_lot::{Mutex, RwLock};

/// What is known of the root directory of threads that share it (`CLONE_FS`). They are in the same mount namespace.
#[derive(Debug, Clone, Default)]
struct Directory {
    /// The directory that the process believes to have, where the kernel's is another one.
    kept: Option<Pos>,
    /// The mount namespace may be another one than that of the run, and the kernel's root directory, too.
    has_left: bool,
}

type Shared = Arc<Mutex<Directory>>;

/// The root directories of all threads.
#[derive(Debug, Default)]
pub struct Roots {
    any: AtomicBool,
    by_tid: RwLock<HashMap<i32, Shared>>,
}

impl Roots {
    fn directory(&self, tid: i32) -> Directory {
        if !self.any.load(Ordering::Acquire) {
            return Directory::default();
        }
        let root = self.by_tid.read().get(&tid).cloned();
        root.map_or_else(Directory::default, |root| root.lock().clone())
    }

    /// The root directory that the monitor keeps for thread `tid`, and of which the kernel does not know, if it does.
    pub fn kept(&self, tid: i32) -> Option<Root> {
        self.directory(tid).kept.map(|at| Root {
            at,
            is_in_kernel: false,
        })
    }

    /// Whether thread `tid` may be in another mount namespace than that of the run. Then the kernel may change its root directory at any time.
    pub fn may_have_left(&self, tid: i32) -> bool {
        self.directory(tid).has_left
    }

    /// Changes the root directory of thread `tid`, which it has in common with `others`, unless they have separate ones by now; `None`: to that of the kernel.
    pub fn change(&self, tid: i32, others: &[i32], root: Option<Pos>) {
        if root.is_none() && !self.any.load(Ordering::Acquire) {
            return;
        }
        self.set(tid, others, |directory| {
            std::mem::replace(&mut directory.kept, root)
        });
    }

    /// Thread `tid` is about to enter another mount namespace, or its root directory there is about to change in the kernel; it has it in common with `others`.
    pub fn leaves(&self, tid: i32, others: &[i32]) {
        self.set(tid, others, |directory| {
            directory.has_left = true;
            None
        });
    }

    fn set(&self, tid: i32, others: &[i32], change: impl FnOnce(&mut Directory) -> Option<Pos>) {
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
        let former = change(&mut shared.lock());
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

/// The canonical `path` as a process with the root directory `root` sees it. `None` if it is not at or below `root`.
pub fn below(root: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    match path.strip_prefix(root) {
        Some(b"") => Some(b"/".to_vec()),
        Some(rest) if rest.first() == Some(&b'/') => Some(rest.to_vec()),
        // The root has a /proc of its own, then.
        _ => path.starts_with(b"/proc/").then(|| path.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root() {
        let seen = |path: &str| below(b"/m/root", path.as_bytes());
        let is = |path, expected: &[u8]| assert_eq!(seen(path).as_deref(), Some(expected));
        is("/m/root", b"/");
        is("/m/root/a", b"/a");
        is("/proc/1", b"/proc/1");
        assert_eq!(seen("/m/roots"), None);
    }

    fn at(path: &str) -> Option<Pos> {
        Some(Pos::Host(path.as_bytes().to_vec()))
    }

    #[test]
    fn threads_share_a_root_and_processes_inherit_it() {
        let roots = Roots::default();
        let of = |tid| {
            roots.kept(tid).map(|root| match root.at {
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
