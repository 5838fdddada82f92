//! What processes in mount namespaces of their own see of the run's mounts.
//!
//! The kernel does not have the run's mounts, so it cannot move, copy, cover or unmount them with the directories that they are in. The monitor derives their places
//! from the kernel's list of the mounts in the namespace (`/proc/PID/mountinfo`), whenever that has changed (docs/decisions/0140). [`list`] does so.
//!
//! Locks: all are leaves.

mod list;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use goanna_vfs::walk::{Pos, Root};
use goanna_vfs::{Caller, Errno, Mount, MountFlags, Mounts, Place, Result};
use nix::fcntl::readlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, RwLock};

use crate::shadow::Identity;
use crate::shadow::run_directory::random_name;
use list::{Lines, read_list};

/// Maximum number of threads of which the mounts are kept. Each takes a descriptor.
const KNOWN_MAX: usize = 512;

/// A bind mount of a directory or file in a mount of the run.
#[derive(Clone)]
struct Bind {
    /// A copy that is attached nowhere. What is bound read-only stays so in all of them: the kernel cannot lock it.
    part: Arc<Mount>,
    /// The numbers of those that are attached, by their mount IDs.
    numbers: Arc<Mutex<HashMap<u64, u64>>>,
    /// The backing object, which the kernel has bound instead.
    object: PathBuf,
    identity: Identity,
}

impl Bind {
    /// The mount at `target` for which the kernel has one with this ID, in a table like `mounts`.
    fn mount(&self, id: u64, target: Vec<u8>, flags: MountFlags, mounts: &Mounts) -> Mount {
        let mut mount = self.part.changed(target, self.part.flags | flags);
        let mut numbers = self.numbers.lock();
        mount.number = *numbers.entry(id).or_insert_with(|| mounts.take_number());
        mount
    }
}

/// The mounts that a process sees, with their mount points as the monitor reaches them, and its root directory.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    /// The mounts.
    pub mounts: Arc<Mounts>,
    /// The path by which the monitor reaches the root directory that the process has in the kernel, a link in /proc. Canonical paths begin with it.
    pub kernel_root: Vec<u8>,
    /// The root directory.
    pub root: Root,
}

/// Where a process is: the mount namespace, and the root directory in it.
#[derive(Debug, PartialEq, Eq)]
struct Whereabouts {
    namespace: OsString,
    root: OsString,
}

/// What a list of mounts has said.
struct Known {
    at: Whereabouts,
    /// The mounts that the process would see in the namespace of the run.
    in_run: Arc<Mounts>,
    /// The list, which says whether it has changed.
    list: File,
    seen: Option<Elsewhere>,
}

/// The mount namespaces of a run's processes.
pub struct Namespaces {
    /// The directory of the backing objects, with random numbers as their names.
    objects: PathBuf,
    own: OnceLock<Option<OsString>>,
    /// By the names of their backing objects.
    binds: RwLock<HashMap<String, Bind>>,
    /// What is covered by mounts of the kernel, by the names of the backing objects that are their mount points.
    covered: RwLock<HashMap<String, Place>>,
    /// The directories in which other names of files are, by the file, and by the new name in the directory around.
    exposed: Mutex<HashMap<(PathBuf, PathBuf), String>>,
    /// By thread.
    known: Mutex<HashMap<i32, Known>>,
}

impl std::fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.binds.read().keys())
            .finish_non_exhaustive()
    }
}

impl Namespaces {
    /// None yet. `objects` is the directory for backing objects.
    pub fn new(objects: PathBuf) -> Self {
        Self {
            objects,
            own: OnceLock::new(),
            binds: RwLock::default(),
            covered: RwLock::default(),
            exposed: Mutex::default(),
            known: Mutex::default(),
        }
    }

    /// What thread `tid` sees, which would see `in_run` in the mount namespace of the run. `None`: the same, at the same places. `caller` is the thread's.
    pub fn seen(
        &self,
        tid: i32,
        in_run: &Arc<Mounts>,
        caller: impl FnOnce() -> Result<Arc<Caller>, Errno>,
    ) -> Option<Elsewhere> {
        let at = Whereabouts::of(tid)?;
        let own = self.own.get_or_init(|| namespace("self"));
        if own.as_ref() == Some(&at.namespace) {
            return None;
        }
        if let Some(known) = self.known.lock().get(&tid)
            && known.at == at
            && Arc::ptr_eq(&known.in_run, in_run)
            && !has_changed(&known.list)
        {
            return known.seen.clone();
        }
        let mut list = File::open(format!("/proc/{tid}/mountinfo")).ok()?;
        let text = read_list(&mut list)?;
        let seen = self.find(tid, in_run, &text, &*caller().ok()?);
        let known = Known {
            at,
            in_run: Arc::clone(in_run),
            list,
            seen: seen.clone(),
        };
        let mut all = self.known.lock();
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.insert(tid, known);
        seen
    }

    fn find(&self, tid: i32, in_run: &Mounts, text: &[u8], caller: &Caller) -> Option<Elsewhere> {
        let lines = Lines::new(text, tid);
        let (mounts, in_kernel) = lines.mounts(self, in_run, caller)?;
        let kernel_root = lines.root;
        // The kernel's root directory is a backing directory if that of the process is in a mount.
        let mounted = mounts.iter().rfind(|mount| mount.target == kernel_root);
        let root = Root {
            at: mounted.map_or_else(|| Pos::Host(kernel_root.clone()), Pos::mount_root),
            is_in_kernel: mounted.is_none(),
        };
        Some(Elsewhere {
            mounts: Arc::new(in_run.of_namespace(mounts, in_kernel)),
            kernel_root,
            root,
        })
    }

    /// Whether a process has bound something of the run.
    pub fn have_binds(&self) -> bool {
        !self.binds.read().is_empty()
    }

    /// What is at `place` is about to be bound by a process that sees `mounts`. The kernel binds the backing object `object`, with the name `name`.
    pub fn bind(
        &self,
        (name, object): (String, PathBuf),
        place: &Place,
        mounts: &Mounts,
    ) -> Result<(), Errno> {
        let found = nix::sys::stat::stat(&object)?;
        let (flags, number) = (MountFlags::empty(), mounts.take_number());
        let bind = Bind {
            part: Arc::new(Mount::of_part(place, b"/".to_vec(), flags, number)),
            numbers: Arc::default(),
            object,
            identity: (found.st_dev, found.st_ino),
        };
        self.binds.write().insert(name, bind);
        Ok(())
    }

    /// The bound directory for which the kernel has the backing object `identity`, and that object. By a descriptor of that, a process knows a mount that
    /// is attached nowhere.
    pub fn bound_as(&self, identity: Identity) -> Option<(Place, PathBuf)> {
        let binds = self.binds.read();
        let bind = binds.values().find(|bind| bind.identity == identity)?;
        let (mount, node) = (Arc::clone(&bind.part), bind.part.fs.root());
        let is_dir = node.is_dir();
        is_dir.then(|| (Place { mount, node }, bind.object.clone()))
    }

    /// The kernel is about to mount something on the backing object with the name `name`, by which `place` is covered.
    pub fn cover(&self, name: String, place: Place) {
        let former = self.covered.write().insert(name, place);
        drop(former);
    }

    /// A directory for backing objects that thread `tid` can reach, and its path for the thread. `None` where the thread has covered all of them.
    pub fn directory(&self, tid: i32) -> Option<(PathBuf, Vec<u8>)> {
        let own = read_list(&mut File::open("/proc/self/mountinfo").ok()?)?;
        let text = read_list(&mut File::open(format!("/proc/{tid}/mountinfo")).ok()?)?;
        let (own, lines) = (Lines::new(&own, tid), Lines::new(&text, tid));
        let mut all = std::iter::once(self.objects.clone()).chain(lines.objects(self));
        all.find_map(|dir| {
            let path = lines.path_of(&own, dir.as_os_str().as_bytes())?;
            Some((dir, path))
        })
    }

    /// The path by which thread `tid` finds `file` by the name `name`: a file of the run-time directory, or one that it finds by its own path, too.
    pub fn expose(&self, tid: i32, file: &Path, name: &OsStr) -> Option<PathBuf> {
        let (dir, seen) = self.directory(tid)?;
        let key = (file.to_owned(), dir.join(name));
        let seen = Path::new(OsStr::from_bytes(&seen));
        let mut exposed = self.exposed.lock();
        if let Some(inside) = exposed.get(&key) {
            return Some(seen.join(inside).join(name));
        }
        let inside = random_name().ok()?;
        fs::create_dir(dir.join(&inside)).ok()?;
        let link = dir.join(&inside).join(name);
        let rundir = self.objects.parent()?;
        if file.starts_with(rundir) {
            fs::hard_link(file, link).ok()?;
        } else {
            symlink(file, link).ok()?;
        }
        let path = seen.join(&inside).join(name);
        exposed.insert(key, inside);
        Some(path)
    }

    /// The backing directory that the kernel has bound instead of what `mount` shows, if that is a bind mount.
    pub fn backing_of(&self, mount: &Mount) -> Option<PathBuf> {
        let binds = self.binds.read();
        let bind = binds
            .values()
            .find(|bind| Arc::ptr_eq(&bind.part.fs, &mount.fs))?;
        Some(bind.object.clone())
    }

    /// Closes what the monitor has open to know what processes see.
    pub fn forget(&self) {
        let known = std::mem::take(&mut *self.known.lock());
        drop(known);
    }

    /// Thread `tid` has ended.
    pub fn ended(&self, tid: i32) {
        let known = self.known.lock().remove(&tid);
        drop(known);
    }

    fn bind_by(&self, name: &str) -> Option<Bind> {
        self.binds.read().get(name).cloned()
    }
}

impl Whereabouts {
    fn of(tid: i32) -> Option<Self> {
        Some(Self {
            namespace: namespace(&tid.to_string())?,
            root: readlink(&*format!("/proc/{tid}/root")).ok()?,
        })
    }
}

fn namespace(process: &str) -> Option<OsString> {
    readlink(&*format!("/proc/{process}/ns/mnt")).ok()
}

/// Whether an open list of mounts has changed since it was opened, or since it was last asked (proc_pid_mounts(5)).
fn has_changed(list: &File) -> bool {
    let mut fds = [PollFd::new(list.as_fd(), PollFlags::POLLPRI)];
    poll(&mut fds, PollTimeout::ZERO) != Ok(0)
}
