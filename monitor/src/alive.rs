//! The threads of a run, whether they have made a call or not.

use std::collections::HashSet;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::Mutex;

/// Threads that are followed. None is reaped while it is in the set, so that no number is another's by the time it is
/// killed. The set is a leaf in the lock order.
#[derive(Debug, Default)]
pub struct Alive(Mutex<HashSet<i32>>);

impl Alive {
    /// `tid` is followed from now on.
    pub fn add(&self, tid: i32) {
        self.0.lock().insert(tid);
    }

    /// `tid` has ended and is about to be reaped.
    pub fn remove(&self, tid: i32) {
        self.0.lock().remove(&tid);
    }

    /// Whether `tid` is followed.
    pub fn contains(&self, tid: i32) -> bool {
        self.0.lock().contains(&tid)
    }

    /// All of them.
    pub fn all(&self) -> Vec<i32> {
        self.0.lock().iter().copied().collect()
    }

    /// Sends SIGKILL to all.
    pub fn kill(&self) {
        for tid in &*self.0.lock() {
            // It may have ended.
            let _ = kill(Pid::from_raw(*tid), Signal::SIGKILL);
        }
    }
}
