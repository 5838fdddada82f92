//! Results of calls that a signal has interrupted, as a tracer sees them (`include/linux/errno.h`). Before the program continues, the kernel restarts the call, or turns
//! the result into `EINTR`.

/// The kernel restarts the call, unless a handler without `SA_RESTART` runs.
pub const ERESTARTSYS: i64 = -512;
/// The kernel always restarts the call: for calls that no signal interrupts.
pub const ERESTARTNOINTR: i64 = -513;
/// The kernel restarts the call, unless a handler runs.
pub const ERESTARTNOHAND: i64 = -514;
/// As [`ERESTARTNOHAND`]; restart_syscall(2) continues the wait.
pub const ERESTART_RESTARTBLOCK: i64 = -516;
/// What the program sees if the kernel does not restart the call.
pub const EINTR: i64 = -(libc::EINTR as i64);

/// Whether the kernel may restart the call.
pub const fn is_restart(result: i64) -> bool {
    matches!(
        result,
        ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK
    )
}

/// Whether a signal has interrupted the call.
pub const fn is_interrupted(result: i64) -> bool {
    result == EINTR || is_restart(result)
}
