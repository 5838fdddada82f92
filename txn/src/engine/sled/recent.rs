//! The batches in memory, which no checkpoint has put into the files yet.

use amino_schema::key::APPLIED;
use bytes::Bytes;

use crate::Changes;

/// The changes since the last checkpoint, and the state after the last batch.
#[derive(Clone, Default)]
pub(super) struct Recent {
    pub(super) changes: Changes,
    pub(super) applied: Option<Vec<u8>>,
}

impl Recent {
    /// The change of `key` in the batches in memory: none, its deletion, or its new value.
    pub(super) fn change(&self, key: &[u8]) -> Option<Option<Bytes>> {
        match &self.applied {
            Some(applied) if key == APPLIED => Some(Some(Bytes::copy_from_slice(applied))),
            _ => self.changes.get(key).map(Option::<&Bytes>::cloned),
        }
    }
}
