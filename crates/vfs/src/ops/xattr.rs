//! Extended attributes and their name spaces.

use std::borrow::Cow;

use super::perm::Rights;
use super::{checks_permissions, fs, writable};
use crate::{Acl, Caller, Errno, FileKind, Place, Result, caps, file_flags};

/// Longest attribute name in bytes (`XATTR_NAME_MAX`).
const NAME_MAX: usize = 255;
/// Largest value in bytes (`XATTR_SIZE_MAX`).
const SIZE_MAX: usize = 65536;

const USER: &[u8] = b"user.";
const TRUSTED: &[u8] = b"trusted.";
const SECURITY: &[u8] = b"security.";
const SYSTEM: &[u8] = b"system.";

/// ERANGE for an attribute name that is empty or longer than 255 bytes, which the kernel answers before it
/// looks at the path.
pub fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE.into());
    }
    Ok(())
}

/// The kernel's `xattr_permission`, and the capability module's check of writes to `security.*`.
fn may(caller: &Caller, place: &Place, name: &[u8], mask: i32) -> Result<()> {
    if !checks_permissions(place) {
        return Ok(());
    }
    let write = mask == libc::W_OK;
    if write {
        let attr = fs(place).getattr(caller, &place.node)?;
        attr.unless_flagged(file_flags::PROTECTED)?;
    }
    let refused = if write { Errno::EPERM } else { Errno::ENODATA };
    if name.starts_with(SYSTEM) {
        return Ok(());
    }
    if name.starts_with(SECURITY) {
        let needed = if name == b"security.capability" {
            caps::SETFCAP
        } else {
            caps::SYS_ADMIN
        };
        if write && !caller.capable(needed) {
            return Err(Errno::EPERM.into());
        }
        return Ok(());
    }
    if name.starts_with(TRUSTED) {
        if !caller.capable(caps::SYS_ADMIN) {
            return Err(refused.into());
        }
        return Ok(());
    }
    let kind = place.node.kind();
    let user = name.starts_with(USER);
    if user && !matches!(kind, FileKind::Regular | FileKind::Directory) {
        return Err(refused.into());
    }
    let rights = Rights::of(caller, fs(place), &place.node)?;
    let sticky_dir = kind == FileKind::Directory && rights.attr.mode & libc::S_ISVTX != 0;
    if user && write && sticky_dir && !caller.owns(&rights.attr) {
        return Err(Errno::EPERM.into());
    }
    Ok(rights.permit(caller, mask)?)
}

/// getxattr(2): the whole value. The caller checks the size of the program's buffer (ERANGE).
pub fn getxattr(caller: &Caller, place: &Place, name: &[u8]) -> Result<Vec<u8>> {
    check_xattr_name(name)?;
    may(caller, place, name, libc::R_OK)?;
    let value = fs(place).getxattr(caller, &place.node, name)?;
    Ok(inside_namespace(caller, name, value))
}

/// The value of an attribute as `caller` sees it: an access control list has the ids of the caller's user namespace, -1 for one that
/// it does not have.
fn inside_namespace(caller: &Caller, name: &[u8], value: Vec<u8>) -> Vec<u8> {
    let Some(ns) = caller.user_ns.as_ref().filter(|_| Acl::is_name(name)) else {
        return value;
    };
    let shown = |id: Option<u32>| Some(id.unwrap_or(u32::MAX));
    let (uid, gid) = (
        |id| shown(ns.uids.inside(id)),
        |id| shown(ns.gids.inside(id)),
    );
    let list = Acl::parse(&value).ok().flatten();
    let list = list.and_then(|list| list.mapped(uid, gid));
    list.map_or(value, |list| list.encode())
}

/// The value that a caller gives to an attribute, with the monitor's ids: EINVAL for an access control list that is malformed or has
/// an id that the caller's user namespace does not have.
fn outside_namespace<'a>(caller: &Caller, name: &[u8], value: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    let Some(ns) = caller.user_ns.as_ref().filter(|_| Acl::is_name(name)) else {
        return Ok(value.into());
    };
    let Some(list) = Acl::parse(value)? else {
        return Ok(value.into());
    };
    let list = list.mapped(|id| ns.uids.outside(id), |id| ns.gids.outside(id));
    Ok(list.ok_or(Errno::EINVAL)?.encode().into())
}

/// setxattr(2): EINVAL for unknown `flags`, ERANGE for the name, E2BIG above 64 KiB, EROFS, EPERM, EACCES.
pub fn setxattr(
    caller: &Caller,
    place: &Place,
    name: &[u8],
    value: &[u8],
    flags: i32,
) -> Result<()> {
    if flags & !(libc::XATTR_CREATE | libc::XATTR_REPLACE) != 0 {
        return Err(Errno::EINVAL.into());
    }
    check_xattr_name(name)?;
    if value.len() > SIZE_MAX {
        return Err(Errno::E2BIG.into());
    }
    writable(place)?;
    let value = outside_namespace(caller, name, value)?;
    may(caller, place, name, libc::W_OK)?;
    fs(place).setxattr(caller, &place.node, name, &value, flags)
}

/// listxattr(2): all names, `trusted.*` only for callers that may read them.
pub fn listxattr(caller: &Caller, place: &Place) -> Result<Vec<Vec<u8>>> {
    let mut names = fs(place).listxattr(caller, &place.node)?;
    if checks_permissions(place) && !caller.capable(caps::SYS_ADMIN) {
        names.retain(|name| !name.starts_with(TRUSTED));
    }
    Ok(names)
}

/// removexattr(2): ERANGE, EROFS, EPERM, EACCES.
pub fn removexattr(caller: &Caller, place: &Place, name: &[u8]) -> Result<()> {
    check_xattr_name(name)?;
    writable(place)?;
    may(caller, place, name, libc::W_OK)?;
    fs(place).removexattr(caller, &place.node, name)
}
