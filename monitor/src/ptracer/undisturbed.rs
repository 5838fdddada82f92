//! Waits that are interrupted only because the thread is traced: by a signal without effect, or by a stop of our own.
//!
//! The kernel drops a signal that is ignored, and its receiver sleeps on. For a traced thread it queues every signal, since the
//! tracer might deliver another one, and wakes the thread. Most calls then return a result that makes the kernel restart them when no
//! handler has run; some (epoll_wait, sigtimedwait, semtimedop, recv with a timeout) return EINTR at once. At the stop for the delivery
//! of a signal without effect, the supervisor replaces EINTR by ERESTARTNOHAND: the kernel restarts the call, or returns EINTR
//! nevertheless if it finds another signal whose handler runs. The same holds for the stop of a thread during a commit
//! ([`crate::ptracer::pause`]).
//!
//! The kernel would give the restarted call its whole timeout again. So the supervisor ends it at the first one's deadline: it
//! interrupts the thread then, and the call returns as at its timeout. If the end of a child, or a signal from a process of the run,
//! interrupts the call, the beginning of the wait is known ([`Sleeps`]): before the supervisor reaps the child, or the monitor passes on
//! kill(2), it finds out since when the receiver sleeps. Otherwise the time counts from the first interruption. See docs/decisions/0037
//! and 0078.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use goanna_sys::interrupt::{ends_with_eintr, has_effect};
use goanna_sys::procfs::{self, SleepingCall};
use goanna_sys::restarts::{self, EINTR, ERESTARTNOHAND};
use goanna_sys::sched::{self, Sleep};
use goanna_sys::{pidfd, tracee};
use goanna_vfs::Errno;
use nix::sys::socket::{
    AddressFamily, SockaddrLike, SockaddrStorage, getsockname, getsockopt, sockopt,
};
use nix::sys::time::TimeValLike;
use parking_lot::Mutex;

/// The state of a restarted call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is about to be restarted, or has just been interrupted again.
    Outside,
    /// It waits.
    Inside,
}

/// A wait that continues after an interruption.
struct Wait {
    stage: Stage,
    deadline: Option<Instant>,
    number: u64,
    /// The deadline has passed, and the thread was interrupted.
    is_over: bool,
    /// The result of the call then.
    over: i64,
}

/// A call, and the sleep in it that is about to be interrupted.
type Noted = ((u32, [u64; 6]), Sleep);

/// Sleeps that a signal may interrupt soon. The mutex is a leaf in the lock order.
#[derive(Debug, Default)]
pub struct Sleeps(Mutex<HashMap<i32, Noted>>);

impl Sleeps {
    /// Records since when thread `tid` sleeps in a wait with a timeout, because a signal for it may follow.
    pub fn note(&self, tid: i32) {
        let Ok(Some(SleepingCall { number, args, .. })) = procfs::sleeping_call(tid) else {
            return;
        };
        if let Ok(nr) = u32::try_from(number)
            && ends_with_eintr(nr)
            && timeout(tid, nr, args).is_some()
            && let Ok(sleep) = sched::sleep(tid)
        {
            self.0.lock().insert(tid, ((nr, args), sleep));
        }
    }

    /// Thread `tid` is at a stop that may precede the one for the delivery of the signal, as for SIGCONT. The stop counts as one more
    /// sleep.
    pub fn stopped(&self, tid: i32) {
        // The stop is reported before the scheduler counts it.
        if let Some((_, sleep)) = self.0.lock().get_mut(&tid)
            && sched::sleeps(tid).is_ok_and(|now| now <= sleep.number + 1)
        {
            sleep.number += 1;
        }
    }

    fn take(&self, tid: i32) -> Option<Noted> {
        self.0.lock().remove(&tid)
    }
}

/// All waits that continue after an interruption.
#[derive(Default)]
pub struct Waits {
    by_tid: HashMap<i32, Wait>,
    sleeps: Arc<Sleeps>,
    last_number: u64,
}

/// When a wait is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// The number of the thread's wait.
    pub number: u64,
    /// The instant.
    pub at: Instant,
}

/// The result of a wait that replaces EINTR.
#[derive(Debug, PartialEq, Eq)]
pub enum Instead {
    /// The wait is over, with this result.
    Over(i64),
    /// The kernel restarts the wait because of this result. The caller continues the thread to its next syscall stop, and calls
    /// [`Waits::due`] at the deadline.
    Restart(i64, Option<Deadline>),
}

impl Waits {
    /// Without waits; `sleeps` records the threads' sleeps.
    pub fn new(sleeps: Arc<Sleeps>) -> Self {
        Self {
            sleeps,
            ..Self::default()
        }
    }

    /// Records since when thread `tid` sleeps in a wait with a timeout, because a signal for it may follow. Does nothing for a restarted
    /// wait.
    pub fn note_sleep(&mut self, tid: i32) {
        if !self.by_tid.contains_key(&tid) {
            self.sleeps.note(tid);
        }
    }

    /// When the interrupted call of `tid` began to wait, if that was recorded and the thread has slept only once since.
    fn noted(&mut self, tid: i32, call: (u32, [u64; 6])) -> Option<Instant> {
        let (_, sleep) = self.sleeps.take(tid).filter(|(noted, _)| *noted == call)?;
        // The thread's present stop is the next sleep.
        (sched::sleeps(tid) == Ok(sleep.number + 1)).then_some(sleep.began)
    }

    /// `signal` is about to be delivered to `tid`, whose call `(nr, args)` has `result`. `None`: the result stays.
    pub fn signal(
        &mut self,
        tid: i32,
        signal: i32,
        (nr, args): (u32, [u64; 6]),
        result: i64,
    ) -> Option<Instead> {
        // A thread that has died meanwhile needs no result.
        let ends = || has_effect(tid, signal).unwrap_or(true);
        self.interrupted(tid, (nr, args), result, ends)
    }

    /// A stop of our own has interrupted `tid`, whose call `(nr, args)` has `result`. `None`: the result stays.
    pub fn stop(&mut self, tid: i32, (nr, args): (u32, [u64; 6]), result: i64) -> Option<Instead> {
        self.interrupted(tid, (nr, args), result, || false)
    }

    fn interrupted(
        &mut self,
        tid: i32,
        (nr, args): (u32, [u64; 6]),
        result: i64,
        ends: impl FnOnce() -> bool,
    ) -> Option<Instead> {
        let known = self.by_tid.remove(&tid);
        let is_ended = result == EINTR || result == ERESTARTNOHAND && known.is_some();
        if !is_ended || !ends_with_eintr(nr) {
            self.sleeps.take(tid);
            return None;
        }
        let began = self.noted(tid, (nr, args));
        if ends() {
            return None;
        }
        let deadline = match known {
            Some(known) => known.deadline,
            None => timeout(tid, nr, args)
                .and_then(|limit| began.unwrap_or_else(Instant::now).checked_add(limit)),
        };
        let over = when_over(tid, nr, args);
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Some(Instead::Over(over));
        }
        self.last_number += 1;
        let number = self.last_number;
        let wait = Wait {
            stage: Stage::Outside,
            deadline,
            number,
            is_over: false,
            over,
        };
        self.by_tid.insert(tid, wait);
        let deadline = deadline.map(|at| Deadline { number, at });
        Some(Instead::Restart(ERESTARTNOHAND, deadline))
    }

    /// The deadline of wait `number` of `tid` has passed. Returns whether to stop the thread.
    pub fn due(&mut self, tid: i32, number: u64) -> bool {
        let wait = self.by_tid.get_mut(&tid);
        let wait = wait.filter(|wait| wait.number == number);
        wait.is_some_and(|wait| {
            wait.is_over = true;
            true
        })
    }

    /// Handles a syscall stop of `tid`; `result` is the call's result if it is the exit stop. `None` if the thread is in no restarted
    /// wait.
    pub fn syscall_stop(&mut self, tid: i32, result: i64) -> Option<Boundary> {
        let wait = self.by_tid.get_mut(&tid)?;
        if wait.stage == Stage::Outside {
            wait.stage = Stage::Inside;
            return Some(Boundary::Begins {
                is_over: wait.is_over,
            });
        }
        wait.stage = Stage::Outside;
        let (is_over, over) = (wait.is_over, wait.over);
        let is_interrupted = restarts::is_interrupted(result);
        if is_interrupted && !is_over {
            // The kernel reports the signal that has interrupted the wait next.
            return Some(Boundary::Ends(None));
        }
        self.by_tid.remove(&tid);
        Some(Boundary::Ends((is_interrupted && is_over).then_some(over)))
    }

    /// Whether the call of `tid`, which is at its seccomp stop, is a restarted wait whose end the supervisor must see. If not, forgets
    /// the thread's wait.
    pub fn seccomp_stop(&mut self, tid: i32) -> bool {
        self.sleeps.take(tid);
        if self.is_inside(tid) {
            return true;
        }
        self.by_tid.remove(&tid);
        false
    }

    /// Whether `tid` is in a wait that was restarted, or is about to be.
    pub fn has(&self, tid: i32) -> bool {
        self.by_tid.contains_key(&tid)
    }

    /// Whether `tid` is in a wait that was restarted.
    pub fn is_inside(&self, tid: i32) -> bool {
        let wait = self.by_tid.get(&tid);
        wait.is_some_and(|wait| wait.stage == Stage::Inside)
    }

    /// Forgets the wait of a thread that has ended, or does something else.
    pub fn forget(&mut self, tid: i32) {
        self.by_tid.remove(&tid);
        self.sleeps.take(tid);
    }
}

/// A syscall stop of a wait that was restarted.
#[derive(Debug, PartialEq, Eq)]
pub enum Boundary {
    /// The wait begins.
    Begins {
        /// Its deadline has passed, and this stop has replaced the one that PTRACE_INTERRUPT asked for: the thread must be interrupted
        /// again.
        is_over: bool,
    },
    /// The wait has ended; this result replaces its own.
    Ends(Option<i64>),
}

fn is_epoll(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2
    )
}

/// Whether the limit of the wait is the socket's SO_SNDTIMEO.
fn waits_to_send(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_connect
    )
}

/// The call's result at its timeout.
fn when_over(tid: i32, nr: u32, args: [u64; 6]) -> i64 {
    match i64::from(nr) {
        libc::SYS_io_getevents => 0,
        libc::SYS_connect if !is_unix(tid, args) => -(Errno::EINPROGRESS as i64),
        _ if is_epoll(nr) => 0,
        _ => -(Errno::EAGAIN as i64),
    }
}

/// The socket that is the call's first argument.
fn socket(tid: i32, [fd, ..]: [u64; 6]) -> Option<OwnedFd> {
    pidfd::copy(tid, fd as i32).ok()
}

fn is_unix(tid: i32, args: [u64; 6]) -> bool {
    let name = socket(tid, args)
        .and_then(|socket| getsockname::<SockaddrStorage>(socket.as_fd().as_raw_fd()).ok());
    name.is_some_and(|name| name.family() == Some(AddressFamily::Unix))
}

/// The call's time limit; `None` for none.
fn timeout(tid: i32, nr: u32, args: [u64; 6]) -> Option<Duration> {
    let [_, _, third, fourth, fifth, _] = args;
    match i64::from(nr) {
        libc::SYS_epoll_wait | libc::SYS_epoll_pwait => {
            u64::try_from(fourth as i32).ok().map(Duration::from_millis)
        }
        libc::SYS_rt_sigtimedwait => timespec(tid, third),
        libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => timespec(tid, fourth),
        libc::SYS_io_getevents => timespec(tid, fifth),
        libc::SYS_semop => None,
        _ => {
            let socket = socket(tid, args)?;
            let limit = if waits_to_send(nr) {
                getsockopt(&socket, sockopt::SendTimeout)
            } else {
                getsockopt(&socket, sockopt::ReceiveTimeout)
            };
            // Not a socket: the call has no limit.
            let limit = u64::try_from(limit.ok()?.num_microseconds()).ok()?;
            (limit > 0).then(|| Duration::from_micros(limit))
        }
    }
}

/// The `struct timespec` at `address`.
fn timespec(tid: i32, address: u64) -> Option<Duration> {
    let word = |at: u64| tracee::read_word(tid, at).ok();
    if address == 0 {
        return None;
    }
    let nanos = u32::try_from(word(address.checked_add(8)?)?).ok()?;
    Some(Duration::from_secs(word(address)?).saturating_add(Duration::from_nanos(nanos.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOLL: u32 = libc::SYS_epoll_wait as u32;
    /// With a timeout of a millisecond, and of a minute.
    const SHORT: [u64; 6] = [0, 0, 0, 1, 0, 0];
    const LONG: [u64; 6] = [0, 0, 0, 60_000, 0, 0];

    fn deadline(instead: Option<Instead>) -> Deadline {
        match instead {
            Some(Instead::Restart(ERESTARTNOHAND, Some(deadline))) => deadline,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wait_goes_on_after_signals_without_effect_until_its_deadline() {
        let tid = std::process::id() as i32;
        let mut waits = Waits::default();
        let (ignored, fatal) = (libc::SIGURG, libc::SIGTERM);
        assert_eq!(waits.signal(tid, fatal, (EPOLL, LONG), EINTR), None);
        assert_eq!(waits.signal(tid, ignored, (EPOLL, LONG), 3), None);
        let close = libc::SYS_close as u32;
        assert_eq!(waits.signal(tid, ignored, (close, LONG), EINTR), None);
        let first = deadline(waits.signal(tid, ignored, (EPOLL, LONG), EINTR));
        let begins = Some(Boundary::Begins { is_over: false });
        assert_eq!(waits.syscall_stop(tid, -38), begins);
        assert_eq!(waits.syscall_stop(tid, EINTR), Some(Boundary::Ends(None)));
        let second = deadline(waits.signal(tid, ignored, (EPOLL, LONG), EINTR));
        assert_eq!(first.at, second.at, "not with a whole timeout again");
        assert!(!waits.due(tid, first.number), "of the former wait");
        assert_eq!(waits.syscall_stop(tid, -38), begins);
        assert!(waits.due(tid, second.number));
        let over = Some(Boundary::Ends(Some(0)));
        assert_eq!(waits.syscall_stop(tid, EINTR), over);
        assert_eq!(waits.syscall_stop(tid, 1), None);
    }

    #[test]
    fn a_wait_whose_time_is_over_at_a_signal_is_not_made_again() {
        let tid = std::process::id() as i32;
        let mut waits = Waits::default();
        let first = deadline(waits.stop(tid, (EPOLL, SHORT), EINTR));
        std::thread::sleep(Duration::from_millis(2));
        // A second stop before the call is restarted.
        let over = Some(Instead::Over(0));
        assert_eq!(waits.stop(tid, (EPOLL, SHORT), ERESTARTNOHAND), over);
        assert!(!waits.due(tid, first.number));
    }

    #[test]
    fn a_wait_at_its_deadline_before_its_restart_is_reported_again() {
        let tid = std::process::id() as i32;
        let mut waits = Waits::default();
        let first = deadline(waits.stop(tid, (EPOLL, LONG), EINTR));
        assert!(waits.due(tid, first.number));
        let begins = Some(Boundary::Begins { is_over: true });
        assert_eq!(waits.syscall_stop(tid, -38), begins);
        assert!(waits.is_inside(tid) && waits.seccomp_stop(tid));
        let own = Some(Boundary::Ends(None));
        assert_eq!(waits.syscall_stop(tid, 1), own, "an event came first");
        assert!(!waits.seccomp_stop(tid));
    }
}
