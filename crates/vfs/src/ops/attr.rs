//! Changes of metadata and size.

use super::perm::{check, file_system_permits, rights};
use super::{checks_permissions, fs, writable};
use crate::{
    Attr, Caller, Errno, FileKind, MountFlags, Place, Result, SetAttr, StatFs, TimeSet, caps,
    file_flags,
};

/// chmod(2): EROFS; EOPNOTSUPP for a symbolic link (Linux since 6.6); EPERM unless owner or `CAP_FOWNER`.
/// The set-group-id bit is dropped when the caller is neither in the file's group nor has `CAP_FSETID`.
pub fn chmod(caller: &Caller, place: &Place, mode: u32) -> Result<()> {
    writable(place)?;
    if place.node.kind() == FileKind::Symlink {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let mut mode = mode & 0o7777;
    if checks_permissions(place) {
        let attr = fs(place).getattr(caller, &place.node)?;
        attr.unless_flagged(file_flags::PROTECTED)?;
        if !caller.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
        if !caller.in_group_or_capable(&attr, attr.gid) {
            mode &= !libc::S_ISGID;
        }
    }
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs(place).setattr(caller, &place.node, &set)
}

/// Checks a change of the flags of chattr(1) to `flags`, as ioctl_iflags(2): EROFS; EPERM unless owner or `CAP_FOWNER`, for
/// a change of [`file_flags::PROTECTED`] without `CAP_LINUX_IMMUTABLE`, and, as on ext4, for any change of a file that
/// stays immutable. A back end that checks access makes these checks itself.
pub fn may_set_flags(caller: &Caller, place: &Place, flags: u32) -> Result<()> {
    writable(place)?;
    if !checks_permissions(place) {
        return Ok(());
    }
    let attr = fs(place).getattr(caller, &place.node)?;
    let changed = (flags ^ attr.flags) & file_flags::KEPT;
    let guarded = changed & file_flags::PROTECTED != 0;
    if !caller.owns(&attr) || guarded && !caller.capable(caps::LINUX_IMMUTABLE) {
        return Err(Errno::EPERM.into());
    }
    if changed != 0 && flags & attr.flags & file_flags::IMMUTABLE != 0 {
        return Err(Errno::EPERM.into());
    }
    Ok(())
}

/// Sets the flags of chattr(1): errors as [`may_set_flags`], then EOPNOTSUPP for flags that are not kept.
pub fn set_flags(caller: &Caller, place: &Place, flags: u32) -> Result<()> {
    /// `FS_FL_USER_MODIFIABLE` of linux/fs.h; the other flags show how the kernel stores a file.
    const MODIFIABLE: u32 = 0x0003_80ff;
    may_set_flags(caller, place, flags)?;
    let mut flags = flags;
    if checks_permissions(place) {
        if flags & MODIFIABLE & !file_flags::KEPT != 0 {
            return Err(Errno::EOPNOTSUPP.into());
        }
        flags &= file_flags::KEPT;
    }
    let set = SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    fs(place).setattr(caller, &place.node, &set)
}

/// chown(2); `None` leaves an id as it is (the call's -1).
///
/// EROFS; EINVAL for an id that the caller's user namespace does not have; EPERM unless `CAP_CHOWN`, or the owner keeps
/// itself as owner and gives a group it is in. Unless the file is a directory, the set-user-id bit is cleared, and the
/// set-group-id bit, too, when the group may execute the file (or the caller is not in the group). This also holds for
/// root, and when neither id changes.
pub fn chown(caller: &Caller, place: &Place, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    writable(place)?;
    let known = |id: Option<u32>, outside: &dyn Fn(u32) -> Option<u32>| {
        id.map(|id| outside(id).ok_or(Errno::EINVAL)).transpose()
    };
    let uid = known(uid, &|uid| caller.outside_uid(uid))?;
    let gid = known(gid, &|gid| caller.outside_gid(gid))?;
    let mut set = SetAttr {
        uid,
        gid,
        ..SetAttr::default()
    };
    if checks_permissions(place) {
        let attr = fs(place).getattr(caller, &place.node)?;
        attr.unless_flagged(file_flags::PROTECTED)?;
        if !place.node.is_dir() {
            set.mode = without_set_id(caller, &attr, gid);
        }
        let owner = attr.uid == caller.uid;
        let capable = caller.capable_over(caps::CHOWN, &attr);
        let uid_ok = uid.is_none_or(|uid| owner && uid == attr.uid);
        let gid_ok = gid.is_none_or(|gid| owner && (gid == attr.gid || caller.in_group(gid)));
        if !(capable || (uid_ok && gid_ok)) {
            return Err(Errno::EPERM.into());
        }
        // Linux makes the clearing a change of mode, with that change's own permission.
        if set.mode.is_some() && !caller.owns(&attr) {
            return Err(Errno::EPERM.into());
        }
    }
    fs(place).setattr(caller, &place.node, &set)
}

/// The mode bits without the set-id bits that a change of owner or content clears; `None` when it clears none.
/// `new_gid` is the group the file is about to get.
fn without_set_id(caller: &Caller, attr: &Attr, new_gid: Option<u32>) -> Option<u32> {
    let mut mode = attr.perm() & !libc::S_ISUID;
    if mode & libc::S_ISGID != 0
        && (mode & libc::S_IXGRP != 0 || !caller.in_group_or_capable(attr, attr.gid))
    {
        mode &= !libc::S_ISGID;
    }
    if mode == attr.perm() {
        return None;
    }
    // The mode is being set, so the rule of chmod(2) applies to what is left of it.
    if !caller.in_group_or_capable(attr, new_gid.unwrap_or(attr.gid)) {
        mode &= !libc::S_ISGID;
    }
    Some(mode)
}

/// Clears set-id bits of a regular file after `caller` changed its content, unless it has `CAP_FSETID`
/// (`file_remove_privs`). For the writing calls; [`truncate`] and opening with `O_TRUNC` do it themselves.
pub fn drop_set_id(caller: &Caller, place: &Place) -> Result<()> {
    if !checks_permissions(place)
        || caller.capable(caps::FSETID)
        || place.node.kind() != FileKind::Regular
    {
        return Ok(());
    }
    let attr = fs(place).getattr(caller, &place.node)?;
    let Some(mode) = without_set_id(caller, &attr, None) else {
        return Ok(());
    };
    let set = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    fs(place).setattr(caller, &place.node, &set)
}

/// utimensat(2); `None` leaves a time as it is (`UTIME_OMIT`); a NULL array is both [`TimeSet::Now`].
///
/// With two `None` it does nothing, and checks nothing. EROFS. Both `Now`: owner, or write permission (EACCES);
/// anything else: owner or `CAP_FOWNER` (EPERM).
pub fn utimens(
    caller: &Caller,
    place: &Place,
    atime: Option<TimeSet>,
    mtime: Option<TimeSet>,
) -> Result<()> {
    if atime.is_none() && mtime.is_none() {
        return Ok(());
    }
    writable(place)?;
    if checks_permissions(place) {
        let rights = rights(caller, place)?;
        let attr = &rights.attr;
        let touches = (atime, mtime) == (Some(TimeSet::Now), Some(TimeSet::Now));
        let objecting = if touches {
            file_flags::IMMUTABLE
        } else {
            file_flags::PROTECTED
        };
        attr.unless_flagged(objecting)?;
        if !caller.owns(attr) {
            if !touches {
                return Err(Errno::EPERM.into());
            }
            rights.permit(caller, libc::W_OK)?;
        }
    }
    let set = SetAttr {
        atime,
        mtime,
        ..SetAttr::default()
    };
    fs(place).setattr(caller, &place.node, &set)
}

/// truncate(2) to `size` bytes: EINVAL when negative, EISDIR, EINVAL for other kinds than regular files, EACCES, EROFS. The
/// back end answers EFBIG. ftruncate(2) goes to the back end directly: the open that made its descriptor has checked
/// permissions.
pub fn truncate(caller: &Caller, place: &Place, size: i64) -> Result<()> {
    let size = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
    match place.node.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    if let Err(errno) = writable(place) {
        file_system_permits(place, libc::W_OK)?;
        rights(caller, place)?.permit(caller, libc::W_OK)?;
        return Err(errno);
    }
    check(caller, place, libc::W_OK)?;
    fs(place).truncate(caller, &place.node, size)?;
    drop_set_id(caller, place)
}

/// statfs(2); the mount's own options show in the flags.
pub fn statfs(caller: &Caller, place: &Place) -> Result<StatFs> {
    let mut figures = fs(place).statfs(caller, &place.node)?;
    let options = place.mount.flags & MountFlags::OPTIONS;
    figures.flags |= u64::from(options.bits());
    Ok(figures)
}
