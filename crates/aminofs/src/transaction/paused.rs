//! Programs that are stopped while a commit changes content that they read in the kernel.

use std::sync::{Arc, Weak};

use goanna_vfs::{Holder, Readers, TxnId};

use crate::Volume;

/// While this exists, no program reads its objects.
pub(super) struct Paused {
    readers: Vec<Arc<dyn Readers>>,
    holders: Vec<Holder>,
}

impl Volume {
    /// Those of all runs. A run may end meanwhile; what it has goes with the last reference.
    pub(crate) fn all_readers(&self) -> Vec<Arc<dyn Readers>> {
        let readers = self.transactions.readers.lock();
        readers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Stops the threads of all runs that could read one of the objects. Without objects it stops none.
    pub(super) fn pause_readers(&self, objects: &[(u64, u64)]) -> Paused {
        let mut paused = Paused {
            readers: Vec::new(),
            holders: Vec::new(),
        };
        if objects.is_empty() {
            return paused;
        }
        for readers in self.all_readers() {
            let holders = readers.pause(objects);
            paused.readers.push(readers);
            paused.holders.extend(holders);
        }
        paused
    }
}

impl Paused {
    /// Whether a program of transaction `txn` has the object open or mapped.
    pub fn is_held_inside(&self, object: (u64, u64), txn: TxnId) -> bool {
        let holder = Holder {
            object,
            txn: Some(txn),
        };
        self.holders.contains(&holder)
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        for readers in &self.readers {
            readers.resume();
        }
    }
}
