//! Cache objects: a memfd, or a nameless host file for content that is too large for memory.
//!
//! The only open file description that the cache keeps of an object is read-only: a writable one would make executing
//! the file ETXTBSY. Programs hold descriptors of the same object, so they read and map it without the monitor.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use goanna_sys::object_handle::ObjectHandle;
use goanna_sys::{memfile, stat};
use goanna_vfs::{Description, Errno, Native, Opened};

use crate::Result;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Whence, lseek};

/// Bytes copied at once.
pub(crate) const PIECE: u64 = 1 << 20;

/// Status flags of open(2) that mean the same on a cache object.
const KEPT_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_ASYNC
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOATIME;

/// A file's whole content, as an object of the kernel that programs hold descriptors of. Holes of the file are holes of
/// the object.
#[derive(Debug)]
pub struct CacheObject {
    handle: Arc<ObjectHandle>,
    on_disk: bool,
}

impl CacheObject {
    /// An object of `size` zeros, and a writable descriptor to fill it with, which the caller closes before programs get
    /// theirs. With `large_dir` it is a nameless file there instead of memory.
    pub fn create(size: u64, large_dir: Option<&Path>) -> Result<(Self, OwnedFd)> {
        let first = match large_dir {
            // Seals are forbidden: with them, a program could keep the cache from writing.
            None => marked(memfile::create(c"amino")?),
            Some(dir) => nameless_file(dir, 0o700)?,
        };
        if size > 0 {
            memfile::set_len(first.as_fd(), size)?;
        }
        Ok((Self::of(first.as_fd(), large_dir.is_some())?, first))
    }

    /// An object that nothing changes after `fill` has filled it: memory is sealed against writing and growing.
    /// It is a nameless file in the first of `large_dirs` where one can be made, else memory. `fill` gets a writable
    /// descriptor of `size` zeros, and whether that is a host file.
    pub fn create_fixed(
        size: u64,
        large_dirs: &[PathBuf],
        fill: impl FnOnce(BorrowedFd<'_>, bool) -> Result<()>,
    ) -> Result<Self> {
        let mut host_files = large_dirs.iter().map(|dir| nameless_file(dir, 0o555));
        let host_file = host_files.find_map(Result::ok);
        let on_disk = host_file.is_some();
        let first = host_file.map_or_else(sealable_memory, Ok)?;
        memfile::set_len(first.as_fd(), size)?;
        fill(first.as_fd(), on_disk)?;
        if !on_disk {
            // Not against shrinking: the cache shrinks objects to free their memory at once.
            let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW;
            fcntl(&first, FcntlArg::F_ADD_SEALS(seals))?;
        }
        Self::of(first.as_fd(), on_disk)
    }

    fn of(first: BorrowedFd<'_>, on_disk: bool) -> Result<Self> {
        let handle = ObjectHandle::new(memfile::reopen(first, libc::O_RDONLY)?)?;
        Ok(Self::from_handle(Arc::new(handle), on_disk))
    }

    /// The object that `handle` holds: a host file when `on_disk`, else memory.
    pub fn from_handle(handle: Arc<ObjectHandle>, on_disk: bool) -> Self {
        Self { handle, on_disk }
    }

    /// The cache's own handle of the object.
    pub fn handle(&self) -> &Arc<ObjectHandle> {
        &self.handle
    }

    /// Whether the object is a host file, not memory.
    pub fn is_on_disk(&self) -> bool {
        self.on_disk
    }

    /// A new open file description for a program that opened the file with `flags`.
    pub fn open(&self, flags: i32) -> Opened {
        Opened {
            description: Description::of_object(&self.handle, self.kept_flags(flags)),
            native: Native::Reads {
                handle: Arc::clone(&self.handle),
            },
        }
    }

    /// Memory takes O_DIRECT without effect where the kernel lets it (Linux 6.6). A host file would ask for an alignment.
    fn kept_flags(&self, flags: i32) -> i32 {
        let direct = flags & libc::O_DIRECT;
        if direct != 0 && !self.on_disk && memory_takes_direct() {
            flags & KEPT_FLAGS | direct
        } else {
            flags & KEPT_FLAGS
        }
    }

    /// A writable descriptor, which the caller closes at once after the change. ETXTBSY while the file is executed, as on
    /// any file system.
    pub fn writer(&self) -> Result<OwnedFd> {
        self.handle.open(libc::O_WRONLY)
    }

    /// A readable descriptor.
    pub fn reader(&self) -> Result<OwnedFd> {
        self.handle.open(libc::O_RDONLY)
    }

    /// Allocated units of 512 bytes.
    pub fn blocks(&self) -> Option<u64> {
        self.handle.blocks()
    }

    /// Fills `buf` from `offset`. The result is short only at the end of the object.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.handle.with(|fd| memfile::pread(fd, buf, offset))
    }

    /// Sets the object's size. This needs no writable descriptor.
    pub fn resize(&self, size: u64) -> Result<()> {
        self.handle.resize(size)
    }

    /// Makes `offset..offset+len` read as zeros, without changing the size.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        memfile::punch(self.writer()?.as_fd(), offset, len)
    }

    /// Copies the first `size` bytes to an object of zeros, and leaves holes where this one has them.
    pub fn copy_to(&self, to: impl AsFd, size: u64) -> Result<()> {
        for (start, len) in self.data_segments(size)? {
            copy_range(
                |at, buf| self.read_at(at, buf),
                to.as_fd(),
                start,
                start + len,
            )?;
        }
        Ok(())
    }

    /// The parts of the first `size` bytes that are not holes, as offsets and lengths, in order.
    pub fn data_segments(&self, size: u64) -> Result<Vec<(u64, u64)>> {
        self.handle.with(|fd| memfile::data_segments(fd, 0, size))
    }

    /// The first offset at or after `offset` where there may be data; `None` when only a hole follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let Ok(at) = i64::try_from(offset) else {
            return Ok(None);
        };
        match self.handle.with(|fd| lseek(fd, at, Whence::SeekData)) {
            Ok(found) => Ok(u64::try_from(found).ok()),
            Err(Errno::ENXIO) => Ok(None),
            // A host file system without holes: everything is data.
            Err(Errno::EINVAL) => Ok(Some(offset)),
            Err(errno) => Err(errno),
        }
    }

    /// Whether `fd` is a descriptor of this object.
    pub fn is_object_of(&self, fd: impl AsFd) -> Result<bool> {
        let (dev, ino, _) = stat::identity(fd.as_fd())?;
        Ok((dev, ino) == self.handle.identity())
    }

    /// Whether no program has an open file description or a mapping of the object.
    pub fn is_unused(&self) -> bool {
        self.handle.sole_opener()
    }

    /// Whether a program has the object open for writing.
    pub fn is_open_for_writing(&self) -> bool {
        self.handle.open_for_write_elsewhere()
    }

    /// Frees the memory of an unused object now: the monitor may hold its handle for a while.
    pub fn free(self) {
        if !self.on_disk
            && let Ok(writer) = self.handle.open(libc::O_RDWR)
        {
            // If this fails, the memory is freed with the last handle.
            let _ = memfile::set_len(writer.as_fd(), 0);
        }
    }
}

/// Writes all of `data` at `offset`. ENOSPC when that fails after some bytes.
pub fn write_all_at(fd: impl AsFd, offset: u64, data: &[u8]) -> Result<()> {
    match memfile::pwrite(fd.as_fd(), data, offset)? {
        n if n == data.len() => Ok(()),
        _ => Err(Errno::ENOSPC),
    }
}

fn nameless_file(dir: &Path, mode: libc::mode_t) -> Result<OwnedFd> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    nix::fcntl::open(dir, flags, Mode::from_bits_truncate(mode))
}

/// Sets the bit by which a stub in a program tells a cache object from a memfd of the program's own (docs/decisions/0079).
/// Without it, where memfds may not be executable, the stub leaves calls to the monitor.
fn marked(file: OwnedFd) -> OwnedFd {
    let _ = fchmod(
        &file,
        Mode::S_IRWXU | Mode::S_IRWXG | Mode::S_IRWXO | Mode::S_ISVTX,
    );
    file
}

/// Whether memfds can be opened with O_DIRECT here.
fn memory_takes_direct() -> bool {
    static TAKES: OnceLock<bool> = OnceLock::new();
    *TAKES.get_or_init(|| {
        let made = memfile::create(c"direct");
        made.is_ok_and(|file| {
            memfile::reopen(file.as_fd(), libc::O_RDONLY | libc::O_DIRECT).is_ok()
        })
    })
}

/// Creates a memfd as [`memfile::create`] does, but one that can be sealed.
fn sealable_memory() -> Result<OwnedFd> {
    /// Programs in it can be executed (Linux 6.3); not in every version of the bindings.
    const MFD_EXEC: libc::c_uint = 0x10;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    match memfd_create("amino", flags | MFdFlags::from_bits_retain(MFD_EXEC)) {
        // Linux before 6.3; or the system forbids executable memfds.
        Err(Errno::EINVAL | Errno::EACCES) => memfd_create("amino", flags),
        other => other,
    }
}

/// Copies the bytes `start..end` from `read` to the same offsets of `to`, or fewer where `read` reports the end.
pub(crate) fn copy_range(
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize>,
    to: BorrowedFd<'_>,
    start: u64,
    end: u64,
) -> Result<()> {
    let wanted = |at: u64| usize::try_from(end.saturating_sub(at).min(PIECE)).unwrap_or(0);
    let mut piece = vec![0; wanted(start)];
    let mut at = start;
    while at < end {
        let Some(buf) = piece.get_mut(..wanted(at)) else {
            break;
        };
        let got = read(at, buf)?;
        let Some(data) = buf.get(..got).filter(|data| !data.is_empty()) else {
            break;
        };
        write_all_at(to, at, data)?;
        at += got as u64;
    }
    Ok(())
}
