//! The socket `aminod.sock` in the store's directory, where clients reach the owner.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::socket::{getsockopt, sockopt};

const NAME: &str = "aminod.sock";

/// A path to the socket in `dir` that is short enough for a socket's address, however long the path of `dir` is. It is valid
/// as long as the descriptor is open.
fn short(dir: &Path) -> io::Result<(File, PathBuf)> {
    let dir = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", dir.as_raw_fd()));
    Ok((dir, path))
}

/// Listens in the store `dir`, of which this process has the lock. First removes the socket of a dead owner.
pub fn listen(dir: &Path) -> io::Result<UnixListener> {
    remove(dir)?;
    let (_dir, path) = short(dir)?;
    UnixListener::bind(&path)
}

/// Removes the socket: from now on clients find no owner.
pub fn remove(dir: &Path) -> io::Result<()> {
    match std::fs::remove_file(dir.join(NAME)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A connection to the owner of the store `dir`; `None` where there is none.
pub fn connect(dir: &Path) -> io::Result<Option<UnixStream>> {
    let connected = short(dir).and_then(|(_dir, path)| UnixStream::connect(path));
    match connected {
        Ok(stream) => Ok(Some(stream)),
        Err(error) => match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
                Ok(None)
            }
            _ => Err(error),
        },
    }
}

/// The ids of the process at the other end and of its user. The process id is 0 if that process is in an outer or a sibling
/// PID namespace.
pub fn peer(stream: &impl std::os::fd::AsFd) -> io::Result<(i32, u32)> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?;
    Ok((peer.pid(), peer.uid()))
}

/// Whether process `pid` has this process's namespaces of mounts, process ids and users, and its root.
pub fn shares_namespaces(pid: i32) -> bool {
    let same = |what: &str| {
        let own = std::fs::metadata(format!("/proc/self/{what}"));
        let its = std::fs::metadata(format!("/proc/{pid}/{what}"));
        let identity = |meta: &std::fs::Metadata| {
            use std::os::unix::fs::MetadataExt;
            (meta.dev(), meta.ino())
        };
        matches!((own, its), (Ok(own), Ok(its)) if identity(&own) == identity(&its))
    };
    ["ns/mnt", "ns/pid", "ns/user", "root"]
        .into_iter()
        .all(same)
}
