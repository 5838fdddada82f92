//! Ends the waits of the tracing thread from time to time, so that records do not stay in rings while no thread stops.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use goanna_affinity::leave_one_cpu;
use goanna_sys::interrupt::Waiter;
use parking_lot::{Condvar, Mutex};

/// Records are reported after this time at the latest.
const INTERVAL: Duration = Duration::from_millis(100);

/// Interrupts the thread that has made it, in `interrupt::while_interruptible`.
#[derive(Debug)]
pub struct Ticker {
    has_ended: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Interrupts the calling thread. `None` if no thread can be started.
    pub fn start() -> Option<Self> {
        let waiter = Waiter::with_own_mask().ok()?;
        let has_ended = Arc::<(Mutex<bool>, Condvar)>::default();
        let of_thread = Arc::clone(&has_ended);
        let thread = std::thread::Builder::new().name("ticker".into());
        let thread = thread.spawn(move || tick(&of_thread, waiter)).ok()?;
        Some(Self {
            has_ended,
            thread: Some(thread),
        })
    }
}

fn tick((has_ended, changed): &(Mutex<bool>, Condvar), waiter: Waiter) {
    leave_one_cpu();
    let mut has_ended = has_ended.lock();
    while !*has_ended {
        changed.wait_for(&mut has_ended, INTERVAL);
        // The thread lives as long as the ticker.
        let _ = waiter.poke();
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.has_ended.0.lock() = true;
        self.has_ended.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // It returns no result.
            let _ = thread.join();
        }
    }
}
