//! Results of calls that a signal has interrupted, as a tracer sees them (`include/linux/errno.h`). Before the program continues, the kernel makes the call again, or
//! turns the result into `EINTR`.

/// Made again, unless a handler without `SA_RESTART` runs.
pub const ERESTARTSYS: i64 = -512;
/// Always made again: for calls that no signal interrupts.
pub const ERESTARTNOINTR: i64 = -513;
/// Made again, unless a handler runs.
pub const ERESTARTNOHAND: i64 = -514;
/// As [`ERESTARTNOHAND`]; restart_syscall(2) continues the wait.
pub const ERESTART_RESTARTBLOCK: i64 = -516;
/// What the program sees where the call is not made again.
pub const EINTR: i64 = -(libc::EINTR as i64);

/// Whether the kernel may make the call again.
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
