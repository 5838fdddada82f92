//! Restarts waits that would return EINTR only because the thread is traced.

use goanna_sys::interrupt::{ends_with_eintr, has_effect, is_interrupted};
use goanna_sys::ptrace::{CallStop, Stopped};
use goanna_sys::restarts::{self, EINTR, ERESTARTNOHAND};

/// Makes the kernel restart the call of a stopped thread that would return EINTR only because the thread is traced: because of a stop of ours
/// (`signal` is `None`), or of a signal without an effect. Where another signal's handler runs, the kernel makes it EINTR after all.
pub(super) fn restart_undisturbed(stopped: &Stopped, signal: Option<i32>) {
    let tid = stopped.tid();
    let Ok(mut regs) = stopped.regs() else {
        return;
    };
    let Ok(nr) = u32::try_from(regs.number()) else {
        return;
    };
    if regs.result() != EINTR || !ends_with_eintr(nr) {
        return;
    }
    let stays = match signal {
        None => is_interrupted(tid).unwrap_or(true),
        // Each signal would restart a timeout.
        Some(signal) => has_effect(tid, signal).unwrap_or(true) || !waits_for_ever(nr, regs.args()),
    };
    if !stays {
        regs.set_result(ERESTARTNOHAND);
        // A thread that was killed needs no result.
        let _ = stopped.set_regs(&regs);
    }
}

/// Whether a waiting call certainly has no timeout.
fn waits_for_ever(nr: u32, args: [u64; 6]) -> bool {
    let [_, _, third, fourth, fifth, _] = args;
    match i64::from(nr) {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => (fourth as i32) < 0,
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => fourth == 0,
        libc::SYS_rt_sigtimedwait => third == 0,
        libc::SYS_io_getevents => fifth == 0,
        libc::SYS_semop => true,
        _ => false,
    }
}

/// Whether the call at whose exit a thread is stopped was interrupted.
pub(super) fn is_interrupted_call(stopped: &Stopped) -> bool {
    match stopped.call() {
        Ok(CallStop::Exit { result }) => restarts::is_interrupted(result),
        _ => false,
    }
}
