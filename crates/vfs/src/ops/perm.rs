//! Permission: mode bits, access control lists, capabilities, and the protections of `/proc/sys/fs`.

use std::sync::LazyLock;

use super::{checks_permissions, fs};
use crate::{
    Acl, Attr, Caller, Errno, FileKind, FileSystem, FsError, MountFlags, Node, Place, Result, caps,
    file_flags,
};

/// The hardening switches of the running kernel, read once: files in mounts get the same protection as those of the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Protections {
    pub hardlinks: u8,
    pub symlinks: u8,
    pub fifos: u8,
    pub regular: u8,
}

impl Protections {
    pub fn of_kernel() -> Self {
        static READ: LazyLock<Protections> = LazyLock::new(|| {
            // An unreadable switch counts as off, the default of the kernel itself.
            let read = |name: &str| {
                std::fs::read_to_string(format!("/proc/sys/fs/protected_{name}"))
                    .ok()
                    .and_then(|text| text.trim().parse().ok())
                    .unwrap_or(0)
            };
            Protections {
                hardlinks: read("hardlinks"),
                symlinks: read("symlinks"),
                fifos: read("fifos"),
                regular: read("regular"),
            }
        });
        *READ
    }
}

/// The data that decide whether a caller may access an inode.
pub(super) struct Rights {
    /// The inode's attributes.
    pub attr: Attr,
    /// Its access control list, where the caller is not the owner.
    acl: Option<Acl>,
}

impl Rights {
    /// Reads the data that decide about `caller`'s access to an inode of `fs`.
    pub fn of(caller: &Caller, fs: &dyn FileSystem, node: &Node) -> Result<Self> {
        let attr = fs.getattr(caller, node)?;
        // The kernel does not look at a list that grants the group class nothing, either.
        let acl = if attr.uid == caller.uid || attr.mode & libc::S_IRWXG == 0 {
            None
        } else {
            acl(caller, fs, node, &attr)?
        };
        Ok(Self { attr, acl })
    }

    /// Whether `caller` may access the inode in all the ways of `mask` (`R_OK`, `W_OK`, `X_OK`; the kernel's
    /// `inode_permission`). EACCES if not, EPERM for writing an immutable one.
    pub fn permit(&self, caller: &Caller, mask: i32) -> Result<(), Errno> {
        let attr = &self.attr;
        let mask = (mask & 7) as u32;
        if mask & libc::W_OK as u32 != 0 && attr.flags & file_flags::IMMUTABLE != 0 {
            return Err(Errno::EPERM);
        }
        let class = if attr.uid == caller.uid {
            attr.mode >> 6
        } else if caller.in_group(attr.gid) {
            attr.mode >> 3
        } else {
            attr.mode
        };
        let granted = match &self.acl {
            Some(acl) => acl.grants(caller, attr, mask),
            None => mask & !class & 7 == 0,
        };
        if granted || is_overridden(caller, attr, mask) {
            return Ok(());
        }
        Err(Errno::EACCES)
    }
}

/// Whether the capabilities of `caller` give it access to an inode in all the ways of `mask`, whatever the inode's permissions are.
fn is_overridden(caller: &Caller, attr: &Attr, mask: u32) -> bool {
    let (write, exec) = (libc::W_OK as u32, libc::X_OK as u32);
    let is_dir = attr.mode & libc::S_IFMT == libc::S_IFDIR;
    // Reading a file, reading and searching a directory.
    let read_search = if is_dir {
        mask & write == 0
    } else {
        mask == libc::R_OK as u32
    };
    if read_search && caller.capable_over(caps::DAC_READ_SEARCH, attr) {
        return true;
    }
    let overridable = is_dir || mask & exec == 0 || attr.mode & 0o111 != 0;
    overridable && caller.capable_over(caps::DAC_OVERRIDE, attr)
}

/// The access control list of an inode with attributes `attr`; `None` where its mode says all.
pub fn acl(caller: &Caller, fs: &dyn FileSystem, node: &Node, attr: &Attr) -> Result<Option<Acl>> {
    if !attr.may_have_acl {
        return Ok(None);
    }
    match fs.getxattr(caller, node, Acl::ACCESS) {
        Ok(value) => Ok(Acl::parse(&value)?),
        Err(FsError::Errno(Errno::ENODATA | Errno::EOPNOTSUPP)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The part of [`access`] that does not depend on the mount, as `inode_permission` of the kernel: for connect(2).
pub fn permission(caller: &Caller, place: &Place, mask: i32) -> Result<()> {
    file_system_permits(place, mask)?;
    Ok(rights(caller, place)?.permit(caller, mask)?)
}

/// access(2): `mask` of `R_OK`, `W_OK`, `X_OK`, or 0. For access(2) and faccessat(2) without `AT_EACCESS`,
/// `caller` is [`Caller::real`].
///
/// EROFS for `W_OK` on a read-only file system, EACCES by permissions and capabilities, or `X_OK` of a regular file on a `NO_EXEC` mount; then EROFS for
/// `W_OK` on a read-only mount, fifos, sockets and devices excepted. Mode bits and access control lists decide for every back end,
/// also for one that checks access itself: the switch has no method to ask. Of a file of the host, the flags of the host's mount count, too.
pub fn access(caller: &Caller, place: &Place, mask: i32) -> Result<()> {
    let kind = place.node.kind();
    let executes = mask & libc::X_OK != 0 && kind == FileKind::Regular;
    let changes = mask & libc::W_OK != 0 && is_stored(kind);
    let mut flags = place.mount.flags;
    if executes || changes {
        flags |= flags_of_host(caller, place)?;
    }
    if executes && flags.contains(MountFlags::NO_EXEC) {
        return Err(Errno::EACCES.into());
    }
    if mask != 0 {
        permission(caller, place, mask)?;
    }
    if changes && flags.contains(MountFlags::READ_ONLY) {
        return Err(Errno::EROFS.into());
    }
    Ok(())
}

/// The flags of the host's mount in which a file of the host is.
fn flags_of_host(caller: &Caller, place: &Place) -> Result<MountFlags> {
    if !fs(place).opens_host_files() {
        return Ok(MountFlags::empty());
    }
    let figures = fs(place).statfs(caller, &place.node)?;
    Ok(MountFlags::of_options(figures.flags))
}

/// Whether data written to a file of this kind are stored in its file system.
fn is_stored(kind: FileKind) -> bool {
    matches!(
        kind,
        FileKind::Regular | FileKind::Directory | FileKind::Symlink
    )
}

/// EROFS for writing to a file system that cannot be written, whatever its mode bits say.
pub(super) fn file_system_permits(place: &Place, mask: i32) -> Result<(), Errno> {
    let writes = mask & libc::W_OK != 0 && is_stored(place.node.kind());
    if writes && fs(place).is_read_only() {
        return Err(Errno::EROFS);
    }
    Ok(())
}

/// [`Rights::of`] the inode at a place.
pub(super) fn rights(caller: &Caller, place: &Place) -> Result<Rights> {
    Rights::of(caller, fs(place), &place.node)
}

/// Permission by mode bits and access control lists, where this module checks it.
pub(super) fn check(caller: &Caller, place: &Place, mask: i32) -> Result<()> {
    if !checks_permissions(place) {
        return Ok(());
    }
    file_system_permits(place, mask)?;
    Ok(rights(caller, place)?.permit(caller, mask)?)
}

/// Whether `caller` may look names up in directory `dir`: ENOTDIR, EACCES. A back end that checks access
/// itself answers at the look-up.
pub fn may_search(caller: &Caller, dir: &Place) -> Result<()> {
    if !dir.node.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    // This runs for every component of every path, so it reads the inode's attributes only where they can matter.
    if !checks_permissions(dir)
        || caller.capable(caps::DAC_OVERRIDE)
        || caller.capable(caps::DAC_READ_SEARCH)
    {
        return Ok(());
    }
    check(caller, dir, libc::X_OK)
}

/// As [`may_search`], for a step through `dir` without a look-up (`.`, `..`, a mount point): a back end that checks access itself is not asked then.
pub fn may_pass(caller: &Caller, dir: &Place) -> Result<()> {
    may_search(caller, dir)?;
    if checks_permissions(dir) {
        return Ok(());
    }
    Ok(rights(caller, dir)?.permit(caller, libc::X_OK)?)
}

/// Whether `caller` may follow a symbolic link with attributes `link` found in a directory with attributes
/// `dir` as the last component of a path (`fs.protected_symlinks` of the running kernel). EACCES if not.
pub fn may_follow(caller: &Caller, dir: &Attr, link: &Attr) -> Result<(), Errno> {
    may_follow_by(Protections::of_kernel(), caller, dir, link)
}

fn may_follow_by(
    rules: Protections,
    caller: &Caller,
    dir: &Attr,
    link: &Attr,
) -> Result<(), Errno> {
    let sticky_world = libc::S_ISVTX | libc::S_IWOTH;
    if rules.symlinks == 0
        || link.uid == caller.uid
        || dir.mode & sticky_world != sticky_world
        || dir.uid == link.uid
    {
        return Ok(());
    }
    Err(Errno::EACCES)
}

/// `may_create_in_sticky`: opening an existing fifo or file of another user with `O_CREAT` in a sticky
/// directory that others can write to.
pub(super) fn may_create_in_sticky(
    rules: Protections,
    caller: &Caller,
    dir: &Attr,
    file: &Attr,
) -> Result<(), Errno> {
    let level = match file.kind() {
        FileKind::Regular => rules.regular,
        FileKind::Fifo => rules.fifos,
        // The kernel has no switch for sockets and devices: always in world-writable directories.
        _ => 1,
    };
    if level == 0
        || dir.mode & libc::S_ISVTX == 0
        || file.uid == dir.uid
        || file.uid == caller.uid
        || dir.mode & (libc::S_IWOTH | libc::S_IWGRP) == 0
    {
        return Ok(());
    }
    if dir.mode & libc::S_IWOTH != 0 || level >= 2 {
        return Err(Errno::EACCES);
    }
    Ok(())
}

/// `may_linkat`: whether `caller` may make a further name for a file it does not own
/// (`fs.protected_hardlinks`). EPERM if not.
pub(super) fn may_link(rules: Protections, caller: &Caller, rights: &Rights) -> Result<(), Errno> {
    let file = &rights.attr;
    if rules.hardlinks == 0 || caller.owns(file) {
        return Ok(());
    }
    let group_exec = libc::S_ISGID | libc::S_IXGRP;
    let safe = file.kind() == FileKind::Regular
        && file.mode & libc::S_ISUID == 0
        && file.mode & group_exec != group_exec
        && rights.permit(caller, libc::R_OK | libc::W_OK).is_ok();
    if safe { Ok(()) } else { Err(Errno::EPERM) }
}

/// Whether the sticky bit of `dir` keeps `caller` from removing files unless it can act as their owner.
pub(super) fn sticky_for(caller: &Caller, dir: &Attr) -> bool {
    dir.mode & libc::S_ISVTX != 0 && dir.uid != caller.uid && !caller.capable(caps::FOWNER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stamp;
    use std::sync::Arc;

    fn attr(mode: u32, uid: u32, gid: u32) -> Attr {
        Attr {
            dev: 1,
            ino: 1,
            mode,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            size: 0,
            blksize: 4096,
            blocks: 0,
            atime: Stamp::default(),
            mtime: Stamp::default(),
            ctime: Stamp::default(),
            btime: None,
            flags: 0,
            of_statx: None,
            may_have_acl: false,
            version: 0,
        }
    }

    fn by_mode(attr: Attr) -> Rights {
        Rights { attr, acl: None }
    }

    fn caller(uid: u32, caps: u64) -> Caller {
        Caller {
            groups: Arc::from([50, 60]),
            caps,
            real_caps: caps,
            umask: 0,
            ..Caller::with_ids(uid, uid)
        }
    }

    #[test]
    fn mode_bits_decide_by_the_first_matching_class() {
        let (reg, dir) = (libc::S_IFREG, libc::S_IFDIR);
        let over = 1u64 << caps::DAC_OVERRIDE;
        let search = 1u64 << caps::DAC_READ_SEARCH;
        // mode, owner, group, capabilities, mask, granted; the caller is 1000:1000 with groups 50 and 60.
        let table: &[(u32, u32, u32, u64, i32, bool)] = &[
            (reg | 0o077, 1000, 1000, 0, 4, false),
            (reg | 0o700, 1000, 1000, 0, 7, true),
            (reg | 0o707, 0, 60, 0, 4, false),
            (reg | 0o070, 0, 50, 0, 7, true),
            (reg | 0o004, 0, 0, 0, 4, true),
            (reg | 0o004, 0, 0, 0, 6, false),
            (reg, 0, 0, over, 6, true),
            (reg, 0, 0, over, 1, false),
            (reg | 0o010, 0, 0, over, 1, true),
            (reg, 0, 0, search, 4, true),
            (reg, 0, 0, search, 6, false),
            (dir, 0, 0, search, 5, true),
            (dir, 0, 0, search, 2, false),
            (dir, 0, 0, over, 7, true),
        ];
        for &(mode, uid, gid, caps, mask, granted) in table {
            let result = by_mode(attr(mode, uid, gid)).permit(&caller(1000, caps), mask);
            assert_eq!(
                result.is_ok(),
                granted,
                "{mode:o} {uid}:{gid} {caps:#x} {mask}"
            );
        }
    }

    #[test]
    fn protections_follow_their_switches() {
        let on = Protections {
            hardlinks: 1,
            symlinks: 1,
            fifos: 1,
            regular: 2,
        };
        let off = Protections {
            hardlinks: 0,
            symlinks: 0,
            fifos: 0,
            regular: 0,
        };
        let me = caller(1000, 0);
        let tmp = attr(libc::S_IFDIR | 0o1777, 0, 0);
        let theirs = attr(libc::S_IFLNK | 0o777, 7, 7);
        assert_eq!(may_follow_by(on, &me, &tmp, &theirs), Err(Errno::EACCES));
        assert_eq!(may_follow_by(off, &me, &tmp, &theirs), Ok(()));
        let of_root = attr(libc::S_IFLNK | 0o777, 0, 0);
        assert_eq!(may_follow_by(on, &me, &tmp, &of_root), Ok(()));

        let file = attr(libc::S_IFREG | 0o666, 7, 7);
        let fifo = attr(libc::S_IFIFO | 0o666, 7, 7);
        let group_tmp = attr(libc::S_IFDIR | 0o1770, 0, 0);
        let create = |rules, dir, file| may_create_in_sticky(rules, &me, dir, file);
        assert_eq!(create(on, &tmp, &file), Err(Errno::EACCES));
        assert_eq!(create(off, &tmp, &file), Ok(()));
        assert_eq!(create(on, &group_tmp, &file), Err(Errno::EACCES));
        assert_eq!(create(on, &group_tmp, &fifo), Ok(()));

        assert_eq!(may_link(on, &me, &by_mode(file)), Ok(()));
        let set_id = by_mode(attr(libc::S_IFREG | 0o4666, 7, 7));
        assert_eq!(may_link(on, &me, &set_id), Err(Errno::EPERM));
        assert_eq!(may_link(off, &me, &set_id), Ok(()));
        assert_eq!(
            may_link(on, &caller(1000, 1 << caps::FOWNER), &set_id),
            Ok(())
        );
    }
}
