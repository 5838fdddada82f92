//! Names: unlink(2), rename(2), link(2), symlink(2), readlink(2) and their variants.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_vfs::walk::{Last, Pos, is_magic_link};
use goanna_vfs::{Errno, FileKind, FsError, Place, Result, caps, ops};

use crate::call::{Answer, Call, Entry, Resolved, Target, mount_showing, thread_of};
use crate::process::roots;
use crate::watches::report::{self, Move, Removal};

fn remove_name(call: &Call<'_>, dirfd: i32, path: &[u8]) -> Result<Answer> {
    let Some(entry) = call.entry(dirfd, path)? else {
        return Ok(Answer::PassOn);
    };
    let name = entry.name(Errno::EISDIR)?;
    match entry.covered {
        Some(FileKind::Directory) => return Err(Errno::EISDIR.into()),
        Some(_) => return Err(Errno::EBUSY.into()),
        None => {}
    }
    let caller = call.caller()?;
    if entry.must_be_dir {
        ops::begin_unlink(&caller, &entry.dir, name)?;
        let node = ops::lookup(&caller, &entry.dir, name)?;
        return Err(if node.is_dir() {
            Errno::EISDIR.into()
        } else {
            Errno::ENOTDIR.into()
        });
    }
    let removal = Removal::begin(call, &entry.dir, name)?;
    ops::unlink(&caller, &entry.dir, name)?;
    if let Some(removal) = removal {
        removal.done(call);
    }
    call.monitor.shadows.name_removed();
    Ok(Answer::DONE)
}

/// unlink(2)
pub fn unlink(call: &mut Call<'_>) -> Result<Answer> {
    remove_name(call, libc::AT_FDCWD, &call.path(0)?)
}

/// unlinkat(2)
pub fn unlinkat(call: &mut Call<'_>) -> Result<Answer> {
    match call.int(2) {
        0 => remove_name(call, call.int(0), &call.path(1)?),
        libc::AT_REMOVEDIR => super::dir::remove(call, call.int(0), &call.path(1)?),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// A directory and a path from there. A path that cannot be read is an error only when it is resolved.
type Name = (i32, Result<Vec<u8>, Errno>);

fn move_name(
    call: &Call<'_>,
    (from_fd, from): Name,
    (to_fd, to): Name,
    flags: u32,
) -> Result<Answer> {
    ops::rename_flags(flags)?;
    call.mounts.link_free().forget();
    let from_at = call.resolve_parent(from_fd, &from?)?;
    let caller = call.caller()?;
    let may_pass = |dir: &Pos| ops::may_pass(&caller, &call.place(dir.clone())?);
    let to_at = match (|| call.resolve_parent(to_fd, &to?))() {
        Ok(to_at) => to_at,
        // Linux walks to the first parent before it reads the second path.
        Err(error) => {
            may_pass(&from_at.at.dir)?;
            return Err(error);
        }
    };
    let on_host = |dir: &Pos| matches!(dir, Pos::Host(_));
    let covered = [&from_at, &to_at].map(|name| call.covers(&name.at.dir, &name.at.last));
    let covered = match covered {
        [Ok(None), Ok(None)] => None,
        [from, to] => Some((from?, to?)),
    };
    let is_same = on_host(&from_at.at.dir) == on_host(&to_at.at.dir);
    if is_same && on_host(&from_at.at.dir) && from_at.native && to_at.native && covered.is_none() {
        return Ok(Answer::PassOn);
    }
    let (Last::Name(from), Last::Name(to), true) = (&from_at.at.last, &to_at.at.last, is_same)
    else {
        may_pass(&from_at.at.dir)?;
        may_pass(&to_at.at.dir)?;
        let must_be_new = flags & libc::RENAME_NOREPLACE != 0;
        return Err(match from_at.at.last {
            _ if !is_same => Errno::EXDEV.into(),
            Last::Name(_) if must_be_new => Errno::EEXIST.into(),
            _ => Errno::EBUSY.into(),
        });
    };
    let from_dir = call.place(from_at.at.dir.clone())?;
    let to_dir = call.place(to_at.at.dir.clone())?;
    if let Some((moved, replaced)) = covered {
        let kind = match moved {
            Some(kind) => kind,
            None => ops::lookup(&caller, &from_dir, from)?.kind(),
        };
        return Err(refusal(kind, replaced, flags).into());
    }
    if from_at.at.must_be_dir || to_at.at.must_be_dir {
        ops::begin_rename(&caller, &from_dir, from, &to_dir)?;
        let moved = ops::lookup(&caller, &from_dir, from)?;
        if !moved.is_dir() && flags & libc::RENAME_EXCHANGE == 0 {
            return Err(Errno::ENOTDIR.into());
        }
    }
    let moved = Move::begin(call, (&from_dir, from), (&to_dir, to))?;
    ops::rename(&caller, &from_dir, from, &to_dir, to, flags)?;
    if let Some(moved) = moved {
        moved.done(call, flags & libc::RENAME_EXCHANGE != 0);
    }
    call.monitor.shadows.name_removed();
    Ok(Answer::DONE)
}

/// Why an object of kind `moved` cannot be renamed where one of the names is a mount point, the new one with something of kind `replaced` on it.
fn refusal(moved: FileKind, replaced: Option<FileKind>, flags: u32) -> Errno {
    let is_dir = |kind| kind == FileKind::Directory;
    match replaced {
        Some(_) if flags & libc::RENAME_NOREPLACE != 0 => Errno::EEXIST,
        Some(kind) if flags & libc::RENAME_EXCHANGE == 0 && is_dir(moved) != is_dir(kind) => {
            if is_dir(moved) {
                Errno::ENOTDIR
            } else {
                Errno::EISDIR
            }
        }
        _ => Errno::EBUSY,
    }
}

/// rename(2)
pub fn rename(call: &mut Call<'_>) -> Result<Answer> {
    let (from, to) = (call.path(0), call.path(1));
    move_name(call, (libc::AT_FDCWD, from), (libc::AT_FDCWD, to), 0)
}

/// renameat(2)
pub fn renameat(call: &mut Call<'_>) -> Result<Answer> {
    let (from, to) = (call.path(1), call.path(3));
    move_name(call, (call.int(0), from), (call.int(2), to), 0)
}

/// renameat2(2)
pub fn renameat2(call: &mut Call<'_>) -> Result<Answer> {
    let (from, to) = (call.path(1), call.path(3));
    move_name(call, (call.int(0), from), (call.int(2), to), call.uint(4))
}

fn add_name(
    call: &Call<'_>,
    (from_fd, from): Name,
    (to_fd, to): Name,
    flags: i32,
) -> Result<Answer> {
    call.mounts.link_free().forget();
    if flags & !(libc::AT_EMPTY_PATH | libc::AT_SYMLINK_FOLLOW) != 0 {
        return Err(Errno::EINVAL.into());
    }
    let from = from?;
    let source = Source::find(call, from_fd, &from, flags)?;
    let parent = match (|| call.resolve_parent(to_fd, &to?))() {
        Ok(parent) => parent,
        Err(errno) => {
            // A source that is missing on the host comes first.
            if let Source::At(source) = source {
                call.place(source.at)?;
            }
            return Err(errno);
        }
    };
    let entry = call.entry_of(parent.clone())?;
    let source = match (source, entry) {
        (Source::Open(_), None) => return Ok(Answer::PassOn),
        (Source::Open(file), Some(entry)) => {
            let name = new_name(call, &entry)?;
            ops::link_open(&*call.caller()?, file.as_fd(), &entry.dir, name)?;
            return Ok(Answer::DONE);
        }
        (Source::At(source), None) if source.native && matches!(source.at, Pos::Host(_)) => {
            return Ok(Answer::PassOn);
        }
        (Source::At(source), _) => call.place(source.at)?,
    };
    let (at, native) = (parent.at, false);
    let Some(entry) = call.entry_of(Resolved { at, native })? else {
        return Err(Errno::EXDEV.into());
    };
    let name = new_name(call, &entry)?;
    // A descriptor does not say in which of the mounts that show the file it was opened.
    let by_descriptor = from.is_empty() || from.starts_with(b"/proc/");
    let source = if by_descriptor && source.mount.whole().number == entry.dir.mount.whole().number {
        Place {
            mount: Arc::clone(&entry.dir.mount),
            ..source
        }
    } else {
        source
    };
    let names = report::begin(call);
    match ops::link(&*call.caller()?, &source, &entry.dir, name) {
        Err(FsError::Errno(Errno::EXDEV)) if is_procfs(&entry.dir) => Err(Errno::ENOENT.into()),
        linked => {
            linked?;
            report::linked(call, names, &entry.dir, name, &source.node);
            Ok(Answer::DONE)
        }
    }
}

/// Whether the directory is one of procfs, which answers ENOENT when a new name is looked up, before all other checks.
fn is_procfs(dir: &Place) -> bool {
    let path = dir.mount.fs.host_path(&dir.node);
    let statfs = path.and_then(|path| nix::sys::statfs::statfs(&path).ok());
    statfs.is_some_and(|statfs| statfs.filesystem_type() == nix::sys::statfs::PROC_SUPER_MAGIC)
}

/// The object that link(2) gives a further name.
enum Source {
    /// The object that a path leads to.
    At(Resolved<Pos>),
    /// A host file that the tracee has open; it may belong to a pass-through mount.
    Open(OwnedFd),
}

impl Source {
    fn find(call: &Call<'_>, dirfd: i32, path: &[u8], flags: i32) -> Result<Self> {
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            if dirfd == libc::AT_FDCWD {
                let (at, native) = call.cwd()?;
                return Ok(Self::At(Resolved { at, native }));
            }
            let ofd = call.task.descriptor(dirfd)?;
            // Linux requires that the thread has the same credentials object with which the descriptor was opened.
            if !call.caller()?.capable(caps::DAC_READ_SEARCH)
                && !call.monitor.tasks.have_kept_credentials()
            {
                return Err(Errno::ENOENT.into());
            }
            let place = match call.monitor.shadows.of_descriptor(&ofd)? {
                None => call.host_file(dirfd).place(),
                Some(shadow) => Some(call.place_of(&shadow)?),
            };
            return Ok(place.map_or(Self::Open(ofd), |place| {
                Self::At(Resolved {
                    at: Pos::Mounted(place),
                    native: false,
                })
            }));
        }
        let follow = flags & libc::AT_SYMLINK_FOLLOW != 0;
        let resolved = call.resolve(dirfd, path, follow)?;
        if follow
            && let Pos::Host(path) = &resolved.at
            && let Some(number) = own_descriptor(call, path)?
            && let Ok(ofd) = call.task.descriptor(number)
        {
            return Ok(Self::Open(ofd));
        }
        Ok(Self::At(resolved))
    }
}

/// The descriptor that the magic link `path` stands for, if it is one of the caller's own.
fn own_descriptor(call: &Call<'_>, path: &[u8]) -> Result<Option<i32>> {
    if !is_magic_link(path) {
        return Ok(None);
    }
    let (pid, tid) = (call.caller()?.pid, call.task.tid);
    let path = std::str::from_utf8(path).unwrap_or_default();
    let number = path
        .strip_prefix(&format!("/proc/{pid}/"))
        .map(|path| path.strip_prefix(&format!("task/{tid}/")).unwrap_or(path))
        .and_then(|path| path.strip_prefix("fd/"));
    Ok(number.and_then(|number| number.parse().ok()))
}

/// The new name: EEXIST for names that must exist (`.`, `..`, the root, mount points), ENOENT for a missing name with a
/// slash behind it.
fn new_name<'e>(call: &Call<'_>, entry: &'e Entry) -> Result<&'e [u8]> {
    let name = entry.name(Errno::EEXIST)?;
    if entry.covered.is_some() {
        return Err(Errno::EEXIST.into());
    }
    if entry.must_be_dir {
        let found = ops::lookup(&*call.caller()?, &entry.dir, name);
        return Err(found.map_or_else(|errno| errno, |_| Errno::EEXIST.into()));
    }
    Ok(name)
}

/// link(2)
pub fn link(call: &mut Call<'_>) -> Result<Answer> {
    let (from, to) = (call.path(0), call.path(1));
    add_name(call, (libc::AT_FDCWD, from), (libc::AT_FDCWD, to), 0)
}

/// linkat(2)
pub fn linkat(call: &mut Call<'_>) -> Result<Answer> {
    let (from, to) = (call.path(1), call.path(3));
    add_name(call, (call.int(0), from), (call.int(2), to), call.int(4))
}

fn make_link(call: &Call<'_>, target: &[u8], (dirfd, path): Name) -> Result<Answer> {
    call.mounts.link_free().forget();
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    let Some(entry) = call.entry(dirfd, &path?)? else {
        return Ok(Answer::PassOn);
    };
    let name = new_name(call, &entry)?;
    let names = report::begin(call);
    let node = ops::symlink(&*call.caller()?, &entry.dir, name, target)?;
    report::created(call, names, &entry.dir, name, &node);
    Ok(Answer::DONE)
}

/// symlink(2)
pub fn symlink(call: &mut Call<'_>) -> Result<Answer> {
    make_link(call, &call.path(0)?, (libc::AT_FDCWD, call.path(1)))
}

/// symlinkat(2)
pub fn symlinkat(call: &mut Call<'_>) -> Result<Answer> {
    make_link(call, &call.path(0)?, (call.int(1), call.path(2)))
}

fn read_target(call: &Call<'_>, (dirfd, path): Name, buffer: u64, size: i32) -> Result<Answer> {
    let size = usize::try_from(size)
        .ok()
        .filter(|&size| size > 0)
        .ok_or(Errno::EINVAL)?;
    let path = &*path?;
    let place = if path.is_empty() {
        // An O_PATH descriptor of a symbolic link; AT_FDCWD and anything else is not a link.
        let target = call.object_at(dirfd, path, libc::AT_EMPTY_PATH)?;
        let Target::At(place) = target else {
            return Ok(Answer::PassOn);
        };
        if place.node.kind() != FileKind::Symlink {
            return Err(Errno::ENOENT.into());
        }
        place
    } else {
        let resolved = call.resolve(dirfd, path, false)?;
        if let Pos::Host(path) = &resolved.at
            && is_magic_link(path)
        {
            return read_magic(call, (path, resolved.native), buffer, size);
        }
        match call.target(resolved)? {
            Target::PassOn => return Ok(Answer::PassOn),
            Target::At(place) => place,
        }
    };
    let target = place.mount.fs.readlink(&*call.caller()?, &place.node)?;
    put_target(call, buffer, &target, size)
}

fn put_target(call: &Call<'_>, buffer: u64, target: &[u8], size: usize) -> Result<Answer> {
    let shown = target.get(..size).unwrap_or(target);
    call.put(buffer, shown)?;
    Ok(Answer::Value(shown.len() as i64))
}

/// The target of a magic link to a working directory, program or descriptor of a tracee: virtual objects have their virtual
/// path.
fn read_magic(
    call: &Call<'_>,
    (link, is_native): (&[u8], bool),
    buffer: u64,
    size: usize,
) -> Result<Answer> {
    let roots = &call.monitor.roots;
    let root_of_other = thread_of(link).filter(|_| link.ends_with(b"/root"));
    if let Some(root) = root_of_other.and_then(|tid| roots.kept(tid)) {
        return put_path(call, root.at.path(&*call.caller()?)?.0, buffer, size);
    }
    let path = match call.monitor.behind_magic_link(link) {
        Some(place) => {
            let (mut path, deleted) = call.path_of(&call.seen(&place)?)?;
            if deleted {
                path.extend_from_slice(b" (deleted)");
            }
            path
        }
        None => match call.path_in_run(link).or_else(|| through_mount(call, link)) {
            Some(path) => path,
            None if is_native => return Ok(Answer::PassOn),
            None => {
                let link = call.place(Pos::Host(link.to_vec()))?;
                let shown = link.mount.fs.readlink(&*call.caller()?, &link.node)?;
                call.reached(&shown).unwrap_or(shown)
            }
        },
    };
    put_path(call, path, buffer, size)
}

/// Writes the canonical path, or the description of something else, that a magic link shows.
fn put_path(call: &Call<'_>, mut path: Vec<u8>, buffer: u64, size: usize) -> Result<Answer> {
    if let Some(root) = call.root()
        && path.first() == Some(&b'/')
    {
        // Otherwise it begins at the root of all mounts, as the kernel's.
        let seen = roots::below(&root.at.path(&*call.caller()?)?.0, &path);
        path = seen.unwrap_or(path);
    }
    put_target(call, buffer, &path, size)
}

/// The path in a pass-through mount of a host file.
fn through_mount(call: &Call<'_>, link: &[u8]) -> Option<Vec<u8>> {
    let shown = nix::fcntl::readlink(OsStr::from_bytes(link)).ok()?;
    let (mount, inside) = mount_showing(&call.mounts, shown.as_bytes())?;
    Some(mount.absolute(&inside))
}

/// readlink(2)
pub fn readlink(call: &mut Call<'_>) -> Result<Answer> {
    let named = |path: Vec<u8>| {
        if path.is_empty() {
            Err(Errno::ENOENT)
        } else {
            Ok(path)
        }
    };
    let path = call.path(0).and_then(named);
    read_target(call, (libc::AT_FDCWD, path), call.arg(1), call.int(2))
}

/// readlinkat(2)
pub fn readlinkat(call: &mut Call<'_>) -> Result<Answer> {
    read_target(call, (call.int(0), call.path(1)), call.arg(2), call.int(3))
}
