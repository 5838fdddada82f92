//! What a transaction does not cover: changes of the host by its members. The kernel makes them, they are seen at once,
//! and no abort takes them back.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;

use goanna_vfs::{Errno, Result};
use parking_lot::Mutex;

use crate::Tell;
use crate::call::{Answer, Call};

/// What becomes of such a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Outside {
    /// It happens.
    #[default]
    Allow,
    /// It happens, and the user is told of the path.
    Warn,
    /// It fails with EROFS.
    Deny,
}

/// Paths that the user is told of at most.
const TOLD_MAX: usize = 20;

/// The policy of one run.
#[derive(Debug)]
pub struct Policy {
    outside: Outside,
    /// The whole run is one transaction.
    always: bool,
    tell: Tell,
    told: Mutex<Vec<Vec<u8>>>,
}

impl Policy {
    /// `always`: the whole run is one transaction; `tell` is called with a line for the user.
    pub fn new(outside: Outside, always: bool, tell: Tell) -> Self {
        Self {
            outside,
            always,
            tell,
            told: Mutex::default(),
        }
    }

    /// The answer to a call, which `answer` would have the kernel perform.
    pub fn judge(&self, call: &Call<'_>, answer: Answer) -> Result<Answer> {
        if self.outside == Outside::Allow || !matches!(answer, Answer::PassOn) {
            return Ok(answer);
        }
        if !self.always && call.caller()?.txn.is_none() {
            return Ok(answer);
        }
        let Some((dirfd, path)) = changed(call) else {
            return Ok(answer);
        };
        let path = call.path(path)?;
        if is_no_file(call, dirfd, &path) {
            return Ok(answer);
        }
        if self.outside == Outside::Deny {
            return Err(Errno::EROFS);
        }
        self.warn(path);
        Ok(answer)
    }

    fn warn(&self, path: Vec<u8>) {
        let mut told = self.told.lock();
        if told.len() > TOLD_MAX || told.contains(&path) {
            return;
        }
        if told.len() == TOLD_MAX {
            self.tell
                .line("the transaction does not cover further changes outside of the store");
        } else {
            let shown = path.escape_ascii();
            self.tell.line(&format!(
                "the transaction does not cover {shown}: it is outside of the store"
            ));
        }
        told.push(path);
    }
}

/// Which argument a path starts from, if any does, and which is the path.
pub type PathAt = (Option<usize>, usize);

/// Of a call that changes what a path names: where that stands.
pub fn changed(call: &Call<'_>) -> Option<PathAt> {
    let opens = |flags: i32| {
        flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_CREAT | libc::O_TRUNC) != 0
    };
    Some(match i64::from(call.nr) {
        libc::SYS_open if opens(call.int(1)) => (None, 0),
        libc::SYS_openat if opens(call.int(2)) => (Some(0), 1),
        libc::SYS_openat2 if opens(call.read_u64(call.arg(2)).ok()? as i32) => (Some(0), 1),
        libc::SYS_creat
        | libc::SYS_mkdir
        | libc::SYS_mknod
        | libc::SYS_rmdir
        | libc::SYS_unlink
        | libc::SYS_rename
        | libc::SYS_truncate
        | libc::SYS_chmod
        | libc::SYS_chown
        | libc::SYS_lchown
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_setxattr
        | libc::SYS_lsetxattr
        | libc::SYS_removexattr
        | libc::SYS_lremovexattr => (None, 0),
        libc::SYS_link | libc::SYS_symlink => (None, 1),
        libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_unlinkat
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_fchmodat
        | libc::SYS_fchmodat2
        | libc::SYS_fchownat => (Some(0), 1),
        libc::SYS_utimensat | libc::SYS_futimesat if call.arg(1) != 0 => (Some(0), 1),
        libc::SYS_linkat => (Some(2), 3),
        libc::SYS_symlinkat => (Some(1), 2),
        _ => return None,
    })
}

/// Whether the path names a device, a pipe or a socket: what is written there is kept nowhere.
fn is_no_file(call: &Call<'_>, dirfd: Option<usize>, path: &[u8]) -> bool {
    let tid = call.task.tid;
    let start = match dirfd.map(|index| call.int(index)) {
        None | Some(libc::AT_FDCWD) => format!("/proc/{tid}/cwd"),
        Some(fd) => format!("/proc/{tid}/fd/{fd}"),
    };
    let path = std::path::Path::new(&start).join(OsStr::from_bytes(path));
    std::fs::metadata(path).is_ok_and(|meta| {
        let kind = meta.file_type();
        kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
    })
}
