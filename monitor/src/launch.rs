//! Finding the command and starting it under a filter.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use goanna_sys::launch::{Launch, LaunchError, Launched, launch};
use goanna_sys::procfs;
use goanna_vfs::walk::{NoProcess, Pos, Walk};
use goanna_vfs::{Caller, Errno, FileKind, Mounts, Result, ops};
use nix::unistd::{AccessFlags, access};

use crate::filter::{Delivery, Purpose, compile};
use crate::task::credentials;
use crate::{Error, Interception};

/// Marks the environment of everything that runs under a monitor.
const MARK: &str = "GOANNA_MONITOR";

/// Whether this process already runs under a monitor: a filter chain has one listener and a process one
/// tracer, so there cannot be a second.
pub fn inside() -> bool {
    std::env::var_os(MARK).is_some()
        && procfs::status(std::process::id() as i32).is_ok_and(|s| s.seccomp == 2)
}

/// The file to execute for `command`, found in PATH as execvp(3) does, in mounts too.
pub fn find(mounts: &Mounts, command: &[OsString]) -> std::result::Result<CString, Error> {
    let name = command.first().ok_or(Error::BadCommand)?;
    if name.is_empty() {
        return Err(Error::NotFound(name.clone()));
    }
    let caller = credentials(std::process::id() as i32).map_err(Error::Trace)?;
    let candidates: Vec<Vec<u8>> = if name.as_bytes().contains(&b'/') {
        vec![name.as_bytes().to_vec()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
        std::env::split_paths(&path)
            .map(|dir| dir.join(name).into_os_string().into_vec())
            .collect()
    };
    let mut refused = None;
    for candidate in candidates {
        match executable(mounts, &caller, &candidate) {
            Ok(()) => return CString::new(candidate).map_err(|_| Error::BadCommand),
            Err(Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(errno) => refused = refused.or(Some(errno)),
        }
    }
    Err(match refused {
        Some(errno) => Error::NotExecutable(name.clone(), errno),
        None => Error::NotFound(name.clone()),
    })
}

fn executable(mounts: &Mounts, caller: &Caller, path: &[u8]) -> Result<()> {
    let start = match path.first() {
        Some(b'/') => Pos::root(),
        _ => Pos::Host(
            std::env::current_dir()
                .map_err(crate::shadow::errno)?
                .into_os_string()
                .into_vec(),
        ),
    };
    match Walk::new(mounts, caller, &NoProcess).object(start, path, true)? {
        Pos::Mounted(place) if place.node.kind() != FileKind::Regular => Err(Errno::EACCES),
        Pos::Mounted(place) => ops::access(caller, &place, libc::X_OK),
        Pos::Host(path) => {
            let path = OsStr::from_bytes(&path);
            if std::fs::metadata(path)
                .map_err(crate::shadow::errno)?
                .is_dir()
            {
                return Err(Errno::EACCES);
            }
            access(path, AccessFlags::X_OK)
        }
    }
}

/// Starts `program` up to its gate, under the filter for `interception`.
pub fn start(
    mounts: &Mounts,
    program: &CString,
    command: &[OsString],
    env: &[(OsString, OsString)],
    interception: Interception,
    unblock: Vec<i32>,
) -> std::result::Result<Launched, Error> {
    let c_string = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::BadCommand);
    let argv = command
        .iter()
        .map(|arg| c_string(arg.as_bytes()))
        .collect::<std::result::Result<_, _>>()?;
    let mark = (
        OsString::from(MARK),
        OsString::from(std::process::id().to_string()),
    );
    let ours: Vec<&(OsString, OsString)> = env.iter().chain([&mark]).collect();
    let mut variables = Vec::new();
    let inherited =
        std::env::vars_os().filter(|(name, _)| !ours.iter().any(|(own, _)| own == name));
    for (name, value) in inherited.chain(ours.iter().map(|pair| (*pair).clone())) {
        variables.push(c_string(
            &[name.as_bytes(), b"=", value.as_bytes()].concat(),
        )?);
    }
    let shadow_files = mounts.iter().any(|mount| !mount.fs.opens_host_files());
    let under = |delivery| Launch {
        path: program.clone(),
        argv: Vec::clone(&argv),
        env: variables.clone(),
        filter: compile(Purpose {
            delivery,
            shadow_files,
        }),
        listener: delivery == Delivery::Notify,
        unblock: unblock.clone(),
    };
    match interception {
        Interception::Notify => Ok(launch(&under(Delivery::Notify))?),
        Interception::Ptrace => Ok(launch(&under(Delivery::Stop))?),
        Interception::Auto => match launch(&under(Delivery::Notify)) {
            Err(LaunchError::ListenerBusy | LaunchError::FilterInvalid) => {
                Ok(launch(&under(Delivery::Stop))?)
            }
            other => Ok(other?),
        },
    }
}
