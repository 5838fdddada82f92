//! Descriptors that a process was started with.
#![allow(
    unsafe_code,
    reason = "close_range(2); getsockopt(2) and fcntl(2) by number"
)]

use nix::errno::Errno;

/// Closes all descriptors but standard input, output and error: a process that outlives its parent must not keep the
/// pipes of others open. To be called before the process has opened any itself. `ENOSYS`: Linux before 5.9.
pub fn close() -> Result<(), Errno> {
    // SAFETY: integers only; the caller has no descriptors of its own yet.
    let r = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    Errno::result(r).map(drop)
}

/// The types (`SOCK_STREAM`, ...) of all Unix sockets of this process that a program executed by it inherits.
pub fn unix_socket_types() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.parse::<i32>().ok()
    };
    entries
        .filter_map(number)
        .filter(|&fd| is_inherited(fd) && option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX))
        .filter_map(|fd| option(fd, libc::SO_TYPE))
        .collect()
}

fn is_inherited(fd: i32) -> bool {
    // SAFETY: integers only; a number that is not a descriptor any more is EBADF.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// A socket option that is an integer; `None`: no socket.
fn option(fd: i32, name: i32) -> Option<i32> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` and `len` are live, and `len` is the size of `value`.
    let r = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    (r == 0).then_some(value)
}
