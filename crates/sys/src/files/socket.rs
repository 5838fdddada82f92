//! Socket addresses as bytes: a name of a Unix socket may have 108 bytes without a NUL at the end, which the usual address types
//! cannot hold.
#![allow(
    unsafe_code,
    reason = "bind(2), sendmsg(2), getsockname(2) and getpeername(2)"
)]

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::errno::Errno;

/// Size of a `struct sockaddr_storage`: no address is longer.
const ADDRESS_MAX: usize = 128;

/// bind(2). `EINVAL`: also an address of more than 128 bytes.
pub fn bind(socket: BorrowedFd<'_>, address: &[u8]) -> Result<(), Errno> {
    if address.len() > ADDRESS_MAX {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `address` is live for its length, and the kernel copies it.
    let r = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    };
    Errno::result(r).map(drop)
}

/// sendmsg(2) of `data` to `address` (empty: to the peer) with the control messages `control`, in the kernel's layout. Returns
/// the number of bytes sent. Never raises SIGPIPE.
pub fn send(
    socket: BorrowedFd<'_>,
    address: &[u8],
    data: &[u8],
    control: &[u8],
    flags: i32,
) -> Result<usize, Errno> {
    let part = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: a message header is pointers and integers, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    if !address.is_empty() {
        message.msg_name = address.as_ptr().cast_mut().cast();
        message.msg_namelen = address.len() as libc::socklen_t;
    }
    message.msg_iov = (&raw const part).cast_mut();
    message.msg_iovlen = 1;
    message.msg_control = control.as_ptr().cast_mut().cast();
    message.msg_controllen = control.len();
    // SAFETY: all that the header points to is live for its length, and the kernel only reads it.
    let r = unsafe {
        libc::sendmsg(
            socket.as_raw_fd(),
            &raw const message,
            flags | libc::MSG_NOSIGNAL,
        )
    };
    Errno::result(r).map(isize::cast_unsigned)
}

/// getsockname(2): the whole address.
pub fn name(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    // SAFETY: `ask` passes a buffer and its size.
    ask(|address, len| unsafe { libc::getsockname(socket.as_raw_fd(), address, len) })
}

/// getpeername(2): the whole address.
pub fn peer_name(socket: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    // SAFETY: `ask` passes a buffer and its size.
    ask(|address, len| unsafe { libc::getpeername(socket.as_raw_fd(), address, len) })
}

/// Calls `fill` with a buffer for an address and its size.
fn ask(
    fill: impl FnOnce(*mut libc::sockaddr, *mut libc::socklen_t) -> libc::c_int,
) -> Result<Vec<u8>, Errno> {
    let mut address = vec![0u8; ADDRESS_MAX];
    let mut len = ADDRESS_MAX as libc::socklen_t;
    Errno::result(fill(address.as_mut_ptr().cast(), &raw mut len))?;
    address.truncate(len as usize);
    Ok(address)
}
