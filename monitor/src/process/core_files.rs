//! Core files of tracees whose working directory is in a mount.
//!
//! If `core_pattern` is relative, the kernel writes the file into the working directory, which is a backing directory here. At the
//! stop for a signal that dumps core, the monitor makes the tracee's user the owner of the backing directory, if that user may write
//! to the virtual directory; otherwise the kernel can write no file there. At the stop before its exit the thread waits until its
//! file is in the virtual directory, so that a parent that has waited for it finds the file.
//!
//! While two processes dump into one directory at the same time, the monitor cannot distinguish the file of the first from that of
//! the other, which is not complete. So all files are moved when the last of these processes exits.

use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use goanna_sys::ptrace::{Options, Stopped};
use goanna_sys::{cred, interrupt};
use goanna_vfs::walk::Pos;
use goanna_vfs::{
    Caller, Errno, FsError, Native, OpenFile, Opened, Place, Result, WritePosition, escape, ops,
    wait_for_locks,
};
use nix::unistd::{Whence, lseek};

use crate::Monitor;
use crate::call::Call;
use crate::errno::errno;

/// The signals whose default action is to dump core (signal(7)).
const DUMPING: [i32; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];
/// In an exit code: a core was dumped.
const DUMPED: i32 = 0x80;
/// Bytes copied at once.
const PIECE: usize = 1 << 20;

/// A thread that a signal is about to end.
struct Dump {
    backing_dir: Arc<Path>,
    place: Place,
    caller: Arc<Caller>,
}

/// A core file that is to be moved.
pub struct CoreFile {
    /// Its path in the run-time directory.
    path: PathBuf,
    name: Vec<u8>,
    place: Place,
    caller: Arc<Caller>,
}

/// The core files of one run; the supervisor owns them.
#[derive(Default)]
pub struct CoreFiles {
    dumps: HashMap<i32, Dump>,
    /// Threads that wait at their exit.
    held: HashMap<i32, Stopped>,
}

impl CoreFiles {
    /// The thread is stopped for `signal`, which may make it dump core.
    pub fn signal(&mut self, monitor: &Monitor, stopped: &Stopped, signal: i32) -> Result<()> {
        let tid = stopped.tid();
        if !DUMPING.contains(&signal)
            || !interrupt::has_default_action(tid, signal)?
            || !dumps_to_working_directory()
        {
            return Ok(());
        }
        let call = Call::new(monitor, monitor.tasks.get(tid)?, 0, [0; 6]);
        let (Pos::Mounted(place), _) = call.cwd()? else {
            return Ok(());
        };
        let caller = call.caller()?;
        let backing_dir = monitor.shadows.directory(&place)?;
        let may_write = ops::access(&caller, &place, libc::W_OK | libc::X_OK).is_ok();
        let own = cred::own_ids().uid;
        let owner = if may_write { caller.uid } else { own };
        if cred::may_change_user() {
            lchown(&backing_dir, Some(owner), None).map_err(errno)?;
        }
        let mode = if may_write { 0o755 } else { 0o555 };
        fs::set_permissions(&backing_dir, Permissions::from_mode(mode)).map_err(errno)?;
        stopped.set_options(Options::MONITOR | Options::TRACEEXIT)?;
        let dump = Dump {
            backing_dir,
            place,
            caller,
        };
        self.dumps.insert(tid, dump);
        Ok(())
    }

    /// The files to move before the thread, which is about to exit, continues.
    pub fn exiting(&mut self, monitor: &Monitor, stopped: &Stopped) -> Vec<CoreFile> {
        let Some(dump) = self.dumps.remove(&stopped.tid()) else {
            return Vec::new();
        };
        let mut others = self.dumps.values();
        let dumped = stopped.event_message().is_ok_and(|code| code & DUMPED != 0);
        if !dumped || others.any(|other| other.backing_dir == dump.backing_dir) {
            return Vec::new();
        }
        take_files(monitor, &dump).unwrap_or_default()
    }

    /// Keeps the thread in its exit stop until its files are moved.
    pub fn hold(&mut self, stopped: Stopped) {
        self.held.insert(stopped.tid(), stopped);
    }

    /// The files are in the virtual directory. Returns thread `tid` if it still waits for that.
    pub fn moved(&mut self, tid: i32) -> Option<Stopped> {
        self.held.remove(&tid)
    }

    /// Thread `tid` has ended, or continues after all.
    pub fn forget(&mut self, tid: i32) {
        self.dumps.remove(&tid);
        self.held.remove(&tid);
    }
}

/// Whether `core_pattern` is a name in the working directory, not a program, a socket or an absolute path.
fn dumps_to_working_directory() -> bool {
    let pattern = fs::read("/proc/sys/kernel/core_pattern").unwrap_or_default();
    !matches!(pattern.first(), None | Some(b'|' | b'/' | b'@'))
}

/// Moves the dumped files out of the backing directory, so that the next dump does not overwrite them.
fn take_files(monitor: &Monitor, dump: &Dump) -> std::io::Result<Vec<CoreFile>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(&dump.backing_dir)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        // The kernel dumps to a new file of the process's user.
        if !meta.is_file() || meta.uid() != dump.caller.uid || meta.nlink() != 1 {
            continue;
        }
        let path = monitor.shadows.rundir().unguessable("s")?;
        fs::rename(entry.path(), &path)?;
        files.push(CoreFile {
            path,
            name: entry.file_name().into_vec(),
            place: dump.place.clone(),
            caller: Arc::clone(&dump.caller),
        });
    }
    Ok(files)
}

impl CoreFile {
    /// Puts the file into the directory where the process was. A failure is reported to the user.
    pub fn deliver(self, monitor: &Monitor) {
        let outcome = wait_for_locks(|| self.copy(monitor));
        // If this fails, the file is removed with the run-time directory.
        let _ = fs::remove_file(&self.path);
        if let Err(errno) = outcome {
            let reason = match errno {
                Errno::EDEADLK | Errno::ETIMEDOUT => "it is locked by a transaction",
                errno => errno.desc(),
            };
            monitor.note_once(&format!(
                "the core file {} could not be stored in the working directory of the process: {reason}",
                escape(&self.name)
            ));
        }
    }

    /// Copies the file to the virtual directory. As the kernel does for a core file, it replaces any file of that name by a new one.
    fn copy(&self, monitor: &Monitor) -> Result<()> {
        let (caller, dir) = (&*self.caller, &self.place);
        // If the name could not be removed for another reason, the creation below fails.
        if let Err(blocked @ FsError::Blocked(_)) = ops::unlink(caller, dir, &self.name) {
            return Err(blocked);
        }
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR;
        let (node, opened) = ops::create(caller, dir, &self.name, 0o600, flags)?;
        let place = Place {
            node,
            mount: Arc::clone(&dir.mount),
        };
        let target = Target {
            caller,
            place: &place,
            opened: &opened,
        };
        if let Native::Reads { handle } = &opened.native {
            monitor.shadows.register_file(&place, Arc::clone(handle));
        }
        copy_content(&File::open(&self.path).map_err(errno)?, &target)
    }
}

/// The new file.
struct Target<'a> {
    caller: &'a Caller,
    place: &'a Place,
    opened: &'a Opened,
}

impl Target<'_> {
    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = offset + done as u64;
            done += match &self.opened.native {
                Native::All => nix::sys::uio::pwrite(self.opened.fd()?, rest, at as i64)?,
                Native::Reads { .. } => {
                    let file = OpenFile {
                        node: &self.place.node,
                        ofd: self.opened.fd()?.as_fd(),
                        flags: libc::O_RDWR,
                    };
                    let fs = &self.place.mount.fs;
                    fs.write(self.caller, file, WritePosition::At(at), rest)?
                }
            };
        }
        Ok(())
    }

    fn set_size(&self, size: u64) -> Result<()> {
        match &self.opened.native {
            Native::All => Ok(nix::unistd::ftruncate(self.opened.fd()?, size as i64)?),
            Native::Reads { .. } => {
                let fs = &self.place.mount.fs;
                fs.truncate(self.caller, &self.place.node, size)
            }
        }
    }
}

/// Copies `from` without its holes.
fn copy_content(from: &File, target: &Target<'_>) -> Result<()> {
    let size = from.metadata().map_err(errno)?.len();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let data = match lseek(from, at as i64, Whence::SeekData) {
            Ok(data) => data as u64,
            Err(Errno::ENXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = lseek(from, data as i64, Whence::SeekHole)? as u64;
        let mut next = data;
        while next < at {
            let chunk = usize::try_from(at - next).map_or(PIECE, |left| left.min(PIECE));
            let piece = buffer.get_mut(..chunk).ok_or(Errno::EIO)?;
            from.read_exact_at(piece, next).map_err(errno)?;
            target.write(next, piece)?;
            next += chunk as u64;
        }
    }
    target.set_size(size)
}
