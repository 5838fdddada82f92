//! Calls being answered, and tracees that died meanwhile.
//!
//! In the kernel a call is over before its caller is: who has waited for a killed child finds nothing changing any more.
//! A notification's caller dies at once, while its call is still being answered here. So the supervisor, whose wait
//! comes before the parent's, lets the call end before it reaps the caller.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// A call that takes longer (a failing disk) no longer keeps the end of its caller from being known.
const LIMIT: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub struct InFlight {
    callers: Mutex<Vec<i32>>,
    over: Condvar,
}

/// A call is being answered as long as this lives.
#[derive(Debug)]
pub struct Guard<'a> {
    calls: &'a InFlight,
    tid: i32,
}

impl InFlight {
    /// A call of `tid` is about to be answered.
    pub fn enter(&self, tid: i32) -> Guard<'_> {
        self.callers.lock().push(tid);
        Guard { calls: self, tid }
    }

    /// Waits until no call of `tid` is being answered.
    pub fn settle(&self, tid: i32) {
        let limit = Instant::now() + LIMIT;
        let mut callers = self.callers.lock();
        while callers.contains(&tid) {
            if self.over.wait_until(&mut callers, limit).timed_out() {
                return;
            }
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut callers = self.calls.callers.lock();
        if let Some(at) = callers.iter().position(|&tid| tid == self.tid) {
            callers.swap_remove(at);
        }
        drop(callers);
        self.calls.over.notify_all();
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
}
