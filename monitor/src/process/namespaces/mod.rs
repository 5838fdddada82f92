//! What processes in mount namespaces of their own see of the run's mounts.
//!
//! The kernel does not have the run's mounts, so it cannot move, copy, cover or unmount them with the directories that they are in. The monitor derives their places
//! from the kernel's list of the mounts in the namespace (`/proc/PID/mountinfo`), whenever that has changed (docs/decisions/0140). [`list`] does so.
//!
//! Locks: all are leaves.

mod list;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use goanna_vfs::walk::{Pos, Root};
use goanna_vfs::{Caller, Errno, FileSystem, Mount, MountFlags, Mounts, Place, Result, Subtree};
use nix::fcntl::readlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, RwLock};

use crate::errno::errno;
use list::{Lines, read_list};

/// The source of a mount that the kernel has in the place of a bound directory begins with this. The rest is the name of the [`Part`].
const SOURCE: &str = "goanna:";
/// Threads whose mounts are remembered, each by a descriptor.
const KNOWN_MAX: usize = 512;
/// Directories, and files, that are made in the place of a bound directory, for mounts inside of it.
const SPARE: [usize; 2] = [48, 16];

/// A directory or file in a mount of the run that a process has bound elsewhere.
#[derive(Clone)]
struct Part {
    fs: Arc<dyn FileSystem>,
    /// The mount that has all its files.
    base: Arc<Mount>,
    flags: MountFlags,
    number: u64,
    /// The names of directories, and of files, in the place of a directory, on which the kernel can mount something.
    spare: Option<Arc<[Vec<String>; 2]>>,
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
    /// The directory in which the kernel mounts what is to cover something in a mount that the run began with.
    objects: PathBuf,
    own: OnceLock<Option<OsString>>,
    /// By name.
    parts: RwLock<HashMap<String, Part>>,
    /// What is covered by the mounts of the kernel whose mount points have these names.
    covered: RwLock<HashMap<String, Place>>,
    /// By thread.
    known: Mutex<HashMap<i32, Known>>,
}

impl std::fmt::Debug for Namespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list()
            .entries(self.parts.read().keys())
            .finish_non_exhaustive()
    }
}

impl Namespaces {
    /// None yet. `objects` is the directory of the mount points that the run provides.
    pub fn new(objects: PathBuf) -> Self {
        Self {
            objects,
            own: OnceLock::new(),
            parts: RwLock::default(),
            covered: RwLock::default(),
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
        // The kernel has something else in the place of a root directory in a mount of the run.
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

    /// Whether a process has bound a part of the run.
    pub fn have_parts(&self) -> bool {
        !self.parts.read().is_empty()
    }

    /// The object at `place` is about to be bound by the name `name`, by a process that sees `mounts`.
    pub fn bind(&self, name: String, place: &Place, mounts: &Mounts) {
        let base = Arc::clone(place.mount.whole());
        let part = Part {
            fs: Arc::new(Subtree::new(Arc::clone(&base.fs), place.node.clone())),
            base,
            // What is bound read-only stays so: the kernel cannot lock it.
            flags: place.mount.flags & (MountFlags::READ_ONLY | MountFlags::NO_EXEC),
            number: mounts.take_number(),
            spare: None,
        };
        self.parts.write().insert(name, part);
    }

    /// The kernel is about to mount something on a directory or file with the name `name`, which covers `place`.
    pub fn cover(&self, name: String, place: Place) {
        let former = self.covered.write().insert(name, place);
        drop(former);
    }

    /// The path by which the kernel finds, for thread `tid`, a mount point that can be had for `place`, in the place of the directory that the mount of `place` shows,
    /// and its name. `None` if there is none any more.
    pub fn spare(&self, tid: i32, place: &Place) -> Option<(Vec<u8>, String)> {
        let number = place.mount.number;
        let parts = self.parts.read();
        let part = parts.values().find(|part| part.number == number)?;
        let spare = part.spare.clone()?;
        drop(parts);
        let [directories, files] = &*spare;
        let names = if place.node.is_dir() {
            directories
        } else {
            files
        };
        let covered = self.covered.read();
        let unused = names.iter().find(|name| !covered.contains_key(*name));
        let name = match unused {
            Some(name) => name,
            None => {
                let text = read_list(&mut File::open(format!("/proc/{tid}/mountinfo")).ok()?)?;
                let lines = Lines::new(&text, tid);
                names.iter().find(|name| !lines.have_mount_point(name))?
            }
        };
        let mut path = place.mount.in_kernel.as_ref()?.path.clone();
        path.push(b'/');
        path.extend(name.as_bytes());
        Some((path, name.clone()))
    }

    /// The path by which thread `tid` reaches the directory `dir` of the host, if there is one.
    pub fn path_of(&self, tid: i32, dir: &Path) -> Option<Vec<u8>> {
        let own = read_list(&mut File::open("/proc/self/mountinfo").ok()?)?;
        let text = read_list(&mut File::open(format!("/proc/{tid}/mountinfo")).ok()?)?;
        let (own, lines) = (Lines::new(&own, tid), Lines::new(&text, tid));
        lines.path_of(&own, dir.as_os_str().as_bytes())
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

    fn part(&self, name: &str) -> Option<Part> {
        self.parts.read().get(name).cloned()
    }

    /// Makes mount points in `dir`, which is in the place of the part `name`, when it is first seen.
    fn furnish(&self, name: &str, dir: &Path) -> Result<(), Errno> {
        let named = |count: usize| -> Result<Vec<String>, Errno> {
            let names = (0..count).map(|_| getrandom::u64().map(|number| format!("{number:016x}")));
            names.collect::<Result<_, _>>().map_err(|_| Errno::EIO)
        };
        let spare = [named(SPARE[0])?, named(SPARE[1])?];
        for name in &spare[0] {
            fs::create_dir(dir.join(name)).map_err(errno)?;
        }
        for name in &spare[1] {
            File::create_new(dir.join(name)).map_err(errno)?;
        }
        if let Some(part) = self.parts.write().get_mut(name) {
            part.spare.get_or_insert(Arc::new(spare));
        }
        Ok(())
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

/// The source of the kernel's mount in the place of a directory with the name `name`.
pub fn source_of(name: &str) -> Vec<u8> {
    format!("{SOURCE}{name}").into_bytes()
}

fn namespace(process: &str) -> Option<OsString> {
    readlink(&*format!("/proc/{process}/ns/mnt")).ok()
}

/// Whether an open list of mounts has changed since it was opened, or since it was last asked (proc_pid_mounts(5)).
fn has_changed(list: &File) -> bool {
    let mut fds = [PollFd::new(list.as_fd(), PollFlags::POLLPRI)];
    poll(&mut fds, PollTimeout::ZERO) != Ok(0)
}
