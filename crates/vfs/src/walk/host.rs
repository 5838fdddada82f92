//! Canonical paths of the host: what the kernel finds there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::{Errno, Result};

/// Whether `path` leads to a directory and the host's kernel meets no symbolic link on the way.
pub(super) fn free_of_links(path: &[u8]) -> bool {
    use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(AT_FDCWD, OsStr::from_bytes(path), how).is_ok()
}

/// ENOENT, ENOTDIR, EACCES unless the canonical host path `path` is a directory; empty for the root.
pub(super) fn is_directory(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    let stat = nix::sys::stat::lstat(OsStr::from_bytes(path))?;
    if stat.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(())
}

/// Whether `path`, whose directory is free of links, may be a symbolic link. EACCES counts as no link: the kernel refuses
/// the call, too.
pub(super) fn is_link(path: &[u8]) -> bool {
    let read = nix::fcntl::readlink(OsStr::from_bytes(path));
    !matches!(
        read,
        Err(Errno::EINVAL | Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES)
    )
}

/// Whether `path` is in a procfs.
pub(super) fn has_processes(path: &[u8]) -> bool {
    nix::sys::statfs::statfs(OsStr::from_bytes(path))
        .is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::PROC_SUPER_MAGIC)
}

/// Whether `path` is the root of a file system that shows the processes that this one's /proc shows.
pub(super) fn is_procfs(path: &[u8]) -> bool {
    if !has_processes(path) {
        return false;
    }
    let path = OsStr::from_bytes(path);
    // In /proc of another PID namespace we have another number, or none.
    let own = nix::fcntl::readlink(&std::path::Path::new(path).join("self"));
    own.is_ok_and(|own| own == *std::process::id().to_string())
}

/// Whether `path` is one of /proc's links that lead to an object, not to a path.
pub fn is_magic_link(path: &[u8]) -> bool {
    let Some(rest) = path.strip_prefix(b"/proc/") else {
        return false;
    };
    let parts: Vec<&[u8]> = rest.split(|&b| b == b'/').collect();
    let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    let parts = match parts.as_slice() {
        [pid, b"task", tid, rest @ ..] if digits(pid) && digits(tid) => rest,
        [pid, rest @ ..] if digits(pid) => rest,
        _ => return false,
    };
    match parts {
        [b"cwd" | b"root" | b"exe"] => true,
        [b"fd", number] => digits(number),
        [b"map_files", _] => true,
        _ => false,
    }
}
