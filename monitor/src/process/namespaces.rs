//! What processes in mount namespaces of their own see of the run's mounts.
//!
//! The kernel does not have the run's mounts, so it cannot move, copy, cover or unmount them with the directories that they are in. The monitor derives their places
//! from the kernel's list of the mounts in the namespace (`/proc/PID/mountinfo`), whenever that has changed (docs/decisions/0140):
//!
//! - A mount that the run began with is wherever the namespace shows the directory of the host in which it is in the run.
//! - A directory or file of the run that a process has bound has a mount of the kernel in its place. Its name in the list is that of a [`Part`].
//!
//! Locks: `parts` and `known` are leaves.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use goanna_vfs::mount_list::{HostMount, host_mounts, innermost};
use goanna_vfs::walk::{Pos, Root};
use goanna_vfs::{FileSystem, Mount, MountFlags, Mounts, Place, Subtree};
use nix::fcntl::readlink;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Mutex, RwLock};

/// The source of a mount that the kernel has in the place of a bound directory begins with this. The rest is the name of the [`Part`].
const SOURCE: &str = "goanna:";
/// Threads whose mounts are remembered, each by a descriptor.
const KNOWN_MAX: usize = 512;
/// Longest list of mounts in bytes.
const LIST_MAX: u64 = 64 << 20;

/// A directory or file in a mount of the run that a process has bound elsewhere.
#[derive(Clone)]
struct Part {
    fs: Arc<dyn FileSystem>,
    /// The mount that has all its files.
    base: Arc<Mount>,
    flags: MountFlags,
    number: u64,
}

/// The mounts that a process sees, with their mount points as the monitor reaches them, and its root directory.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The mounts.
    pub mounts: Arc<Mounts>,
    /// The root directory, by a link in /proc.
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
    seen: Option<Seen>,
}

/// The mount namespaces of a run's processes.
#[derive(Default)]
pub struct Namespaces {
    own: OnceLock<Option<OsString>>,
    /// By name.
    parts: RwLock<HashMap<String, Part>>,
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
    /// What thread `tid` sees, which would see `in_run` in the mount namespace of the run. `None`: the same, at the same places.
    pub fn seen(&self, tid: i32, in_run: &Arc<Mounts>) -> Option<Seen> {
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
        let text = read(&mut list)?;
        let seen = self.find(tid, in_run, &text);
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

    /// Whether a process has bound a part of the run.
    pub fn have_parts(&self) -> bool {
        !self.parts.read().is_empty()
    }

    /// The object at `place` is about to be bound by the name `name`, by a process that sees `mounts`.
    pub fn add(&self, name: String, place: &Place, mounts: &Mounts) {
        let base = Arc::clone(place.mount.whole());
        let part = Part {
            fs: Arc::new(Subtree::new(Arc::clone(&base.fs), place.node.clone())),
            base,
            // What is bound read-only stays so: the kernel cannot lock it.
            flags: place.mount.flags & (MountFlags::READ_ONLY | MountFlags::NO_EXEC),
            number: mounts.take_number(),
        };
        self.parts.write().insert(name, part);
    }

    /// The path by which thread `tid` reaches the directory `dir` of the host, if there is one.
    pub fn path_of(&self, tid: i32, dir: &Path) -> Option<Vec<u8>> {
        let own = read(&mut File::open("/proc/self/mountinfo").ok()?)?;
        let list = read(&mut File::open(format!("/proc/{tid}/mountinfo")).ok()?)?;
        let own: Vec<HostMount<'_>> = host_mounts(&own).collect();
        let lines: Vec<HostMount<'_>> = host_mounts(&list).collect();
        let root = format!("/proc/{tid}/root").into_bytes();
        let dir = dir.as_os_str().as_bytes();
        let mut places = places(&own, dir, &lines, &root);
        places.next().map(|(_, path)| path)
    }

    /// Thread `tid` has ended.
    pub fn ended(&self, tid: i32) {
        let known = self.known.lock().remove(&tid);
        drop(known);
    }

    fn find(&self, tid: i32, in_run: &Mounts, list: &[u8]) -> Option<Seen> {
        let root = format!("/proc/{tid}/root").into_bytes();
        let lines: Vec<HostMount<'_>> = host_mounts(list).collect();
        let parts: Vec<Arc<Mount>> = lines
            .iter()
            .filter_map(|line| self.part_at(line, &root))
            .collect();
        if parts.is_empty() && is_same(b"/", &root) {
            return None;
        }
        let mut mounts = of_run(in_run, &lines, &root).unwrap_or_default();
        mounts.extend(parts);
        Some(Seen {
            mounts: Arc::new(in_run.of_namespace(mounts)),
            root: Root {
                at: Pos::Host(root),
                is_in_kernel: true,
            },
        })
    }

    /// The mount that is to be seen instead of the kernel's in `line`, unless another one covers that.
    fn part_at(&self, line: &HostMount<'_>, root: &[u8]) -> Option<Arc<Mount>> {
        let part = self.parts.read().get(&*name_in(line)?).cloned()?;
        let target = [root, &line.target].concat();
        let meta = fs::symlink_metadata(Path::new(OsStr::from_bytes(&target))).ok()?;
        let device = format!("{}:{}", libc::major(meta.dev()), libc::minor(meta.dev()));
        if device.as_bytes() != line.device {
            return None;
        }
        let source = part.base.source.clone();
        let flags = part.flags | flags_of(line);
        let mut mount = Mount::new(part.fs, target, flags, source, part.number);
        mount.base = Some(part.base);
        mount.kernel_id = Some(line.id);
        Some(Arc::new(mount))
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

/// The name of the part that is in the place of a mount of the kernel. A bound file has it as its name in the run-time directory.
fn name_in(line: &HostMount<'_>) -> Option<String> {
    let source = str::from_utf8(line.source).ok()?;
    if let Some(name) = source.strip_prefix(SOURCE) {
        return Some(name.to_owned());
    }
    let root = line.root();
    let last = root.rsplit(|&byte| byte == b'/').next()?;
    String::from_utf8(last.to_vec()).ok()
}

/// The mounts of the run as they are seen in a namespace with the mounts `lines`, whose root directory is `root`: each where the directory of the host appears that
/// it is in. Through a mount that is read-only in the namespace alone, they are read-only.
fn of_run(in_run: &Mounts, lines: &[HostMount<'_>], root: &[u8]) -> Option<Vec<Arc<Mount>>> {
    let text = read(&mut File::open("/proc/self/mountinfo").ok()?)?;
    let own: Vec<HostMount<'_>> = host_mounts(&text).collect();
    let mut found: Vec<Arc<Mount>> = Vec::new();
    for (dir, name, outermost) in in_run.on_host() {
        let dir: &[u8] = if dir.is_empty() { b"/" } else { dir };
        for (more, shown) in places(&own, dir, lines, root) {
            let shown: &[u8] = if shown == b"/" { b"" } else { &shown };
            let target = [root, shown, b"/", name].concat();
            if found.iter().all(|known| known.target != target) {
                found.extend(moved(in_run, &outermost.target, &target, more));
            }
        }
    }
    Some(found)
}

/// The paths that lead to the directory `dir` of the host in a namespace with the mounts `lines`, below its root directory `root`, and the flags that the mounts
/// there have in the namespace alone. `own` are the mounts in the namespace of the monitor.
fn places<'a>(
    own: &'a [HostMount<'_>],
    dir: &'a [u8],
    lines: &'a [HostMount<'_>],
    root: &'a [u8],
) -> impl Iterator<Item = (MountFlags, Vec<u8>)> + use<'a> {
    let found = innermost(own, dir).and_then(|line| Some((line, line.inside(dir)?)));
    found.into_iter().flat_map(move |(line, inside)| {
        lines.iter().filter_map(move |other| {
            let shown = other.shows(&inside)?;
            let is_there = other.device == line.device && is_same(dir, &[root, &shown].concat());
            is_there.then(|| (flags_of(other) - flags_of(line), shown))
        })
    })
}

/// The mounts at and below `from`, at and below `to`, with further flags.
fn moved(mounts: &Mounts, from: &[u8], to: &[u8], flags: MountFlags) -> Vec<Arc<Mount>> {
    let inside = |mount: &Arc<Mount>| {
        let rest = mount.target.strip_prefix(from)?;
        let is_below = matches!(rest.first(), None | Some(b'/'));
        is_below.then(|| [to, rest].concat())
    };
    let moved = mounts.iter().filter_map(|mount| {
        Some(Arc::new(Mount {
            fs: Arc::clone(&mount.fs),
            target: inside(mount)?,
            flags: mount.flags | flags,
            source: mount.source.clone(),
            number: mount.number,
            base: Some(Arc::clone(mount.whole())),
            kernel_id: None,
        }))
    });
    moved.collect()
}

fn flags_of(line: &HostMount<'_>) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::READ_ONLY, line.has_option("ro"));
    flags.set(MountFlags::NO_EXEC, line.has_option("noexec"));
    flags
}

fn namespace(process: &str) -> Option<OsString> {
    readlink(&*format!("/proc/{process}/ns/mnt")).ok()
}

/// Whether two paths lead to the same object.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let identity = |path: &[u8]| {
        let meta = fs::metadata(Path::new(OsStr::from_bytes(path)));
        meta.map(|meta| (meta.dev(), meta.ino()))
    };
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether an open list of mounts has changed since it was opened, or since it was last asked (proc_pid_mounts(5)).
fn has_changed(list: &File) -> bool {
    let mut fds = [PollFd::new(list.as_fd(), PollFlags::POLLPRI)];
    poll(&mut fds, PollTimeout::ZERO) != Ok(0)
}

fn read(list: &mut File) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    list.take(LIST_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}
