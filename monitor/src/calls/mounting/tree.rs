//! open_tree(2), open_tree_attr(2) and mount_setattr(2).

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use goanna_sys::mount_attr;
use goanna_vfs::{Errno, MountFlags, Place, Result};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree as open_tree_at};

use super::hosted::{is_in_kernel, is_root};
use super::{elsewhere, may_mount, mounted_at, path_flags};
use crate::answer::Answer;
use crate::call::{Call, Target, words};
use crate::calls::open::open_path_only;
use crate::errno::from_rustix;
use crate::inprocess::mount_points::shares_mounts;
use crate::process::task::acting_as;

/// `AT_RECURSIVE`
const RECURSIVE: u32 = 0x8000;

/// open_tree(2): dirfd, path, flags. Without OPEN_TREE_CLONE it opens the object with O_PATH.
pub fn open_tree(call: &mut Call<'_>) -> Result<Answer> {
    open(call, None)
}

/// open_tree_attr(2): as open_tree(2), and attributes for the copy, and their size. EOPNOTSUPP without OPEN_TREE_CLONE.
pub fn open_tree_attr(call: &mut Call<'_>) -> Result<Answer> {
    let (address, size) = (call.arg(3), call.arg(4));
    if address == 0 && size != 0 {
        return Err(Errno::EINVAL.into());
    }
    if address == 0 {
        return open_tree(call);
    }
    let attributes = Attributes::read(call, address, size)?;
    open(call, Some(&attributes))
}

/// Opens a tree; a copy of it gets `attributes`. EOPNOTSUPP for attributes and no copy.
fn open(call: &Call<'_>, attributes: Option<&Attributes>) -> Result<Answer> {
    use OpenTreeFlags as Flags;

    let known = Flags::OPEN_TREE_CLONE
        | Flags::OPEN_TREE_CLOEXEC
        | Flags::AT_EMPTY_PATH
        | Flags::AT_NO_AUTOMOUNT
        | Flags::AT_RECURSIVE
        | Flags::AT_SYMLINK_NOFOLLOW;
    let flags = Flags::from_bits_retain(call.uint(2));
    let clones = flags.contains(Flags::OPEN_TREE_CLONE);
    if flags.bits() & !known.bits() != 0 || flags.contains(Flags::AT_RECURSIVE) && !clones {
        return Err(Errno::EINVAL.into());
    }
    let (dirfd, path) = (call.int(0), call.path(1)?);
    let at = path_flags(
        !flags.contains(Flags::AT_SYMLINK_NOFOLLOW),
        flags.contains(Flags::AT_EMPTY_PATH),
    );
    if clones && !shares_mounts(call.task.tid) {
        return elsewhere::open_tree(call, at);
    }
    let Target::At(target) = call.object_at(dirfd, &path, at)? else {
        return Ok(Answer::PassOn);
    };
    let cloexec = flags.contains(Flags::OPEN_TREE_CLOEXEC);
    if !clones {
        if attributes.is_some() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        return open_path_only(call, dirfd, &path, at, cloexec);
    }
    may_mount(call)?;
    let source = target.mount.fs.host_path(&target.node);
    let Some(source) = source.filter(|_| is_in_kernel(&target)) else {
        let recursive = flags.contains(Flags::AT_RECURSIVE);
        return copy_in_run(call, &target, recursive, attributes, cloexec);
    };
    let tree = acting_as(&*call.caller()?, None, || {
        let opened = (flags - Flags::AT_EMPTY_PATH) | Flags::OPEN_TREE_CLOEXEC;
        let tree = open_tree_at(CWD, &source, opened).map_err(from_rustix)?;
        if let Some(attributes) = attributes {
            let recursive = flags.bits() & RECURSIVE;
            mount_attr::set_tree(tree.as_fd(), recursive, &attributes.in_monitor)?;
        }
        Ok(tree)
    })?;
    Ok(Answer::Receive {
        description: tree.into(),
        cloexec,
    })
}

/// Opens a copy of what is at `place`, for which the kernel has nothing.
fn copy_in_run(
    call: &Call<'_>,
    place: &Place,
    recursive: bool,
    attributes: Option<&Attributes>,
    cloexec: bool,
) -> Result<Answer> {
    let monitor = call.monitor;
    let flags = match attributes {
        Some(attributes) => attributes.flags(MountFlags::empty())?,
        None => MountFlags::empty(),
    };
    let mount = monitor.hosted.copy(call, place, flags, recursive)?;
    let node = mount.fs.root();
    let root = Place { mount, node };
    let shadows = &monitor.shadows;
    let description = match root.node.is_dir() {
        true => shadows.open_directory(&root, libc::O_PATH, false)?,
        false => shadows.reference(&root, call.mounts.any_caches_content(), false)?,
    };
    Ok(Answer::Receive {
        description: description.into(),
        cloexec,
    })
}

/// Attributes of a mount.
struct Attributes {
    /// With the descriptor of the monitor.
    in_monitor: libc::mount_attr,
    _user_namespace: Option<OwnedFd>,
}

impl Attributes {
    /// The attributes at `address`. EINVAL and E2BIG for a `size` that the kernel does not know, EFAULT, EBADF.
    fn read(call: &Call<'_>, address: u64, size: u64) -> Result<Self> {
        let attributes: [u8; mount_attr::SIZE] = call.read_structure(address, size)?;
        let [attr_set, attr_clr, propagation, userns_fd] = words(&attributes);
        let mut in_monitor = libc::mount_attr {
            attr_set,
            attr_clr,
            propagation,
            userns_fd,
        };
        let mut user_namespace = None;
        if in_monitor.attr_set & libc::MOUNT_ATTR_IDMAP != 0 {
            let number = i32::try_from(in_monitor.userns_fd).map_err(|_| Errno::EINVAL)?;
            let own = user_namespace.insert(call.task.descriptor(number)?);
            in_monitor.userns_fd = u64::from(own.as_raw_fd().cast_unsigned());
        }
        Ok(Self {
            in_monitor,
            _user_namespace: user_namespace,
        })
    }

    /// The flags of a mount of the run that has `flags`. EOPNOTSUPP for an ID mapping. Options about access times have no effect.
    fn flags(&self, flags: MountFlags) -> Result<MountFlags, Errno> {
        let of = MountFlags::of_options;
        if self.in_monitor.attr_set & libc::MOUNT_ATTR_IDMAP != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok((flags - of(self.in_monitor.attr_clr)) | of(self.in_monitor.attr_set))
    }

    fn change_nothing(&self) -> bool {
        let wanted = &self.in_monitor;
        wanted.attr_set | wanted.attr_clr | wanted.propagation == 0
    }

    /// Whether the mount becomes read-only, or writable. `None` if anything else changes.
    fn read_only_alone(&self) -> Option<bool> {
        let wanted = &self.in_monitor;
        match (wanted.attr_set, wanted.attr_clr, wanted.propagation) {
            (libc::MOUNT_ATTR_RDONLY, 0, 0) => Some(true),
            (0, libc::MOUNT_ATTR_RDONLY, 0) => Some(false),
            _ => None,
        }
    }
}

/// mount_setattr(2): dirfd, path, flags, attributes and their size. EINVAL for what is no mount point, EOPNOTSUPP for a mount that the run began with.
pub fn mount_setattr(call: &mut Call<'_>) -> Result<Answer> {
    const KNOWN: u32 = (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT)
        .cast_unsigned()
        | RECURSIVE;

    let flags = call.uint(2);
    let path = call.path(1)?;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL.into());
    }
    let attributes = Attributes::read(call, call.arg(3), call.arg(4))?;
    if attributes.change_nothing() {
        return Ok(Answer::PassOn);
    }
    if !shares_mounts(call.task.tid) {
        return elsewhere::set_attributes(call, flags.cast_signed(), attributes.read_only_alone());
    }
    let target = call.object_at(call.int(0), &path, flags.cast_signed())?;
    let Target::At(target) = target else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    if is_root(&target) && target.mount.base.is_some() {
        let flags = attributes.flags(target.mount.flags)?;
        call.monitor
            .hosted
            .set_flags(call.monitor, &target.mount, flags)?;
        return Ok(Answer::DONE);
    }
    let path = mounted_at(call, &target)?;
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let flags = flags & !libc::AT_EMPTY_PATH.cast_unsigned();
    acting_as(&*call.caller()?, None, || {
        mount_attr::set(&path, flags, &attributes.in_monitor)
    })?;
    Ok(Answer::DONE)
}
