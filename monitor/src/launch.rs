//! Finds the program of a command, and starts it under a filter.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use goanna_sys::launch::{Launch, LaunchError, Launched, launch};
use goanna_sys::procfs;
use goanna_syscalls::SysnoSet;
use goanna_vfs::walk::{NoProcess, Pos, Walk};
use goanna_vfs::{Caller, Errno, FileKind, Mounts, Result, ops, wait_for_locks};
use nix::unistd::{AccessFlags, access};

use crate::calls::socket::filter as socket_filter;
use crate::process::task::credentials;
use crate::table::filter::{Delivery, Purpose, compile};
use crate::{Error, Interception};

/// Marks the environment of everything that runs under a monitor.
const MARK: &str = "GOANNA_MONITOR";

/// Whether this process already runs under a monitor: a filter chain has one listener and a process one
/// tracer, so there cannot be a second.
pub fn inside() -> bool {
    std::env::var_os(MARK).is_some()
        && procfs::status(std::process::id() as i32).is_ok_and(|s| s.seccomp == 2)
}

/// A command line, and the settings by which its program is found.
#[derive(Debug, Clone)]
pub struct Command {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The directories in which programs are searched, in the format of PATH.
    pub search: OsString,
    /// The working directory; empty when it cannot be determined.
    pub directory: PathBuf,
    /// The credentials to run it with.
    pub caller: Caller,
}

impl Command {
    /// The command with this process's PATH, working directory and credentials.
    pub fn here(argv: Vec<OsString>) -> std::result::Result<Self, Error> {
        Ok(Self {
            argv,
            search: std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin")),
            directory: std::env::current_dir().unwrap_or_default(),
            caller: credentials(std::process::id() as i32).map_err(Error::Trace)?,
        })
    }
}

/// A program that was found, and the properties of the mounts that its filter depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The file to execute, as given to execve(2).
    pub file: CString,
    /// Tracees get descriptors of cache objects.
    pub shadow_files: bool,
    /// The key of the cookies by which calls are answered in the process.
    pub key: Option<u64>,
}

/// The file to execute for `command`, found as execvp(3) does, in mounts too.
pub fn find(mounts: &Mounts, command: &Command) -> std::result::Result<Program, Error> {
    let name = command.argv.first().ok_or(Error::BadCommand)?;
    if name.is_empty() {
        return Err(Error::NotFound(name.clone()));
    }
    let candidates: Vec<Vec<u8>> = if name.as_bytes().contains(&b'/') {
        vec![name.as_bytes().to_vec()]
    } else {
        std::env::split_paths(&command.search)
            .map(|dir| dir.join(name).into_os_string().into_vec())
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match wait_for_locks(|| executable(mounts, command, &candidate)) {
            Ok(()) => {
                return Ok(Program {
                    file: CString::new(candidate).map_err(|_| Error::BadCommand)?,
                    shadow_files: mounts.any_caches_content(),
                    key: None,
                });
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => refused = refused.or(Some(errno)),
        }
    }
    Err(match refused {
        Some(errno) => Error::NotExecutable(name.clone(), errno),
        None => Error::NotFound(name.clone()),
    })
}

fn executable(mounts: &Mounts, command: &Command, path: &[u8]) -> Result<()> {
    let directory = &command.directory;
    let start = match path.first() {
        Some(b'/') => Pos::root(),
        _ if directory.as_os_str().is_empty() => return Err(Errno::ENOENT.into()),
        _ => Pos::Host(directory.as_os_str().as_bytes().to_vec()),
    };
    let caller = &command.caller;
    match Walk::new(mounts, caller, &NoProcess).object(start, path, true)? {
        Pos::Mounted(place) if place.node.kind() != FileKind::Regular => Err(Errno::EACCES.into()),
        Pos::Mounted(place) => ops::access(caller, &place, libc::X_OK),
        Pos::Host(path) => {
            let path = directory.join(OsStr::from_bytes(&path));
            if std::fs::metadata(&path)
                .map_err(crate::errno::errno)?
                .is_dir()
            {
                return Err(Errno::EACCES.into());
            }
            Ok(access(&path, AccessFlags::X_OK)?)
        }
    }
}

/// How to start a program.
#[derive(Debug, Clone, Default)]
pub struct Start {
    /// How its calls are intercepted.
    pub interception: Interception,
    /// Signals that this process has blocked and the program is not to have blocked.
    pub unblock: Vec<i32>,
    /// The process that will follow it, when it is not this one.
    pub tracer: Option<i32>,
    /// Calls of interest to the run's observers: [`crate::observe::interest`].
    pub interest: SysnoSet,
}

/// Starts `program` with the arguments `argv` up to its gate, under a filter.
pub fn start(
    program: &Program,
    argv: &[OsString],
    start: &Start,
) -> std::result::Result<Launched, Error> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::BadCommand);
    let argv = argv
        .iter()
        .map(|arg| c_string(arg.as_bytes()))
        .collect::<std::result::Result<_, _>>()?;
    let mark = (
        OsString::from(MARK),
        OsString::from(std::process::id().to_string()),
    );
    let mut variables = Vec::new();
    let inherited = std::env::vars_os().filter(|(name, _)| *name != mark.0);
    for (name, value) in inherited.chain([mark.clone()]) {
        variables.push(c_string(
            &[name.as_bytes(), b"=", value.as_bytes()].concat(),
        )?);
    }
    let under = |delivery| Launch {
        path: program.file.clone(),
        argv: Vec::clone(&argv),
        env: variables.clone(),
        filter: compile(Purpose {
            delivery,
            shadow_files: program.shadow_files,
            inherited: socket_filter::inherited(),
            key: program.key,
            interest: start.interest,
        }),
        filter_behind_gate: false,
        privileges: false,
        listener: delivery == Delivery::Notify,
        unblock: start.unblock.clone(),
        tracer: start.tracer,
    };
    match start.interception {
        Interception::Notify => Ok(launch(&under(Delivery::Notify))?),
        Interception::Ptrace => Ok(launch(&under(Delivery::Stop))?),
        Interception::Auto => match launch(&under(Delivery::Notify)) {
            Err(
                LaunchError::ListenerBusy
                | LaunchError::FilterInvalid
                | LaunchError::TakeListener(_),
            ) => Ok(launch(&under(Delivery::Stop))?),
            other => Ok(other?),
        },
    }
}
