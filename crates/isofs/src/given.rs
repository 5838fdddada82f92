//! Descriptors of contents that others still hold.
//!
//! The monitor keeps the witness of an open file until its next sweep, twice a second, however soon the program closes
//! it. A program that reads many small files makes tens of thousands in that time: before the process runs out of
//! descriptors, opens wait for the sweep.

use std::sync::{Arc, Weak};

use goanna_sys::witness::Witness;
use rustix::process::{Resource, getrlimit};

/// Witnesses that may still be open.
pub(crate) struct Given {
    witnesses: Vec<Weak<Witness>>,
    /// How many there may be without a look.
    most: usize,
    /// As many were left when waiting was of no use: programs have those files open.
    lasting: usize,
}

impl Default for Given {
    /// Half of the descriptors that the process may have.
    fn default() -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        Self {
            witnesses: Vec::new(),
            most: usize::try_from(limit / 2).unwrap_or(usize::MAX),
            lasting: 0,
        }
    }
}

impl Given {
    /// Notes one more.
    pub fn add(&mut self, witness: &Arc<Witness>) {
        self.witnesses.push(Arc::downgrade(witness));
    }

    /// Whether there are so many that it is worth while to wait.
    pub fn are_too_many(&mut self) -> bool {
        let limit = self.most.max(self.lasting + self.lasting / 4);
        if self.witnesses.len() < limit {
            return false;
        }
        self.witnesses.retain(|witness| witness.strong_count() > 0);
        self.witnesses.len() >= limit
    }

    /// Waiting was of no use: there have to be a good deal more before it is tried again.
    pub fn give_up(&mut self) {
        self.lasting = self.witnesses.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_that_are_held_count() {
        let witness =
            || Arc::new(Witness::new(std::fs::File::open("/dev/null").unwrap().into()).unwrap());
        let mut given = Given {
            most: 10,
            ..Given::default()
        };
        for _ in 0..100 {
            given.add(&witness());
            assert!(!given.are_too_many());
        }
        let held: Vec<_> = (0..10).map(|_| witness()).collect();
        held.iter().for_each(|witness| given.add(witness));
        assert!(given.are_too_many());
        given.give_up();
        assert!(!given.are_too_many(), "12 are the limit now");
        let more = [witness(), witness()];
        more.iter().for_each(|witness| given.add(witness));
        assert!(given.are_too_many());
        drop(held);
        assert!(!given.are_too_many());
    }
}
