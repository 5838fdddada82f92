//! clone3(2): a thread stops before it, since its flags are in memory, where the filter does not see CLONE_UNTRACED.
//!
//! Another thread can change the flags after they were read. Then the child has no tracer, and the supervisor gets no report of it, but the exit stop of
//! the call. A child that is not followed would be in no list of the monitor, and would outlive it, so it is killed, as is the process that has made it.

use std::collections::HashMap;

use goanna_sys::procfs::{self, TaskStatus};
use goanna_sys::tracee;
use goanna_vfs::Result;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ptracer::Supervisor;
use crate::ptracer::calls::Next;

/// The threads that are in clone3(2), and the flags of their calls.
#[derive(Debug, Default)]
pub struct Clones(HashMap<i32, u64>);

impl Clones {
    /// Whether `tid` must be continued to the exit stop of its call, unless it reports a child before.
    pub fn contains(&self, tid: i32) -> bool {
        self.0.contains_key(&tid)
    }

    /// The flags of the call of `tid`, which is over. `None`: it is not in one.
    pub fn remove(&mut self, tid: i32) -> Option<u64> {
        self.0.remove(&tid)
    }
}

impl Supervisor {
    /// Handles a call of clone3(2) with the `clone_args` at this address, before the kernel performs it. EPERM: CLONE_UNTRACED. ENOSYS: the monitor may not read the
    /// memory; libraries then fall back to clone(2), which has its flags in a register.
    pub(in crate::ptracer) fn clone3(&mut self, tid: i32, arguments: u64) -> Result<Next> {
        let flags = match tracee::read_word(tid, arguments) {
            Ok(flags) => flags,
            // The call fails.
            Err(Errno::EFAULT) => 0,
            Err(_) => return Err(Errno::ENOSYS.into()),
        };
        if flags & libc::CLONE_UNTRACED as u64 != 0 {
            return Err(Errno::EPERM.into());
        }
        self.clones.0.insert(tid, flags);
        Ok(Next::Run)
    }

    /// Thread `tid` is at the exit stop of a call with this result. If it has made a child without a report, that is not followed.
    pub(in crate::ptracer) fn cloned(&mut self, tid: i32, result: i64) {
        if self.clones.remove(tid).is_none() || result <= 0 {
            return;
        }
        self.monitor.note_once(&format!(
            "process {tid} was killed: it has started another one without a tracer"
        ));
        if let Ok(status) = procfs::status(tid) {
            // With CLONE_PARENT it is a child of the parent.
            for parent in [status.tgid, status.ppid] {
                kill_untraced_children(parent, &status);
            }
            let _ = kill(Pid::from_raw(status.tgid), Signal::SIGKILL);
        }
    }
}

/// Kills the children of process `parent` that have no tracer, and the filters that a thread with the status `creator` has: not the monitor's own
/// child processes.
fn kill_untraced_children(parent: i32, creator: &TaskStatus) {
    let is_it = |child: &TaskStatus| {
        let filters = (child.seccomp, child.seccomp_filters);
        child.tracer == 0 && filters == (creator.seccomp, creator.seccomp_filters)
    };
    for child in procfs::children(parent) {
        // All others have a tracer from their first instruction on.
        if procfs::status(child).is_ok_and(|status| is_it(&status)) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
    }
}
