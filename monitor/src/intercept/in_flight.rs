//! Calls that are being answered, and the threads that must wait for them.
//!
//! In the kernel a call ends before its caller does: when wait(2) reports a killed child, no call of the child is in progress.
//! A notification's caller dies at once, while its call is still being answered here. So the supervisor, which learns of the death
//! before the parent, reaps the caller only when the call has ended. Meanwhile it serves other threads (`ptracer/dying.rs`).
//!
//! The monitor has its own copy of a descriptor that a tracee gets for a moment longer. If it is open for writing, the program may
//! execute the file next; so an exec waits until the threads that install descriptors have closed theirs, or it would fail with
//! ETXTBSY. The supervisor waits for that itself, so a thread that installs a descriptor must not wait for the supervisor meanwhile.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// After this time a call (on a failing disk, for example) no longer delays the report that its caller has ended.
pub const LIMIT: Duration = Duration::from_secs(10);

/// All calls that are being answered.
#[derive(Debug, Default)]
pub struct InFlight {
    calls: Mutex<Calls>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct Calls {
    begun: u64,
    /// The calls by number, each with the caller's thread id.
    under_way: Vec<(u64, i32)>,
}

/// A call that is being answered, as long as this value exists.
#[derive(Debug)]
pub struct Guard<'a> {
    all: &'a InFlight,
    number: u64,
}

impl InFlight {
    /// Registers a call of `tid`, which is about to be answered.
    pub fn enter(&self, tid: i32) -> Guard<'_> {
        let number = self.begin(tid);
        self.guard(number)
    }

    /// As [`InFlight::enter`], where another thread goes on, with the [guard](InFlight::guard) of this number.
    pub fn begin(&self, tid: i32) -> u64 {
        let mut calls = self.calls.lock();
        calls.begun += 1;
        let number = calls.begun;
        calls.under_way.push((number, tid));
        number
    }

    /// What [`InFlight::begin`] began.
    pub fn guard(&self, number: u64) -> Guard<'_> {
        Guard { all: self, number }
    }

    /// Whether a call of `tid` is being answered.
    pub fn has(&self, tid: i32) -> bool {
        let calls = self.calls.lock();
        calls.under_way.iter().any(|&(_, whose)| whose == tid)
    }

    /// Waits until no call of `tid` is being answered.
    pub fn settle(&self, tid: i32) {
        self.wait_while(|_, whose| whose == tid);
    }

    /// Waits until every call that is being answered now has its answer.
    pub fn settle_all(&self) {
        let begun = self.calls.lock().begun;
        let all = self.wait_while(|number, _| number <= begun);
        // A call that itself waits for the caller would make every run slower, unseen, by the limit.
        debug_assert!(all, "a call has not ended in {LIMIT:?}: {self:?}");
    }

    /// Returns whether the awaited calls have ended.
    fn wait_while(&self, awaited: impl Fn(u64, i32) -> bool) -> bool {
        let limit = Instant::now() + LIMIT;
        let mut calls = self.calls.lock();
        while calls
            .under_way
            .iter()
            .any(|&(number, tid)| awaited(number, tid))
        {
            if self.over.wait_until(&mut calls, limit).timed_out() {
                return false;
            }
        }
        true
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut calls = self.all.calls.lock();
        calls.under_way.retain(|&(number, _)| number != self.number);
        drop(calls);
        self.all.over.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn settling_waits_for_the_calls_of_this_caller_only() {
        let calls = Arc::new(InFlight::default());
        let _other = calls.enter(1);
        let guard = calls.enter(2);
        calls.settle(3);
        let settling = Arc::clone(&calls);
        let waiter = thread::spawn(move || settling.settle(2));
        thread::sleep(Duration::from_millis(50));
        assert!(!waiter.is_finished());
        drop(guard);
        waiter.join().unwrap();
    }

    #[test]
    fn settling_all_does_not_wait_for_those_that_come_later() {
        let calls = Arc::new(InFlight::default());
        let early = calls.enter(1);
        let settling = Arc::clone(&calls);
        let waiter = thread::spawn(move || settling.settle_all());
        thread::sleep(Duration::from_millis(50));
        let _late = calls.enter(1);
        assert!(!waiter.is_finished());
        drop(early);
        waiter.join().unwrap();
    }
}
