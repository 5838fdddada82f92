//! Names of Unix sockets in a mount: the back end has the name, and the kernel's socket is bound to an object on the host.
//! That is in the run-time directory if the back end has no host files.
//!
//! The monitor binds ([`bind`]) and the tracee connects and sends, by an address of the host object. So the credentials a peer
//! sees are the tracee's, and the tracee waits itself. `name.rs` makes the kernel keep the name that the program gave.

pub mod datagram;
pub mod filter;
mod name;
pub mod rights;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use goanna_sys::{cred, socket};
use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Errno, FileKind, FsError, Place, Result, ops};
use nix::sys::stat::fstat;

use crate::call::{Answer, Call, Entry, Resolved, Target};
use crate::process::task::acting_as;
use crate::ptracer::rewrite::{Addressed, AddressedKind, Rewrite};
use crate::watches::report;
pub use name::Names;

/// `sun_path` is 108 bytes, after a 2-byte family.
const ADDRESS_MAX: u64 = 110;
/// The longest path that an address can hold with a NUL behind it.
const PATH_MAX: usize = 107;

/// An address of `path`, which is at most 108 bytes long.
fn address_of(path: &[u8]) -> Vec<u8> {
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend_from_slice(path);
    if path.len() <= PATH_MAX {
        address.push(0);
    }
    address
}

/// The path in the socket address of `len` bytes at `address`; `None` for other families, unnamed and abstract
/// addresses, and addresses that the kernel refuses itself.
fn path(call: &Call<'_>, address: u64, len: u64) -> Option<Vec<u8>> {
    if !(3..=ADDRESS_MAX).contains(&len) {
        return None;
    }
    let address = call.read(address, len as usize).ok()?;
    path_in(&address).map(<[u8]>::to_vec)
}

fn path_in(address: &[u8]) -> Option<&[u8]> {
    let (family, path) = address.split_at_checked(2)?;
    if family != (libc::AF_UNIX as u16).to_ne_bytes() || matches!(path.first(), None | Some(0)) {
        return None;
    }
    let end = path.iter().position(|&b| b == 0).unwrap_or(path.len());
    path.get(..end)
}

/// Descriptor `fd` of the tracee, if it is a Unix socket: the kernel checks that before it reads an address.
fn unix_socket(call: &Call<'_>, fd: i32) -> Option<OwnedFd> {
    let socket = call.task.descriptor(fd).ok()?;
    let domain = rustix::net::sockopt::socket_domain(&socket).ok()?;
    (domain == rustix::net::AddressFamily::UNIX).then_some(socket)
}

/// bind(2). EADDRINUSE when the name exists; EINVAL when the socket has a name.
pub fn bind(call: &mut Call<'_>) -> Result<Answer> {
    let Some(path) = path(call, call.arg(1), call.arg(2)) else {
        return Ok(Answer::PassOn);
    };
    let Some(socket) = unix_socket(call, call.int(0)) else {
        return Ok(Answer::PassOn);
    };
    let Some(entry) = call.entry(libc::AT_FDCWD, &path)? else {
        return Ok(Answer::PassOn);
    };
    let name = entry.name(Errno::EADDRINUSE)?;
    let caller = call.caller()?;
    if entry.must_be_dir {
        let found = ops::lookup(&caller, &entry.dir, name);
        return Err(found.map_or_else(|errno| errno, |_| Errno::EADDRINUSE.into()));
    }
    let in_use = |error: FsError| {
        if error == Errno::EEXIST {
            Errno::EADDRINUSE.into()
        } else {
            error
        }
    };
    // As in Linux, the umask applies here even if the directory has a default access control list.
    let mode = libc::S_IFSOCK | fstat(&socket)?.st_mode & 0o777 & !caller.umask;
    let names = report::begin(call);
    let node = ops::mknod(&caller, &entry.dir, name, mode, 0).map_err(in_use)?;
    let place = Place {
        node,
        mount: entry.dir.mount.clone(),
    };
    if let Err(errno) = bind_host_object(call, &socket, &path, &entry, name, &place) {
        return match ops::unlink(&caller, &entry.dir, name) {
            // On the host the attempt has removed the name.
            Ok(()) | Err(FsError::Errno(Errno::ENOENT)) => Err(errno),
            Err(other) => Err(other),
        };
    }
    report::created(call, names, &entry.dir, name, &place.node);
    Ok(Answer::DONE)
}

/// Binds the kernel's socket to the host object of `place`, which the program has called `path`.
fn bind_host_object(
    call: &Call<'_>,
    socket: &OwnedFd,
    path: &[u8],
    entry: &Entry,
    name: &[u8],
    place: &Place,
) -> Result<()> {
    let monitor = call.monitor;
    let (names, shadows) = (&monitor.socket_names, &monitor.shadows);
    let caller = call.caller()?;
    let Some(object) = place.mount.fs.host_path(&place.node) else {
        let object = shadows.backing(&caller, place)?;
        names.bind_backing(shadows.rundir(), socket, path, &object)?;
        return shadows.update_permissions(&caller, place);
    };
    let dir = entry.dir.mount.fs.host_path(&entry.dir.node);
    let dir = dir.ok_or(Errno::ENOENT)?;
    // The back end has just made the name, but bind(2) must make it itself.
    let _ = std::fs::remove_file(&object);
    names.bind_in(shadows.rundir(), &caller, socket, path, &dir, name)
}

/// Runs `f` on a thread of its own, which shares its root and working directory with no other thread.
fn with_own_fs_state<R: Send>(f: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("socket-name".into())
            .spawn_scoped(scope, || {
                cred::thread_owns_fs()?;
                f()
            })
            .map_err(|_| Errno::EAGAIN)?;
        thread.join().unwrap_or(Err(Errno::EIO.into()))
    })
}

/// Whether [`with_own_fs_state`] works here: containers forbid it.
fn may_own_fs_state() -> bool {
    static MAY: LazyLock<bool> = LazyLock::new(|| with_own_fs_state(|| Ok(())).is_ok());
    *MAY
}

/// [`socket::bind`] in the working directory `cwd`, as `caller` or as the monitor.
fn bind_from(cwd: &Path, caller: Option<&Caller>, socket: &OwnedFd, path: &[u8]) -> Result<()> {
    nix::unistd::chdir(cwd)?;
    bind_by(caller, socket, path)
}

/// [`socket::bind`] by `path`, as `caller` or as the monitor. ENAMETOOLONG.
fn bind_by(caller: Option<&Caller>, socket: &OwnedFd, path: &[u8]) -> Result<()> {
    if path.len() > PATH_MAX + 1 {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let bind = || socket::bind(socket.as_fd(), &address_of(path));
    let Some(caller) = caller else {
        return Ok(bind()?);
    };
    Ok(acting_as(caller, Some(caller.umask), bind)?)
}

/// The host object of the socket that `path` names, by a path that fits an address; `None` when the kernel finds it by that
/// name. EACCES without permission to write; ECONNREFUSED if it is not a socket, or if no process of this run has bound it.
fn peer(call: &Call<'_>, path: &[u8]) -> Result<Option<PathBuf>> {
    let resolved: Resolved<Pos> = call.resolve(libc::AT_FDCWD, path, true)?;
    let Target::At(place) = call.target(resolved)? else {
        return Ok(None);
    };
    let caller = call.caller()?;
    ops::permission(&caller, &place, libc::W_OK)?;
    if place.node.kind() != FileKind::Socket {
        return Err(Errno::ECONNREFUSED.into());
    }
    let shadows = &call.monitor.shadows;
    let path = match place.mount.fs.host_path(&place.node) {
        Some(path) if path.as_os_str().len() <= PATH_MAX => path,
        Some(path) => shadows.short_path(&caller, &place, &path)?.to_path_buf(),
        None => shadows.backing(&caller, &place)?.to_path_buf(),
    };
    if matches!(path.try_exists(), Ok(false)) {
        return Err(Errno::ECONNREFUSED.into());
    }
    Ok(Some(path))
}

/// The address of the host object that the address of `len` bytes at `address` stands for, for the tracee to use on its
/// Unix socket `fd`. `None` when the kernel performs the call unchanged.
fn host_address(call: &Call<'_>, address: u64, len: u64) -> Result<Option<Vec<u8>>> {
    let Some(path) = path(call, address, len) else {
        return Ok(None);
    };
    let Some(path) = peer(call, &path)? else {
        return Ok(None);
    };
    let path = path.as_os_str().as_bytes();
    if path.len() > PATH_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(Some(address_of(path)))
}

/// connect(2), at its stop; `None` when the kernel performs the call unchanged.
pub fn connect(call: &Call<'_>) -> Result<Option<Rewrite>> {
    if path(call, call.arg(1), call.arg(2)).is_none() || unix_socket(call, call.int(0)).is_none() {
        return Ok(None);
    }
    let address = host_address(call, call.arg(1), call.arg(2))?;
    Ok(address.map(|address| {
        Rewrite::Addressed(Addressed {
            kind: AddressedKind::Connect(address.len() as u64),
            image: address,
            pointers: Vec::new(),
        })
    }))
}

/// getsockname(2)
pub fn getsockname(call: &mut Call<'_>) -> Result<Answer> {
    show_name(call, |fd| socket::name(fd.as_fd()))
}

/// getpeername(2)
pub fn getpeername(call: &mut Call<'_>) -> Result<Answer> {
    show_name(call, |fd| socket::peer_name(fd.as_fd()))
}

/// Answers with the name that the program gave the socket, where the kernel keeps another one.
fn show_name(
    call: &Call<'_>,
    name: impl FnOnce(&OwnedFd) -> Result<Vec<u8>, Errno>,
) -> Result<Answer> {
    let names = &call.monitor.socket_names;
    if names.is_empty() {
        return Ok(Answer::PassOn);
    }
    let socket = call.task.descriptor(call.int(0))?;
    let kept = name(&socket)?;
    let Some(given) = path_in(&kept).and_then(|path| names.given(path)) else {
        return Ok(Answer::PassOn);
    };
    // As in the kernel, the part that fits is copied, and the length is that of the whole name with its NUL.
    let mut address = address_of(&given);
    address.resize(2 + given.len() + 1, 0);
    let capacity = call.read_u32(call.arg(2))?.cast_signed();
    let capacity = usize::try_from(capacity).map_err(|_| Errno::EINVAL)?;
    if let Some(part) = address.get(..capacity.min(address.len())) {
        call.put(call.arg(1), part)?;
    }
    call.put(call.arg(2), &(address.len() as u32).to_ne_bytes())?;
    Ok(Answer::DONE)
}
