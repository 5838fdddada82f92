//! Scheduling policy of the calling thread (sched_setscheduler(2)).
#![allow(unsafe_code, reason = "nix has no wrapper for sched_setscheduler(2)")]

use nix::errno::Errno;

/// Lets the calling thread run only where a CPU would otherwise be idle (`SCHED_IDLE`). An ordinary user can't take this
/// back.
pub fn lowest_priority() -> Result<(), Errno> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `param` is a live sched_param; 0 is the calling thread.
    let r = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    Errno::result(r).map(drop)
}
