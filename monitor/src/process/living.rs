//! The set of all followed threads of a run.

use std::collections::HashSet;

use goanna_sys::procfs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

/// Threads that are followed. None is reaped while it is in the set, so that its id cannot belong to another thread when it is
/// killed. The set is a leaf in the lock order.
#[derive(Debug, Default)]
pub struct Alive {
    now: Mutex<HashSet<i32>>,
    /// One bit for each thread id that is or was followed.
    ever: Mutex<Vec<u64>>,
}

impl Alive {
    /// Adds `tid`, which is followed from now on.
    pub fn add(&self, tid: i32) {
        self.now.lock().insert(tid);
        let (word, bit) = place(tid);
        let mut ever = self.ever.lock();
        if ever.len() <= word {
            ever.resize(word + 1, 0);
        }
        if let Some(word) = ever.get_mut(word) {
            *word |= bit;
        }
    }

    /// Whether `tid` is or was followed. If a process outside of the run has the id of an ended thread now, the answer is no.
    pub fn has_followed(&self, tid: i32) -> bool {
        let (word, bit) = place(tid);
        let ever = self
            .ever
            .lock()
            .get(word)
            .is_some_and(|word| word & bit != 0);
        ever && (self.contains(tid) || procfs::has_ended(tid))
    }

    /// Removes `tid`, which has ended and is about to be reaped.
    pub fn remove(&self, tid: i32) {
        self.now.lock().remove(&tid);
    }

    /// Whether `tid` is followed.
    pub fn contains(&self, tid: i32) -> bool {
        self.now.lock().contains(&tid)
    }

    /// All followed threads.
    pub fn all(&self) -> Vec<i32> {
        self.now.lock().iter().copied().collect()
    }

    /// Sends SIGKILL to all followed threads.
    pub fn kill(&self) {
        for tid in &*self.now.lock() {
            // It may have ended.
            let _ = kill(Pid::from_raw(*tid), Signal::SIGKILL);
        }
    }
}

/// The word of `tid`'s bit, and the bit.
fn place(tid: i32) -> (usize, u64) {
    let number = tid.unsigned_abs();
    ((number / 64) as usize, 1 << (number % 64))
}
