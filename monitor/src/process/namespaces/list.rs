//! The places of the run's mounts in a mount namespace, from the kernel's list of the mounts there:
//!
//! - A mount that the run began with is wherever the namespace shows the directory of the host in which it is in the run.
//! - A bind mount of a directory or file of the run is one of its backing object for the kernel; the name of that says which one it is.
//! - A mount on a directory or file of the run is one on a backing object for the kernel; the name of that says what is covered.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goanna_vfs::mount_list::{HostMount, host_mounts, innermost};
use goanna_vfs::{Caller, InKernel, KernelMount, Mount, MountFlags, Mounts, Place, paths};

use super::{Bind, Namespaces};

/// Longest list of mounts in bytes.
const LIST_MAX: u64 = 64 << 20;

/// The lines of a list of mounts.
pub(super) struct Lines<'l> {
    lines: Vec<HostMount<'l>>,
    /// The path by which the monitor reaches the root directory of the process that has this list.
    pub(super) root: Vec<u8>,
}

impl<'l> Lines<'l> {
    /// The list in `text`, of thread `tid`.
    pub(super) fn new(text: &'l [u8], tid: i32) -> Self {
        Self {
            lines: host_mounts(text).collect(),
            root: format!("/proc/{tid}/root").into_bytes(),
        }
    }

    /// The mounts that a process sees, and what the kernel has mounted on something in these. `None` if it sees `in_run`, at the same places.
    pub(super) fn mounts(
        &self,
        known: &Namespaces,
        in_run: &Mounts,
        caller: &Caller,
    ) -> Option<(Vec<Arc<Mount>>, Vec<KernelMount>)> {
        let mut rest: Vec<&HostMount<'_>> = self.lines.iter().collect();
        rest.retain(|line| match self.bind_in(known, line) {
            Some(_) => true,
            None => self.covers(known, line).is_some() && self.is_visible(line),
        });
        let own = read_list(&mut File::open("/proc/self/mountinfo").ok()?)?;
        let own = Lines::new(&own, std::process::id().cast_signed());
        let mut mounts = self.of_run(in_run, &own.lines);
        if rest.is_empty()
            && is_same(b"/", &self.root)
            && are_alike(
                (&mounts, &self.root),
                (&own.of_run(in_run, &own.lines), &own.root),
            )
        {
            return None;
        }
        // A recursive bind mount of the run-time directory has copies of what is mounted in it. They count when the original is gone.
        let objects = self.places(&own.lines, known.objects.as_os_str().as_bytes());
        let objects = objects.map(|(_, path)| path).next();
        let mut in_kernel = Vec::new();
        // A mount can be inside of one of a later line.
        loop {
            let before = rest.len();
            rest.retain(|line| {
                let targets = match self.covers(known, line) {
                    Some(covered) => {
                        let is_inside = |mount: &Arc<Mount>| {
                            let dir = match &mount.in_kernel {
                                Some(in_kernel) => in_kernel.path.strip_prefix(&self.root[..]),
                                None => objects.as_deref(),
                            };
                            dir == Some(paths::parent(&line.target))
                        };
                        paths_of(
                            &covered,
                            mounts.iter().filter(|mount| is_inside(mount)),
                            caller,
                        )
                    }
                    None => vec![self.reached(&line.target)],
                };
                for target in &targets {
                    match self.bind_at(known, line, target, in_run) {
                        Some(bind) => mounts.push(Arc::new(bind)),
                        None => in_kernel.push(KernelMount {
                            target: target.clone(),
                            path: self.reached(&line.target),
                        }),
                    }
                }
                targets.is_empty()
            });
            if rest.len() == before {
                break;
            }
        }
        Some((mounts, in_kernel))
    }

    /// The path by which a process with this list finds the directory `dir` of the host, where the monitor has the list `own`.
    pub(super) fn path_of(&self, own: &Lines<'_>, dir: &[u8]) -> Option<Vec<u8>> {
        let mut places = self.places(&own.lines, dir);
        places.next().map(|(_, path)| path)
    }

    /// What the mount of the kernel in `line` covers, if that is in a mount of the run.
    fn covers(&self, known: &Namespaces, line: &HostMount<'_>) -> Option<Place> {
        let name = str::from_utf8(paths::name(&line.target)).ok()?;
        known.covered.read().get(name).cloned()
    }

    /// The path by which the monitor reaches what the process finds at `path`.
    fn reached(&self, path: &[u8]) -> Vec<u8> {
        match path {
            b"/" => self.root.clone(),
            path => [&self.root, path].concat(),
        }
    }

    /// Whether no other mount covers that of `line`.
    fn is_visible(&self, line: &HostMount<'_>) -> bool {
        use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
        let path = self.reached(&line.target);
        let found = statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID);
        found.is_ok_and(|found| found.stx_mnt_id == line.id)
    }

    /// The bind mount of the run for which the kernel has the mount in `line`, unless another mount covers that.
    fn bind_in(&self, known: &Namespaces, line: &HostMount<'_>) -> Option<Bind> {
        let root = line.root();
        let name = str::from_utf8(paths::name(&root)).ok()?;
        let bind = known.bind_by(name)?;
        let object = bind.object.as_os_str().as_bytes();
        let is_it = is_same(object, &self.reached(&line.target));
        (is_it && self.is_visible(line)).then_some(bind)
    }

    /// The backing objects of the bind mounts that are seen here.
    pub(super) fn objects(&self, known: &Namespaces) -> impl Iterator<Item = PathBuf> {
        let binds = self
            .lines
            .iter()
            .filter_map(|line| self.bind_in(known, line));
        binds.map(|bind| bind.object)
    }

    /// The bind mount of the run at `target` for which the kernel has the mount in `line`; `None` if that is another one.
    fn bind_at(
        &self,
        known: &Namespaces,
        line: &HostMount<'_>,
        target: &[u8],
        in_run: &Mounts,
    ) -> Option<Mount> {
        let bind = self.bind_in(known, line)?;
        let path = self.reached(&line.target);
        let mut mount = bind.mount(line.id, target.to_vec(), flags_of(line), in_run);
        mount.in_kernel = Some(InKernel { id: line.id, path });
        Some(mount)
    }

    /// The mounts of the run as they are seen here: each where the directory of the host appears that it is in. Through a mount that is read-only in this namespace
    /// alone, they are read-only.
    fn of_run(&self, in_run: &Mounts, own: &[HostMount<'_>]) -> Vec<Arc<Mount>> {
        let mut found: Vec<Arc<Mount>> = Vec::new();
        for (dir, name, outermost) in in_run.on_host() {
            let dir: &[u8] = if dir.is_empty() { b"/" } else { dir };
            // What a process has open is seen in the last of several: where the oldest mount shows it.
            let places: Vec<_> = self.places(own, dir).collect();
            for (more, shown) in places.into_iter().rev() {
                let target = [&self.reached(&shown), &b"/"[..], name].concat();
                if found.iter().all(|known| known.target != target) {
                    found.extend(moved(in_run, &outermost.target, &target, more));
                }
            }
        }
        found
    }

    /// The paths that lead to the directory `dir` of the host, and the flags that the mounts there have in this namespace alone. `own` are the mounts in the namespace
    /// of the monitor.
    fn places(
        &self,
        own: &[HostMount<'_>],
        dir: &[u8],
    ) -> impl Iterator<Item = (MountFlags, Vec<u8>)> {
        let found = innermost(own, dir).and_then(|line| Some((line, line.inside(dir)?)));
        found.into_iter().flat_map(move |(line, inside)| {
            self.lines.iter().filter_map(move |other| {
                let shown = other.shows(&inside)?;
                let is_there = other.device == line.device && is_same(dir, &self.reached(&shown));
                is_there.then(|| (flags_of(other) - flags_of(line), shown))
            })
        })
    }
}

/// The text of an open list.
pub(super) fn read_list(list: &mut File) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    list.take(LIST_MAX).read_to_end(&mut text).ok()?;
    Some(text)
}

/// The canonical paths of `place` in those of `mounts` that are its mount.
fn paths_of<'m>(
    place: &Place,
    mounts: impl Iterator<Item = &'m Arc<Mount>>,
    caller: &Caller,
) -> Vec<Vec<u8>> {
    let same = mounts.filter(|mount| mount.shows_same(&place.mount));
    let paths = same.filter_map(|mount| match mount.fs.path(caller, &place.node) {
        Ok((path, false)) => Some(mount.absolute(&path)),
        _ => None,
    });
    paths.collect()
}

/// Whether two lists of mounts, each with the path that all mount points begin with, have the same ones.
fn are_alike(
    (ones, one_root): (&[Arc<Mount>], &[u8]),
    (others, other_root): (&[Arc<Mount>], &[u8]),
) -> bool {
    let seen = |mount: &Mount, root: &[u8]| {
        let target = mount.target.strip_prefix(root).map(<[u8]>::to_vec);
        (target, mount.number, mount.flags)
    };
    ones.len() == others.len()
        && std::iter::zip(ones, others)
            .all(|(one, other)| seen(one, one_root) == seen(other, other_root))
}

/// The mounts at and below `from`, at and below `to`, with further flags.
fn moved(mounts: &Mounts, from: &[u8], to: &[u8], flags: MountFlags) -> Vec<Arc<Mount>> {
    let inside = |mount: &Arc<Mount>| {
        let rest = mount.target.strip_prefix(from)?;
        let is_below = matches!(rest.first(), None | Some(b'/'));
        is_below.then(|| [to, rest].concat())
    };
    let moved = mounts.iter().filter_map(|mount| {
        let mut moved = mount.changed(inside(mount)?, mount.flags | flags);
        moved.base = Some(Arc::clone(mount.whole()));
        Some(Arc::new(moved))
    });
    moved.collect()
}

fn flags_of(line: &HostMount<'_>) -> MountFlags {
    MountFlags::of_options(line.own_flags())
}

/// Whether two paths lead to the same object.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let identity = |path: &[u8]| {
        let meta = fs::metadata(Path::new(OsStr::from_bytes(path)));
        meta.map(|meta| (meta.dev(), meta.ino()))
    };
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
