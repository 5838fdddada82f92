//! The progress of lanes, and waits for it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// The progress of a lane.
#[derive(Debug, Default)]
pub struct Progress {
    /// Order of the last command that it has done; `u64::MAX` when it has ended.
    done: AtomicU64,
    waiting: AtomicU32,
    lock: Mutex<()>,
    advanced: Condvar,
}

/// How often a waiting lane checks the progress before it sleeps.
const LOOKS: u32 = 200;

impl Progress {
    /// The lane has done its commands up to `order`.
    pub fn advance(&self, order: u64) {
        // Sequentially consistent, as is the check of a waiter after it has registered: one of the two sees the other.
        self.done.store(order, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock());
            self.advanced.notify_all();
        }
    }

    /// Order of the last command that is done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Waits until the lane has done its commands up to `order`.
    pub fn wait(&self, order: u64) {
        for _ in 0..LOOKS {
            if self.done() >= order {
                return;
            }
            std::hint::spin_loop();
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        while self.done.load(Ordering::SeqCst) < order {
            self.advanced.wait(&mut guard);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_goes_on_once_the_lane_has_come_so_far() {
        let progress = Progress::default();
        std::thread::scope(|scope| {
            let waiters: Vec<_> = (1..=4)
                .map(|number| {
                    scope.spawn({
                        let progress = &progress;
                        move || progress.wait(number * 100)
                    })
                })
                .collect();
            for order in 1..=400 {
                progress.advance(order);
            }
            for waiter in waiters {
                assert!(waiter.join().is_ok());
            }
        });
        progress.advance(u64::MAX);
        progress.wait(u64::MAX - 1);
    }
}
