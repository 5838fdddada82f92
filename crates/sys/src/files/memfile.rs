//! Memfds: files that live in memory and have an identity of their own (memfd_create(2)).
//!
//! The description that memfd_create returns counts neither as a reader nor as a writer of the inode; descriptions
//! from [`reopen`] do. So the monitor can keep the descriptor that [`create`] returned, and determine by a lease whether any process
//! has the file open, by a descriptor or by a mapping that outlived it. `O_PATH` descriptors do not count, and neither do duplicates
//! of the created descriptor (dup, fork, ADDFD): never install that description in a tracee.
#![allow(
    unsafe_code,
    reason = "memfd_create(2), fcntl(2) leases, fallocate(2), pread(2) and pwrite(2)"
)]

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;

/// A new empty file; `name` (at most 249 bytes) shows in /proc only. Close-on-exec here. Programs in it can be
/// executed, unless the system forbids that for all memfds (`vm.memfd_noexec`).
pub fn create(name: &CStr) -> Result<OwnedFd, Errno> {
    let attempt = |flags| {
        // SAFETY: `name` is null-terminated.
        let fd = Errno::result(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    match attempt(libc::MFD_CLOEXEC | libc::MFD_EXEC) {
        // Linux before 6.3 does not know MFD_EXEC: there, every memfd is executable.
        Err(Errno::EINVAL) => attempt(libc::MFD_CLOEXEC),
        // vm.memfd_noexec = 2. Such a file can be given seals, by which a tracee could forbid us to write.
        Err(Errno::EACCES) => {
            let fd = attempt(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL)?;
            // SAFETY: integers only.
            Errno::result(unsafe {
                libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SEAL)
            })?;
            Ok(fd)
        }
        other => other,
    }
}

/// A new file that `fill` fills and that no process can change afterwards, by any descriptor (EPERM).
pub fn sealed<E: From<Errno>>(
    name: &CStr,
    fill: impl FnOnce(BorrowedFd<'_>) -> Result<(), E>,
) -> Result<OwnedFd, E> {
    let attempt = |flags| {
        // SAFETY: `name` is null-terminated.
        let fd = Errno::result(unsafe { libc::memfd_create(name.as_ptr(), flags) })?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    let sealable = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let fd = match attempt(sealable | libc::MFD_NOEXEC_SEAL) {
        // Linux before 6.3.
        Err(Errno::EINVAL) => attempt(sealable),
        other => other,
    }?;
    fill(fd.as_fd())?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: integers only.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
    Ok(fd)
}

/// A new open file description of the file of `fd`, with `flags` as for open(2); close-on-exec is added.
/// Permissions are checked again, as the calling thread's.
pub fn reopen(fd: BorrowedFd<'_>, flags: i32) -> Result<OwnedFd, Errno> {
    const DIR: &[u8] = b"/proc/self/fd/";
    let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
    // Ten digits at most, written without allocating: this is on the path of every open.
    let mut digits = [0u8; 10];
    let mut first = digits.len();
    let mut number = fd.as_raw_fd().cast_unsigned();
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let digits = &digits[first..];
    path[DIR.len()..DIR.len() + digits.len()].copy_from_slice(digits);
    // From the directory the kernel looks up one name, and not four.
    let (dir, path) = match own_descriptors() {
        Some(dir) => (dir, &path[DIR.len()..]),
        None => (libc::AT_FDCWD, &path[..]),
    };
    let flags = flags | libc::O_CLOEXEC;
    loop {
        // SAFETY: `path` ends with a NUL, since at most ten of its eleven last bytes were filled.
        let new = unsafe { libc::openat(dir, path.as_ptr().cast(), flags) };
        match Errno::result(new) {
            // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
            Ok(new) => return Ok(unsafe { OwnedFd::from_raw_fd(new) }),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// The directory of this process's descriptors, which stays open.
fn own_descriptors() -> Option<RawFd> {
    static DIR: OnceLock<Option<(u32, OwnedFd)>> = OnceLock::new();
    let dir = DIR.get_or_init(|| {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open("/proc/self/fd", flags, Mode::empty()).ok()?;
        Some((std::process::id(), dir))
    });
    // A child has inherited its parent's.
    let own = dir
        .as_ref()
        .filter(|(process, _)| *process == std::process::id());
    own.map(|(_, dir)| dir.as_raw_fd())
}

/// Whether `fd` is the only open file description of the file, and nothing else maps it. `fd` is the descriptor that [`create`]
/// returned, or a read-only one of the caller's. `false` when this cannot be determined (leases disabled, or not the file's owner).
pub fn sole_opener(fd: BorrowedFd<'_>) -> bool {
    lease_granted(fd, libc::F_WRLCK)
}

/// Whether the file has an open file description for writing other than `fd`, or a mapping made from one. `fd` is as for
/// [`sole_opener`]. `true` when this cannot be determined.
pub fn open_for_write_elsewhere(fd: BorrowedFd<'_>) -> bool {
    !lease_granted(fd, libc::F_RDLCK)
}

/// A write lease is granted when the inode has no other reader or writer, a read lease when it has no writer at all.
/// A lease on the created description itself would not work: it expects itself as one writer, while the inode counts none.
fn lease_granted(fd: BorrowedFd<'_>, kind: libc::c_int) -> bool {
    // SAFETY: integers only.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDONLY {
        return try_lease(fd, kind);
    }
    reopen(fd, libc::O_RDONLY | libc::O_NONBLOCK).is_ok_and(|probe| try_lease(probe.as_fd(), kind))
}

/// As [`sole_opener`], for a description that the caller knows to be read-only: this saves the check.
pub(crate) fn sole_reader(fd: BorrowedFd<'_>) -> bool {
    try_lease(fd, libc::F_WRLCK)
}

/// As [`open_for_write_elsewhere`], for a description that the caller knows to be read-only.
pub(crate) fn has_other_writer(fd: BorrowedFd<'_>) -> bool {
    !try_lease(fd, libc::F_RDLCK)
}

fn try_lease(fd: BorrowedFd<'_>, kind: libc::c_int) -> bool {
    static HANDLES_SIGIO: OnceLock<bool> = OnceLock::new();
    if !HANDLES_SIGIO.get_or_init(|| handle_sigio().is_ok()) {
        return false;
    }
    let fd = fd.as_raw_fd();
    // An open of the file while we hold the lease sends us SIGIO. The opening thread waits until we release the lease, which we do at once.
    // SAFETY: integers only.
    unsafe {
        let granted = libc::fcntl(fd, libc::F_SETLEASE, kind) == 0;
        if granted {
            libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
        }
        granted
    }
}

/// Handles SIGIO, which would end the process, by doing nothing. A signal of another number (`F_SETSIG`) would have to be set before each lease, because
/// the kernel forgets it when the lease is released (`lease_modify` in fs/locks.c). A disposition that is not the default stays.
fn handle_sigio() -> Result<(), Errno> {
    extern "C" fn do_nothing(_: libc::c_int) {}
    // SAFETY: `sigaction` is plain integers, of which zeros are valid; both pointers are live. The handler does nothing, and execve(2) resets it.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        Errno::result(libc::sigaction(
            libc::SIGIO,
            std::ptr::null(),
            &raw mut action,
        ))?;
        if action.sa_sigaction != libc::SIG_DFL {
            return Ok(());
        }
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        Errno::result(libc::sigaction(
            libc::SIGIO,
            &raw const action,
            std::ptr::null_mut(),
        ))?;
    }
    Ok(())
}

/// Allocates memory for the holes in `[offset, offset + len)`, so that writing there cannot fail. The size does not change.
pub fn allocate(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    fallocate(fd, libc::FALLOC_FL_KEEP_SIZE, offset, len)
}

/// Frees the memory of `[offset, offset + len)`, which then reads as zeros. The size does not change.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    fallocate(fd, mode, offset, len)
}

fn fallocate(fd: BorrowedFd<'_>, mode: i32, offset: u64, len: u64) -> Result<(), Errno> {
    if len == 0 {
        return Ok(());
    }
    let (offset, len) = (signed(offset)?, signed(len)?);
    loop {
        // SAFETY: integers only.
        let r = unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, len) };
        match Errno::result(r) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// The parts of `[start, end)` that hold data, as (offset, length) in order; the rest are holes. Moves the offset of
/// `fd`'s description.
pub fn data_segments(fd: BorrowedFd<'_>, start: u64, end: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut segments = Vec::new();
    let mut at = start;
    while at < end {
        let data = match seek(fd, at, libc::SEEK_DATA) {
            Ok(data) => data,
            Err(Errno::ENXIO) => break,
            Err(e) => return Err(e),
        };
        if data >= end {
            break;
        }
        // Data that another process truncates meanwhile is not data any more.
        let hole = match seek(fd, data, libc::SEEK_HOLE) {
            Ok(hole) => hole.min(end),
            Err(Errno::ENXIO) => break,
            Err(e) => return Err(e),
        };
        if hole > data {
            segments.push((data, hole - data));
        }
        at = hole.max(data + 1);
    }
    Ok(segments)
}

fn seek(fd: BorrowedFd<'_>, at: u64, whence: libc::c_int) -> Result<u64, Errno> {
    // SAFETY: integers only.
    let r = unsafe { libc::lseek(fd.as_raw_fd(), signed(at)?, whence) };
    Errno::result(r).map(i64::cast_unsigned)
}

fn signed(value: u64) -> Result<i64, Errno> {
    i64::try_from(value).map_err(|_| Errno::EINVAL)
}

/// Sets the size, in bytes. `EFBIG` beyond what the kernel allows.
pub fn set_len(fd: BorrowedFd<'_>, len: u64) -> Result<(), Errno> {
    let len = signed(len)?;
    loop {
        // SAFETY: integers only.
        match Errno::result(unsafe { libc::ftruncate(fd.as_raw_fd(), len) }) {
            Err(Errno::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// Transfers at `offset` until `len` bytes are transferred, or a call transfers none; returns the count. `transfer` gets the number
/// of bytes done, and the position of the next one. An error after some bytes is not reported.
fn transfer_all(
    len: usize,
    offset: u64,
    mut transfer: impl FnMut(usize, i64) -> isize,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < len {
        let at = signed(offset.checked_add(done as u64).ok_or(Errno::EINVAL)?)?;
        match Errno::result(transfer(done, at)) {
            Ok(0) => break,
            Ok(n) => done += n.cast_unsigned(),
            Err(Errno::EINTR) => {}
            Err(_) if done > 0 => break,
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Reads at `offset` until `buf` is full or the file ends; returns the count. An error after some bytes is not reported.
pub fn pread(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
    transfer_all(buf.len(), offset, |done, at| {
        let rest = &mut buf[done..];
        // SAFETY: `rest` is live and exclusively ours.
        unsafe { libc::pread(fd.as_raw_fd(), rest.as_mut_ptr().cast(), rest.len(), at) }
    })
}

/// As [`pwrite`], at `offset` even when the description has `O_APPEND` (`RWF_NOAPPEND`, since Linux 6.9; older kernels append).
pub fn pwrite_at(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    const RWF_NOAPPEND: libc::c_int = 0x20;
    let written = transfer_all(data.len(), offset, |done, at| {
        let rest = &data[done..];
        let part = libc::iovec {
            iov_base: rest.as_ptr().cast_mut().cast(),
            iov_len: rest.len(),
        };
        // SAFETY: `rest` is live, and only read.
        unsafe { libc::pwritev2(fd.as_raw_fd(), &raw const part, 1, at, RWF_NOAPPEND) }
    });
    match written {
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => pwrite(fd, data, offset),
        other => other,
    }
}

/// Writes at `offset` until all of `data` is written. The count is smaller only when an error (`ENOSPC`, `EFBIG`) occurred after
/// some bytes.
pub fn pwrite(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize, Errno> {
    transfer_all(data.len(), offset, |done, at| {
        let rest = &data[done..];
        // SAFETY: `rest` is live.
        unsafe { libc::pwrite(fd.as_raw_fd(), rest.as_ptr().cast(), rest.len(), at) }
    })
}
