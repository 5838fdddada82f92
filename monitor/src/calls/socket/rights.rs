//! Descriptors that leave the run in a message (SCM_RIGHTS).
//!
//! A descriptor of a file in a store refers to its cache object, which belongs to the store: no lock and no transaction would
//! cover the writes of a process outside of the run. So the monitor sends such a message itself, with copies of the files,
//! which no process can change. See docs/decisions/0038.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use goanna_sys::{memfile, signals, socket};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, Place, Result, escape};
use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Whence, lseek};

use super::{path, path_in, unix_socket};
use crate::Monitor;
use crate::call::{Answer, Call, Target};
use crate::ptracer::rewrite::{MMSGHDR, MSGHDR};
use crate::shadow::Shadow;

/// Maximum size of a message's control data: `net.core.optmem_max` is 128 KiB.
const CONTROL_MAX: u64 = 1 << 20;
/// Maximum number of bytes that the monitor sends of one message; on a stream the program sends the rest.
const DATA_MAX: usize = 16 << 20;
/// Maximum number of parts of a message (`UIO_MAXIOV`).
const MAX_PARTS: u64 = 1024;
/// A larger file is not copied: ENOMEM.
const COPY_MAX: u64 = 1 << 30;
const PIECE: usize = 1 << 20;
/// Size of a `struct cmsghdr`.
const CMSGHDR: usize = 16;

/// Fields of a `struct msghdr`.
struct Header {
    name: (u64, u64),
    parts: (u64, u64),
    control: (u64, u64),
}

impl Header {
    fn parse(bytes: &[u8; MSGHDR]) -> Self {
        let field = |at: usize| {
            let field = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>);
            field.map_or(0, |field| u64::from_ne_bytes(*field))
        };
        Self {
            // The length is an int, with padding behind it.
            name: (field(0), u64::from(field(8) as u32)),
            parts: (field(16), field(24)),
            control: (field(32), field(40)),
        }
    }

    fn read(call: &Call<'_>) -> Result<Self> {
        let bytes = call.read(call.arg(1), MSGHDR)?;
        Ok(Self::parse(bytes.first_chunk().ok_or(Errno::EFAULT)?))
    }

    /// The control messages, and the positions of descriptors in them.
    fn control(&self, call: &Call<'_>) -> Result<(Vec<u8>, Vec<usize>)> {
        let (address, len) = self.control;
        if len < CMSGHDR as u64 || len > CONTROL_MAX {
            return Ok((Vec::new(), Vec::new()));
        }
        let control = call.read(address, len as usize)?;
        let places = descriptors(&control);
        Ok((control, places))
    }

    /// The content of the message, or its beginning.
    fn data(&self, call: &Call<'_>) -> Result<Vec<u8>> {
        let (address, count) = self.parts;
        if count > MAX_PARTS {
            return Err(Errno::EMSGSIZE.into());
        }
        let mut data = Vec::new();
        for index in 0..count {
            let base = call.read_u64(address + 16 * index)?;
            let len = call.read_u64(address + 16 * index + 8)?;
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let part = call.read(base, len.min(DATA_MAX - data.len()))?;
            data.extend_from_slice(&part);
        }
        Ok(data)
    }
}

/// The positions of descriptors in these control messages.
fn descriptors(control: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = 0;
    while let Some(header) = control.get(at..).and_then(<[u8]>::first_chunk::<CMSGHDR>) {
        let [len @ .., _, _, _, _, _, _, _, _] = *header;
        let kind = header.get(8..).unwrap_or_default();
        let len = usize::try_from(u64::from_ne_bytes(len)).unwrap_or(usize::MAX);
        // The kernel refuses the message.
        if len < CMSGHDR || len > control.len() - at {
            break;
        }
        let rights = [libc::SOL_SOCKET, libc::SCM_RIGHTS].map(i32::to_ne_bytes);
        if kind == rights.concat() {
            places.extend((at + CMSGHDR..=(at + len).saturating_sub(4)).step_by(4));
        }
        at += len.next_multiple_of(8);
    }
    places
}

fn descriptor_at(control: &[u8], at: usize) -> Option<i32> {
    let bytes = control.get(at..).and_then(<[u8]>::first_chunk::<4>)?;
    Some(i32::from_ne_bytes(*bytes))
}

/// Whether the message with this header takes a descriptor of a file in a store out of the run.
pub fn leave(call: &Call<'_>, header: &[u8; MSGHDR]) -> bool {
    let header = Header::parse(header);
    let Ok((control, places)) = header.control(call) else {
        return false;
    };
    let is_file = |&at: &usize| {
        let shadow = descriptor_at(&control, at).and_then(|fd| call.shadow(fd).ok().flatten());
        matches!(shadow.as_deref(), Some(Shadow::File { .. }))
    };
    places.iter().any(is_file)
        && unix_socket(call, call.int(0))
            .is_some_and(|socket| !is_received_in_run(call, &socket, header.name))
}

/// Whether the call sends a descriptor of a file in a store out of the run. Of several messages only the first is checked.
pub fn leave_in(call: &Call<'_>) -> bool {
    let message = matches!(i64::from(call.nr), libc::SYS_sendmsg | libc::SYS_sendmmsg);
    let count = message && (i64::from(call.nr) == libc::SYS_sendmsg || call.uint(2) > 0);
    let header = count.then(|| call.read(call.arg(1), MSGHDR).ok()).flatten();
    let header = header.as_deref().and_then(<[u8]>::first_chunk);
    header.is_some_and(|header| leave(call, header))
}

/// Whether a message on `socket`, to the address `name` if it has one, is received by a process of the run.
fn is_received_in_run(call: &Call<'_>, socket: &OwnedFd, name: (u64, u64)) -> bool {
    // Sockets for datagrams have no credentials of a peer, unless they are a pair.
    let peer = getsockopt(socket, sockopt::PeerCredentials).map_or(0, |peer| peer.pid());
    if peer > 0 {
        return call.monitor.alive.has_followed(peer);
    }
    let path = path(call, name.0, name.1).or_else(|| {
        let peer = socket::peer_name(socket.as_fd()).ok()?;
        path_in(&peer).map(<[u8]>::to_vec)
    });
    let place = path.and_then(|path| {
        let resolved = call.resolve(libc::AT_FDCWD, &path, true).ok()?;
        call.target(resolved).ok()
    });
    // No process outside of the run can find the host object of such a name.
    matches!(place, Some(Target::At(place)) if place.mount.fs.host_path(&place.node).is_none())
}

/// sendmsg(2) or the first message of sendmmsg(2), with copies of the files whose descriptors leave the run.
pub fn send(call: &mut Call<'_>) -> Result<Answer> {
    let header = Header::read(call)?;
    let socket = call.task.descriptor(call.int(0))?;
    let (mut control, places) = header.control(call)?;
    let mut sent = Vec::new();
    for at in places {
        let fd = descriptor_at(&control, at).ok_or(Errno::EINVAL)?;
        let fd = outward(call, fd)?;
        if let Some(number) = control.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<4>) {
            *number = fd.as_raw_fd().to_ne_bytes();
        }
        sent.push(fd);
    }
    let address = address(call, header.name)?;
    let data = header.data(call)?;
    let several = i64::from(call.nr) == libc::SYS_sendmmsg;
    let flags = call.int(if several { 3 } else { 2 });
    let outcome = socket::send(socket.as_fd(), &address, &data, &control, flags);
    if outcome == Err(Errno::EPIPE) && flags & libc::MSG_NOSIGNAL == 0 {
        signals::send_for_call(call.task.tid, libc::SIGPIPE);
    }
    let len = outcome?;
    if several {
        let at = call.arg(1) + MMSGHDR.1 as u64;
        call.put(at, &(len as u32).to_ne_bytes())?;
        return Ok(Answer::Value(1));
    }
    Ok(Answer::Value(len as i64))
}

/// The address of `len` bytes at `at`, as the monitor must give it to sendmsg(2).
fn address(call: &Call<'_>, (at, len): (u64, u64)) -> Result<Vec<u8>> {
    if at == 0 || len == 0 {
        return Ok(Vec::new());
    }
    if len > super::ADDRESS_MAX {
        return Err(Errno::EINVAL.into());
    }
    let address = call.read(at, len as usize)?;
    Ok(match path_in(&address) {
        Some(path) if path.first() != Some(&b'/') => {
            let mut from_root = format!("/proc/{}/cwd/", call.task.tid).into_bytes();
            from_root.extend_from_slice(path);
            if from_root.len() > super::PATH_MAX {
                return Err(Errno::ENAMETOOLONG.into());
            }
            super::address_of(&from_root)
        }
        _ => address,
    })
}

/// The descriptor to send for `fd`: that of a copy, if it refers to a file in a store.
fn outward(call: &Call<'_>, fd: i32) -> Result<OwnedFd> {
    let (shadow, ofd) = call.descriptor_of_any(fd)?;
    let Some(Shadow::File { place, .. }) = shadow.as_deref() else {
        return Ok(ofd);
    };
    let (_, flags) = Monitor::writable(&ofd)?;
    let made = copy(call, place)?;
    let opened = memfile::reopen(made.as_fd(), flags & (libc::O_ACCMODE | libc::O_APPEND))?;
    lseek(&opened, lseek(&ofd, 0, Whence::SeekCur)?, Whence::SeekSet)?;
    if !call.monitor.passed_out.swap(true, Ordering::Relaxed) {
        call.monitor.note.line(&note(call, place));
    }
    Ok(opened)
}

/// The content of a file as the caller would read it now, in a sealed file.
fn copy(call: &Call<'_>, place: &Place) -> Result<OwnedFd> {
    let caller = call.caller()?;
    let (fs, node) = (&place.mount.fs, &place.node);
    let size = fs.getattr(&caller, node)?.size;
    if size > COPY_MAX {
        return Err(Errno::ENOMEM.into());
    }
    memfile::sealed(c"passed", |to| {
        memfile::set_len(to, size)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < size {
            let want = usize::try_from(size - at).map_or(PIECE, |left| left.min(PIECE));
            let part = piece.get_mut(..want).unwrap_or_default();
            let got = fs.read_at(&caller, node, at, part)?;
            let part = part.get(..got).unwrap_or_default();
            if part.is_empty() {
                break;
            }
            if part.iter().any(|&byte| byte != 0) {
                memfile::pwrite(to, part, at)?;
            }
            at += got as u64;
        }
        Ok(())
    })
}

fn note(call: &Call<'_>, place: &Place) -> String {
    let path = (|| Pos::Mounted(place.clone()).path(&*call.caller()?))();
    let name = path.map_or_else(|_| "a file".into(), |(path, _)| escape(&path));
    format!(
        "a program has sent a descriptor of {name} to a process outside of the run: that process gets a copy of the content, \
         to which it cannot write"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
        let mut bytes = ((CMSGHDR + data.len()) as u64).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn descriptors_are_found_among_other_control_messages() {
        let mut control = message(libc::SOL_SOCKET, libc::SCM_CREDENTIALS, &[0; 12]);
        let first = control.len() + CMSGHDR;
        control.extend(message(
            libc::SOL_SOCKET,
            libc::SCM_RIGHTS,
            &[7, 0, 0, 0, 9, 0, 0, 0, 1],
        ));
        let places = descriptors(&control);
        assert_eq!(places, [first, first + 4]);
        assert_eq!(descriptor_at(&control, first + 4), Some(9));
    }

    #[test]
    fn damaged_control_messages_end_the_search() {
        for len in [0_u64, 15, 100, u64::MAX] {
            let mut control = message(libc::SOL_SOCKET, libc::SCM_RIGHTS, &[0; 4]);
            control[..8].copy_from_slice(&len.to_ne_bytes());
            assert!(descriptors(&control).is_empty(), "{len}");
        }
        assert!(descriptors(&[0; 7]).is_empty());
    }
}
