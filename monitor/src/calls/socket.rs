//! Names of Unix-domain sockets in a mount: the name is the back end's, the meeting point is in the run-time
//! directory, and the monitor binds or connects the tracee's own socket there.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use goanna_sys::cred;
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Errno, FileKind, Place, Result, ops};
use nix::sys::socket::UnixAddr;

use crate::call::{Answer, Call, Resolved, Target};

/// `sun_path` is 108 bytes, after a 2-byte family.
const ADDRESS_MAX: u64 = 110;

/// The path in the socket address of `len` bytes at `address`; `None` for other families, unnamed and abstract
/// addresses, and addresses the kernel will refuse itself.
fn path(call: &Call<'_>, address: u64, len: u64) -> Result<Option<Vec<u8>>> {
    if !(3..=ADDRESS_MAX).contains(&len) {
        return Ok(None);
    }
    let address = call.read(address, len as usize)?;
    let (family, path) = address.split_at(2);
    if family != (libc::AF_UNIX as u16).to_ne_bytes() || path.first() == Some(&0) {
        return Ok(None);
    }
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    Ok(Some(path.get(..end).unwrap_or_default().to_vec()))
}

/// The tracee's socket. ENOTSOCK.
fn socket(call: &Call<'_>) -> Result<OwnedFd> {
    let socket = call.task.descriptor(call.int(0))?;
    nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::SockType)?;
    Ok(socket)
}

fn as_caller<R>(caller: &Caller, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let ids = cred::Ids {
        uid: caller.uid,
        gid: caller.gid,
        groups: &caller.groups,
    };
    cred::as_user(&ids, caller.umask, false, f)
}

fn meeting_point(call: &Call<'_>, place: &Place) -> Result<PathBuf> {
    match place.mount.fs.host_path(&place.node) {
        Some(path) => Ok(path),
        None => Ok(call.monitor.shadows.rendezvous(place, 0)?.to_path_buf()),
    }
}

/// bind(2). EADDRINUSE when the name exists.
pub fn bind(call: &mut Call<'_>) -> Result<Answer> {
    let Some(path) = path(call, call.arg(1), call.arg(2))? else {
        return Ok(Answer::PassOn);
    };
    let Some(entry) = call.entry(libc::AT_FDCWD, &path)? else {
        return Ok(Answer::PassOn);
    };
    let socket = socket(call)?;
    let name = entry.name(Errno::EADDRINUSE)?;
    let caller = call.caller()?;
    if entry.must_be_dir {
        let found = ops::lookup(&caller, &entry.dir, name);
        return Err(found.map_or_else(|errno| errno, |_| Errno::EADDRINUSE));
    }
    let in_use = |errno| {
        if errno == Errno::EEXIST {
            Errno::EADDRINUSE
        } else {
            errno
        }
    };
    let mode = libc::S_IFSOCK | 0o777;
    let node = ops::mknod(&caller, &entry.dir, name, mode, 0).map_err(in_use)?;
    let place = Place {
        node,
        mount: entry.dir.mount.clone(),
    };
    let stands_in = place.mount.fs.host_path(&place.node).is_none();
    let bound = meeting_point(call, &place).and_then(|path| {
        // A back end on the host has just made the name that bind(2) insists on making itself.
        let _ = std::fs::remove_file(&path);
        let address = UnixAddr::new(&path)?;
        as_caller(&caller, || {
            nix::sys::socket::bind(socket.as_raw_fd(), &address)
        })?;
        if stands_in {
            // Who may connect or send is judged by the virtual mode, which may change.
            let everybody = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(&path, everybody).map_err(crate::shadow::errno)?;
        }
        Ok(())
    });
    if let Err(errno) = bound {
        ops::unlink(&caller, &entry.dir, name)?;
        return Err(errno);
    }
    Ok(Answer::DONE)
}

/// The meeting point of the socket that `path` names; `None` when the kernel finds it by that name. ECONNREFUSED for
/// what is no socket, EACCES without permission to write.
fn peer(call: &Call<'_>, path: &[u8]) -> Result<Option<PathBuf>> {
    let resolved: Resolved<Pos> = call.resolve(libc::AT_FDCWD, path, true)?;
    let Target::At(place) = call.target(resolved)? else {
        return Ok(None);
    };
    ops::access(&*call.caller()?, &place, libc::W_OK)?;
    if place.node.kind() != FileKind::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    meeting_point(call, &place).map(Some)
}

/// Where the socket is that a datagram on descriptor `fd` to the address of `len` bytes at `address` is for, as an
/// address of the host. `None` when that is the kernel's to find: it gets the call as it stands, with all its errors.
pub fn destination(call: &Call<'_>, fd: i32, address: u64, len: u64) -> Result<Option<Vec<u8>>> {
    use nix::sys::socket::{SockType, SockaddrLike, getsockname, getsockopt, sockopt};
    let Ok(Some(path)) = path(call, address, len) else {
        return Ok(None);
    };
    let Ok(socket) = call.task.descriptor(fd) else {
        return Ok(None);
    };
    if getsockopt(&socket, sockopt::SockType) != Ok(SockType::Datagram)
        || getsockname::<UnixAddr>(socket.as_raw_fd()).is_err()
    {
        return Ok(None);
    }
    let Some(path) = peer(call, &path)? else {
        return Ok(None);
    };
    // Nobody has bound it in this run: its meeting point is yet to be made.
    if matches!(path.try_exists(), Ok(false)) {
        return Err(Errno::ECONNREFUSED);
    }
    let address = UnixAddr::new(&path)?;
    let mut bytes = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.extend_from_slice(path.as_os_str().as_bytes());
    bytes.push(0);
    bytes.truncate(address.len() as usize);
    Ok(Some(bytes))
}

/// connect(2). ECONNREFUSED when the name is no socket's or nobody listens.
pub fn connect(call: &mut Call<'_>) -> Result<Answer> {
    let Some(path) = path(call, call.arg(1), call.arg(2))? else {
        return Ok(Answer::PassOn);
    };
    let Some(path) = peer(call, &path)? else {
        return Ok(Answer::PassOn);
    };
    let socket = socket(call)?;
    let caller = Caller::clone(&*call.caller()?);
    // A full backlog makes a blocking socket wait.
    Ok(Answer::Block(Box::new(move || {
        let address = UnixAddr::new(&path)?;
        let refused = |errno| {
            if errno == Errno::ENOENT {
                Errno::ECONNREFUSED
            } else {
                errno
            }
        };
        as_caller(&caller, || {
            nix::sys::socket::connect(socket.as_raw_fd(), &address)
        })
        .map_err(refused)?;
        Ok(Answer::DONE)
    })))
}
