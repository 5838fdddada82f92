//! Calls that a signal interrupts before the monitor has received them.
//!
//! A caller that waits for its notification to be received can be interrupted: the kernel takes the notification back
//! and the call returns `ERESTARTSYS`, which becomes EINTR where the signal's handler was installed without
//! `SA_RESTART`. Once it is received only death ends the wait (`WAIT_KILLABLE_RECV`). But stat(2), for example, never
//! returns EINTR natively, and no program expects it. So at the stop for the signal's delivery the supervisor replaces
//! such a result by `ERESTARTNOINTR`: the handler runs, then the call is restarted, as if the signal had come just before
//! it.

use goanna_sys::restarts::{ERESTARTNOINTR, ERESTARTSYS};

use crate::process::task::Received;
use crate::table::{Entry, entry};

/// Whether a signal can natively interrupt call `nr` in a wait. All other calls return without EINTR.
pub fn is_interruptible(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_pwrite64
            | libc::SYS_writev
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_copy_file_range
            | libc::SYS_open
            | libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_creat
            | libc::SYS_connect
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_fcntl
            | libc::SYS_flock
            | libc::SYS_ioctl
            | libc::SYS_fallocate
    )
}

/// The result of call `nr` that replaces `result` at a signal's delivery. `left_to_wait` is the last call of this thread
/// that was received and may wait, in the kernel or in the monitor: its interruption is right. A call that the filter
/// allows, such as a data call in a run without `shadow_files`, waits in the kernel alone.
pub fn instead(
    nr: u32,
    args: [u64; 6],
    shadow_files: bool,
    result: i64,
    left_to_wait: impl FnOnce() -> Option<Received>,
) -> Option<i64> {
    let notifies = |entry: &Entry| entry.rule.notifies(&args, shadow_files);
    if result != ERESTARTSYS || !entry(nr).is_some_and(notifies) {
        return None;
    }
    let rightly = is_interruptible(nr) && left_to_wait() == Some((nr, args));
    (!rightly).then_some(ERESTARTNOINTR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_that_were_not_received_are_made_again() {
        let (stat, open) = (libc::SYS_stat as u32, libc::SYS_openat as u32);
        let args = [1, 2, 3, 4, 5, 6];
        assert_eq!(instead(stat, args, true, -512, || None), Some(-513));
        assert_eq!(
            instead(stat, args, true, -512, || Some((stat, args))),
            Some(-513),
            "stat never waits"
        );
        assert_eq!(instead(stat, args, true, -4, || None), None);
        assert_eq!(instead(open, args, true, -512, || None), Some(-513));
        assert_eq!(
            instead(open, args, true, -512, || Some((open, args))),
            None,
            "a fifo"
        );
        assert_eq!(
            instead(open, args, true, -512, || Some((open, [0; 6]))),
            Some(-513)
        );
        assert_eq!(
            instead(libc::SYS_nanosleep as u32, args, true, -512, || None),
            None,
            "not ours"
        );
        let read = libc::SYS_read as u32;
        assert_eq!(
            instead(read, args, true, -512, || None),
            None,
            "stopped at most"
        );
        let splice = libc::SYS_splice as u32;
        assert_eq!(instead(splice, args, true, -512, || None), Some(-513));
        assert_eq!(
            instead(splice, args, false, -512, || None),
            None,
            "not seen without virtual files"
        );
        let ioctl = libc::SYS_ioctl as u32;
        let of_terminal = [1, libc::TCGETS, 3, 4, 5, 6];
        assert_eq!(
            instead(ioctl, of_terminal, true, -512, || None),
            None,
            "not a request that comes to the monitor"
        );
    }
}
