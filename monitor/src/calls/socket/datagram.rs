//! Datagrams to names of Unix sockets in a mount: the tracee sends them itself, to the host object. So the receiver sees the
//! tracee's credentials and gets its descriptors, and a full queue makes the tracee wait, not the monitor.
//!
//! The calls come here at ptrace stops, and only those of programs that may have a Unix socket (`watch.rs`).

use goanna_vfs::Result;

use super::{host_address, rights, unix_socket};
use crate::call::Call;
use crate::ptracer::rewrite::{Addressed, AddressedKind, MMSGHDR, MSGHDR, Rewrite};

/// Maximum number of messages that Linux sends in one call (`UIO_MAXIOV`).
const MAX_MESSAGES: u64 = 1024;

/// The host address to which the datagram on descriptor `fd` goes, for the program's address of `len` bytes at `address`.
/// `None` when the kernel performs the call unchanged, with all its errors.
fn destination(call: &Call<'_>, fd: i32, address: u64, len: u64) -> Result<Option<Vec<u8>>> {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    let sends_datagrams = unix_socket(call, fd)
        .is_some_and(|socket| getsockopt(&socket, sockopt::SockType) == Ok(SockType::Datagram));
    if !sends_datagrams {
        return Ok(None);
    }
    host_address(call, address, len)
}

/// sendto(2), sendmsg(2) or sendmmsg(2); `None` when the kernel performs the call unchanged.
pub fn redirect(call: &Call<'_>) -> Result<Option<Rewrite>> {
    let send = match i64::from(call.nr) {
        libc::SYS_sendto => to(call)?,
        libc::SYS_sendmsg => message(call)?,
        _ => messages(call)?,
    };
    Ok(send.map(Rewrite::Addressed))
}

fn to(call: &Call<'_>) -> Result<Option<Addressed>> {
    let address = destination(call, call.int(0), call.arg(4), call.arg(5))?;
    Ok(address.map(|address| Addressed {
        kind: AddressedKind::To(address.len() as u64),
        image: address,
        pointers: Vec::new(),
    }))
}

fn message(call: &Call<'_>) -> Result<Option<Addressed>> {
    let Ok(image) = call.read(call.arg(1), MSGHDR) else {
        return Ok(None);
    };
    let mut send = Addressed {
        image,
        pointers: Vec::new(),
        kind: AddressedKind::Message,
    };
    Ok(readdress(call, &mut send, 0)?.then_some(send))
}

/// As in the kernel, a message that cannot be sent ends the call, after the messages before it were sent. A message that the
/// monitor must send ([`rights`]) also ends it; the program then sends the rest.
fn messages(call: &Call<'_>) -> Result<Option<Addressed>> {
    let count = u64::from(call.uint(2)).min(MAX_MESSAGES);
    let Ok(image) = call.read(call.arg(1), count as usize * MMSGHDR.0) else {
        return Ok(None);
    };
    let mut send = Addressed {
        image,
        pointers: Vec::new(),
        kind: AddressedKind::Messages(count),
    };
    let mut changed = false;
    for index in 0..count {
        let at = index as usize * MMSGHDR.0;
        let header = send.image.get(at..).and_then(<[u8]>::first_chunk);
        if index > 0 && header.is_some_and(|header| rights::leave(call, header)) {
            send.kind = AddressedKind::Messages(index);
            changed = true;
            break;
        }
        match readdress(call, &mut send, at) {
            Ok(other) => changed |= other,
            Err(errno) if index == 0 => return Err(errno),
            Err(_) => {
                send.kind = AddressedKind::Messages(index);
                changed = true;
                break;
            }
        }
    }
    Ok(changed.then_some(send))
}

/// Replaces the address in the `struct msghdr` at `at` of the image by that of a host object; false when it needs no
/// replacement.
fn readdress(call: &Call<'_>, send: &mut Addressed, at: usize) -> Result<bool> {
    let field = |at: usize| send.image.get(at..).and_then(<[u8]>::first_chunk::<8>);
    let (Some(name), Some(len)) = (field(at), field(at + 8)) else {
        return Ok(false);
    };
    // The length is an int, with padding behind it.
    let (name, len) = (u64::from_ne_bytes(*name), u64::from_ne_bytes(*len) as u32);
    let Some(address) = destination(call, call.int(0), name, u64::from(len))? else {
        return Ok(false);
    };
    let end = send.image.len() as u64;
    let fields = [end, address.len() as u64];
    for (at, value) in [at, at + 8].into_iter().zip(fields) {
        if let Some(field) = send
            .image
            .get_mut(at..)
            .and_then(<[u8]>::first_chunk_mut::<8>)
        {
            *field = value.to_ne_bytes();
        }
    }
    send.pointers.push(at);
    send.image.extend_from_slice(&address);
    Ok(true)
}
