//! mount(2), umount2(2), move_mount(2) and fspick(2), where they concern a mount of the run.
//!
//! The kernel does not see the mounts of a run. It would mount on the host's directory of the same name, which the program does not
//! see, or on the backing object of its working directory, which other programs use. So the monitor makes these calls, with the caller's
//! credentials: in a mount that shows a directory of the host they are about the host's directory, and elsewhere about one that [`hosted`] makes.
//!
//! A program in another mount namespace than the monitor's would mount for itself alone, which the table of mounts cannot show: EOPNOTSUPP.

pub mod hosted;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FileKind, PATH_MAX, Place, Result, caps};
use nix::mount::{MntFlags, MsFlags};
use rustix::fs::CWD;

use crate::call::{Answer, Call, Target};
use crate::process::task::acting_as;
use hosted::host_path;

/// The most that the kernel reads of mount options: a page.
const DATA_MAX: usize = 4096;
/// Flags by which mount(2) changes what is mounted, and mounts nothing.
const CHANGES: MsFlags = MsFlags::MS_REMOUNT
    .union(MsFlags::MS_SHARED)
    .union(MsFlags::MS_PRIVATE)
    .union(MsFlags::MS_SLAVE)
    .union(MsFlags::MS_UNBINDABLE);

/// EPERM without `CAP_SYS_ADMIN`; EOPNOTSUPP in another mount namespace.
fn may_mount(call: &Call<'_>) -> Result<()> {
    if !call.caller()?.capable(caps::SYS_ADMIN) {
        return Err(Errno::EPERM.into());
    }
    let namespace =
        |process: &str| nix::fcntl::readlink(Path::new(&format!("/proc/{process}/ns/mnt")));
    if namespace("self")? != namespace(&call.task.tid.to_string())? {
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(())
}

/// What the arguments of mount(2) say besides the target.
struct Request {
    source: Option<Vec<u8>>,
    kind: Option<Vec<u8>>,
    flags: MsFlags,
    data: Option<Vec<u8>>,
}

impl Request {
    fn read(call: &Call<'_>) -> Result<Self> {
        let text = |index: usize| match call.arg(index) {
            0 => Ok(None),
            address => match call.memory.read_string(address, PATH_MAX) {
                // So strndup_user() of the kernel.
                Err(Errno::ENAMETOOLONG) => Err(Errno::EINVAL),
                read => read.map(Some),
            },
        };
        let kind = text(2)?;
        let source = text(0)?;
        let data = match call.arg(4) {
            0 => None,
            address => Some(options(call, address)?),
        };
        Ok(Self {
            source,
            kind,
            flags: MsFlags::from_bits_retain(call.arg(3)),
            data,
        })
    }

    /// The options, where the kernel finds the paths in them, too. EOPNOTSUPP for options with descriptors, which have other numbers here.
    fn data(&self, call: &Call<'_>) -> Result<Option<Vec<u8>>> {
        let (Some(kind), Some(data)) = (&self.kind, &self.data) else {
            return Ok(self.data.clone());
        };
        let has_descriptors = |name: &&[u8]| kind.starts_with(name);
        if [&b"fuse"[..], b"autofs", b"9p"].iter().any(has_descriptors) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if kind != b"overlay" {
            return Ok(Some(data.clone()));
        }
        let options = data.split(|&byte| byte == b',');
        let options = options.map(|option| self.overlay_option(call, option));
        Ok(Some(options.collect::<Result<Vec<_>>>()?.join(&b',')))
    }

    fn overlay_option(&self, call: &Call<'_>, option: &[u8]) -> Result<Vec<u8>> {
        let names = [&b"lowerdir="[..], b"upperdir=", b"workdir="];
        let name = names.into_iter().find(|name| option.starts_with(name));
        // Escaped commas and colons are left to the kernel.
        let Some(name) = name.filter(|_| !option.contains(&b'\\')) else {
            return Ok(option.to_vec());
        };
        let paths = option.get(name.len()..).unwrap_or_default();
        let paths = paths.split(|&byte| byte == b':').map(|path| match path {
            // `lower::data` has an empty path in the middle.
            b"" => Ok(Vec::new()),
            path => self.path_on_host(call, path),
        });
        let paths = paths.collect::<Result<Vec<_>>>()?.join(&b':');
        Ok([name, &paths].concat())
    }

    /// Mounts on `target`, with `source` instead of the program's.
    fn perform(&self, call: &Call<'_>, source: Option<&[u8]>, target: &Path) -> Result<()> {
        let (kind, data) = (self.kind.as_deref(), self.data(call)?);
        Ok(acting_as(&*call.caller()?, None, || {
            nix::mount::mount(source, target, kind, self.flags, data.as_deref())
        })?)
    }

    /// Whether the source is a part of the tree of files.
    fn moves(&self) -> bool {
        !self.flags.intersects(CHANGES)
            && self.flags.intersects(MsFlags::MS_BIND | MsFlags::MS_MOVE)
    }

    /// Whether the source is a device.
    fn has_device(&self) -> bool {
        !self.moves() && self.kind.as_deref().is_some_and(needs_device)
    }

    /// The source by a path that leads the monitor to the same object. What is not a path stays as it is.
    fn source(&self, call: &Call<'_>) -> Result<Option<Vec<u8>>> {
        let Some(source) = &self.source else {
            return Ok(None);
        };
        if !self.moves() && !self.has_device() {
            return Ok(self.source.clone());
        }
        self.path_on_host(call, source).map(Some)
    }

    /// The path on the host of what `path` leads to.
    fn path_on_host(&self, call: &Call<'_>, path: &[u8]) -> Result<Vec<u8>> {
        match call.resolve(libc::AT_FDCWD, path, true)?.at {
            Pos::Host(path) if path.is_empty() => Ok(b"/".to_vec()),
            Pos::Host(path) => Ok(path),
            Pos::Mounted(place) => self.path_in_mount(call, &place),
        }
    }

    fn path_in_mount(&self, call: &Call<'_>, place: &Place) -> Result<Vec<u8>> {
        if place.mount.is_host() || place.mount.fs.host_dir(&place.node).is_some() {
            let path = place.mount.fs.host_path(&place.node).ok_or(Errno::ENOENT)?;
            return Ok(path.into_os_string().into_vec());
        }
        if !self.has_device() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let attr = place.mount.fs.getattr(&*call.caller()?, &place.node)?;
        if FileKind::from_mode(attr.mode) != Some(FileKind::BlockDevice) {
            return Err(Errno::ENOTBLK.into());
        }
        let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
        Ok(format!("/dev/block/{major}:{minor}").into_bytes())
    }
}

/// The mount options at `address`, up to the end of the string, of the memory, or of the kernel's page. EFAULT.
fn options(call: &Call<'_>, address: u64) -> Result<Vec<u8>, Errno> {
    let mut options = match call.memory.read_string(address, DATA_MAX) {
        Err(Errno::ENAMETOOLONG) => call.read(address, DATA_MAX - 1)?,
        read => read?,
    };
    options.truncate(DATA_MAX - 1);
    Ok(options)
}

/// Whether file systems of type `kind` are on a block device, which their source is then.
fn needs_device(kind: &[u8]) -> bool {
    let types = std::fs::read("/proc/filesystems").unwrap_or_default();
    let mut lines = types.split(|&byte| byte == b'\n');
    lines.any(|line| line.strip_prefix(b"\t") == Some(kind))
}

/// The path on the host of what is mounted at `target`, to change it. EINVAL if nothing is, EOPNOTSUPP for a mount that the run began with.
fn mounted_at(call: &Call<'_>, target: &Place) -> Result<PathBuf> {
    if !is_root(target) {
        return host_path(target).ok_or_else(|| Errno::EINVAL.into());
    }
    let dir = call.monitor.hosted.dir_of(&target.mount);
    dir.ok_or_else(|| Errno::EOPNOTSUPP.into())
}

fn is_root(place: &Place) -> bool {
    place.node.ino() == place.mount.fs.root().ino()
}

/// Mounts over `target` by `mount`, which gets a path on the host.
fn mount_over(
    call: &Call<'_>,
    target: Place,
    source: Option<&[u8]>,
    mount: impl FnOnce(&Path) -> Result<()>,
) -> Result<Answer> {
    let on_host = host_path(&target).filter(|_| !is_root(&target));
    match on_host {
        Some(path) => mount(&path)?,
        // The kernel would mount a file.
        None if !target.node.is_dir() => return Err(Errno::EOPNOTSUPP.into()),
        None => {
            let source = String::from_utf8_lossy(source.unwrap_or(b"none")).into_owned();
            call.monitor.hosted.add(call, target, source, mount)?;
        }
    }
    Ok(Answer::DONE)
}

/// mount(2): source, target, type, flags, data. EOPNOTSUPP where the source would be a directory in a store, an encrypted directory or an image.
pub fn mount(call: &mut Call<'_>) -> Result<Answer> {
    let target = call.object(libc::AT_FDCWD, &call.path(1)?, true)?;
    let request = Request::read(call)?;
    let Target::At(target) = target else {
        let source = request.source.as_deref().filter(|_| request.moves());
        let source = source
            .map(|path| call.object(libc::AT_FDCWD, path, true))
            .transpose()?;
        return match source {
            Some(Target::At(source)) if !source.mount.is_host() => {
                may_mount(call)?;
                let source = request.path_in_mount(call, &source)?;
                let path = call.resolve(libc::AT_FDCWD, &call.path(1)?, true)?.at;
                let Pos::Host(path) = path else {
                    return Err(Errno::EOPNOTSUPP.into());
                };
                request.perform(call, Some(&source), Path::new(OsStr::from_bytes(&path)))?;
                Ok(Answer::DONE)
            }
            _ => Ok(Answer::PassOn),
        };
    };
    may_mount(call)?;
    if !call.may_wait {
        return Ok(Answer::Wait);
    }
    if request.flags.intersects(CHANGES) {
        let path = mounted_at(call, &target)?;
        request.perform(call, request.source.as_deref(), &path)?;
        return Ok(Answer::DONE);
    }
    let source = request.source(call)?;
    if !target.node.is_dir() && !request.moves() {
        return Err(Errno::ENOTDIR.into());
    }
    mount_over(call, target, request.source.as_deref(), |path| {
        request.perform(call, source.as_deref(), path)
    })
}

/// move_mount(2): dirfd and path of the source, dirfd and path of the target, flags. Into a mount it attaches what has a descriptor; EOPNOTSUPP for what is
/// attached elsewhere, and for a source in a mount.
pub fn move_mount(call: &mut Call<'_>) -> Result<Answer> {
    use rustix::mount::{MoveMountFlags as Flags, move_mount};

    let flags = Flags::from_bits_retain(call.uint(4));
    let at = |follow: Flags, empty: Flags| {
        let mut at = 0;
        if !flags.contains(follow) {
            at |= libc::AT_SYMLINK_NOFOLLOW;
        }
        if flags.contains(empty) {
            at |= libc::AT_EMPTY_PATH;
        }
        at
    };
    let (from_flags, to_flags) = (
        at(Flags::MOVE_MOUNT_F_SYMLINKS, Flags::MOVE_MOUNT_F_EMPTY_PATH),
        at(Flags::MOVE_MOUNT_T_SYMLINKS, Flags::MOVE_MOUNT_T_EMPTY_PATH),
    );
    let from = call.path(1)?;
    let source = call.object_at(call.int(0), &from, from_flags)?;
    let target = call.object_at(call.int(2), &call.path(3)?, to_flags)?;
    match (source, target) {
        (Target::PassOn, Target::PassOn) => Ok(Answer::PassOn),
        (Target::PassOn, Target::At(target)) if from.is_empty() => {
            may_mount(call)?;
            let mount = call.task.descriptor(call.int(0))?;
            if target.node.is_dir() != is_directory(&mount)? {
                return Err(Errno::EINVAL.into());
            }
            mount_over(call, target, None, |path| {
                let flags = (flags & Flags::MOVE_MOUNT_SET_GROUP) | Flags::MOVE_MOUNT_F_EMPTY_PATH;
                Ok(move_mount(&mount, "", CWD, path, flags).map_err(os)?)
            })
        }
        _ => {
            may_mount(call)?;
            Err(Errno::EOPNOTSUPP.into())
        }
    }
}

/// fspick(2): dirfd, path, flags. EOPNOTSUPP for a mount that the run began with and under ptrace interception, EINVAL for what is no mount point.
pub fn fspick(call: &mut Call<'_>) -> Result<Answer> {
    use rustix::mount::{FsPickFlags as Flags, fspick};

    let flags = Flags::from_bits_retain(call.uint(2));
    let mut path_flags = 0;
    if flags.contains(Flags::FSPICK_SYMLINK_NOFOLLOW) {
        path_flags |= libc::AT_SYMLINK_NOFOLLOW;
    }
    if flags.contains(Flags::FSPICK_EMPTY_PATH) {
        path_flags |= libc::AT_EMPTY_PATH;
    }
    let target = call.object_at(call.int(0), &call.path(1)?, path_flags)?;
    let Target::At(target) = target else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    let path = mounted_at(call, &target)?;
    let picked = acting_as(&*call.caller()?, None, || {
        let flags = (flags - Flags::FSPICK_EMPTY_PATH) | Flags::FSPICK_CLOEXEC;
        fspick(CWD, &path, flags).map_err(os)
    })?;
    if call.notification.is_none() {
        // At a ptrace stop the program would have to open the descriptor again, which has no file.
        return Err(Errno::EOPNOTSUPP.into());
    }
    Ok(Answer::Install {
        description: picked.into(),
        cloexec: flags.contains(Flags::FSPICK_CLOEXEC),
        counts: false,
        delivery: None,
    })
}

fn is_directory(file: &OwnedFd) -> Result<bool, Errno> {
    let mode = nix::sys::stat::fstat(file)?.st_mode;
    Ok(FileKind::from_mode(mode) == Some(FileKind::Directory))
}

fn os(errno: rustix::io::Errno) -> Errno {
    Errno::from_raw(errno.raw_os_error())
}

/// umount2(2): target, flags. EBUSY for a mount that the run began with, which its other processes use; EINVAL if `target` is not a mount point.
pub fn umount2(call: &mut Call<'_>) -> Result<Answer> {
    let flags = MntFlags::from_bits(call.int(1)).ok_or(Errno::EINVAL)?;
    let follow = !flags.contains(MntFlags::UMOUNT_NOFOLLOW);
    let Target::At(target) = call.object(libc::AT_FDCWD, &call.path(0)?, follow)? else {
        return Ok(Answer::PassOn);
    };
    may_mount(call)?;
    if flags.contains(MntFlags::MNT_EXPIRE)
        && flags.intersects(MntFlags::MNT_FORCE | MntFlags::MNT_DETACH)
    {
        return Err(Errno::EINVAL.into());
    }
    if !call.may_wait {
        return Ok(Answer::Wait);
    }
    if !is_root(&target) {
        let path = host_path(&target).ok_or(Errno::EINVAL)?;
        let Place { mount, node } = target;
        // It would keep the file system busy.
        drop(node);
        let monitor = call.monitor;
        monitor.hosted.unmount(monitor, &mount, &path, flags)?;
        return Ok(Answer::DONE);
    }
    let Place { mount, node } = target;
    drop(node);
    call.monitor.hosted.remove(call.monitor, &mount, flags)?;
    Ok(Answer::DONE)
}
