//! Where a store's owner is reached: the socket `aminod.sock` in the store's directory.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::libc;
use rustix::net::sockopt::socket_peercred;

const NAME: &str = "aminod.sock";

/// A way to a file of `dir` that is short enough for a socket's address, however long the directory's own path is; good as
/// long as the descriptor is open.
fn short(dir: &Path) -> io::Result<(File, PathBuf)> {
    let dir = File::options()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(dir)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{NAME}", dir.as_raw_fd()));
    Ok((dir, path))
}

/// Listens in the store `dir`, of which this process has the lock: what a dead owner has left there goes.
pub fn listen(dir: &Path) -> io::Result<UnixListener> {
    remove(dir)?;
    let (_dir, path) = short(dir)?;
    UnixListener::bind(&path)
}

/// Takes the socket away: whoever comes from now on finds nobody.
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

/// The process at the other end: its id and its user's.
pub fn peer(stream: &impl std::os::fd::AsFd) -> io::Result<(i32, u32)> {
    let peer = socket_peercred(stream)?;
    Ok((peer.pid.as_raw_nonzero().get(), peer.uid.as_raw()))
}

/// Whether process `pid` sees the files and processes that this one does: the same mounts, process ids, users and root.
pub fn same_world(pid: i32) -> bool {
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
