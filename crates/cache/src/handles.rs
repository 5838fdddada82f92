//! Limits the number of handles of cache objects that the monitor holds.
//!
//! The monitor keeps the handle of an open file until its next sweep, twice a second, however soon the program closes
//! it. A program that reads many small files makes tens of thousands in that time: before the process runs out of
//! descriptors, opens wait for the sweep.

use std::sync::{Arc, Weak};

use goanna_sys::object_handle::ObjectHandle;
use nix::sys::resource::{Resource, getrlimit};

/// The handles that were handed to the monitor and may still be held.
pub(crate) struct OpenHandles {
    handles: Vec<Weak<ObjectHandle>>,
    /// Number of handles above which an open waits for a sweep.
    limit: usize,
    /// Number of handles that were left when waiting did not help: programs have those files open.
    lasting: usize,
}

impl Default for OpenHandles {
    /// The limit is half of the descriptors that the process may have.
    fn default() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1 << 20, |(soft, _)| soft);
        Self {
            handles: Vec::new(),
            limit: usize::try_from(limit / 2).unwrap_or(usize::MAX),
            lasting: 0,
        }
    }
}

impl OpenHandles {
    pub fn add(&mut self, handle: &Arc<ObjectHandle>) {
        self.handles.push(Arc::downgrade(handle));
    }

    /// Whether there are so many handles that an open should wait for a sweep.
    pub fn are_too_many(&mut self) -> bool {
        let limit = self.limit.max(self.lasting + self.lasting / 4);
        if self.handles.len() < limit {
            return false;
        }
        self.handles.retain(|handle| handle.strong_count() > 0);
        self.handles.len() >= limit
    }

    /// Records that waiting did not help: opens wait again when there are a quarter more handles.
    pub fn accept_all(&mut self) {
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
        let mut open = OpenHandles {
            limit: 10,
            ..OpenHandles::default()
        };
        for _ in 0..100 {
            open.add(&handle());
            assert!(!open.are_too_many());
        }
        let held: Vec<_> = (0..10).map(|_| handle()).collect();
        held.iter().for_each(|handle| open.add(handle));
        assert!(open.are_too_many());
        open.accept_all();
        assert!(!open.are_too_many(), "12 are the limit now");
        let more = [handle(), handle()];
        more.iter().for_each(|handle| open.add(handle));
        assert!(open.are_too_many());
        drop(held);
        assert!(!open.are_too_many());
    }
}
