//! The arguments of mount(2), and the paths in them for the kernel.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FileKind, PATH_MAX, Place, Result, ops};
use nix::mount::MsFlags;

use super::hosted::{is_in_kernel, is_root};
use crate::call::Call;
use crate::process::task::acting_as;

/// The most that the kernel reads of mount options: a page.
const DATA_MAX: usize = 4096;
/// Flags by which mount(2) changes what is mounted, and mounts nothing.
const CHANGES: MsFlags = MsFlags::MS_REMOUNT
    .union(MsFlags::MS_SHARED)
    .union(MsFlags::MS_PRIVATE)
    .union(MsFlags::MS_SLAVE)
    .union(MsFlags::MS_UNBINDABLE);

/// The flags in argument `bits` of mount(2). Old programs set the upper half to MS_MGC_VAL, which means nothing.
fn flags(bits: u64) -> MsFlags {
    const MAGIC: u64 = 0xc0ed_0000;
    const UPPER_HALF: u64 = 0xffff_0000;
    let magic = if bits & UPPER_HALF == MAGIC { MAGIC } else { 0 };
    MsFlags::from_bits_retain(bits & !magic)
}

/// What the arguments of mount(2) say besides the target.
pub(super) struct Request {
    pub(super) source: Option<Vec<u8>>,
    kind: Option<Vec<u8>>,
    pub(super) flags: MsFlags,
    data: Option<Vec<u8>>,
}

impl Request {
    /// EFAULT; EINVAL for a text that is too long.
    pub(super) fn read(call: &Call<'_>) -> Result<Self> {
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
            flags: flags(call.arg(3)),
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
    pub(super) fn perform(
        &self,
        call: &Call<'_>,
        source: Option<&[u8]>,
        target: &Path,
    ) -> Result<()> {
        let (kind, data) = (self.kind.as_deref(), self.data(call)?);
        Ok(acting_as(&*call.caller()?, None, || {
            nix::mount::mount(source, target, kind, self.flags, data.as_deref())
        })?)
    }

    /// Whether it changes what is mounted at the target.
    pub(super) fn changes(&self) -> bool {
        self.flags.intersects(CHANGES)
    }

    /// Whether it changes the file system that is mounted at the target, wherever else that is mounted.
    pub(super) fn changes_file_system(&self) -> bool {
        self.flags.contains(MsFlags::MS_REMOUNT) && !self.flags.contains(MsFlags::MS_BIND)
    }

    /// Whether the source is a part of the tree of files.
    pub(super) fn moves(&self) -> bool {
        !self.changes() && self.flags.intersects(MsFlags::MS_BIND | MsFlags::MS_MOVE)
    }

    /// Whether the source is a device.
    fn has_device(&self) -> bool {
        !self.moves() && self.kind.as_deref().is_some_and(needs_device)
    }

    /// The source, if it is to be bound and the kernel does not have it, or if it is to be moved and a program has mounted it in a mount.
    pub(super) fn source_in_run(&self, call: &Call<'_>) -> Result<Option<Place>> {
        let Some(source) = self.source.as_deref().filter(|_| self.moves()) else {
            return Ok(None);
        };
        Ok(match call.resolve(libc::AT_FDCWD, source, true)?.at {
            Pos::Mounted(place) if self.is_in_run(&place) => Some(place),
            _ => None,
        })
    }

    /// Whether the table of the run's mounts alone has to change for the source `place`, which is in a mount.
    pub(super) fn is_in_run(&self, place: &Place) -> bool {
        let moves = self.flags.contains(MsFlags::MS_MOVE);
        moves && place.mount.is_made() && is_root(place) || !is_in_kernel(place)
    }

    /// The source by a path that leads the monitor to the same object. What is not a path stays as it is.
    pub(super) fn source_on_host(&self, call: &Call<'_>) -> Result<Option<Vec<u8>>> {
        let Some(source) = &self.source else {
            return Ok(None);
        };
        if !self.moves() && !self.has_device() {
            return Ok(self.source.clone());
        }
        self.path_on_host(call, source).map(Some)
    }

    /// The path on the host of what `path` leads to.
    pub(super) fn path_on_host(&self, call: &Call<'_>, path: &[u8]) -> Result<Vec<u8>> {
        match call.resolve(libc::AT_FDCWD, path, true)?.at {
            Pos::Host(path) if path.is_empty() => Ok(b"/".to_vec()),
            Pos::Host(path) => Ok(path),
            Pos::Mounted(place) => self.path_in_mount(call, &place),
        }
    }

    /// The path on the host of something in a mount. EOPNOTSUPP if the kernel cannot use it there.
    pub(super) fn path_in_mount(&self, call: &Call<'_>, place: &Place) -> Result<Vec<u8>> {
        if self.flags.contains(MsFlags::MS_MOVE) && is_root(place) {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if is_in_kernel(place) {
            let path = place.mount.fs.host_path(&place.node).ok_or(Errno::ENOENT)?;
            return Ok(path.into_os_string().into_vec());
        }
        if !self.has_device() {
            return Err(Errno::EOPNOTSUPP.into());
        }
        let caller = call.caller()?;
        let attr = place.mount.fs.getattr(&caller, &place.node)?;
        if FileKind::from_mode(attr.mode) != Some(FileKind::BlockDevice) {
            return Err(Errno::ENOTBLK.into());
        }
        ops::may_open_device(place)?;
        let (major, minor) = (libc::major(attr.rdev), libc::minor(attr.rdev));
        let by_number = format!("/dev/block/{major}:{minor}");
        if Path::new(&by_number).exists() {
            return Ok(by_number.into_bytes());
        }
        // Without udev. Where the run-time directory's file system has no devices, this is EACCES.
        let backing = call.monitor.shadows.backing(&caller, place)?;
        Ok(backing.as_os_str().as_bytes().to_vec())
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
