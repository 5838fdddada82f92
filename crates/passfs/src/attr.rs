//! Metadata: stat, setattr, statfs, extended attributes.

use std::os::fd::{AsFd, OwnedFd};

use goanna_vfs::{
    Attr, Caller, Node, SetAttr, Stamp, StatFs, StatxAttributes, TimeSet, file_flags,
};
use rustix::fs::{
    Access, AtFlags, CWD, Gid, IFlags, Mode, OFlags, Statx, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags,
};

use crate::PassFs;
use crate::Result;
use crate::credentials::{CONTENT, ENTRIES, METADATA};
use crate::node::{Pin, device, os, stat};

fn stamp(time: StatxTimestamp) -> Stamp {
    Stamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

/// Nanoseconds since 1970.
pub(crate) fn nanoseconds(time: StatxTimestamp) -> u64 {
    let seconds = time.tv_sec.cast_unsigned();
    seconds
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec.into())
}

/// What [`attr_of`] needs.
const ATTRIBUTES: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID);

/// The attributes of an inode. The root directory of its file system is in the mount with the ID `mount_id`.
fn attr_of(stat: &Statx, mount_id: u64) -> Attr {
    let has_mount_id = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let is_inside = has_mount_id && stat.stx_mnt_id != mount_id;
    let has_btime = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Attr {
        dev: device(stat.stx_dev_major, stat.stx_dev_minor),
        ino: stat.stx_ino,
        mode: u32::from(stat.stx_mode),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: device(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blksize: stat.stx_blksize,
        blocks: stat.stx_blocks,
        atime: stamp(stat.stx_atime),
        mtime: stamp(stat.stx_mtime),
        ctime: stamp(stat.stx_ctime),
        btime: has_btime.then(|| stamp(stat.stx_btime)),
        // The attributes of statx(2) have the values of the flags.
        flags: stat.stx_attributes.bits() as u32 & (file_flags::PROTECTED | file_flags::NO_DUMP),
        of_statx: Some(StatxAttributes {
            set: stat.stx_attributes.bits(),
            known: stat.stx_attributes_mask.bits(),
            mount_inside: is_inside.then_some(stat.stx_mnt_id),
        }),
        may_have_acl: true,
        version: nanoseconds(stat.stx_ctime),
    }
}

fn timespec(time: Option<TimeSet>) -> Timespec {
    let (tv_sec, tv_nsec) = match time {
        None => (0, libc::UTIME_OMIT),
        Some(TimeSet::Now) => (0, libc::UTIME_NOW),
        Some(TimeSet::At(stamp)) => (stamp.sec, i64::from(stamp.nsec)),
    };
    Timespec { tv_sec, tv_nsec }
}

impl PassFs {
    pub(crate) fn attributes(&self, node: &Node) -> Result<Attr> {
        let stat = stat(Pin::of(node)?.fd.as_fd(), ATTRIBUTES)?;
        Ok(attr_of(&stat, self.mount_id))
    }

    pub(crate) fn attributes_at(&self, caller: &Caller, dir: &Node, name: &[u8]) -> Result<Attr> {
        let pin = Pin::of(dir)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat = self.as_caller(caller, &[(dir, ENTRIES)], || {
            rustix::fs::statx(&pin.fd, name, flags, ATTRIBUTES).map_err(os)
        })?;
        Ok(attr_of(&stat, self.mount_id))
    }

    /// The flags of chattr(1) as the host shows them.
    pub(crate) fn host_flags(&self, caller: &Caller, node: &Node) -> Result<u32> {
        let pin = Pin::of(node)?;
        self.as_caller(caller, &[(node, CONTENT)], || {
            let file = open_for_requests(pin)?;
            Ok(rustix::fs::ioctl_getflags(file).map_err(os)?.bits())
        })
    }

    /// faccessat2(2) with `AT_EACCESS` as `caller`: the host's own answer, ACLs included. `mask` is of
    /// `R_OK`, `W_OK`, `X_OK`.
    pub fn access(&self, caller: &Caller, node: &Node, mask: i32) -> Result<()> {
        let pin = Pin::of(node)?;
        let mask = Access::from_bits_retain(mask as u32);
        self.as_caller(caller, &[(node, CONTENT)], || {
            let path = pin.proc();
            rustix::fs::accessat(CWD, path.as_c_str(), mask, AtFlags::EACCESS).map_err(os)
        })
    }

    /// Owner, then mode (a change of owner clears set-id bits), then times. A change of nothing is
    /// `chown(-1, -1)`, which clears those bits too.
    pub(crate) fn change(&self, caller: &Caller, node: &Node, set: &SetAttr) -> Result<()> {
        let pin = Pin::of(node)?;
        self.as_caller(caller, &[(node, METADATA)], || {
            if set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default() {
                let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
                rustix::fs::chownat(&pin.fd, c"", uid, gid, AtFlags::EMPTY_PATH).map_err(os)?;
            }
            if let Some(flags) = set.flags {
                let flags = IFlags::from_bits_retain(flags);
                rustix::fs::ioctl_setflags(open_for_requests(pin)?, flags).map_err(os)?;
            }
            if let Some(mode) = set.mode {
                let mode = Mode::from_bits_retain(mode);
                let path = pin.proc();
                rustix::fs::chmodat(CWD, path.as_c_str(), mode, AtFlags::empty()).map_err(os)?;
            }
            if set.atime.is_some() || set.mtime.is_some() {
                let times = Timestamps {
                    last_access: timespec(set.atime),
                    last_modification: timespec(set.mtime),
                };
                let path = pin.proc();
                rustix::fs::utimensat(CWD, path.as_c_str(), &times, AtFlags::empty())
                    .map_err(os)?;
            }
            Ok(())
        })
    }

    pub(crate) fn figures(&self, node: &Node) -> Result<StatFs> {
        let pin = Pin::of(node)?;
        let fs = rustix::fs::fstatfs(&pin.fd).map_err(os)?;
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        Ok(StatFs {
            // Magic numbers have 32 bits; some have the highest bit set.
            magic: fs.f_type as u64 & 0xffff_ffff,
            block_size: unsigned(fs.f_bsize),
            blocks: fs.f_blocks,
            blocks_free: fs.f_bfree,
            blocks_available: fs.f_bavail,
            files: fs.f_files,
            files_free: fs.f_ffree,
            name_max: unsigned(fs.f_namelen),
            flags: unsigned(fs.f_flags),
            fsid: rustix::fs::fstatvfs(&pin.fd).map_err(os)?.f_fsid,
        })
    }

    pub(crate) fn xattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let path = Pin::of(node)?.proc();
        self.as_caller(caller, &[(node, CONTENT)], || {
            sized(|buf| rustix::fs::getxattr(path.as_c_str(), name, buf))
        })
    }

    pub(crate) fn set_xattr(
        &self,
        caller: &Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: i32,
    ) -> Result<()> {
        let path = Pin::of(node)?.proc();
        let flags = XattrFlags::from_bits_retain(flags as u32);
        self.as_caller(caller, &[(node, CONTENT)], || {
            rustix::fs::setxattr(path.as_c_str(), name, value, flags).map_err(os)
        })
    }

    pub(crate) fn xattr_names(&self, caller: &Caller, node: &Node) -> Result<Vec<Vec<u8>>> {
        let path = Pin::of(node)?.proc();
        let list = self.as_caller(caller, &[(node, CONTENT)], || {
            sized(|buf| rustix::fs::listxattr(path.as_c_str(), buf))
        })?;
        Ok(list
            .split(|&b| b == 0)
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec)
            .collect())
    }

    pub(crate) fn remove_xattr(&self, caller: &Caller, node: &Node, name: &[u8]) -> Result<()> {
        let path = Pin::of(node)?.proc();
        self.as_caller(caller, &[(node, CONTENT)], || {
            rustix::fs::removexattr(path.as_c_str(), name).map_err(os)
        })
    }
}

/// A descriptor of an inode for ioctl(2).
fn open_for_requests(pin: &Pin) -> Result<OwnedFd> {
    let path = pin.proc();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path.as_c_str(), flags, Mode::empty()).map_err(os)
}

/// A value of unknown size: nearly all fit the first buffer, and the kernel's limit fits the second.
fn sized(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Vec<u8>> {
    let mut value = vec![0; 1024];
    let len = match call(&mut value) {
        Err(rustix::io::Errno::RANGE) => {
            value.resize(65536, 0);
            call(&mut value)
        }
        other => other,
    };
    value.truncate(len.map_err(os)?);
    Ok(value)
}
