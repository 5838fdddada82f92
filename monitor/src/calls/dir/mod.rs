//! Directories: reading, making, removing; device and fifo names; the working directory.
//!
//! Lists of host directories that lead to mounts are in `host`.

mod host;

use std::os::fd::{AsFd, OwnedFd};

use goanna_sys::{procfs, tracee};
use goanna_vfs::walk::Pos;
use goanna_vfs::{DirEntry, Errno, FileKind, FsError, PATH_MAX, Place, Result, ops};
use nix::unistd::{Whence, lseek};

use crate::abi::{DirentLayout, Dirents};
use crate::call::{Answer, Call, Descriptor};
use crate::inprocess::is_plain;
use crate::process::roots;
use crate::shadow::{Shadow, names_only};
use crate::watches::report::{self, Removal, Touch};

/// Positions of a shadow directory: 0 before `.`, 1 before `..`, 2 plus the back end's cookie, and from here
/// on the mount points in it. The kernel keeps the position in the backing directory's open file description.
const MOUNTS_FROM: u64 = 1 << 62;

/// How often entries are read again that another thread may have got.
const RETRIES: usize = 16;

fn read_entries(call: &Call<'_>, layout: DirentLayout) -> Result<Answer> {
    for _ in 0..RETRIES {
        if let Some(answer) = read_entries_once(call, layout, false)? {
            return Ok(answer);
        }
    }
    let answer = read_entries_once(call, layout, true)?;
    answer.ok_or(Errno::EIO.into())
}

/// Reads entries. `None`: another thread has moved the position of the description meanwhile, and so may have read them, too. `in_any_case`: then the position is that behind these
/// entries.
fn read_entries_once(
    call: &Call<'_>,
    layout: DirentLayout,
    in_any_case: bool,
) -> Result<Option<Answer>> {
    let Descriptor::Shadow(shadow, ofd) = call.descriptor(call.int(0))? else {
        return host::read_entries(call, layout).map(Some);
    };
    if names_only(&ofd)? {
        return Err(Errno::EBADF.into());
    }
    let Shadow::Dir { place, .. } = &*shadow else {
        return Err(Errno::ENOTDIR.into());
    };
    let caller = call.caller()?;
    let start = lseek(ofd.as_fd(), 0, Whence::SeekCur)? as u64;
    // A negative count fits no entry.
    let capacity = usize::try_from(call.int(2)).unwrap_or(0).min(1 << 20);
    let mut out = Dirents::new(layout, capacity, start);
    let fs = &place.mount.fs;
    let inside = &call.monitor.in_process;
    let slot = inside.begin_list(call, &caller, place);
    if start == 0 {
        let (ino, kind) = (place.node.ino(), FileKind::Directory);
        out.push(DirEntry {
            name: b".",
            ino,
            kind,
            cookie: 1,
        });
    }
    if out.position == 1 {
        let parent = fs
            .parent(&caller, &place.node)
            .map_or(place.node.ino(), |node| node.ino());
        out.push(DirEntry {
            name: b"..",
            ino: parent,
            kind: FileKind::Directory,
            cookie: 2,
        });
    }
    if (2..MOUNTS_FROM).contains(&out.position) {
        fs.readdir(&caller, &place.node, out.position - 2, &mut |entry| {
            out.push(DirEntry {
                cookie: entry.cookie + 2,
                ..entry
            })
        })?;
    }
    let end = out.position;
    if !out.full {
        push_mount_points(call, place, &mut out)?;
    }
    if out.bytes.is_empty() && out.full {
        return Err(Errno::EINVAL.into());
    }
    let put = tracee::write(call.task.tid, call.arg(1), &out.bytes)?;
    if put < out.bytes.len() {
        // The program's memory ends before the count: return as many entries as fit.
        out.truncate(put);
        if out.bytes.is_empty() {
            return Err(Errno::EFAULT.into());
        }
    }
    if !advance(&ofd, (start, out.position), in_any_case)? {
        return Ok(None);
    }
    // A program may have moved it behind the end.
    let is_end = !out.bytes.is_empty() && !out.full && out.position == end && !call.mounts.nested();
    if let Some(slot) = slot.filter(|_| is_end) {
        let is_all = start == 0 && layout == DirentLayout::New;
        inside.share_list(slot, end, is_all.then_some(&out.bytes));
    }
    report::touched(call, place, Touch::Access);
    Ok(Some(Answer::Value(out.bytes.len() as i64)))
}

/// Moves the position of a backing directory. Whether it was at `from`; `in_any_case`, it is moved even if not.
fn advance(ofd: &OwnedFd, (from, to): (u64, u64), in_any_case: bool) -> Result<bool, Errno> {
    let by = to.wrapping_sub(from).cast_signed();
    if lseek(ofd, by, Whence::SeekCur)? as u64 == to {
        return Ok(true);
    }
    if in_any_case {
        lseek(ofd, to.cast_signed(), Whence::SeekSet)?;
    } else {
        lseek(ofd, -by, Whence::SeekCur)?;
    }
    Ok(in_any_case)
}

/// Mount points appear in their directory even where it holds no such entry.
fn push_mount_points(call: &Call<'_>, place: &Place, out: &mut Dirents) -> Result<()> {
    let mounts = &call.mounts;
    if !mounts.nested() {
        return Ok(());
    }
    let caller = call.caller()?;
    let (path, _) = Pos::Mounted(place.clone()).path(&caller)?;
    let mut names: Vec<_> = mounts.children(&path).collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    for (index, (name, mount)) in names.into_iter().enumerate() {
        let cookie = MOUNTS_FROM + index as u64 + 1;
        let shown = match place.mount.fs.lookup(&caller, &place.node, name) {
            Err(blocked @ FsError::Blocked(_)) => return Err(blocked),
            found => found.is_ok(),
        };
        if cookie <= out.position || shown {
            continue;
        }
        let ino = mount.fs.root().ino();
        if !out.push(DirEntry {
            name,
            ino,
            kind: FileKind::Directory,
            cookie,
        }) {
            break;
        }
    }
    Ok(())
}

/// getdents(2)
pub fn getdents(call: &mut Call<'_>) -> Result<Answer> {
    read_entries(call, DirentLayout::Old)
}

/// getdents64(2)
pub fn getdents64(call: &mut Call<'_>) -> Result<Answer> {
    read_entries(call, DirentLayout::New)
}

/// getcwd(2): the value is the length with the NUL. ENOENT for a removed directory.
pub fn getcwd(call: &mut Call<'_>) -> Result<Answer> {
    let (cwd, on_host) = call.cwd()?;
    let root = call.root();
    let caller = call.caller()?;
    let in_kernel = match &cwd {
        Pos::Host(path) => call.mounts.path_in_run(path),
        Pos::Mounted(_) => None,
    };
    if on_host && in_kernel.is_none() && root.is_none_or(|root| root.is_in_kernel) {
        return Ok(Answer::PassOn);
    }
    let (mut path, deleted) = match in_kernel {
        Some(path) => (path, false),
        None => cwd.path(&caller)?,
    };
    if deleted {
        return Err(Errno::ENOENT.into());
    }
    if let Some(root) = root {
        let seen = roots::below(&root.at.path(&caller)?.0, &path);
        path = seen.unwrap_or_else(|| [b"(unreachable)", &path[..]].concat());
    }
    path.push(0);
    if path.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if (call.arg(1) as usize) < path.len() {
        return Err(Errno::ERANGE.into());
    }
    call.put(call.arg(0), &path)?;
    Ok(Answer::Value(path.len() as i64))
}

/// fchdir(2): the kernel enters the backing directory once the virtual directory may be searched.
pub fn fchdir(call: &mut Call<'_>) -> Result<Answer> {
    let shadow = call.shadow(call.int(0))?;
    let link = || procfs::fd_link(call.task.tid, call.int(0));
    if shadow.is_some() || !link().is_ok_and(|path| is_plain(call, &Pos::Host(path))) {
        call.monitor.in_process.leaves_host(call.task.tid);
    }
    if let Some(shadow) = shadow {
        if !shadow.place().node.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        ops::access(&*call.caller()?, shadow.place(), libc::X_OK)?;
    }
    call.monitor.tasks.about_to_change(&call.task);
    Ok(Answer::PassOn)
}

fn make(call: &Call<'_>, dirfd: i32, path: &[u8], mode: u32) -> Result<Answer> {
    let Some(entry) = call.entry(dirfd, path)? else {
        return Ok(Answer::PassOn);
    };
    let name = entry.name(Errno::EEXIST)?;
    if entry.covered.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let names = report::begin(call);
    let node = ops::mkdir(&*call.caller()?, &entry.dir, name, mode & 0o1777)?;
    report::created(call, names, &entry.dir, name, &node);
    Ok(Answer::DONE)
}

/// mkdir(2)
pub fn mkdir(call: &mut Call<'_>) -> Result<Answer> {
    make(call, libc::AT_FDCWD, &call.path(0)?, call.uint(1))
}

/// mkdirat(2)
pub fn mkdirat(call: &mut Call<'_>) -> Result<Answer> {
    make(call, call.int(0), &call.path(1)?, call.uint(2))
}

/// rmdir(2)
pub fn rmdir(call: &mut Call<'_>) -> Result<Answer> {
    remove(call, libc::AT_FDCWD, &call.path(0)?)
}

/// Removes a directory; also for unlinkat(2) with AT_REMOVEDIR.
pub fn remove(call: &Call<'_>, dirfd: i32, path: &[u8]) -> Result<Answer> {
    use goanna_vfs::walk::Last;
    let Some(entry) = call.entry(dirfd, path)? else {
        return Ok(Answer::PassOn);
    };
    let name = match &entry.last {
        Last::Name(name) => name,
        Last::Dot => return Err(Errno::EINVAL.into()),
        Last::DotDot => return Err(Errno::ENOTEMPTY.into()),
        Last::Root => return Err(Errno::EBUSY.into()),
    };
    match entry.covered {
        Some(FileKind::Directory) => return Err(Errno::EBUSY.into()),
        Some(_) => return Err(Errno::ENOTDIR.into()),
        None => {}
    }
    let removal = Removal::begin(call, &entry.dir, name)?;
    ops::rmdir(&*call.caller()?, &entry.dir, name)?;
    if let Some(removal) = removal {
        removal.done(call);
    }
    call.monitor.shadows.directory_removed();
    Ok(Answer::DONE)
}

fn make_node(
    call: &Call<'_>,
    dirfd: i32,
    path: Result<Vec<u8>, Errno>,
    mode: u32,
    dev: u32,
) -> Result<Answer> {
    ops::node_kind(mode)?;
    let Some(entry) = call.entry(dirfd, &path?)? else {
        return Ok(Answer::PassOn);
    };
    let name = entry.name(Errno::EEXIST)?;
    if entry.covered.is_some() {
        return Err(Errno::EEXIST.into());
    }
    let caller = call.caller()?;
    if entry.must_be_dir {
        // As in Linux, a path that ends with a slash can only become a directory.
        return Err(ops::lookup(&caller, &entry.dir, name)
            .map_or(Errno::ENOENT.into(), |_| Errno::EEXIST.into()));
    }
    let rdev = libc::makedev((dev >> 8) & 0xfff, (dev & 0xff) | ((dev >> 12) & 0xfff00));
    let names = report::begin(call);
    let node = ops::mknod(&caller, &entry.dir, name, mode, rdev)?;
    report::created(call, names, &entry.dir, name, &node);
    Ok(Answer::DONE)
}

/// mknod(2)
pub fn mknod(call: &mut Call<'_>) -> Result<Answer> {
    make_node(
        call,
        libc::AT_FDCWD,
        call.path(0),
        call.uint(1),
        call.uint(2),
    )
}

/// mknodat(2)
pub fn mknodat(call: &mut Call<'_>) -> Result<Answer> {
    make_node(call, call.int(0), call.path(1), call.uint(2), call.uint(3))
}
