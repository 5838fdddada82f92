//! Names: look-up, creation, removal, rename.

use std::os::fd::BorrowedFd;

use super::perm::{Protections, Rights, check, may_link, rights, sticky_for};
use super::{check_name, checks_permissions, fs, may_pass, may_search, writable};
use crate::{Caller, Errno, FileKind, FsError, Node, PATH_MAX, Place, Result, caps, file_flags};

/// The entry `name` of `dir`: ENOTDIR, EACCES without search permission, ENAMETOOLONG above 255 bytes, ENOENT.
pub fn lookup(caller: &Caller, dir: &Place, name: &[u8]) -> Result<Node> {
    may_search(caller, dir)?;
    check_name(name)?;
    fs(dir).lookup(caller, &dir.node, name)
}

/// The result of the kernel's `filename_create` and `may_create` together: a taken name is EEXIST, whatever `objection`
/// is, so that `mkdir -p` works through read-only and foreign directories.
fn unless_exists(caller: &Caller, dir: &Place, name: &[u8], objection: Result<()>) -> Result<()> {
    let errno = match objection {
        Err(FsError::Errno(errno)) => errno,
        other => return other,
    };
    match fs(dir).lookup(caller, &dir.node, name) {
        Ok(_) => Err(Errno::EEXIST.into()),
        Err(FsError::Errno(Errno::ENOENT)) => Err(errno.into()),
        Err(other) => Err(other),
    }
}

/// Checks whether `caller` may add `name` to `dir`. `more` is a further check, after that of the directory's
/// permissions.
pub(super) fn may_create(
    caller: &Caller,
    dir: &Place,
    name: &[u8],
    more: impl FnOnce() -> Result<()>,
) -> Result<()> {
    may_search(caller, dir)?;
    check_name(name)?;
    let objection = writable(dir)
        .and_then(|()| check(caller, dir, libc::W_OK | libc::X_OK))
        .and_then(|()| more());
    unless_exists(caller, dir, name, objection)
}

/// The result of an operation that makes `name`. A back end without the operation answers EROFS by default; a taken name
/// is EEXIST nevertheless.
pub(super) fn made<T>(caller: &Caller, dir: &Place, name: &[u8], result: Result<T>) -> Result<T> {
    if matches!(result, Err(FsError::Errno(Errno::EROFS))) {
        unless_exists(caller, dir, name, Err(Errno::EROFS.into()))?;
    }
    result
}

/// `mode_strip_sgid`: clears the set-group-id bit of a group-executable file that inherits the group of a set-gid
/// directory, unless the caller is in that group or has `CAP_FSETID`.
pub(super) fn creation_mode(caller: &Caller, dir: &Place, mode: u32) -> Result<u32> {
    let risky = libc::S_ISGID | libc::S_IXGRP;
    if mode & risky != risky || !checks_permissions(dir) {
        return Ok(mode);
    }
    let attr = fs(dir).getattr(caller, &dir.node)?;
    if attr.mode & libc::S_ISGID != 0 && !caller.in_group_or_capable(&attr, attr.gid) {
        return Ok(mode & !libc::S_ISGID);
    }
    Ok(mode)
}

/// The kind of file that mknod(2) makes with `mode`, determined before the call resolves its path: EPERM for
/// directories, EINVAL for other kinds that it cannot make.
pub fn node_kind(mode: u32) -> Result<FileKind> {
    match FileKind::from_mode(mode).ok_or(Errno::EINVAL)? {
        FileKind::Directory => Err(Errno::EPERM.into()),
        FileKind::Symlink => Err(Errno::EINVAL.into()),
        kind => Ok(kind),
    }
}

/// mknod(2); `mode` has type and permission bits (no type: a regular file), `rdev` is in the encoding of
/// `makedev(3)` and matters for devices only.
///
/// EPERM for `S_IFDIR` and EINVAL for other types the call cannot make, before anything else; EPERM for
/// devices without `CAP_MKNOD`, the whiteout (character device 0:0) excepted.
pub fn mknod(caller: &Caller, dir: &Place, name: &[u8], mode: u32, rdev: u64) -> Result<Node> {
    let kind = node_kind(mode)?;
    let device = kind.is_device();
    let whiteout = kind == FileKind::CharDevice && rdev == 0;
    may_create(caller, dir, name, || {
        if device && !whiteout && checks_permissions(dir) && !caller.capable(caps::MKNOD) {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    })?;
    let mode = creation_mode(caller, dir, mode & 0o7777)? | kind.mode_bits();
    let rdev = if device { rdev } else { 0 };
    let result = fs(dir).mknod(caller, &dir.node, name, mode, rdev);
    made(caller, dir, name, result)
}

/// mkdir(2). Set-id bits of `mode` are ignored as Linux does; the sticky bit is kept.
pub fn mkdir(caller: &Caller, dir: &Place, name: &[u8], mode: u32) -> Result<Node> {
    may_create(caller, dir, name, || Ok(()))?;
    let result = fs(dir).mkdir(caller, &dir.node, name, mode & 0o1777);
    made(caller, dir, name, result)
}

/// symlink(2): ENOENT for an empty target, ENAMETOOLONG above 4095 bytes, both before `dir` is looked at.
pub fn symlink(caller: &Caller, dir: &Place, name: &[u8], target: &[u8]) -> Result<Node> {
    if target.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if target.len() >= PATH_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    may_create(caller, dir, name, || Ok(()))?;
    let result = fs(dir).symlink(caller, &dir.node, name, target);
    made(caller, dir, name, result)
}

/// link(2): a further name `name` in `dir` for `place`.
///
/// After EEXIST and EROFS: EXDEV across mounts, EPERM by `fs.protected_hardlinks`, EACCES, EPERM for
/// directories.
pub fn link(caller: &Caller, place: &Place, dir: &Place, name: &[u8]) -> Result<()> {
    may_search(caller, dir)?;
    check_name(name)?;
    let objection = writable(dir).and_then(|()| {
        if place.mount.number != dir.mount.number {
            return Err(Errno::EXDEV.into());
        }
        if !checks_permissions(dir) {
            return Ok(());
        }
        let rights = rights(caller, place)?;
        may_link(Protections::of_kernel(), caller, &rights)?;
        check(caller, dir, libc::W_OK | libc::X_OK)?;
        rights.attr.unless_flagged(file_flags::PROTECTED)?;
        if place.node.is_dir() {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    });
    unless_exists(caller, dir, name, objection)?;
    let result = fs(dir).link(caller, &place.node, &dir.node, name);
    made(caller, dir, name, result)
}

/// linkat(2) of the host file behind a tracee's descriptor `file`: errors as [`link()`]'s, EXDEV for a file that is not
/// in `dir`'s mount.
pub fn link_open(caller: &Caller, file: BorrowedFd<'_>, dir: &Place, name: &[u8]) -> Result<()> {
    may_search(caller, dir)?;
    check_name(name)?;
    unless_exists(caller, dir, name, writable(dir))?;
    match fs(dir).link_open(caller, file, &dir.node, name) {
        Err(FsError::Errno(Errno::EXDEV)) => {
            unless_exists(caller, dir, name, Err(Errno::EXDEV.into()))
        }
        other => other,
    }
}

/// unlink(2): EROFS before ENOENT, ENOENT before EACCES, EPERM in a sticky directory, EISDIR.
pub fn unlink(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    may_delete(caller, dir, name)?;
    fs(dir).unlink(caller, &dir.node, name)
}

/// rmdir(2): as [`unlink`]; ENOTDIR, ENOTEMPTY. The caller answers EBUSY for a mount point.
pub fn rmdir(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    may_delete(caller, dir, name)?;
    fs(dir).rmdir(caller, &dir.node, name)
}

/// The checks of unlink(2) before it looks `name` up in `dir`: ENOTDIR, EACCES without search permission, EROFS.
pub fn begin_unlink(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    may_search(caller, dir)?;
    writable_dir(caller, dir, name)
}

fn may_delete(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    begin_unlink(caller, dir, name)?;
    check_name(name)?;
    if !checks_permissions(dir) {
        return Ok(());
    }
    let rights = rights(caller, dir)?;
    let verdict = rights.permit(caller, libc::W_OK | libc::X_OK);
    let sticky = sticky_for(caller, &rights.attr);
    let growing = rights.attr.unless_flagged(file_flags::APPEND_ONLY);
    if verdict.is_ok() && !sticky && growing.is_ok() {
        return Ok(());
    }
    let victim = fs(dir).lookup(caller, &dir.node, name)?;
    verdict?;
    growing?;
    check_sticky_delete(caller, dir, sticky, &victim)
}

/// EROFS on a read-only mount. EACCES comes before it when a back end that checks access refuses the search for `name`
/// in `dir`.
fn writable_dir(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    let verdict = writable(dir);
    if verdict.is_err()
        && !checks_permissions(dir)
        && fs(dir).lookup(caller, &dir.node, name).err() == Some(FsError::Errno(Errno::EACCES))
    {
        return Err(Errno::EACCES.into());
    }
    verdict
}

/// EPERM when the sticky bit holds and the caller cannot act as the victim's owner.
fn check_sticky_delete(caller: &Caller, dir: &Place, sticky: bool, victim: &Node) -> Result<()> {
    if sticky && !caller.owns(&fs(dir).getattr(caller, victim)?) {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// EINVAL for unknown or contradicting flags of renameat2(2), before its paths are looked at.
pub fn rename_flags(flags: u32) -> Result<()> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    let exchange = flags & libc::RENAME_EXCHANGE != 0;
    if flags & !known != 0 || (exchange && flags != libc::RENAME_EXCHANGE) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// The checks of rename(2) before it looks up either name: EACCES without search permission, EXDEV, EROFS.
pub fn begin_rename(caller: &Caller, from_dir: &Place, from: &[u8], to_dir: &Place) -> Result<()> {
    let same_mount = from_dir.mount.number == to_dir.mount.number;
    // A back end that checks access also decides which directory's error comes first, if it is asked at all.
    if checks_permissions(from_dir) || !same_mount || writable(from_dir).is_err() {
        may_pass(caller, from_dir)?;
        may_pass(caller, to_dir)?;
    }
    if !same_mount {
        return Err(Errno::EXDEV.into());
    }
    writable_dir(caller, from_dir, from)
}

/// rename(2), renameat2(2).
///
/// EINVAL for unknown or contradicting `flags`, EXDEV across mounts, EROFS, ENOENT, EEXIST under
/// `RENAME_NOREPLACE`, then permissions: to write both directories, the sticky bit of both, and to write a
/// directory that changes its parent, since its `..` changes. The caller answers EBUSY for mount points.
/// `RENAME_WHITEOUT` reaches only back ends that check access themselves; others answer EINVAL.
pub fn rename(
    caller: &Caller,
    from_dir: &Place,
    from: &[u8],
    to_dir: &Place,
    to: &[u8],
    flags: u32,
) -> Result<()> {
    rename_flags(flags)?;
    begin_rename(caller, from_dir, from, to_dir)?;
    check_name(from)?;
    check_name(to)?;
    if checks_permissions(from_dir) {
        let rename = Rename {
            caller,
            from_dir,
            from,
            to_dir,
            to,
            flags,
        };
        rename.check()?;
        if flags & libc::RENAME_WHITEOUT != 0 {
            return Err(Errno::EINVAL.into());
        }
    }
    fs(from_dir).rename(caller, &from_dir.node, from, &to_dir.node, to, flags)
}

struct Rename<'a> {
    caller: &'a Caller,
    from_dir: &'a Place,
    from: &'a [u8],
    to_dir: &'a Place,
    to: &'a [u8],
    flags: u32,
}

/// The two ends of a rename, looked up.
struct Ends {
    source: Node,
    target: Option<Node>,
    from_verdict: Result<(), Errno>,
    to_verdict: Result<(), Errno>,
    /// EPERM where the directory is append-only, so that no name is taken away.
    from_growing: Result<(), Errno>,
    to_growing: Result<(), Errno>,
    from_sticky: bool,
    to_sticky: bool,
}

impl Rename<'_> {
    fn check(&self) -> Result<()> {
        let rename_mask = libc::W_OK | libc::X_OK;
        let fs = fs(self.from_dir);
        let same_dir = self.from_dir.node.ino() == self.to_dir.node.ino();
        let judge = |dir: &Place| -> Result<_> {
            let rights = rights(self.caller, dir)?;
            let growing = rights.attr.unless_flagged(file_flags::APPEND_ONLY);
            let sticky = sticky_for(self.caller, &rights.attr);
            Ok((rights.permit(self.caller, rename_mask), growing, sticky))
        };
        let (from_verdict, from_growing, from_sticky) = judge(self.from_dir)?;
        // The usual case, a new version that replaces the old one in its directory, needs no look-up of either name.
        if same_dir && from_verdict.is_ok() && from_growing.is_ok() && !from_sticky {
            return Ok(());
        }
        let (to_verdict, to_growing, to_sticky) = if same_dir {
            (from_verdict, from_growing, from_sticky)
        } else {
            judge(self.to_dir)?
        };
        let ends = Ends {
            source: fs.lookup(self.caller, &self.from_dir.node, self.from)?,
            target: match fs.lookup(self.caller, &self.to_dir.node, self.to) {
                Ok(node) => Some(node),
                Err(FsError::Errno(Errno::ENOENT)) => None,
                Err(errno) => return Err(errno),
            },
            from_verdict,
            to_verdict,
            from_growing,
            to_growing,
            from_sticky,
            to_sticky,
        };
        if self.flags & libc::RENAME_NOREPLACE != 0 && ends.target.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if self.flags & libc::RENAME_EXCHANGE != 0 && ends.target.is_none() {
            return Err(Errno::ENOENT.into());
        }
        // With two names of one inode, rename(2) does nothing, so nothing is checked. The back end refuses loops.
        if ends.target.as_ref().map(Node::ino) == Some(ends.source.ino()) {
            return Ok(());
        }
        let outcome = self.permissions(&ends, same_dir);
        if outcome.as_ref().is_err_and(|error| error.errno().is_some()) {
            // The kernel recognises loops while it locks both directories, before permissions.
            self.refuse_loop(&ends, same_dir)?;
        }
        outcome
    }

    /// `may_delete` and `may_create` for both ends, in the order of `vfs_rename`.
    fn permissions(&self, ends: &Ends, same_dir: bool) -> Result<()> {
        let exchange = self.flags & libc::RENAME_EXCHANGE != 0;
        let source_is_dir = ends.source.is_dir();
        ends.from_verdict?;
        ends.from_growing?;
        check_sticky_delete(self.caller, self.from_dir, ends.from_sticky, &ends.source)?;
        ends.to_verdict?;
        if let Some(target) = &ends.target {
            ends.to_growing?;
            check_sticky_delete(self.caller, self.to_dir, ends.to_sticky, target)?;
            if !exchange && source_is_dir && !target.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            if !exchange && !source_is_dir && target.is_dir() {
                return Err(Errno::EISDIR.into());
            }
        }
        if same_dir {
            return Ok(());
        }
        let moved_target = ends.target.iter().filter(|_| exchange);
        for moved in std::iter::once(&ends.source).chain(moved_target) {
            if moved.is_dir() {
                let rights = Rights::of(self.caller, fs(self.from_dir), moved)?;
                rights.permit(self.caller, libc::W_OK)?;
            }
        }
        Ok(())
    }

    /// EINVAL when the source would become its own descendant, ENOTEMPTY when the target holds the source.
    fn refuse_loop(&self, ends: &Ends, same_dir: bool) -> Result<()> {
        if same_dir {
            return Ok(());
        }
        if ends.source.is_dir() && self.is_above(&ends.source, &self.to_dir.node)? {
            return Err(Errno::EINVAL.into());
        }
        if let Some(target) = ends.target.as_ref().filter(|node| node.is_dir())
            && self.is_above(target, &self.from_dir.node)?
        {
            let exchange = self.flags & libc::RENAME_EXCHANGE != 0;
            let errno = if exchange {
                Errno::EINVAL
            } else {
                Errno::ENOTEMPTY
            };
            return Err(errno.into());
        }
        Ok(())
    }

    fn is_above(&self, ancestor: &Node, dir: &Node) -> Result<bool> {
        let fs = fs(self.from_dir);
        let mut dir = dir.clone();
        loop {
            if dir.ino() == ancestor.ino() {
                return Ok(true);
            }
            match fs.parent(self.caller, &dir) {
                Ok(parent) if parent.ino() != dir.ino() => dir = parent,
                Ok(_) | Err(FsError::Errno(_)) => return Ok(false),
                Err(blocked @ FsError::Blocked(_)) => return Err(blocked),
            }
        }
    }
}
