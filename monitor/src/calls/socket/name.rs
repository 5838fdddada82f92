//! The name that the kernel keeps of a bound socket: the argument of bind(2). It is shown by getsockname, getpeername, accept,
//! recvfrom, recvmsg and `/proc/net/unix`.
//!
//! So where possible, the monitor binds a socket by the same bytes that the program gave. It makes directories of the same names
//! in the run-time directory, and binds on a thread that has them as its working directory or root. Then it removes these
//! directories and moves the object to its place, where the kernel finds it by its inode. A root of its own needs
//! CAP_SYS_CHROOT; without it a socket with an absolute name is bound by the path of its host object, and [`Names`] has the name
//! that the program gave.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use goanna_vfs::{Caller, Errno, FsError, Result};
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use parking_lot::RwLock;

use super::{PATH_MAX, bind_by, bind_from, may_own_fs_state, with_own_fs_state};
use crate::errno::{errno, from_rustix};
use crate::shadow::run_directory::{RunDir, make_search_only_dir};

/// Maximum number of names that are kept; a program that binds more sockets sees host paths for the older ones.
const NAMES_MAX: usize = 1 << 16;

/// The names that programs gave to sockets which were bound by another name.
#[derive(Debug, Default)]
pub struct Names {
    by_kept: RwLock<HashMap<Vec<u8>, Vec<u8>>>,
}

impl Names {
    /// Whether the kernel keeps the right name of every socket.
    pub fn is_empty(&self) -> bool {
        self.by_kept.read().is_empty()
    }

    /// The name that the program gave to the socket for which the kernel keeps the name `kept`.
    pub fn given(&self, kept: &[u8]) -> Option<Vec<u8>> {
        self.by_kept.read().get(kept).cloned()
    }

    fn note(&self, kept: &[u8], given: &[u8]) {
        let mut by_kept = self.by_kept.write();
        if by_kept.len() >= NAMES_MAX {
            by_kept.clear();
        }
        by_kept.insert(kept.to_vec(), given.to_vec());
    }

    /// Binds `socket`, which the program calls `path`, to the new host object `object` in the run-time directory.
    pub fn bind_backing(
        &self,
        rundir: &RunDir,
        socket: &OwnedFd,
        path: &[u8],
        object: &Path,
    ) -> Result<()> {
        match bind_as_called(rundir, socket, path, object) {
            // The socket has a name already.
            Err(FsError::Errno(Errno::EINVAL)) => return Err(Errno::EINVAL.into()),
            Ok(()) => return Ok(()),
            Err(_) => {}
        }
        let kept = object.as_os_str().as_bytes();
        if kept.len() > PATH_MAX {
            return Err(Errno::ENAMETOOLONG.into());
        }
        bind_by(None, socket, kept)?;
        self.note(kept, path);
        Ok(())
    }

    /// Binds `socket`, which the program calls `path`, to `name` in the host's directory `dir`, as `caller`.
    pub fn bind_in(
        &self,
        rundir: &RunDir,
        caller: &Caller,
        socket: &OwnedFd,
        path: &[u8],
        dir: &Path,
        name: &[u8],
    ) -> Result<()> {
        let may_own_fs_state = may_own_fs_state();
        if path == name && may_own_fs_state {
            return with_own_fs_state(|| bind_from(dir, Some(caller), socket, name));
        }
        let here = dir.join(OsStr::from_bytes(name));
        if path.first() == Some(&b'/') && here.as_os_str().len() <= PATH_MAX {
            let kept = here.as_os_str().as_bytes();
            bind_by(Some(caller), socket, kept)?;
            self.note(kept, path);
            return Ok(());
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let dir = nix::fcntl::open(dir, flags, Mode::empty())?;
        let tree = Tree::make(rundir)?;
        let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
        let called = match tree.link_to(path, &link) {
            Ok(()) if may_own_fs_state => path.to_vec(),
            _ => {
                // A name that no other socket has.
                let unique = tree.0.file_name().unwrap_or_default();
                symlink(&link, tree.0.join(unique)).map_err(errno)?;
                [unique.as_bytes(), b"/", name].concat()
            }
        };
        let called = if may_own_fs_state {
            with_own_fs_state(|| bind_from(&tree.0, Some(caller), socket, &called))?;
            called
        } else {
            let called = tree.0.join(OsStr::from_bytes(&called));
            let called = called.into_os_string().into_encoded_bytes();
            bind_by(Some(caller), socket, &called)?;
            called
        };
        if called != path {
            self.note(&called, path);
        }
        Ok(())
    }
}

/// Binds by `path` itself, then moves the object to `object`.
fn bind_as_called(rundir: &RunDir, socket: &OwnedFd, path: &[u8], object: &Path) -> Result<()> {
    let tree = Tree::make(rundir)?;
    let steps: Vec<&[u8]> = steps(path).collect();
    let (name, parents) = steps.split_last().ok_or(Errno::ENOENT)?;
    let is_absolute = path.first() == Some(&b'/');
    let mut start = tree.0.clone();
    if !is_absolute {
        // As deep as the `..` components of the path can lead upwards.
        for _ in parents.iter().filter(|step| **step == b"..") {
            start.push("-");
            make_search_only_dir(&start).map_err(errno)?;
        }
    }
    let mut at = start.clone();
    for step in parents {
        if *step != b".." {
            at.push(OsStr::from_bytes(step));
            match make_search_only_dir(&at) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(errno(error).into());
                }
                _ => {}
            }
        } else if at != tree.0 {
            at.pop();
        }
    }
    with_own_fs_state(|| {
        if is_absolute {
            rustix::process::chroot(&tree.0).map_err(|error| match error {
                // `bind_backing` would take EINVAL for that of a socket that has a name already.
                rustix::io::Errno::INVAL => Errno::EPERM,
                error => from_rustix(error),
            })?;
            return bind_from(Path::new("/"), None, socket, path);
        }
        bind_from(&start, None, socket, path)
    })?;
    Ok(fs::rename(at.join(OsStr::from_bytes(name)), object).map_err(errno)?)
}

/// The components of a path, without empty ones and `.`.
fn steps(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/')
        .filter(|step| !matches!(*step, b"" | b"."))
}

/// A temporary directory in the run-time directory.
struct Tree(PathBuf);

impl Tree {
    fn make(rundir: &RunDir) -> Result<Self> {
        let path = rundir.unguessable("s").map_err(errno)?;
        make_search_only_dir(&path).map_err(errno)?;
        Ok(Self(path))
    }

    /// Makes directories so that all but the last component of the relative `path` lead to `target`. EINVAL if the path has
    /// other components than names.
    fn link_to(&self, path: &[u8], target: &str) -> Result<()> {
        let steps: Vec<&[u8]> = path.split(|&b| b == b'/').collect();
        let is_name = |step: &&[u8]| !matches!(*step, b"" | b"." | b"..");
        let Some((_, [parents @ .., last])) = steps.split_last() else {
            return Err(Errno::EINVAL.into());
        };
        if !steps.iter().all(is_name) {
            return Err(Errno::EINVAL.into());
        }
        let mut at = self.0.clone();
        for step in parents {
            at.push(OsStr::from_bytes(step));
            make_search_only_dir(&at).map_err(errno)?;
        }
        Ok(symlink(target, at.join(OsStr::from_bytes(last))).map_err(errno)?)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Directories that cannot be removed here are removed with the run-time directory.
        let _ = fs::remove_dir_all(&self.0);
    }
}
