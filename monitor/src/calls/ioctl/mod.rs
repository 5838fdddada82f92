//! Requests of ioctl(2) that could change a cache object behind the back end.
//!
//! A file system has requests that clone, punch, exchange and freeze files, and more with each release of Linux. So only
//! those requests reach the cache object of a virtual file that are listed here as harmless; the others fail as on a file
//! system without such requests. The filter lets requests pass that no file system has ([`DEVICE_TYPES`]).

mod extents;

use std::os::fd::OwnedFd;

use goanna_sys::object_handle::ObjectHandle;

use goanna_vfs::{Errno, FileKind, MountFlags, Place, Result, caps, ops};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Whence, lseek};

use super::attr::flags::{self, Attributes};
use super::map::share;
use super::read::Content;
use super::size::allocate;
use crate::Monitor;
use crate::call::{Answer, Call, Descriptor, Target};
use crate::shadow::{Shadow, names_only};
use crate::watches::report::{self, Touch};

/// The bits of a request that identify its driver (`_IOC_TYPE`).
pub const TYPE_BITS: u32 = 0xff00;

/// Types of requests that programs make often and that no file system has: they run in the kernel unseen.
pub const DEVICE_TYPES: &[u32] = &[
    0x2400, // perf events
    0x4100, // sound
    0x4500, // input devices
    0x4600, // frame buffers, and GPUs of one maker
    0x5400, // terminals; FIONREAD, FIOCLEX, FIONBIO, FIOASYNC and FIOQSIZE, which the VFS answers
    0x6400, // GPUs
    0x8900, // sockets
    0xaa00, // userfaultfd
    0xae00, // virtual machines
];

const DIRECTION_SHIFT: u32 = 30;

const fn request(direction: u32, kind: u8, number: u32, size: u32) -> u32 {
    direction << DIRECTION_SHIFT | size << 16 | (kind as u32) << 8 | number
}

const WRITES: u32 = 1;
const READS: u32 = 2;

const FIBMAP: u32 = 1;
const FIGETBSZ: u32 = 2;
const FS_IOC_FIEMAP: u32 = request(READS | WRITES, b'f', 11, 32);
const FS_IOC_GETVERSION: u32 = request(READS, b'v', 1, 8);
const FS_IOC_GETFLAGS: u32 = request(READS, b'f', 1, 8);
const FS_IOC_SETFLAGS: u32 = request(WRITES, b'f', 2, 8);
const FS_IOC_FSGETXATTR: u32 = request(READS, b'X', 31, FSXATTR as u32);
const FS_IOC_FSSETXATTR: u32 = request(WRITES, b'X', 32, FSXATTR as u32);
const FS_IOC_RESVSP: u32 = request(WRITES, b'X', 40, SPACE_RESV as u32);
const FS_IOC_UNRESVSP: u32 = request(WRITES, b'X', 41, SPACE_RESV as u32);
const FS_IOC_RESVSP64: u32 = request(WRITES, b'X', 42, SPACE_RESV as u32);
const FS_IOC_UNRESVSP64: u32 = request(WRITES, b'X', 43, SPACE_RESV as u32);
const FS_IOC_ZERO_RANGE: u32 = request(WRITES, b'X', 57, SPACE_RESV as u32);
const FIFREEZE: u32 = request(READS | WRITES, b'X', 119, 4);
const FITHAW: u32 = request(READS | WRITES, b'X', 120, 4);
const FICLONE: u32 = request(WRITES, 0x94, 9, 4);
const FICLONERANGE: u32 = request(WRITES, 0x94, 13, 32);
const FIDEDUPERANGE: u32 = request(READS | WRITES, 0x94, 54, 24);

// Without the size of the argument's structure, which differs between releases.
const SIZE_BITS: u32 = 0x3fff << 16;
const LOOP_SET_FD: u32 = 0x4c00;
const LOOP_CHANGE_FD: u32 = 0x4c06;
const LOOP_CONFIGURE: u32 = 0x4c0a;
const EXT4_IOC_MOVE_EXT: u32 = request(READS | WRITES, b'f', 15, 0);
const XFS_IOC_SWAPEXT: u32 = request(READS | WRITES, b'X', 109, 0);
const XFS_IOC_EXCHANGE_RANGE: u32 = request(WRITES, b'X', 129, 0);
const XFS_IOC_COMMIT_RANGE: u32 = request(WRITES, b'X', 131, 0);
const BTRFS_IOC_SEND: u32 = request(WRITES, 0x94, 38, 0);
const FUSE_DEV_IOC_BACKING_OPEN: u32 = request(WRITES, 229, 1, 0);
const F2FS_IOC_MOVE_RANGE: u32 = request(READS | WRITES, 0xf5, 9, 0);

/// `sizeof(struct fsxattr)`
const FSXATTR: usize = 28;
/// `sizeof(struct space_resv)`
const SPACE_RESV: usize = 48;

/// ioctl(2): fd, request, argument.
pub fn ioctl(call: &mut Call<'_>) -> Result<Answer> {
    match call.descriptor(call.int(0))? {
        Descriptor::Native => of_host(call),
        Descriptor::Shadow(shadow, ofd) => match &*shadow {
            Shadow::File { place, handle, .. } => of_file(call, place, handle, &ofd),
            Shadow::Dir { .. } if names_only(&ofd)? => Err(Errno::EBADF.into()),
            Shadow::Dir { place, .. } => of_directory(call, place, &ofd),
            // The device answers, but Linux looks at the mount first.
            Shadow::Special { place, .. }
                if sets_flags(call.uint(1))
                    && place.mount.flags.contains(MountFlags::READ_ONLY) =>
            {
                Err(Errno::EROFS.into())
            }
            Shadow::Special { .. } | Shadow::Snapshot { .. } => Ok(Answer::PassOn),
            Shadow::Reference { .. } => Err(Errno::EBADF.into()),
        },
    }
}

fn of_file(call: &Call<'_>, place: &Place, handle: &ObjectHandle, ofd: &OwnedFd) -> Result<Answer> {
    match call.uint(1) {
        FICLONE => clone(call, place, ofd, call.int(2)),
        FICLONERANGE => {
            let from = call.read_u64(call.arg(2))? as i32;
            clone(call, place, ofd, from)
        }
        FIDEDUPERANGE if Monitor::access_mode(ofd)? == libc::O_WRONLY => Err(Errno::EINVAL.into()),
        FIDEDUPERANGE => Err(Errno::EOPNOTSUPP.into()),
        FS_IOC_RESVSP | FS_IOC_RESVSP64 => reserve(call, ofd, 0),
        FS_IOC_UNRESVSP | FS_IOC_UNRESVSP64 => reserve(call, ofd, libc::FALLOC_FL_PUNCH_HOLE),
        FS_IOC_ZERO_RANGE => reserve(call, ofd, libc::FALLOC_FL_ZERO_RANGE),
        // In a transaction the file may have another content than its cache object.
        FS_IOC_FIEMAP if Content::of(call, call.int(0))?.is_some() => Err(Errno::EOPNOTSUPP.into()),
        FS_IOC_FIEMAP => extents::list(call, Some(handle), place.mount.fs.largest_file()),
        // The request reports properties of the cache object, and changes nothing.
        FIBMAP => Ok(Answer::PassOn),
        _ => of_inode(call, place),
    }
}

fn of_directory(call: &Call<'_>, place: &Place, ofd: &OwnedFd) -> Result<Answer> {
    match call.uint(1) {
        FICLONE => clone(call, place, ofd, call.int(2)),
        FICLONERANGE => {
            let from = call.read_u64(call.arg(2))? as i32;
            clone(call, place, ofd, from)
        }
        FS_IOC_FIEMAP => extents::list(call, None, place.mount.fs.largest_file()),
        _ => of_inode(call, place),
    }
}

/// Requests that files and directories have.
fn of_inode(call: &Call<'_>, place: &Place) -> Result<Answer> {
    match call.uint(1) {
        FS_IOC_GETFLAGS => {
            let flags = place.mount.fs.flags(&*call.caller()?, &place.node)?;
            call.put(call.arg(2), &flags.to_ne_bytes())?;
            Ok(Answer::DONE)
        }
        FS_IOC_SETFLAGS => set_flags(call, place),
        FS_IOC_FSGETXATTR => {
            let mut attributes = [0; FSXATTR];
            if let Some(field) = attributes.first_chunk_mut() {
                *field = flags::get(call, place)?.to_ne_bytes();
            }
            call.put(call.arg(2), &attributes)?;
            Ok(Answer::DONE)
        }
        FS_IOC_FSSETXATTR => set_attributes(call, place),
        FIFREEZE | FITHAW if !call.caller()?.capable(caps::SYS_ADMIN) => Err(Errno::EPERM.into()),
        FIFREEZE | FITHAW => Err(Errno::EOPNOTSUPP.into()),
        // These requests report properties of the cache object or the backing directory, and change nothing.
        FIGETBSZ | FS_IOC_GETVERSION => Ok(Answer::PassOn),
        _ => Err(Errno::ENOTTY.into()),
    }
}

fn set_flags(call: &Call<'_>, place: &Place) -> Result<Answer> {
    let flags = call.read_u32(call.arg(2))?;
    ops::set_flags(&*call.caller()?, place, flags)?;
    report::touched(call, place, Touch::Attrib);
    Ok(Answer::DONE)
}

/// The flags of chattr(1) in their other form (ioctl_xfs_fssetxattr(2)).
fn set_attributes(call: &Call<'_>, place: &Place) -> Result<Answer> {
    let given = call.read(call.arg(2), FSXATTR)?;
    let word = |index: usize| {
        let bytes = given.chunks_exact(4).nth(index);
        bytes.map_or(0, |word| word.try_into().map_or(0, u32::from_ne_bytes))
    };
    // The flags, hints about the sizes of extents, and the project; the number of extents, in the third word, is only read.
    let attributes = Attributes {
        flags: word(0),
        others: word(1) | word(3) | word(4),
    };
    flags::set(call, place, attributes)
}

/// FICLONE to a virtual file or directory: refused as on ext4; programs then copy.
fn clone(call: &Call<'_>, place: &Place, ofd: &OwnedFd, from: i32) -> Result<Answer> {
    let Descriptor::Shadow(shadow, source) = call.descriptor(from)? else {
        return Err(error_with_host(call, place, from)?.into());
    };
    if shadow.place().key().0 != place.key().0 {
        return Err(Errno::EXDEV.into());
    }
    match SFlag::from_bits_truncate(fstat(&source)?.st_mode) & SFlag::S_IFMT {
        _ if place.node.is_dir() => return Err(Errno::EISDIR.into()),
        SFlag::S_IFREG => {}
        SFlag::S_IFDIR => return Err(Errno::EISDIR.into()),
        _ => return Err(Errno::EINVAL.into()),
    }
    let (writable, flags) = Monitor::writable(ofd)?;
    let readable = Monitor::access_mode(&source)? != libc::O_WRONLY;
    if !readable || !writable || flags & libc::O_APPEND != 0 {
        return Err(Errno::EBADF.into());
    }
    Err(Errno::EOPNOTSUPP.into())
}

/// The error of a clone between `place` and the host's file `other`, neither of which can be cloned to the other: EISDIR for a directory of the same file system, else EXDEV.
fn error_with_host(call: &Call<'_>, place: &Place, other: i32) -> Result<Errno> {
    if !place.node.is_dir() {
        return Ok(Errno::EXDEV);
    }
    let (dev, _) = call.task.identity(other)?;
    let attr = place.mount.fs.getattr(&*call.caller()?, &place.node)?;
    Ok(if attr.dev == dev {
        Errno::EISDIR
    } else {
        Errno::EXDEV
    })
}

/// The requests of XFS that Linux performs as fallocate(2) on every file system.
fn reserve(call: &Call<'_>, ofd: &OwnedFd, mode: i32) -> Result<Answer> {
    let given = call.read(call.arg(2), SPACE_RESV)?;
    let whence = given.get(2..4).and_then(|bytes| bytes.try_into().ok());
    let number = |at: usize| {
        let bytes = given
            .get(at..at + 8)
            .and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, i64::from_ne_bytes)
    };
    let base = match whence.map_or(0, i16::from_ne_bytes).into() {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => lseek(ofd, 0, Whence::SeekCur)?,
        libc::SEEK_END => fstat(ofd)?.st_size,
        _ => return Err(Errno::EINVAL.into()),
    };
    let (start, len) = (number(8).wrapping_add(base), number(16));
    allocate(call, mode | libc::FALLOC_FL_KEEP_SIZE, start, len)
}

/// Whether Linux itself refuses a request in a read-only mount, for files of every kind.
fn sets_flags(request: u32) -> bool {
    matches!(request, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR)
}

/// Whether file systems refuse a request in a read-only mount. Those that give the kernel something, and get nothing from it, are changes.
fn is_change(request: u32) -> bool {
    let kind = (request & TYPE_BITS) >> 8;
    let is_of_files = [b'f', b'v', b'X', 0x94].map(u32::from).contains(&kind);
    is_of_files
        && request >> DIRECTION_SHIFT == WRITES
        && !matches!(request, FICLONE | FICLONERANGE)
}

/// Requests on the host's descriptors that change a file or name a further descriptor.
fn of_host(call: &Call<'_>) -> Result<Answer> {
    let argument = call.arg(2);
    let request = call.uint(1);
    if is_change(request)
        && let Target::At(place) = call.host_file(call.int(0))
        && (sets_flags(request) || place.node.kind() == FileKind::Regular)
    {
        return Err(Errno::EROFS.into());
    }
    // The kernel reports a bad pointer, in the order of its errors.
    let descriptor_at = |offset: u64| {
        let read = call.read_u32(argument.wrapping_add(offset));
        read.map_or(-1, u32::cast_signed)
    };
    match call.uint(1) {
        FICLONE => return clone_out(call, argument as i32),
        FICLONERANGE => return clone_out(call, descriptor_at(0)),
        _ => {}
    }
    match call.uint(1) & !SIZE_BITS {
        LOOP_SET_FD | LOOP_CHANGE_FD => give_to_device(call, argument as i32),
        LOOP_CONFIGURE | FUSE_DEV_IOC_BACKING_OPEN => give_to_device(call, descriptor_at(0)),
        EXT4_IOC_MOVE_EXT => refuse_shadows(call, &[descriptor_at(4)]),
        XFS_IOC_SWAPEXT => refuse_shadows(call, &[descriptor_at(8), descriptor_at(16)]),
        XFS_IOC_EXCHANGE_RANGE | XFS_IOC_COMMIT_RANGE | F2FS_IOC_MOVE_RANGE | BTRFS_IOC_SEND => {
            refuse_shadows(call, &[descriptor_at(0)])
        }
        _ => Ok(Answer::PassOn),
    }
}

/// FICLONE from a virtual file to a host file: refused if the caller's transaction has another content than the cache
/// object. From a directory: refused with the error that the kernel has for the host's.
fn clone_out(call: &Call<'_>, from: i32) -> Result<Answer> {
    if let Ok(Descriptor::Shadow(shadow, _)) = call.descriptor(from)
        && let Shadow::Dir { place, .. } = &*shadow
    {
        return Err(error_with_host(call, place, call.int(0))?.into());
    }
    if call.descriptor(from).is_ok() && Content::of(call, from)?.is_some() {
        return Err(Errno::EXDEV.into());
    }
    Ok(Answer::PassOn)
}

/// A device that keeps the file, and may write to it at any time, as a mapping does.
fn give_to_device(call: &Call<'_>, fd: i32) -> Result<Answer> {
    if let Ok(Descriptor::Shadow(shadow, ofd)) = call.descriptor(fd)
        && let Shadow::File { place, .. } = &*shadow
        && Monitor::writable(&ofd)?.0
    {
        share(call, place)?;
    }
    Ok(Answer::PassOn)
}

/// Requests that exchange content with the files `fds`, or write to them. Programs have alternatives to them.
fn refuse_shadows(call: &Call<'_>, fds: &[i32]) -> Result<Answer> {
    let is_shadow = |fd: &i32| matches!(call.descriptor(*fd), Ok(Descriptor::Shadow(..)));
    if fds.iter().any(is_shadow) {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(Answer::PassOn)
}
