//! Bounds the descriptors of objects that the monitor still holds.
//!
//! The monitor keeps the witness of an open file until its next sweep, twice a second, however soon the program closes
//! it. A program that reads many small files makes tens of thousands in that time: before the process runs out of
//! descriptors, opens wait for the sweep.

use std::sync::{Arc, Weak};

use goanna_sys::witness::Witness;
use nix::sys::resource::{Resource, getrlimit};

/// The witnesses that were handed to the monitor and may still be held.
pub(crate) struct OpenWitnesses {
    witnesses: Vec<Weak<Witness>>,
    /// How many there may be before waiting for a sweep is worth while.
    limit: usize,
    /// How many were left when waiting did not help: programs have those files open.
    lasting: usize,
}

impl Default for OpenWitnesses {
    /// Half of the descriptors that the process may have.
    fn default() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1 << 20, |(soft, _)| soft);
        Self {
            witnesses: Vec::new(),
            limit: usize::try_from(limit / 2).unwrap_or(usize::MAX),
            lasting: 0,
        }
    }
}

impl OpenWitnesses {
    pub fn add(&mut self, witness: &Arc<Witness>) {
        self.witnesses.push(Arc::downgrade(witness));
    }

    /// Whether there are so many that an open should wait for a sweep.
    pub fn are_too_many(&mut self) -> bool {
        let limit = self.limit.max(self.lasting + self.lasting / 4);
        if self.witnesses.len() < limit {
            return false;
        }
        self.witnesses.retain(|witness| witness.strong_count() > 0);
        self.witnesses.len() >= limit
    }

    /// Waiting did not help: opens wait again when there are a quarter more.
    pub fn accept_all(&mut self) {
        self.lasting = self.witnesses.len();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_those_that_are_held_count() {
        let witness =
            || Arc::new(Witness::new(std::fs::File::open("/dev/null").unwrap().into()).unwrap());
        let mut open = OpenWitnesses {
            limit: 10,
            ..OpenWitnesses::default()
        };
        for _ in 0..100 {
            open.add(&witness());
            assert!(!open.are_too_many());
        }
        let held: Vec<_> = (0..10).map(|_| witness()).collect();
        held.iter().for_each(|witness| open.add(witness));
        assert!(open.are_too_many());
        open.accept_all();
        assert!(!open.are_too_many(), "12 are the limit now");
        let more = [witness(), witness()];
        more.iter().for_each(|witness| open.add(witness));
        assert!(open.are_too_many());
        drop(held);
        assert!(!open.are_too_many());
    }
}
