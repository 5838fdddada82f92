//! The rules Linux's VFS applies above any file system.
//!
//! Free functions over a [`crate::Place`] and a [`crate::Caller`]. Each checks in the order of the kernel (`fs/namei.c`,
//! `fs/attr.c`, `fs/open.c`, `fs/xattr.c`), because the order decides which of two errors a program gets, then calls the
//! trait method. A back end whose [`crate::FileSystem::checks_access`] is true checks permissions itself; properties of
//! the mount (EROFS, EXDEV) are checked here for all.
//!
//! Names are single components, never empty, `.` or `..`. The caller has the path, so it handles these, trailing slashes,
//! and mount points (EBUSY).

mod attr;
mod names;
mod open;
mod perm;
mod xattr;

pub use attr::{chmod, chown, drop_set_id, may_set_flags, set_flags, statfs, truncate, utimens};
pub use names::{
    begin_rename, begin_unlink, link, link_open, lookup, mkdir, mknod, node_kind, rename,
    rename_flags, rmdir, symlink, unlink,
};
pub use open::{
    check_sticky_create, create, may_create_file, may_open, may_open_device, may_open_other,
    open_existing, readdir_check, tmpfile,
};
pub use perm::{access, acl, may_follow, may_pass, may_search, permission};
pub use xattr::{check_xattr_name, getxattr, listxattr, removexattr, setxattr};

use crate::{Errno, FileSystem, MountFlags, Place, Result};

/// EROFS on a read-only mount.
fn writable(place: &Place) -> Result<()> {
    if place.mount.flags.contains(MountFlags::READ_ONLY) {
        return Err(Errno::EROFS.into());
    }
    Ok(())
}

/// The back end of a place.
fn fs(place: &Place) -> &dyn FileSystem {
    place.mount.fs.as_ref()
}

/// Whether this module checks permissions at this place: the back end does not.
fn checks_permissions(place: &Place) -> bool {
    !place.mount.fs.checks_access()
}

/// ENAMETOOLONG as `simple_lookup` and every disk file system answer it.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > crate::NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    Ok(())
}
