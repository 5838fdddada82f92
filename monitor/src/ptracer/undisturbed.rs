//! Waits that are interrupted only because the thread is traced: by a signal without effect, or by a stop of our own.
//!
//! The kernel drops a signal that is ignored, and its receiver sleeps on. For a traced thread it queues every signal, since the
//! tracer might deliver another one, and wakes the thread. Most calls then have a result that makes the kernel restart them when
//! no handler has run; some (epoll_wait, sigtimedwait, semtimedop, recv with a timeout) have EINTR at once. At the stop for the
//! delivery of a signal without effect, the supervisor makes that ERESTARTNOHAND: the kernel restarts the call, or makes it EINTR
//! after all where it finds another signal whose handler runs. The same holds for the stop of a thread during a commit
//! ([`crate::pause`]).
//!
//! A restarted call has its whole timeout again, since nothing tells when the first one began. So that signals that come again
//! and again cannot prolong it for ever, the thread stops when the restarted call ends; at a further interruption later than
//! one timeout after the first, the call has timed out.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use goanna_sys::interrupt::has_effect;
use goanna_sys::{pidfd, tracee};
use goanna_vfs::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::time::TimeValLike;

const EINTR: i64 = -(Errno::EINTR as i64);
const EAGAIN: i64 = -(Errno::EAGAIN as i64);
/// The kernel's own result for what is restarted unless a handler runs.
const ERESTARTNOHAND: i64 = -514;

/// Where a restarted call stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is about to be made again, or has just been interrupted again.
    Outside,
    /// It waits.
    Inside,
}

/// All waits that go on after an interruption.
#[derive(Default)]
pub struct Waits {
    /// Since when, and where it stands.
    by_tid: HashMap<i32, (Instant, Stage)>,
}

/// What a wait is to return instead of EINTR.
#[derive(Debug, PartialEq, Eq)]
pub struct Instead {
    /// The result.
    pub result: i64,
    /// The call is made again: the thread is to be continued to its next syscall stop.
    pub restarts: bool,
}

impl Waits {
    /// `signal` is about to be delivered to `tid`, whose call `(nr, args)` has `result`. `None`: that stays.
    pub fn signal(
        &mut self,
        tid: i32,
        signal: i32,
        (nr, args): (u32, [u64; 6]),
        result: i64,
    ) -> Option<Instead> {
        // One that has died meanwhile needs no result.
        let ends = || !is_wait(nr) || has_effect(tid, signal).unwrap_or(true);
        self.interrupted(tid, (nr, args), result, ends)
    }

    /// A stop of our own has interrupted `tid`, whose call `(nr, args)` has `result`. `None`: that stays.
    pub fn stop(&mut self, tid: i32, (nr, args): (u32, [u64; 6]), result: i64) -> Option<Instead> {
        self.interrupted(tid, (nr, args), result, || {
            !is_wait(nr) && !is_ended_by_stop(nr)
        })
    }

    fn interrupted(
        &mut self,
        tid: i32,
        (nr, args): (u32, [u64; 6]),
        result: i64,
        ends: impl FnOnce() -> bool,
    ) -> Option<Instead> {
        let known = self.by_tid.remove(&tid).map(|(since, _)| since);
        if result != EINTR && (result != ERESTARTNOHAND || known.is_none()) {
            return None;
        }
        if ends() {
            return None;
        }
        let since = known.unwrap_or_else(Instant::now);
        if known.is_some() && timeout(tid, nr, args).is_some_and(|limit| since.elapsed() >= limit) {
            let result = if is_epoll(nr) { 0 } else { EAGAIN };
            return Some(Instead {
                result,
                restarts: false,
            });
        }
        self.by_tid.insert(tid, (since, Stage::Outside));
        Some(Instead {
            result: ERESTARTNOHAND,
            restarts: true,
        })
    }

    /// Whether this syscall stop of `tid` is one of a restarted call, and if so, whether there is another one to wait for.
    /// `result` is what the call returns if it is its end.
    pub fn syscall_stop(&mut self, tid: i32, result: i64) -> Option<bool> {
        let (_, stage) = self.by_tid.get_mut(&tid)?;
        if *stage == Stage::Outside {
            *stage = Stage::Inside;
            return Some(true);
        }
        *stage = Stage::Outside;
        // The signal that has interrupted it is reported next.
        if result != EINTR {
            self.by_tid.remove(&tid);
        }
        Some(false)
    }

    /// The thread has ended, or executes another program.
    pub fn forget(&mut self, tid: i32) {
        self.by_tid.remove(&tid);
    }
}

fn is_epoll(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2
    )
}

/// Whether the call returns EINTR, and not a result that the kernel restarts it for, when a signal ends its wait. No filter stops
/// these calls.
fn is_wait(nr: u32) -> bool {
    is_epoll(nr)
        || matches!(
            i64::from(nr),
            libc::SYS_rt_sigtimedwait
                | libc::SYS_semop
                | libc::SYS_semtimedop
                | libc::SYS_recvfrom
                | libc::SYS_recvmsg
        )
}

/// Whether the call, which is no [wait](is_wait), can return EINTR at a stop that no signal follows (signal(7)).
fn is_ended_by_stop(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_io_getevents
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_accept
            | libc::SYS_accept4
    )
}

/// How long the call waits; `None` is without end.
fn timeout(tid: i32, nr: u32, args: [u64; 6]) -> Option<Duration> {
    let [fd, _, third, fourth, ..] = args;
    match i64::from(nr) {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
            u64::try_from(fourth as i32).ok().map(Duration::from_millis)
        }
        libc::SYS_rt_sigtimedwait => timespec(tid, third),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timespec(tid, fourth),
        libc::SYS_recvfrom | libc::SYS_recvmsg => {
            let socket = pidfd::getfd(pidfd::open(tid).ok()?.as_fd(), fd as i32).ok()?;
            let limit = getsockopt(&socket, sockopt::ReceiveTimeout).ok()?;
            let limit = u64::try_from(limit.num_microseconds()).ok()?;
            (limit > 0).then(|| Duration::from_micros(limit))
        }
        _ => None,
    }
}

/// The `struct timespec` at `address`.
fn timespec(tid: i32, address: u64) -> Option<Duration> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        tracee::read_exact(tid, at, &mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    if address == 0 {
        return None;
    }
    let nanos = u32::try_from(word(address.checked_add(8)?)?).ok()?;
    Some(Duration::from_secs(word(address)?).saturating_add(Duration::from_nanos(nanos.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_goes_on_after_signals_without_effect_until_its_timeout() {
        let tid = std::process::id() as i32;
        let (epoll, args) = (libc::SYS_epoll_wait as u32, [0, 0, 0, 1, 0, 0]);
        let mut waits = Waits::default();
        let (ignored, fatal) = (libc::SIGURG, libc::SIGTERM);
        assert_eq!(waits.signal(tid, fatal, (epoll, args), EINTR), None);
        assert_eq!(waits.signal(tid, ignored, (epoll, args), 3), None);
        let read = libc::SYS_read as u32;
        assert_eq!(waits.signal(tid, ignored, (read, args), EINTR), None);
        let restart = Some(Instead {
            result: ERESTARTNOHAND,
            restarts: true,
        });
        assert_eq!(waits.signal(tid, ignored, (epoll, args), EINTR), restart);
        assert_eq!(waits.syscall_stop(tid, -38), Some(true));
        assert_eq!(waits.syscall_stop(tid, EINTR), Some(false));
        std::thread::sleep(Duration::from_millis(2));
        let over = Some(Instead {
            result: 0,
            restarts: false,
        });
        assert_eq!(waits.signal(tid, ignored, (epoll, args), EINTR), over);
        assert_eq!(waits.signal(tid, ignored, (epoll, args), EINTR), restart);
        assert_eq!(waits.syscall_stop(tid, -38), Some(true));
        assert_eq!(waits.syscall_stop(tid, 1), Some(false), "it has ended");
        assert_eq!(waits.syscall_stop(tid, 1), None);
    }

    #[test]
    fn a_wait_goes_on_after_stops_until_its_timeout() {
        let tid = std::process::id() as i32;
        let (epoll, args) = (libc::SYS_epoll_wait as u32, [0, 0, 0, 1, 0, 0]);
        let mut waits = Waits::default();
        let restart = Some(Instead {
            result: ERESTARTNOHAND,
            restarts: true,
        });
        let write = libc::SYS_write as u32;
        assert_eq!(waits.stop(tid, (write, args), 3), None);
        assert_eq!(waits.stop(tid, (write, args), EINTR), restart);
        waits.forget(tid);
        assert_eq!(waits.stop(tid, (epoll, args), EINTR), restart);
        // A second stop before the call is made again.
        assert_eq!(waits.stop(tid, (epoll, args), ERESTARTNOHAND), restart);
        assert_eq!(waits.syscall_stop(tid, -38), Some(true));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(waits.syscall_stop(tid, EINTR), Some(false));
        let over = Some(Instead {
            result: 0,
            restarts: false,
        });
        assert_eq!(waits.stop(tid, (epoll, args), EINTR), over);
        let close = libc::SYS_close as u32;
        assert_eq!(waits.stop(tid, (close, args), EINTR), None);
    }
}
