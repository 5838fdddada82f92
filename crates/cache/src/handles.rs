//! Limits the number of handles of cache objects that the monitor holds.
//!
//! The monitor keeps the handle of an open file until its next sweep, twice a second, however soon the program closes
//! it. A program that reads many small files makes tens of thousands in that time: before the process runs out of
//! descriptors, opens wait for the sweep.

use std::sync::{Arc, Weak};
use std::time::Duration;

use goanna_sys::object_handle::ObjectHandle;
use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;

/// How often an open looks whether the monitor has swept, and how many times: no longer than two of its sweeps take.
const LOOKS: (Duration, u32) = (Duration::from_millis(20), 50);

/// The handles that were handed to the monitor and may still be held. The lock is a leaf.
#[derive(Debug)]
pub struct OpenHandles(Mutex<State>);

#[derive(Debug)]
struct State {
    handles: Vec<Weak<ObjectHandle>>,
    /// Number of handles above which an open waits for a sweep.
    limit: usize,
    /// Number of handles that were left when waiting did not help: programs have those files open.
    lasting: usize,
}

impl OpenHandles {
    /// At most one handle for each `each` descriptors that the process may have.
    pub fn new(each: u64) -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1 << 20, |(soft, _)| soft);
        Self(Mutex::new(State {
            handles: Vec::new(),
            limit: usize::try_from(limit / each).unwrap_or(usize::MAX),
            lasting: 0,
        }))
    }

    /// Counts the handle of a new object.
    pub fn add(&self, handle: &Arc<ObjectHandle>) {
        self.0.lock().handles.push(Arc::downgrade(handle));
    }

    /// To be called before an object is made, without the locks that `drop_unused` takes. If there are too many handles, waits until the monitor has dropped those of closed files.
    /// `drop_unused` drops what the back end itself keeps.
    pub fn wait(&self, drop_unused: impl Fn()) {
        let (pause, looks) = LOOKS;
        for _ in 0..looks {
            if !self.0.lock().are_too_many() {
                return;
            }
            drop_unused();
            std::thread::sleep(pause);
        }
        self.0.lock().accept_all();
    }
}

impl State {
    /// Whether there are so many handles that an open should wait for a sweep.
    fn are_too_many(&mut self) -> bool {
        let limit = self.limit.max(self.lasting + self.lasting / 4);
        if self.handles.len() < limit {
            return false;
        }
        self.handles.retain(|handle| handle.strong_count() > 0);
        self.handles.len() >= limit
    }

    /// Records that waiting did not help: opens wait again when there are a quarter more handles.
    fn accept_all(&mut self) {
        self.lasting = self.handles.len();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_those_that_are_held_count() {
        let handle = || {
            Arc::new(ObjectHandle::new(std::fs::File::open("/dev/null").unwrap().into()).unwrap())
        };
        let open = OpenHandles::new(1);
        open.0.lock().limit = 10;
        let are_too_many = || open.0.lock().are_too_many();
        for _ in 0..100 {
            open.add(&handle());
            assert!(!are_too_many());
        }
        let held: Vec<_> = (0..10).map(|_| handle()).collect();
        held.iter().for_each(|handle| open.add(handle));
        assert!(are_too_many());
        open.0.lock().accept_all();
        assert!(!are_too_many(), "12 are the limit now");
        let more = [handle(), handle()];
        more.iter().for_each(|handle| open.add(handle));
        assert!(are_too_many());
        drop(held);
        assert!(!are_too_many());
    }
}
