//! Whether a program may trace another one, as the kernel decides that.

use std::fs;

use goanna_sys::mappings::share_memory;
use goanna_sys::procfs::{self, TaskStatus};
use goanna_vfs::{Errno, FsError, Result, caps};

use crate::call::Call;

/// Whether the caller may attach to thread `tid`, by the rules of ptrace(2). ESRCH, EPERM. Also EPERM in a PID namespace of
/// the caller's own.
pub(super) fn may_attach(call: &Call<'_>, tid: i32) -> Result<()> {
    let denied = || FsError::Errno(Errno::EPERM);
    let (own, other) = (procfs::status(call.task.tid)?, procfs::status(tid)?);
    if other.tgid == own.tgid || procfs::has_ended(tid) || own.own_pid != own.tgid {
        return Err(denied());
    }
    if call.caller()?.capable(caps::SYS_PTRACE) {
        return Ok(());
    }
    let is_same = |own: [u32; 4], other: [u32; 4]| other[..3].iter().all(|id| *id == own[0]);
    let is_dumpable = fs::metadata(format!("/proc/{tid}/mem")).is_ok_and(|memory| {
        use std::os::unix::fs::MetadataExt;
        memory.uid() == other.uid[1]
    });
    let may = is_same(own.uid, other.uid)
        && is_same(own.gid, other.gid)
        && is_dumpable
        && other.cap_prm & !own.cap_prm == 0
        && yama_permits(call.task.tid, &own, tid);
    if may { Ok(()) } else { Err(denied()) }
}

/// Whether a process with this state may be traced by `parent`: the capabilities of that one must comprise its own (`cap_ptrace_traceme` in the kernel).
pub(super) fn is_traceable_by(own: &TaskStatus, parent: i32) -> Result<bool, Errno> {
    let parent = procfs::status(parent)?;
    let may = parent.cap_eff & (1 << caps::SYS_PTRACE) != 0;
    Ok(may || own.cap_prm & !parent.cap_prm == 0)
}

/// Whether Yama, if the kernel has it, lets a thread without capability attach to `tid`: with scope 1 to its descendants. A process that shares its memory needs no
/// protection from it.
fn yama_permits(own_tid: i32, own: &TaskStatus, tid: i32) -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref().map(str::trim) {
        Err(_) | Ok("0") => true,
        Ok("1") => share_memory(own_tid, tid) == Ok(true) || is_descendant(tid, own.tgid),
        Ok(_) => false,
    }
}

fn is_descendant(mut tid: i32, of: i32) -> bool {
    while let Ok(status) = procfs::status(tid) {
        if status.ppid == of {
            return true;
        }
        if status.ppid <= 1 {
            return false;
        }
        tid = status.ppid;
    }
    false
}
