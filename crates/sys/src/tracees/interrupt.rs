//! Interrupts waits of this process's threads, and determines whether a signal would end a tracee's wait.
#![allow(
    unsafe_code,
    reason = "signal handlers, and signals to single threads, have no safe interface"
)]

use std::sync::OnceLock;

use crate::{Errno, procfs};

extern "C" fn nothing(_: libc::c_int) {}

/// A real-time signal, so that it has no other meaning.
fn poke_signal() -> libc::c_int {
    libc::SIGRTMIN() + 7
}

/// A thread whose waits can be ended.
#[derive(Debug, Clone, Copy)]
pub struct Waiter {
    tid: i32,
}

impl Waiter {
    /// Makes the calling thread interruptible, and blocks all other signals in it.
    pub fn this_thread() -> Result<Self, Errno> {
        static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*INSTALLED.get_or_init(install))?;
        // SAFETY: a sigset_t is plain integers, and sigfillset sets them all.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is live; pthread_sigmask changes this thread only.
        let r = unsafe {
            libc::sigfillset(&raw mut set);
            libc::sigdelset(&raw mut set, poke_signal());
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
        };
        if r != 0 {
            return Err(Errno::from_raw(r));
        }
        // SAFETY: no arguments.
        let tid = unsafe { libc::gettid() };
        Ok(Self { tid })
    }

    /// Makes the calling thread interruptible, and leaves its other signals as they are. After its first
    /// [`while_interruptible`] it is interruptible only there.
    pub fn with_own_mask() -> Result<Self, Errno> {
        static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
        (*INSTALLED.get_or_init(install))?;
        mask_pokes(libc::SIG_UNBLOCK);
        // SAFETY: no arguments.
        let tid = unsafe { libc::gettid() };
        Ok(Self { tid })
    }

    /// Makes the call that the thread waits in fail with `EINTR`. A poke just before the call is lost: repeat it until the thread has reacted.
    /// `ESRCH`: the thread has ended.
    pub fn poke(&self) -> Result<(), Errno> {
        // SAFETY: integers only; tgkill reaches threads of this process alone.
        let r = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), self.tid, poke_signal()) };
        Errno::result(r).map(drop)
    }
}

/// Runs `wait`, which pokes interrupt. Pokes after it stay pending until the next `wait`, so that no other call of the thread fails with
/// EINTR.
pub fn while_interruptible<T>(wait: impl FnOnce() -> T) -> T {
    mask_pokes(libc::SIG_UNBLOCK);
    let waited = wait();
    mask_pokes(libc::SIG_BLOCK);
    waited
}

/// Blocks or unblocks the signal of pokes in the calling thread.
fn mask_pokes(how: libc::c_int) {
    // SAFETY: a sigset_t is plain integers, and sigemptyset sets them all.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is live; pthread_sigmask changes this thread only. It fails for a wrong `how` alone.
    unsafe {
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, poke_signal());
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

fn install() -> Result<(), Errno> {
    // SAFETY: a sigaction is plain integers; without SA_RESTART a wait ends with EINTR.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int) = nothing;
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the action is live, and its handler does nothing, which is async-signal-safe.
    let r = unsafe { libc::sigaction(poke_signal(), &raw const action, std::ptr::null_mut()) };
    Errno::result(r).map(drop)
}

/// Whether thread `tid` has a pending signal that would end a wait: one that is not blocked, and is handled, fatal or stopping. Ignored
/// signals do not count, although those of a tracee stay pending, too. `ESRCH`: the thread is gone.
pub fn is_interrupted(tid: i32) -> Result<bool, Errno> {
    let masks = Masks::of(tid)?;
    Ok(masks.pending & !masks.blocked & !masks.without_effect != 0)
}

/// Whether `signal` would have an effect on thread `tid`: the thread neither ignores it nor leaves it to a default action that ignores it.
/// `ESRCH`: the thread is gone.
pub fn has_effect(tid: i32, signal: i32) -> Result<bool, Errno> {
    Ok(Masks::of(tid)?.without_effect & bit(signal) == 0)
}

/// Whether thread `tid` neither blocks nor ignores `signal`. `ESRCH`: the thread is gone.
pub fn can_receive(tid: i32, signal: i32) -> Result<bool, Errno> {
    let masks = Masks::of(tid)?;
    Ok((masks.blocked | masks.without_effect) & bit(signal) == 0)
}

/// Whether thread `tid` neither ignores nor handles `signal`.
pub fn has_default_action(tid: i32, signal: i32) -> Result<bool, Errno> {
    Ok(Masks::of(tid)?.handled_or_ignored & bit(signal) == 0)
}

/// Whether a call can return EINTR when a signal or a stop ends its wait, and not a result for which the kernel restarts it. With EINTR it has
/// had no effect.
pub fn ends_with_eintr(nr: u32) -> bool {
    matches!(
        i64::from(nr),
        libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_io_getevents
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_connect
    )
}

fn bit(signal: i32) -> u64 {
    u32::try_from(signal - 1)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
        .unwrap_or(0)
}

/// A thread's sets of signals in the kernel.
struct Masks {
    pending: u64,
    blocked: u64,
    without_effect: u64,
    handled_or_ignored: u64,
}

impl Masks {
    fn of(tid: i32) -> Result<Self, Errno> {
        let signals = procfs::status(tid)?.signals;
        let harmless = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT]
            .into_iter()
            .fold(0, |set, signal| set | bit(signal));
        Ok(Self {
            pending: signals.pending,
            blocked: signals.blocked,
            without_effect: signals.ignored | (harmless & !signals.caught),
            handled_or_ignored: signals.ignored | signals.caught,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Waits for nothing, for this time at most.
    fn wait_ms(limit: libc::c_int) -> Result<libc::c_int, Errno> {
        // SAFETY: no descriptors; the wait is bounded.
        let r = unsafe { libc::poll(std::ptr::null_mut(), 0, limit) };
        Errno::result(r)
    }

    /// The result of `waits` in a thread that is poked until it ends; `begin` makes the thread interruptible.
    fn poked<T: Send + 'static>(
        begin: fn() -> Result<Waiter, Errno>,
        waits: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let (sender, receiver) = channel();
        let waiting = thread::spawn(move || {
            sender.send(begin().unwrap()).unwrap();
            waits()
        });
        let waiter = receiver.recv().unwrap();
        while !waiting.is_finished() {
            let _ = waiter.poke();
            thread::sleep(Duration::from_millis(5));
        }
        waiting.join().unwrap()
    }

    #[test]
    fn a_poke_ends_a_wait() {
        let waited = poked(Waiter::this_thread, || wait_ms(20_000));
        assert_eq!(waited, Err(Errno::EINTR));
    }

    /// The supervisor's own calls failed with EINTR when another thread poked it.
    #[test]
    fn a_poke_ends_no_other_call_than_the_interruptible_one() {
        let waited = poked(Waiter::with_own_mask, || {
            while_interruptible(|| ());
            let other = wait_ms(200);
            (other, while_interruptible(|| wait_ms(20_000)))
        });
        assert_eq!(waited, (Ok(0), Err(Errno::EINTR)));
    }

    #[test]
    fn an_idle_thread_is_not_interrupted() {
        // SAFETY: no arguments.
        let tid = unsafe { libc::gettid() };
        assert_eq!(is_interrupted(tid), Ok(false));
        assert_eq!(is_interrupted(i32::MAX), Err(Errno::ESRCH));
    }
}
