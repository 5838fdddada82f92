//! Permissions of host objects that the kernel checks in place of virtual ones: fifos, devices, sockets and copies of programs.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

use goanna_sys::cred;
use goanna_vfs::{Acl, Attr, Caller, Errno, Place, Result, Tag, ops};
use rustix::fs::XattrFlags;

use crate::errno::{errno, from_rustix};

/// Gives the host object at `path` the owner and the permissions of its virtual object, as `caller` sees it. An unprivileged
/// monitor's tracees are all of its own user, and no other user can pass the run-time directory: there this user's own permissions
/// suffice.
pub(crate) fn copy_permissions(caller: &Caller, place: &Place, path: &Path) -> Result<()> {
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // A socket that is not bound in this run.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(errno(error).into()),
    };
    if !cred::may_change_user() {
        return Ok(set_mode(path, &meta, 0o700)?);
    }
    let fs = place.mount.fs.as_ref();
    let attr = fs.getattr(caller, &place.node)?;
    let acl = ops::acl(caller, fs, &place.node, &attr)?.filter(|acl| !acl.is_mode());
    let has_acl = rustix::fs::lgetxattr(path, Acl::ACCESS, &mut [0_u8; 0]).is_ok();
    let owned = (meta.uid(), meta.gid()) == (attr.uid, attr.gid);
    if owned && !has_acl && acl.is_none() {
        return Ok(set_mode(path, &meta, attr.perm())?);
    }
    // No permissions at all while the owner, the list and the permissions change one after the other.
    set_mode(path, &meta, 0)?;
    if has_acl {
        rustix::fs::lremovexattr(path, Acl::ACCESS).map_err(from_rustix)?;
    }
    lchown(path, Some(attr.uid), Some(attr.gid)).map_err(errno)?;
    let closed = fs::symlink_metadata(path).map_err(errno)?;
    match acl {
        Some(acl) => set_acl(path, &closed, &attr, &acl)?,
        None => set_mode(path, &closed, attr.perm())?,
    }
    Ok(())
}

/// Gives a host object the list `acl`. If the host's file system does not support lists, users and groups that the list names get
/// no access.
fn set_acl(path: &Path, meta: &fs::Metadata, attr: &Attr, acl: &Acl) -> Result<(), Errno> {
    if rustix::fs::lsetxattr(path, Acl::ACCESS, &acl.encode(), XattrFlags::empty()).is_ok() {
        return Ok(());
    }
    let of_group = acl
        .entries()
        .iter()
        .find(|entry| entry.tag == Tag::GroupObj);
    let group = of_group.map_or(0, |entry| u32::from(entry.perm)) << 3;
    set_mode(path, meta, attr.perm() & (0o707 | group))
}

fn set_mode(path: &Path, meta: &fs::Metadata, mode: u32) -> Result<(), Errno> {
    // Tracees have no_new_privs: set-id bits mean nothing here.
    let mode = mode & 0o777;
    if meta.mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(errno)
}
