//! Programs in a mount: the host file that the kernel executes in their place.
//!
//! The kernel executes host files only. A program of a back end without host files is copied, under its own
//! name, into the run-time directory (docs/decisions/0002), once for each content; `#!` scripts become a call
//! of their interpreter, as the kernel itself would make it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use goanna_vfs::walk::Pos;
use goanna_vfs::{Caller, Errno, FileKind, FsError, Place, PlaceKey, Result, Stamp, ops};
use parking_lot::Mutex;

use crate::call::{Call, Resolved};
use crate::errno::errno;
use crate::shadow::run_directory::{RunDir, make_search_only_dir};
use crate::shadow::{Identity, copy_permissions};

/// Linux reads this many bytes of a program to recognise its format (`BINPRM_BUF_SIZE`).
const HEAD: usize = 256;
/// Linux allows four interpreters in a row, then ELOOP.
const MAX_INTERPRETERS: usize = 4;
const COPY_PIECE: usize = 1 << 20;

#[derive(Debug)]
struct HostCopy {
    path: PathBuf,
    version: (Stamp, Stamp, u64),
}

/// Host copies of programs, and the virtual files of the programs that run.
#[derive(Debug, Default)]
pub struct Programs {
    copies: Mutex<HashMap<PlaceKey, HostCopy>>,
    behind: Mutex<HashMap<Identity, Place>>,
}

impl Programs {
    /// The virtual program behind a host file that was executed.
    pub fn behind(&self, identity: Identity) -> Option<Place> {
        self.behind.lock().get(&identity).cloned()
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

    /// The host file to execute for `place`, named `name`.
    fn host_file(
        &self,
        rundir: &RunDir,
        caller: &Caller,
        place: &Place,
        name: &OsStr,
    ) -> Result<PathBuf> {
        if let Some(path) = place.mount.fs.host_path(&place.node) {
            self.remember(&path, place)?;
            return Ok(path);
        }
        rundir.allow_traversal(caller.uid).map_err(errno)?;
        let attr = place.mount.fs.getattr(caller, &place.node)?;
        let version = (attr.mtime, attr.ctime, attr.size);
        let mut copies = self.copies.lock();
        if let Some(copy) = copies.get(&place.key())
            && copy.version == version
            && copy.path.file_name() == Some(name)
        {
            return Ok(copy.path.clone());
        }
        let dir = rundir.unguessable("x").map_err(errno)?;
        make_search_only_dir(&dir).map_err(errno)?;
        let path = dir.join(name);
        copy_out(caller, place, &path)?;
        copy_permissions(caller, place, &path)?;
        self.remember(&path, place)?;
        if let Some(old) = copies.insert(
            place.key(),
            HostCopy {
                path: path.clone(),
                version,
            },
        ) {
            // Processes that still execute the file keep it; only its name is removed.
            let _ = fs::remove_file(&old.path);
        }
        Ok(path)
    }

    fn remember(&self, path: &Path, place: &Place) -> Result<()> {
        let meta = fs::metadata(path).map_err(errno)?;
        self.behind
            .lock()
            .insert((meta.dev(), meta.ino()), place.clone());
        Ok(())
    }
}

/// Copies a program to the host file `path`. It closes the file, because the kernel refuses to execute a file
/// that is open for writing (ETXTBSY).
fn copy_out(caller: &Caller, place: &Place, path: &Path) -> Result<()> {
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
    Ok(())
}

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
        let mut name = self.script_name();
        let mut prefix: Vec<Vec<u8>> = Vec::new();
        // Whether the kernel would find the same program for the unchanged call.
        let mut native = true;
        for _ in 0..=MAX_INTERPRETERS {
            native &= at.native && matches!(at.at, Pos::Host(_));
            let head = head(call, &at.at)?;
            let Some(line) = Shebang::parse(&head) else {
                if native {
                    return Ok(Plan::PassOn);
                }
                let program = self.program(call, at.at, &name)?;
                let argv = if prefix.is_empty() {
                    None
                } else {
                    Some(self.new_argv(call, prefix)?)
                };
                return Ok(Plan::Instead { program, argv });
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
                    at: Pos::Mounted(shadow.place().clone()),
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

    /// The name that is passed to a script's interpreter, composed as in the kernel for execveat.
    fn script_name(&self) -> Vec<u8> {
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

    fn program(&self, call: &Call<'_>, at: Pos, name: &[u8]) -> Result<Vec<u8>> {
        let place = match at {
            Pos::Host(path) => return Ok(path),
            Pos::Mounted(place) => place,
        };
        let base = name
            .rsplit(|&b| b == b'/')
            .find(|part| !part.is_empty())
            .unwrap_or(b"program");
        let monitor = call.monitor;
        let path = monitor.programs.host_file(
            monitor.shadows.rundir(),
            &*call.caller()?,
            &place,
            OsStr::from_bytes(base),
        )?;
        Ok(path.into_os_string().into_vec())
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

/// The beginning of a program. For a virtual file, this also checks the permission to execute it, since the
/// kernel will not.
fn head(call: &Call<'_>, at: &Pos) -> Result<Vec<u8>> {
    let mut head = vec![0; HEAD];
    let got = match at {
        Pos::Host(path) => {
            // If the monitor cannot read the file, the kernel decides; the file is not a script in a mount.
            let is_file = |file: &File| match file.metadata() {
                Ok(meta) if meta.is_file() => {
                    note_set_id(call, path, &meta);
                    true
                }
                _ => false,
            };
            match OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                .open(OsStr::from_bytes(path))
            {
                Ok(mut file) if is_file(&file) => file.read(&mut head).unwrap_or(0),
                _ => 0,
            }
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
            read_head(&caller, place, &mut head)?
        }
    };
    head.truncate(got);
    Ok(head)
}

/// Reads the beginning of a virtual file. A host program that may be executed but not read counts as empty:
/// the kernel reads it itself.
fn read_head(caller: &Caller, place: &Place, head: &mut [u8]) -> Result<usize> {
    let fs = &place.mount.fs;
    match fs.read_at(caller, &place.node, 0, head) {
        Err(FsError::Errno(Errno::EACCES)) if fs.host_path(&place.node).is_some() => Ok(0),
        other => other,
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

/// The first line of a script.
#[derive(Debug, PartialEq, Eq)]
struct Shebang {
    interpreter: Vec<u8>,
    argument: Option<Vec<u8>>,
}

impl Shebang {
    /// Parses the line as `fs/binfmt_script.c` does: one optional argument, which may contain blanks. `None`
    /// if the file is not a script, names no interpreter, or the interpreter's name does not fit the buffer.
    fn parse(head: &[u8]) -> Option<Self> {
        let line = head.strip_prefix(b"#!")?;
        let end = line.iter().position(|&b| b == b'\n');
        let is_blank = |b: u8| b == b' ' || b == b'\t';
        let whole = end.is_some() || head.len() < HEAD;
        let line = line.get(..end.unwrap_or(line.len()))?;
        let line = line.split(|&b| b == 0).next().unwrap_or(line);
        let start = line.iter().position(|&b| !is_blank(b))?;
        let line = line.get(start..)?;
        let stop = line.iter().rposition(|&b| !is_blank(b))? + 1;
        let line = line.get(..stop)?;
        let Some(blank) = line.iter().position(|&b| is_blank(b)) else {
            return whole.then(|| Self {
                interpreter: line.to_vec(),
                argument: None,
            });
        };
        let (interpreter, rest) = line.split_at(blank);
        let argument = rest
            .iter()
            .position(|&b| !is_blank(b))
            .and_then(|from| rest.get(from..));
        Some(Self {
            interpreter: interpreter.to_vec(),
            argument: argument.map(<[u8]>::to_vec),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        Shebang::parse(head).map(|line| (line.interpreter, line.argument))
    }

    #[test]
    fn first_lines_are_read_as_linux_reads_them() {
        assert_eq!(parsed(b"#!/bin/sh\n"), Some((b"/bin/sh".to_vec(), None)));
        assert_eq!(
            parsed(b"#! /usr/bin/env  python3 -u \nrest"),
            Some((b"/usr/bin/env".to_vec(), Some(b"python3 -u".to_vec())))
        );
        assert_eq!(parsed(b"#!bin/sh"), Some((b"bin/sh".to_vec(), None)));
        assert_eq!(parsed(b"#!\n"), None);
        assert_eq!(parsed(b"#!   \t\n"), None);
        assert_eq!(parsed(b"\x7fELF"), None);
        assert_eq!(parsed(b""), None);
    }

    #[test]
    fn a_cut_interpreter_is_no_interpreter() {
        let mut long = b"#!/".to_vec();
        long.resize(HEAD, b'a');
        assert_eq!(parsed(&long), None);
    }
}
