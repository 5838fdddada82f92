//! The progress of lanes, and waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// The progress of a lane. Each has cache lines of its own: lanes advance at the same time.
#[derive(Debug)]
#[repr(align(128))]
pub struct Progress {
    /// Order of the last command that it has done; `u64::MAX` when it has ended.
    done: AtomicU64,
    /// The lowest order that a sleeping lane waits for; `u64::MAX` if none sleeps. Lowered while `lock` is held.
    awaited: AtomicU64,
    lock: Mutex<()>,
    advanced: Condvar,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            done: AtomicU64::new(0),
            awaited: AtomicU64::new(u64::MAX),
            lock: Mutex::default(),
            advanced: Condvar::default(),
        }
    }
}

/// How often a waiting lane checks the progress before it sleeps.
const LOOKS: u32 = 200;

impl Progress {
    /// The lane has done its commands up to `order`.
    pub fn advance(&self, order: u64) {
        // Sequentially consistent, as is the check of a waiter after it has registered: one of the two sees the other.
        self.done.store(order, Ordering::SeqCst);
        if self.awaited.load(Ordering::SeqCst) <= order {
            // Lanes that wait for a later command register again.
            let guard = self.lock.lock();
            self.awaited.store(u64::MAX, Ordering::SeqCst);
            drop(guard);
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
        let mut guard = self.lock.lock();
        loop {
            self.awaited.fetch_min(order, Ordering::SeqCst);
            if self.done.load(Ordering::SeqCst) >= order {
                return;
            }
            self.advanced.wait(&mut guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane that waits for a late command must not be woken by each earlier one: that costs a system call a command.
    #[test]
    fn only_the_command_that_is_awaited_wakes_a_waiter() {
        let progress = Progress::default();
        progress.awaited.store(100, Ordering::SeqCst);
        progress.advance(99);
        assert_eq!(progress.awaited.load(Ordering::SeqCst), 100);
        progress.advance(100);
        assert_eq!(progress.awaited.load(Ordering::SeqCst), u64::MAX);
    }

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
