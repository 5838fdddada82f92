//! Opening and creating files.

use super::names::{creation_mode, made, may_create};
use super::perm::{Protections, access, check, file_system_permits, may_create_in_sticky, rights};
use super::{checks_permissions, fs, writable};
use crate::{Caller, Errno, FileKind, MountFlags, Node, Opened, Place, Result, file_flags};

/// The permissions an open with `flags` asks for (the kernel's `ACC_MODE`).
fn open_mask(flags: i32) -> i32 {
    let mask = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => libc::R_OK,
        libc::O_WRONLY => libc::W_OK,
        // O_RDWR, and the access mode 3 of some drivers, which checks both.
        _ => libc::R_OK | libc::W_OK,
    };
    if flags & libc::O_TRUNC != 0 {
        mask | libc::W_OK
    } else {
        mask
    }
}

/// Permission, `O_NOATIME` and read-only mount, as `may_open` and `do_dentry_open` check them. [`open_existing`] does this, too.
pub fn may_open(caller: &Caller, place: &Place, flags: i32) -> Result<()> {
    let truncates = flags & libc::O_TRUNC != 0 && place.node.kind() == FileKind::Regular;
    if truncates {
        writable(place)?;
    }
    file_system_permits(place, open_mask(flags))?;
    // On a read-only mount, also check for a back end that checks access: its open is never called, and EACCES comes
    // before EROFS.
    if checks_permissions(place) || writable(place).is_err() {
        let rights = rights(caller, place)?;
        rights.permit(caller, open_mask(flags))?;
        let attr = rights.attr;
        let appends = flags & libc::O_ACCMODE == libc::O_RDONLY || flags & libc::O_APPEND != 0;
        if !appends || flags & libc::O_TRUNC != 0 {
            attr.unless_flagged(file_flags::APPEND_ONLY)?;
        }
        if flags & libc::O_NOATIME != 0 && !caller.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
    }
    if matches!(flags & libc::O_ACCMODE, libc::O_WRONLY | libc::O_RDWR) {
        writable(place)?;
    }
    Ok(())
}

/// The checks of an open of a directory, fifo, socket or device with `flags`: EACCES, also for a device on a `NO_DEV` mount; EPERM for `O_NOATIME` on a file of
/// another user.
pub fn may_open_other(caller: &Caller, place: &Place, flags: i32) -> Result<()> {
    may_open_device(place)?;
    access(caller, place, open_mask(flags))?;
    if flags & libc::O_NOATIME != 0 {
        let attr = fs(place).getattr(caller, &place.node)?;
        if !caller.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
    }
    Ok(())
}

/// EACCES for a device on a `NO_DEV` mount.
pub fn may_open_device(place: &Place) -> Result<(), Errno> {
    match place.node.kind().is_device() && place.mount.flags.contains(MountFlags::NO_DEV) {
        true => Err(Errno::EACCES),
        false => Ok(()),
    }
}

/// Opens an existing file with the access mode and status flags of `flags`; the walk is done, so `O_CREAT`,
/// `O_EXCL`, `O_NOFOLLOW` and `O_DIRECTORY` are settled ([`check_sticky_create`] under `O_CREAT`).
///
/// ELOOP for a symbolic link and EISDIR for a directory opened for writing (or at all: directories are not
/// opened through this), EACCES, EPERM for `O_NOATIME` on a file of another user, EROFS. The caller handles fifos,
/// sockets and devices (ENXIO here).
pub fn open_existing(caller: &Caller, place: &Place, flags: i32) -> Result<Opened> {
    match place.node.kind() {
        FileKind::Regular => {}
        FileKind::Symlink => return Err(Errno::ELOOP.into()),
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::ENXIO.into()),
    }
    may_open(caller, place, flags)?;
    let settled = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECTORY;
    let opened = fs(place).open(caller, &place.node, flags & !settled)?;
    if flags & libc::O_TRUNC != 0 {
        super::drop_set_id(caller, place)?;
    }
    Ok(opened)
}

/// The checks of an open with `O_CREAT` that found an existing `place` in `dir` (`fs.protected_regular`,
/// `fs.protected_fifos` of the running kernel): EISDIR for a directory, EACCES. Also for back ends that check access:
/// they never receive the `O_CREAT`.
pub fn check_sticky_create(caller: &Caller, dir: &Place, place: &Place) -> Result<()> {
    let rules = Protections::of_kernel();
    match place.node.kind() {
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        FileKind::Regular if rules.regular == 0 => return Ok(()),
        FileKind::Fifo if rules.fifos == 0 => return Ok(()),
        _ => {}
    }
    let dir_attr = fs(dir).getattr(caller, &dir.node)?;
    if dir_attr.mode & libc::S_ISVTX == 0 {
        return Ok(());
    }
    let attr = fs(place).getattr(caller, &place.node)?;
    Ok(may_create_in_sticky(rules, caller, &dir_attr, &attr)?)
}

/// The checks of [`create`], for a file that something else creates.
pub fn may_create_file(caller: &Caller, dir: &Place, name: &[u8]) -> Result<()> {
    may_create(caller, dir, name, || Ok(()))
}

/// Creates and opens the regular file `name` in `dir`: EEXIST when the name is taken, then EROFS, EACCES.
/// `mode` has permission, set-id and sticky bits before the umask. A new file may be opened in a way its own
/// mode forbids.
pub fn create(
    caller: &Caller,
    dir: &Place,
    name: &[u8],
    mode: u32,
    flags: i32,
) -> Result<(Node, Opened)> {
    may_create_file(caller, dir, name)?;
    let mode = creation_mode(caller, dir, mode & 0o7777)?;
    let settled = libc::O_NOFOLLOW | libc::O_DIRECTORY | libc::O_TRUNC;
    let result = fs(dir).create(caller, &dir.node, name, mode, flags & !settled);
    made(caller, dir, name, result)
}

/// `O_TMPFILE` in directory `dir`: EINVAL without write access mode, ENOTDIR, EROFS, EACCES.
pub fn tmpfile(caller: &Caller, dir: &Place, mode: u32, flags: i32) -> Result<(Node, Opened)> {
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(Errno::EINVAL.into());
    }
    if !dir.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    writable(dir)?;
    check(caller, dir, libc::W_OK | libc::X_OK)?;
    let mode = creation_mode(caller, dir, mode & 0o7777)?;
    fs(dir).tmpfile(caller, &dir.node, mode, flags)
}

/// Whether `caller` may open directory `dir` for reading its entries: ENOTDIR, EACCES. A back end that checks
/// access itself answers at the first [`crate::FileSystem::readdir`].
pub fn readdir_check(caller: &Caller, dir: &Place) -> Result<()> {
    if !dir.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    check(caller, dir, libc::R_OK)
}
