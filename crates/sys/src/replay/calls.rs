//! The system calls of the replayer, one function each.
#![allow(
    unsafe_code,
    reason = "system calls on descriptor numbers, which have no owner in the sense of the standard library"
)]

use std::ffi::CStr;

use crate::Errno;

/// Result of a call: the kernel's return value, or its error.
pub type Returned = Result<i64, Errno>;

fn returned(value: libc::c_long) -> Returned {
    Errno::result(value)
}

/// `RESOLVE_*` flags of openat2(2) for a path that must not leave `directory`.
pub const WITHIN: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;
/// The same for a name that must not be a symbolic link either, unless `O_PATH | O_NOFOLLOW` opens the link itself.
pub const PLAIN: u64 =
    libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_SYMLINKS;

/// openat2(2). `O_CLOEXEC` is added.
pub fn open(directory: i32, path: &CStr, flags: u64, mode: u64, resolve: u64) -> Returned {
    // SAFETY: an open_how is plain integers, for which zero is a value.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags | libc::O_CLOEXEC as u64;
    how.mode = mode;
    how.resolve = resolve;
    let size = size_of::<libc::open_how>();
    // SAFETY: `path` ends with a NUL, and `how` is a live open_how of that size.
    returned(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            directory,
            path.as_ptr(),
            &raw const how,
            size,
        )
    })
}

/// close(2).
pub fn close(fd: i32) -> Returned {
    // SAFETY: an integer; the caller's table owns the descriptor.
    returned(unsafe { libc::syscall(libc::SYS_close, fd) })
}

/// dup3(2) with `O_CLOEXEC` when `onto` is given, else fcntl(2) `F_DUPFD_CLOEXEC`.
pub fn duplicate(fd: i32, onto: Option<i32>) -> Returned {
    // SAFETY: integers; the caller's table owns both descriptors.
    returned(unsafe {
        match onto {
            Some(onto) => libc::syscall(libc::SYS_dup3, fd, onto, libc::O_CLOEXEC),
            None => libc::syscall(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0),
        }
    })
}

/// Reads `length` bytes as read(2) does, or as pread(2) where `offset` is given. Where `into` is shorter, later bytes replace earlier ones.
pub fn read(fd: i32, into: &mut [u8], length: usize, offset: Option<i64>) -> Returned {
    if length <= into.len() {
        // SAFETY: `into` has at least `length` bytes.
        return returned(unsafe {
            match offset {
                Some(at) => libc::syscall(libc::SYS_pread64, fd, into.as_mut_ptr(), length, at),
                None => libc::syscall(libc::SYS_read, fd, into.as_mut_ptr(), length),
            }
        });
    }
    let base = into.as_mut_ptr().cast();
    let pieces = pieces(length, into.len());
    let vectors: Vec<libc::iovec> = pieces
        .map(|iov_len| libc::iovec {
            iov_base: base,
            iov_len,
        })
        .collect();
    // SAFETY: each vector lies in `into`, which this function borrows exclusively.
    returned(unsafe { vectored(libc::SYS_readv, libc::SYS_preadv, fd, &vectors, offset) })
}

/// Writes `pieces`, one after the other, as write(2) does, or as pwrite(2) where `offset` is given.
pub fn write(fd: i32, pieces: &[&[u8]], offset: Option<i64>) -> Returned {
    if let [piece] = pieces {
        // SAFETY: `piece` is live.
        return returned(unsafe {
            match offset {
                Some(at) => libc::syscall(libc::SYS_pwrite64, fd, piece.as_ptr(), piece.len(), at),
                None => libc::syscall(libc::SYS_write, fd, piece.as_ptr(), piece.len()),
            }
        });
    }
    let vectors = pieces.iter().map(|piece| libc::iovec {
        iov_base: piece.as_ptr().cast_mut().cast(),
        iov_len: piece.len(),
    });
    let vectors: Vec<_> = vectors.take(MAX_VECTORS).collect();
    // SAFETY: each vector is a live slice, from which the kernel only reads.
    returned(unsafe { vectored(libc::SYS_writev, libc::SYS_pwritev, fd, &vectors, offset) })
}

/// Maximum number of vectors of a call (`UIO_MAXIOV`).
pub const MAX_VECTORS: usize = 1024;

/// Lengths of at most [`MAX_VECTORS`] pieces of `piece` bytes that make `length` together.
fn pieces(length: usize, piece: usize) -> impl Iterator<Item = usize> {
    let piece = piece.max(1);
    let starts = (0..length).step_by(piece).take(MAX_VECTORS);
    starts.map(move |start| piece.min(length - start))
}

/// # Safety
/// The vectors must be live memory that the call may read, or write where it reads a file.
unsafe fn vectored(
    plain: libc::c_long,
    positioned: libc::c_long,
    fd: i32,
    vectors: &[libc::iovec],
    offset: Option<i64>,
) -> libc::c_long {
    // SAFETY: as the caller promises.
    unsafe {
        match offset {
            Some(at) => libc::syscall(positioned, fd, vectors.as_ptr(), vectors.len(), at, 0),
            None => libc::syscall(plain, fd, vectors.as_ptr(), vectors.len()),
        }
    }
}

/// lseek(2).
pub fn seek(fd: i32, offset: i64, whence: i32) -> Returned {
    // SAFETY: integers.
    returned(unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) })
}

/// ftruncate(2).
pub fn truncate(fd: i32, length: i64) -> Returned {
    // SAFETY: integers.
    returned(unsafe { libc::syscall(libc::SYS_ftruncate, fd, length) })
}

/// truncate(2).
pub fn truncate_path(path: &CStr, length: i64) -> Returned {
    // SAFETY: `path` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_truncate, path.as_ptr(), length) })
}

/// fallocate(2).
pub fn allocate(fd: i32, mode: i32, offset: i64, length: i64) -> Returned {
    // SAFETY: integers.
    returned(unsafe { libc::syscall(libc::SYS_fallocate, fd, mode, offset, length) })
}

/// copy_file_range(2); `None` is the current offset.
pub fn copy(from: i32, at: Option<i64>, to: i32, onto: Option<i64>, length: usize) -> Returned {
    let (mut at, mut onto) = (at, onto);
    let at = at.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let onto = onto
        .as_mut()
        .map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: both offsets are NULL or live.
    returned(unsafe { libc::syscall(libc::SYS_copy_file_range, from, at, to, onto, length, 0) })
}

/// sendfile(2).
pub fn send(from: i32, at: Option<i64>, to: i32, length: usize) -> Returned {
    let mut at = at;
    let at = at.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the offset is NULL or live.
    returned(unsafe { libc::syscall(libc::SYS_sendfile, to, from, at, length) })
}

/// ioctl(2) `FICLONE`, or `FICLONERANGE` with source offset, length and destination offset.
pub fn clone(from: i32, to: i32, range: Option<(u64, u64, u64)>) -> Returned {
    let Some((source, length, destination)) = range else {
        // SAFETY: integers.
        return returned(unsafe { libc::syscall(libc::SYS_ioctl, to, libc::FICLONE, from) });
    };
    let arguments = libc::file_clone_range {
        src_fd: from.into(),
        src_offset: source,
        src_length: length,
        dest_offset: destination,
    };
    // SAFETY: `arguments` is a live file_clone_range.
    returned(unsafe {
        libc::syscall(
            libc::SYS_ioctl,
            to,
            libc::FICLONERANGE,
            &raw const arguments,
        )
    })
}

/// How [`sync`] synchronises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// fsync(2).
    All,
    /// fdatasync(2).
    Data,
    /// sync_file_range(2): offset, bytes, flags.
    Range(i64, i64, u32),
    /// syncfs(2).
    FileSystem,
}

/// fsync(2) and the like.
pub fn sync(fd: i32, how: Sync) -> Returned {
    // SAFETY: integers.
    returned(unsafe {
        match how {
            Sync::All => libc::syscall(libc::SYS_fsync, fd),
            Sync::Data => libc::syscall(libc::SYS_fdatasync, fd),
            Sync::Range(offset, bytes, flags) => {
                libc::syscall(libc::SYS_sync_file_range, fd, offset, bytes, flags)
            }
            Sync::FileSystem => libc::syscall(libc::SYS_syncfs, fd),
        }
    })
}

/// posix_fadvise(2), or readahead(2) where no advice is given.
pub fn advise(fd: i32, offset: i64, length: usize, advice: Option<i32>) -> Returned {
    // SAFETY: integers.
    returned(unsafe {
        match advice {
            Some(advice) => libc::syscall(libc::SYS_fadvise64, fd, offset, length, advice),
            None => libc::syscall(libc::SYS_readahead, fd, offset, length),
        }
    })
}

/// The fields of stat(2) that a replay uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Type and permission bits.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Number of names.
    pub links: u64,
    /// Owner and group.
    pub owner: (u32, u32),
}

/// newfstatat(2) with `AT_SYMLINK_NOFOLLOW`; of `fd` itself where the name is empty.
pub fn stat(fd: i32, name: &CStr) -> Result<Attributes, Errno> {
    // SAFETY: a stat is plain integers, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    // SAFETY: `name` ends with a NUL, `stat` is live.
    returned(unsafe {
        libc::syscall(
            libc::SYS_newfstatat,
            fd,
            name.as_ptr(),
            &raw mut stat,
            flags,
        )
    })?;
    Ok(Attributes {
        mode: stat.st_mode,
        size: stat.st_size.unsigned_abs(),
        links: stat.st_nlink,
        owner: (stat.st_uid, stat.st_gid),
    })
}

/// faccessat2(2) with `AT_SYMLINK_NOFOLLOW`.
pub fn access(fd: i32, name: &CStr, mode: i32, flags: i32) -> Returned {
    let flags = flags | libc::AT_SYMLINK_NOFOLLOW | empty(name);
    // SAFETY: `name` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_faccessat2, fd, name.as_ptr(), mode, flags) })
}

/// `AT_EMPTY_PATH` for the empty name.
fn empty(name: &CStr) -> i32 {
    if name.is_empty() {
        libc::AT_EMPTY_PATH
    } else {
        0
    }
}

/// statfs(2).
pub fn statfs_path(path: &CStr) -> Returned {
    // SAFETY: a statfs is plain integers, for which zero is a value.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` ends with a NUL, `statfs` is live.
    returned(unsafe { libc::syscall(libc::SYS_statfs, path.as_ptr(), &raw mut statfs) })
}

/// fstatfs(2).
pub fn statfs(fd: i32) -> Returned {
    // SAFETY: a statfs is plain integers, for which zero is a value.
    let mut statfs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `statfs` is live.
    returned(unsafe { libc::syscall(libc::SYS_fstatfs, fd, &raw mut statfs) })
}

/// getdents64(2).
pub fn entries(fd: i32, into: &mut [u8]) -> Returned {
    // SAFETY: `into` is live.
    returned(unsafe { libc::syscall(libc::SYS_getdents64, fd, into.as_mut_ptr(), into.len()) })
}

/// readlinkat(2).
pub fn readlink(fd: i32, name: &CStr, into: &mut [u8]) -> Returned {
    // SAFETY: `name` ends with a NUL, `into` is live.
    returned(unsafe {
        libc::syscall(
            libc::SYS_readlinkat,
            fd,
            name.as_ptr(),
            into.as_mut_ptr(),
            into.len(),
        )
    })
}

/// unlinkat(2), of a directory where `directory` is set.
pub fn unlink(fd: i32, name: &CStr, directory: bool) -> Returned {
    let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: `name` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_unlinkat, fd, name.as_ptr(), flags) })
}

/// mkdirat(2).
pub fn mkdir(fd: i32, name: &CStr, mode: u32) -> Returned {
    // SAFETY: `name` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_mkdirat, fd, name.as_ptr(), mode) })
}

/// mknodat(2) of anything but a device: `EPERM` for a device.
pub fn mknod(fd: i32, name: &CStr, mode: u32) -> Returned {
    if matches!(mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
        return Err(Errno::EPERM);
    }
    // SAFETY: `name` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_mknodat, fd, name.as_ptr(), mode, 0) })
}

/// renameat2(2).
pub fn rename(from: (i32, &CStr), to: (i32, &CStr), flags: u32) -> Returned {
    // SAFETY: both names end with a NUL.
    returned(unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from.0,
            from.1.as_ptr(),
            to.0,
            to.1.as_ptr(),
            flags,
        )
    })
}

/// linkat(2) that follows no link; of a descriptor where the name is empty.
pub fn link(from: (i32, &CStr), to: (i32, &CStr)) -> Returned {
    // SAFETY: both names end with a NUL.
    returned(unsafe {
        libc::syscall(
            libc::SYS_linkat,
            from.0,
            from.1.as_ptr(),
            to.0,
            to.1.as_ptr(),
            empty(from.1),
        )
    })
}

/// symlinkat(2).
pub fn symlink(target: &CStr, fd: i32, name: &CStr) -> Returned {
    // SAFETY: both strings end with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_symlinkat, target.as_ptr(), fd, name.as_ptr()) })
}

/// fchmod(2), or fchmodat2(2) with `AT_SYMLINK_NOFOLLOW`.
pub fn chmod(fd: i32, name: &CStr, mode: u32) -> Returned {
    // SAFETY: `name` ends with a NUL.
    returned(unsafe {
        if name.is_empty() {
            libc::syscall(libc::SYS_fchmod, fd, mode)
        } else {
            let flags = libc::AT_SYMLINK_NOFOLLOW;
            libc::syscall(libc::SYS_fchmodat2, fd, name.as_ptr(), mode, flags)
        }
    })
}

/// fchownat(2) with `AT_SYMLINK_NOFOLLOW`.
pub fn chown(fd: i32, name: &CStr, owner: u32, group: u32) -> Returned {
    let flags = libc::AT_SYMLINK_NOFOLLOW | empty(name);
    // SAFETY: `name` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_fchownat, fd, name.as_ptr(), owner, group, flags) })
}

/// utimensat(2) with `AT_SYMLINK_NOFOLLOW`: seconds and nanoseconds of access and of change, or now.
pub fn utimes(fd: i32, name: &CStr, times: Option<[(i64, i64); 2]>) -> Returned {
    let times =
        times.map(|times| times.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec }));
    let pointer = times.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
    let (name, flags) = if name.is_empty() {
        (std::ptr::null(), 0)
    } else {
        (name.as_ptr(), libc::AT_SYMLINK_NOFOLLOW)
    };
    // SAFETY: name and times are NULL or live, the name with a NUL at its end.
    returned(unsafe { libc::syscall(libc::SYS_utimensat, fd, name, pointer, flags) })
}

/// An operation on extended attributes, with its buffers.
#[derive(Debug)]
pub enum Attribute<'a> {
    /// Reads the attribute of this name. With an empty buffer it returns the length.
    Get(&'a CStr, &'a mut [u8]),
    /// Sets the attribute of this name, with `XATTR_*` flags.
    Set(&'a CStr, &'a [u8], i32),
    /// Lists names.
    List(&'a mut [u8]),
    /// Removes the attribute of this name.
    Remove(&'a CStr),
}

/// getxattr(2) and the like, of the file that `path` leads to.
pub fn attribute(path: &CStr, what: Attribute<'_>) -> Returned {
    let path = path.as_ptr();
    // SAFETY: strings end with a NUL, buffers are live.
    returned(unsafe {
        match what {
            Attribute::Get(name, into) => {
                let (to, size) = (into.as_mut_ptr(), into.len());
                libc::syscall(libc::SYS_getxattr, path, name.as_ptr(), to, size)
            }
            Attribute::Set(name, value, flags) => {
                let (from, bytes) = (value.as_ptr(), value.len());
                libc::syscall(libc::SYS_setxattr, path, name.as_ptr(), from, bytes, flags)
            }
            Attribute::List(into) => {
                libc::syscall(libc::SYS_listxattr, path, into.as_mut_ptr(), into.len())
            }
            Attribute::Remove(name) => libc::syscall(libc::SYS_removexattr, path, name.as_ptr()),
        }
    })
}

/// flock(2).
pub fn flock(fd: i32, operation: i32) -> Returned {
    // SAFETY: integers.
    returned(unsafe { libc::syscall(libc::SYS_flock, fd, operation) })
}

/// fcntl(2) with a lock: type, whence, start, length.
pub fn lock(
    fd: i32,
    command: i32,
    (kind, whence, start, length): (i16, i16, i64, i64),
) -> Returned {
    // SAFETY: a flock is plain integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind;
    lock.l_whence = whence;
    lock.l_start = start;
    lock.l_len = length;
    // SAFETY: `lock` is live.
    returned(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, &raw mut lock) })
}

/// fcntl(2) with `F_GETFD`, `F_SETFD`, `F_GETFL` or `F_SETFL`; `EINVAL` for others.
pub fn flags(fd: i32, command: i32, argument: i32) -> Returned {
    if !matches!(
        command,
        libc::F_GETFD | libc::F_SETFD | libc::F_GETFL | libc::F_SETFL
    ) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: integers.
    returned(unsafe { libc::syscall(libc::SYS_fcntl, fd, command, argument) })
}

/// fchdir(2).
pub fn chdir(fd: i32) -> Returned {
    // SAFETY: an integer.
    returned(unsafe { libc::syscall(libc::SYS_fchdir, fd) })
}

/// chdir(2).
pub fn chdir_path(path: &CStr) -> Returned {
    // SAFETY: `path` ends with a NUL.
    returned(unsafe { libc::syscall(libc::SYS_chdir, path.as_ptr()) })
}

/// umask(2).
pub fn umask(mask: u32) -> Returned {
    // SAFETY: an integer.
    returned(unsafe { libc::syscall(libc::SYS_umask, mask) })
}

/// Gives the calling thread a working directory and a file mode creation mask of its own.
pub fn own_directory() -> Result<(), Errno> {
    // SAFETY: an integer.
    Errno::result(unsafe { libc::unshare(libc::CLONE_FS) }).map(drop)
}

/// Whether the page cache has all bytes of a range, by cachestat(2); `None` when the kernel does not report it.
pub fn is_cached(fd: i32, offset: u64, length: u64) -> Option<bool> {
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, length];
    let mut found = [0u64; 5];
    // SAFETY: `range` is as a cachestat_range, `found` as a cachestat.
    let result = unsafe { libc::syscall(CACHESTAT, fd, range.as_ptr(), found.as_mut_ptr(), 0) };
    let pages = (offset % 4096 + length).div_ceil(4096);
    Errno::result(result)
        .ok()
        .map(|_| found.first().is_some_and(|cached| *cached >= pages))
}

/// Sleeps until `at_ns` of `CLOCK_MONOTONIC`.
pub fn sleep_until(at_ns: u64) {
    let at = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000) as i64,
        tv_nsec: (at_ns % 1_000_000_000) as i64,
    };
    // SAFETY: `at` is live. An interrupted sleep ends early, which callers allow for.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &raw const at,
            std::ptr::null_mut(),
        )
    };
}

/// Makes the calling thread's timers exact, as far as the kernel can.
pub fn exact_timers() {
    // SAFETY: integers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize) };
}
