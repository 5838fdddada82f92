//! Changes that a transaction does not cover: changes of the host, and of further mounts, by its participants. They take effect at
//! once, and an abort does not undo them.
//!
//! The monitor knows the result of a change that it performs. When the kernel performs the change, the caller stops at the exit of
//! the call, and the supervisor sees the result ([`Answer::Watched`]).

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use goanna_sys::restarts::is_restart;
use goanna_syscalls::Named;
use goanna_vfs::walk::{Last, Pos};
use goanna_vfs::{Errno, FileKind, FsError, Result};
use parking_lot::Mutex;

use crate::Reporter;
use crate::call::{Answer, Call};

/// The treatment of such a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outside {
    /// It is allowed.
    #[default]
    Allow,
    /// It is allowed, and the user is notified of the path.
    Warn,
    /// It fails with EROFS.
    Deny,
}

/// Maximum number of paths that the user is notified of.
const REPORTED_MAX: usize = 20;

/// The policy of one run.
#[derive(Debug)]
pub struct Policy {
    outside: Outside,
    /// The whole run is one transaction.
    always: bool,
    report: Reporter,
    reported: Mutex<Vec<Vec<u8>>>,
    /// Threads whose call the kernel restarts, after we have stopped the thread to see the call's result. The restarted call is
    /// not stopped.
    restarted: Mutex<HashSet<i32>>,
}

impl Policy {
    /// `always`: the whole run is one transaction; `report` receives lines for the user.
    pub fn new(outside: Outside, always: bool, report: Reporter) -> Self {
        Self {
            outside,
            always,
            report,
            reported: Mutex::default(),
            restarted: Mutex::default(),
        }
    }

    /// Whether all such changes are allowed without notice.
    pub fn allows_all(&self) -> bool {
        self.outside == Outside::Allow
    }

    /// Whether changes need to be looked for.
    fn looks(&self) -> bool {
        match self.outside {
            Outside::Deny => true,
            Outside::Warn => self.reported.lock().len() <= REPORTED_MAX,
            Outside::Allow => self.always && self.reported.lock().is_empty(),
        }
    }

    /// Answers a call by `answer`, and applies the policy if it is a change that the caller's transaction does not cover. EROFS
    /// where such changes are not allowed.
    pub fn observe<'m>(
        &self,
        call: &mut Call<'m>,
        answer: impl FnOnce(&mut Call<'m>) -> Result<Answer>,
    ) -> Result<Answer> {
        let path = self.before(call)?;
        let answer = answer(call)?;
        Ok(match path {
            Some(path) => self.after(path, answer),
            None => answer,
        })
    }

    /// The path that the call is about to change outside of the caller's transaction, if any. EROFS where that is not allowed.
    fn before(&self, call: &Call<'_>) -> Result<Option<Vec<u8>>> {
        if !self.looks() || !self.always && call.caller()?.txn.is_none() {
            return Ok(None);
        }
        if self.restarted.lock().remove(&call.task.tid) {
            return Ok(None);
        }
        let Some(path) = outside(call)? else {
            return Ok(None);
        };
        if self.outside == Outside::Deny {
            return Err(Errno::EROFS.into());
        }
        let is_known = self.reported.lock().contains(&path);
        Ok((!is_known).then_some(path))
    }

    /// Handles the answer to a call that is about to change `path`.
    fn after(&self, path: Vec<u8>, answer: Answer) -> Answer {
        match answer {
            Answer::PassOn => return Answer::Watched(path),
            Answer::Value(value) if value < 0 => {}
            Answer::Value(_) | Answer::Install { .. } => self.changed(path),
            // Calls that wait: either the open of a fifo, which stores nothing, or calls that will be restarted.
            _ => {}
        }
        answer
    }

    /// Handles the result of a call of `tid` that was about to change `path`, and that the kernel has performed.
    pub fn performed(&self, tid: i32, path: Vec<u8>, result: i64) {
        if is_restart(result) {
            self.restarted.lock().insert(tid);
        } else if result >= 0 {
            self.changed(path);
        }
    }

    /// Thread `tid` has ended.
    pub fn left(&self, tid: i32) {
        self.restarted.lock().remove(&tid);
    }

    /// The change of `path` has succeeded.
    fn changed(&self, path: Vec<u8>) {
        let mut reported = self.reported.lock();
        let most = match self.outside {
            Outside::Warn => REPORTED_MAX,
            Outside::Allow | Outside::Deny => 0,
        };
        if reported.len() > most || reported.contains(&path) {
            return;
        }
        let shown = path.escape_ascii();
        let line = match self.outside {
            Outside::Warn if reported.len() == REPORTED_MAX => {
                "the transaction does not cover further changes outside of the store".to_owned()
            }
            Outside::Warn => {
                format!("the transaction does not cover {shown}: it is outside of the store")
            }
            Outside::Allow | Outside::Deny => format!(
                "the command has changed {shown}, which is outside of the store: an abort does not take that back \
                 (--outside warn names all such changes, --outside deny refuses them)"
            ),
        };
        self.report.line(&line);
        reported.push(path);
    }
}

/// The absolute path that a call is about to change, where that is not in the store of the caller's transaction.
fn outside(call: &Call<'_>) -> Result<Option<Vec<u8>>> {
    let Some(Named::Path {
        dirfd,
        path: index,
        follows,
    }) = call.changed()
    else {
        return Ok(None);
    };
    let found = (|| {
        let path = call.path(index)?;
        let dirfd = dirfd.map_or(libc::AT_FDCWD, |index| call.int(index));
        if follows {
            match call.resolve(dirfd, &path, true) {
                Err(FsError::Errno(Errno::ENOENT)) => {}
                found => return Ok(Some((found?.at, None))),
            }
        }
        let parent = call.resolve_parent(dirfd, &path)?.at;
        Ok(match parent.last {
            Last::Name(name) => Some((parent.dir, Some(name))),
            // A call that changes no name fails.
            _ => None,
        })
    })();
    let (at, name) = match found {
        Ok(Some(found)) => found,
        Err(blocked @ FsError::Blocked(_)) => return Err(blocked),
        // The call will fail, for this reason or another one.
        Ok(None) | Err(_) => return Ok(None),
    };
    if let Pos::Mounted(place) = &at {
        let is_file = matches!(
            place.node.kind(),
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        if call.monitor.participants.cover(&place.mount) || !is_file {
            return Ok(None);
        }
    }
    let Ok((mut path, _)) = at.path(&*call.caller()?) else {
        return Ok(None);
    };
    if let Some(name) = name {
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
    }
    Ok((!is_no_file(&path)).then_some(path))
}

/// Whether the host's path names a device, a pipe, a socket, or a file of the kernel: none of them stores written data.
fn is_no_file(path: &[u8]) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    if path.starts_with("/proc") || path.starts_with("/sys") {
        return true;
    }
    std::fs::symlink_metadata(path).is_ok_and(|meta| {
        let kind = meta.file_type();
        kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
    })
}
