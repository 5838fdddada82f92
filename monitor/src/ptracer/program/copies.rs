//! Host copies of programs ([ADR 0002](../../../../docs/decisions/0002-exec-from-a-host-copy.md)).

use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use goanna_sys::{procfs, tracee};
use goanna_vfs::{Caller, Errno, Mount, PATH_MAX, Place, PlaceKey, Result, Stamp};
use parking_lot::Mutex;

use super::interpreter::Interpreter;
use crate::errno::errno;
use crate::shadow::run_directory::{RunDir, make_search_only_dir};
use crate::shadow::{Identity, copy_permissions};

const COPY_PIECE: usize = 1 << 20;

#[derive(Debug)]
struct HostCopy {
    path: PathBuf,
    version: (Stamp, Stamp, u64),
    /// The host file that it has as its interpreter, if not its own one.
    interpreter: Option<PathBuf>,
}

/// The path of a program that a thread executes.
#[derive(Debug)]
struct Executed {
    /// As the kernel gets it.
    by_kernel: Vec<u8>,
    /// As the program is to see it: not longer.
    shown: Vec<u8>,
}

/// Most names of host files that are kept.
const NAMES_MAX: usize = 4096;

/// Symbolic links to host files, for other names than their own.
#[derive(Debug, Default)]
struct Names {
    /// By the file and the name of the link.
    links: HashMap<(PathBuf, OsString), PathBuf>,
    /// The first made first.
    order: VecDeque<(PathBuf, OsString)>,
}

/// Host copies of programs, and the virtual files of the programs that run.
#[derive(Debug, Default)]
pub struct Programs {
    copies: Mutex<HashMap<PlaceKey, HostCopy>>,
    behind: Mutex<HashMap<Identity, Place>>,
    names: Mutex<Names>,
    /// By thread, from the call to its success, or to the thread's next call.
    executing: Mutex<HashMap<i32, Executed>>,
}

impl Programs {
    /// The virtual program behind a host file that was executed.
    pub fn behind(&self, identity: Identity) -> Option<Place> {
        self.behind.lock().get(&identity).cloned()
    }

    /// Forgets the programs in `mount` that none of `threads` executes, so that they do not keep its file system busy.
    pub fn release_unheld(&self, mount: &Mount, threads: &[i32]) {
        let program = |tid: &i32| fs::metadata(format!("/proc/{tid}/exe")).ok();
        let executed = threads.iter().filter_map(program);
        let executed: HashSet<Identity> = executed.map(|meta| (meta.dev(), meta.ino())).collect();
        let is_unheld = |identity: &Identity, place: &mut Place| {
            place.mount.number == mount.number && !executed.contains(identity)
        };
        let gone: Vec<_> = self.behind.lock().extract_if(is_unheld).collect();
        // These may be the last references to inodes. Dropping them calls the back end, so no lock may be held.
        drop(gone);
    }

    /// Whether the program is being executed, so that it must not be written to (ETXTBSY).
    pub fn running(&self, place: &Place) -> bool {
        let copies = self.copies.lock();
        let Some(copy) = copies.get(&place.key()) else {
            return false;
        };
        let busy = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&copy.path);
        busy.is_err_and(|error| error.raw_os_error() == Some(libc::ETXTBSY))
    }

    /// The host file to execute for `place`, named `name`, with this host file as its interpreter, if that is not its own one.
    pub(super) fn host_file(
        &self,
        rundir: &RunDir,
        caller: &Caller,
        place: &Place,
        name: &OsStr,
        interpreter: Option<(Interpreter, PathBuf)>,
    ) -> Result<PathBuf> {
        let own = place.mount.fs.host_path(&place.node);
        if let Some(path) = own.filter(|_| interpreter.is_none()) {
            if place.mount.is_hosted() {
                rundir.allow_traversal(caller.uid).map_err(errno)?;
            }
            self.remember(&path, place)?;
            return Ok(path);
        }
        rundir.allow_traversal(caller.uid).map_err(errno)?;
        let attr = place.mount.fs.getattr(caller, &place.node)?;
        let version = (attr.mtime, attr.ctime, attr.size);
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get(&place.key())
            && copy.version == version
            && copy.interpreter.as_ref() == interpreter.as_ref().map(|(_, path)| path)
        {
            return Ok(copy.path.clone());
        }
        let path = new_path(rundir, name).map_err(errno)?;
        copy_out(caller, place, &path, interpreter.as_ref())?;
        copy_permissions(caller, place, &path)?;
        self.remember(&path, place)?;
        if let Some(old) = copies.insert(
            place.key(),
            HostCopy {
                path: path.clone(),
                version,
                interpreter: interpreter.map(|(_, path)| path),
            },
        ) {
            // Processes that still execute the file keep it; only its name is removed.
            remove(&old.path);
        }
        Ok(path)
    }

    /// A path of `file` that ends with `name`: its own one, or that of a link. If none can be made, its own one all the same.
    pub(super) fn called(
        &self,
        rundir: &RunDir,
        caller: &Caller,
        file: PathBuf,
        name: &OsStr,
    ) -> PathBuf {
        if file.file_name() == Some(name) {
            return file;
        }
        // Links are kept for processes of all users.
        let Ok(()) = rundir.allow_traversal(caller.uid) else {
            return file;
        };
        let key = (file, name.to_owned());
        let mut names = self.names.lock();
        if let Some(link) = names.links.get(&key) {
            return link.clone();
        }
        let Ok(link) = make_link(rundir, &key.0, name) else {
            return key.0;
        };
        names.order.push_back(key.clone());
        names.links.insert(key, link.clone());
        // Thousands of calls ago: no thread is about to execute a file by it.
        if names.links.len() > NAMES_MAX
            && let Some(oldest) = names.order.pop_front()
            && let Some(link) = names.links.remove(&oldest)
        {
            remove(&link);
        }
        link
    }

    /// Thread `tid` is about to execute a program, or to try: the kernel gets the path `by_kernel` in the place of `shown`.
    pub fn executes(&self, tid: i32, by_kernel: &[u8], shown: &[u8]) {
        let (by_kernel, shown) = (by_kernel.to_vec(), shown.to_vec());
        self.executing
            .lock()
            .insert(tid, Executed { by_kernel, shown });
    }

    /// Thread `tid` executes a program by the path that it gives, or has ended.
    pub fn forget(&self, tid: i32) {
        self.executing.lock().remove(&tid);
    }

    /// Thread `former` has executed a program, and is `tid` now; it is stopped. The program sees the path that was executed (AT_EXECFN).
    pub fn executed(&self, tid: i32, former: i32) {
        let Some(executed) = self.executing.lock().remove(&former) else {
            return;
        };
        // The kernel has put the path on the stack. What cannot be replaced is the path of the host file.
        let _ = executed.show(tid);
    }

    fn remember(&self, path: &Path, place: &Place) -> Result<()> {
        let meta = fs::metadata(path).map_err(errno)?;
        self.behind
            .lock()
            .insert((meta.dev(), meta.ino()), place.clone());
        Ok(())
    }
}

impl Executed {
    fn show(&self, tid: i32) -> Result<(), Errno> {
        let address = procfs::auxiliary_value(tid, libc::AT_EXECFN)?.ok_or(Errno::ENOENT)?;
        let there = tracee::read_cstr(tid, address, PATH_MAX)?;
        if there != self.by_kernel || self.shown.len() > there.len() {
            return Err(Errno::EINVAL);
        }
        tracee::write_all(tid, address, &[&self.shown, &b"\0"[..]].concat())
    }
}

/// A path that ends with `name`, in a new directory.
fn new_path(rundir: &RunDir, name: &OsStr) -> io::Result<PathBuf> {
    let dir = rundir.unguessable("x")?;
    make_search_only_dir(&dir)?;
    Ok(dir.join(name))
}

/// Makes a symbolic link to `file` by the name `name`.
fn make_link(rundir: &RunDir, file: &Path, name: &OsStr) -> io::Result<PathBuf> {
    let link = new_path(rundir, name)?;
    // The run-time directory can have another path for the process.
    let around = link.parent().and_then(Path::parent);
    let beside = around.and_then(|around| file.strip_prefix(around).ok());
    let target = beside.map_or_else(|| file.to_owned(), |file| Path::new("..").join(file));
    symlink(target, &link)?;
    Ok(link)
}

/// Removes the file or link at such a path, and the directory.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    if let Some(dir) = path.parent() {
        let _ = fs::remove_dir(dir);
    }
}

/// Copies a program to the host file `path`. It closes the file, because the kernel refuses to execute a file
/// that is open for writing (ETXTBSY).
fn copy_out(
    caller: &Caller,
    place: &Place,
    path: &Path,
    interpreter: Option<&(Interpreter, PathBuf)>,
) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(path)
        .map_err(errno)?;
    let mut piece = vec![0; COPY_PIECE];
    let mut offset = 0;
    loop {
        let got = place
            .mount
            .fs
            .read_at(caller, &place.node, offset, &mut piece)?;
        let Some(data) = piece.get(..got).filter(|data| !data.is_empty()) else {
            break;
        };
        file.write_all(data).map_err(errno)?;
        offset += got as u64;
    }
    if let Some((interpreter, path)) = interpreter {
        for (at, bytes) in interpreter.replaced_by(path.as_os_str().as_bytes(), offset) {
            file.write_all_at(&bytes, at).map_err(errno)?;
        }
    }
    Ok(())
}
