//! Programs in a mount: the host file that the kernel executes in their place.
//!
//! The kernel executes host files only. A program of a back end without host files is copied, under its own
//! name, into the run-time directory (`copies`), once for each content; `#!` scripts (`shebang`) become a call
//! of their interpreter, as the kernel itself would make it. A program whose ELF interpreter is in a mount (`interpreter`) is copied, too, wherever it is.

mod copies;
mod interpreter;
mod shebang;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use goanna_vfs::walk::Pos;
use goanna_vfs::{Errno, FileKind, FsError, PATH_MAX, Place, Result, ops};

use crate::call::{Call, Resolved};
use crate::errno::errno;
pub use copies::Programs;
use interpreter::Interpreter;
use shebang::Shebang;

/// Linux allows four interpreters in a row, then ELOOP.
const MAX_INTERPRETERS: usize = 4;

/// How execve(2) continues.
pub enum Plan {
    /// The kernel performs it unchanged.
    PassOn,
    /// The kernel executes this program instead.
    Instead {
        /// Host path.
        program: Vec<u8>,
        /// New arguments, where they change.
        argv: Option<Vec<Arg>>,
        /// The path that the caller has executed.
        shown: Vec<u8>,
    },
}

/// One element of an argument vector.
pub enum Arg {
    /// A string of ours.
    New(Vec<u8>),
    /// The address of a string of the tracee.
    Old(u64),
}

/// An execve or execveat in its registers.
pub struct Exec {
    /// AT_FDCWD for execve.
    pub dirfd: i32,
    /// The path argument.
    pub path: Vec<u8>,
    /// Address of the argument vector.
    pub argv: u64,
    /// AT_EMPTY_PATH and AT_SYMLINK_NOFOLLOW.
    pub flags: i32,
}

impl Exec {
    /// Determines the program that the kernel must execute. Fails with the errno of execve(2) if the program
    /// cannot be executed.
    pub fn plan(&self, call: &Call<'_>) -> Result<Plan> {
        const AT_EXECVE_CHECK: i32 = 0x10000;
        let known = libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW | AT_EXECVE_CHECK;
        if self.path.is_empty() && self.flags & libc::AT_EMPTY_PATH == 0 {
            return Err(Errno::ENOENT.into());
        }
        if self.flags & !known != 0 {
            return Err(Errno::EINVAL.into());
        }
        let mut at = self.resolve(call)?;
        let shown = self.filename();
        let mut name = shown.clone();
        let mut prefix: Vec<Vec<u8>> = Vec::new();
        // Whether the kernel would find the same program for the unchanged call.
        let mut native = true;
        for _ in 0..=MAX_INTERPRETERS {
            native &= at.native && matches!(at.at, Pos::Host(_));
            let content = Content::of(call, &at.at)?;
            let mut head = [0; shebang::HEAD];
            let got = content.read_at(call, 0, &mut head)?;
            let head = head.get(..got).unwrap_or_default();
            let Some(line) = Shebang::parse(head) else {
                let interpreter = mounted_interpreter(call, &content, head)?;
                if native && interpreter.is_none() {
                    return Ok(Plan::PassOn);
                }
                at.at = canonical(call, at.at)?;
                let called = if self.path.is_empty() {
                    at.at.path(&*call.caller()?)?.0
                } else {
                    shown.clone()
                };
                let file = host_file(call, at.at, &called, interpreter)?;
                let program = called_as(call, file, base(&called), shown.len())?;
                let argv = if prefix.is_empty() {
                    None
                } else {
                    Some(self.new_argv(call, prefix)?)
                };
                return Ok(Plan::Instead {
                    program,
                    argv,
                    shown,
                });
            };
            // Each interpreter is put before the arguments so far.
            if prefix.is_empty() {
                prefix.push(name);
            } else if let Some(first) = prefix.first_mut() {
                *first = name;
            }
            prefix.splice(0..0, line.argument);
            prefix.insert(0, line.interpreter.clone());
            at = call.resolve(libc::AT_FDCWD, &line.interpreter, true)?;
            name = line.interpreter;
        }
        Err(Errno::ELOOP.into())
    }

    fn resolve(&self, call: &Call<'_>) -> Result<Resolved<Pos>> {
        if self.path.is_empty() && self.flags & libc::AT_EMPTY_PATH != 0 {
            return Ok(match call.shadow(self.dirfd)? {
                Some(shadow) => Resolved {
                    at: Pos::Mounted(call.place_of(&shadow)?),
                    native: false,
                },
                None => {
                    let link = format!("/proc/{}/fd/{}", call.task.tid, self.dirfd);
                    Resolved {
                        at: Pos::Host(link.into_bytes()),
                        native: true,
                    }
                }
            });
        }
        let follow = self.flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        let resolved = call.resolve(self.dirfd, &self.path, follow)?;
        match &resolved.at {
            Pos::Mounted(place) if place.node.kind() == FileKind::Symlink => {
                Err(Errno::ELOOP.into())
            }
            _ => Ok(resolved),
        }
    }

    /// The path as the program sees it (AT_EXECFN), and as it is passed to a script's interpreter, composed as in the kernel for execveat.
    fn filename(&self) -> Vec<u8> {
        if self.dirfd == libc::AT_FDCWD || self.path.first() == Some(&b'/') {
            return self.path.clone();
        }
        let mut name = format!("/dev/fd/{}", self.dirfd).into_bytes();
        if !self.path.is_empty() {
            name.push(b'/');
            name.extend_from_slice(&self.path);
        }
        name
    }

    /// The interpreter's arguments, then the program's own arguments without its name.
    fn new_argv(&self, call: &Call<'_>, prefix: Vec<Vec<u8>>) -> Result<Vec<Arg>> {
        const MAX_ARGS: u64 = 1 << 20;
        let mut argv: Vec<Arg> = prefix.into_iter().map(Arg::New).collect();
        if self.argv == 0 || call.read_u64(self.argv)? == 0 {
            return Ok(argv);
        }
        for index in 1..MAX_ARGS {
            match call.read_u64(self.argv + 8 * index)? {
                0 => return Ok(argv),
                address => argv.push(Arg::Old(address)),
            }
        }
        Err(Errno::E2BIG.into())
    }
}

/// The last component of a path.
fn base(path: &[u8]) -> &OsStr {
    let mut names = path.rsplit(|&b| b == b'/');
    let name = names.find(|part| !part.is_empty());
    OsStr::from_bytes(name.unwrap_or(b"program"))
}

/// The position of a host file by its own path, and not by that of a descriptor.
fn canonical(call: &Call<'_>, at: Pos) -> Result<Pos> {
    match at {
        Pos::Host(path) if call.is_below_root(&path) => Ok(Pos::Host(path)),
        Pos::Host(path) if path.starts_with(b"/proc/") => {
            let path = fs::canonicalize(OsStr::from_bytes(&path)).map_err(errno)?;
            Ok(Pos::Host(path.into_os_string().into_vec()))
        }
        at => Ok(at),
    }
}

/// A path of a host file by which the kernel calls the process `name` (comm). It has at least `len` bytes, so that [`Programs::executed`] can replace it.
fn called_as(call: &Call<'_>, file: PathBuf, name: &OsStr, len: usize) -> Result<Vec<u8>> {
    let (programs, rundir) = (&call.monitor.programs, call.monitor.shadows.rundir());
    let path = programs.called(rundir, &*call.caller()?, file.clone(), name);
    let tid = call.task.tid;
    let expose = || call.monitor.namespaces.expose(tid, &file, name);
    let path = rundir.path_for(tid, path).or_else(expose);
    let path = path.unwrap_or(file);
    let mut path = path.into_os_string().into_vec();
    let name_at = path.iter().rposition(|&b| b == b'/').unwrap_or(0);
    let missing = len.min(PATH_MAX - 1).saturating_sub(path.len());
    path.splice(name_at..name_at, std::iter::repeat_n(b'/', missing));
    Ok(path)
}

/// The host file to execute for the program at `at`, which has been called by `path`: a copy, if its interpreter is to be this host file.
fn host_file(
    call: &Call<'_>,
    at: Pos,
    path: &[u8],
    interpreter: Option<(Interpreter, PathBuf)>,
) -> Result<PathBuf> {
    let place = match at {
        Pos::Host(path) if interpreter.is_none() => {
            return Ok(OsString::from_vec(call.path_in_kernel(path)).into());
        }
        at => call.place(at)?,
    };
    let monitor = call.monitor;
    monitor.programs.host_file(
        monitor.shadows.rundir(),
        &*call.caller()?,
        &place,
        base(path),
        interpreter,
    )
}

/// The ELF interpreter of a program and its host file, unless the kernel finds that by its path.
fn mounted_interpreter(
    call: &Call<'_>,
    content: &Content,
    head: &[u8],
) -> Result<Option<(Interpreter, PathBuf)>> {
    let read = |offset: u64, buf: &mut [u8]| content.read_at(call, offset, buf);
    let Some(interpreter) = Interpreter::of(head, read)? else {
        return Ok(None);
    };
    let found = call.resolve(libc::AT_FDCWD, &interpreter.path, true)?;
    if found.native && matches!(found.at, Pos::Host(_)) {
        return Ok(None);
    }
    // The permission to execute it.
    Content::of(call, &found.at)?;
    let file = host_file(call, found.at, &interpreter.path, None)?;
    Ok(Some((interpreter, file)))
}

/// The content of a program.
enum Content {
    Host(File),
    Mounted(Place),
    /// The monitor cannot read it, so the kernel decides; it is not a script in a mount.
    Unknown,
}

impl Content {
    /// The content of the file at `at`. For a virtual file, this also checks the permission to execute it, since the
    /// kernel will not.
    fn of(call: &Call<'_>, at: &Pos) -> Result<Self> {
        match at {
            Pos::Host(path) => {
                let is_file = |file: &File| match file.metadata() {
                    Ok(meta) if meta.is_file() => {
                        note_set_id(call, path, &meta);
                        true
                    }
                    _ => false,
                };
                let opened = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                    .open(OsStr::from_bytes(path));
                Ok(opened
                    .ok()
                    .filter(is_file)
                    .map_or(Self::Unknown, Self::Host))
            }
            Pos::Mounted(place) => {
                if place.node.kind() != FileKind::Regular {
                    return Err(Errno::EACCES.into());
                }
                let caller = call.caller()?;
                ops::access(&caller, place, libc::X_OK)?;
                let content = place.mount.fs.content();
                if content.is_some_and(|content| content.open_for_writing(&caller, &place.node)) {
                    return Err(Errno::ETXTBSY.into());
                }
                Ok(Self::Mounted(place.clone()))
            }
        }
    }

    /// Fills `buf` from `offset`. The result is short at the end of the file, and 0 where the monitor cannot read it.
    fn read_at(&self, call: &Call<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self {
            Self::Host(file) => Ok(file.read_at(buf, offset).unwrap_or(0)),
            Self::Mounted(place) => {
                let fs = &place.mount.fs;
                match fs.read_at(&*call.caller()?, &place.node, offset, buf) {
                    // A host program that may be executed but not read: the kernel reads it itself.
                    Err(FsError::Errno(Errno::EACCES)) if fs.host_path(&place.node).is_some() => {
                        Ok(0)
                    }
                    other => other,
                }
            }
            Self::Unknown => Ok(0),
        }
    }
}

/// Notifies the user once that the kernel ignores set-id bits, because tracees have no_new_privs: a program
/// that fails for this reason does not report it.
fn note_set_id(call: &Call<'_>, path: &[u8], meta: &fs::Metadata) {
    let Ok(caller) = call.caller() else { return };
    let set_uid = meta.mode() & libc::S_ISUID != 0 && meta.uid() != caller.uid;
    let set_gid = meta.mode() & libc::S_ISGID != 0 && meta.gid() != caller.gid;
    if set_uid || set_gid {
        call.monitor.note_once(&format!(
            "{}: set-user-ID and set-group-ID programs run without their privilege here",
            OsStr::from_bytes(path).display()
        ));
    }
}
