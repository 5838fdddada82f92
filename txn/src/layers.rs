//! What has been submitted and is not yet in the engine: the active layer, which takes changes, above sealed ones, which
//! are being logged and applied. Readers look at the newest first.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;

use crate::Changes;

/// More sealed layers than this are merged: each costs a reader a look-up.
const SEALED_MAX: usize = 4;

struct Sealed {
    changes: Arc<Changes>,
    /// The log record that holds it; `None` while that is being written.
    seq: Option<u64>,
    /// The engine is taking it over, so it must stay as it is.
    applying: bool,
}

/// The layers; oldest sealed one at the front.
#[derive(Default)]
pub(crate) struct Layers {
    active: Changes,
    sealed: VecDeque<Sealed>,
}

/// Part of an overlay: changes in key order, and the last key up to which they are complete if not to the end.
pub(crate) struct Overlay {
    pub(crate) changes: Vec<(Bytes, Option<Bytes>)>,
    pub(crate) complete_to: Option<Bytes>,
}

impl Layers {
    /// Layers with changes that the log has up to record `seq`.
    pub(crate) fn behind(changes: Changes, seq: u64) -> Self {
        let mut layers = Self::default();
        if layers.seal(changes).is_some() {
            layers.logged(seq);
        }
        layers
    }

    pub(crate) fn submit(&mut self, changes: Changes) {
        self.active.merge(changes);
    }

    /// What the layers say about `key`: nothing, its deletion, or its value.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let sealed = self
            .sealed
            .iter()
            .rev()
            .find_map(|layer| layer.changes.get(key));
        self.active
            .get(key)
            .or(sealed)
            .map(Option::<&Bytes>::cloned)
    }

    /// Closes the active layer and says what is in it, if anything.
    pub(crate) fn seal(&mut self, more: Changes) -> Option<Arc<Changes>> {
        self.active.merge(more);
        if self.active.is_empty() {
            return None;
        }
        let changes = Arc::new(std::mem::take(&mut self.active));
        self.sealed.push_back(Sealed {
            changes: changes.clone(),
            seq: None,
            applying: false,
        });
        Some(changes)
    }

    /// The sealed layers as they are now, above which nothing was submitted yet.
    pub(crate) fn frozen(&self) -> Self {
        let frozen = self.sealed.iter().map(|layer| Sealed {
            changes: layer.changes.clone(),
            seq: layer.seq,
            applying: layer.applying,
        });
        Self {
            active: Changes::new(),
            sealed: frozen.collect(),
        }
    }

    /// The newest sealed layer is in the log as record `seq`.
    pub(crate) fn logged(&mut self, seq: u64) {
        let Some(newest) = self.sealed.back_mut() else {
            return;
        };
        newest.seq = Some(seq);
        let mergeable = self.sealed.iter().filter(|layer| !layer.applying).count();
        if self.sealed.len() <= SEALED_MAX || mergeable < 2 {
            return;
        }
        let (Some(newer), Some(older)) = (self.sealed.pop_back(), self.sealed.pop_back()) else {
            return;
        };
        let mut changes = Arc::unwrap_or_clone(older.changes);
        changes.merge(Arc::unwrap_or_clone(newer.changes));
        self.sealed.push_back(Sealed {
            changes: Arc::new(changes),
            seq: Some(seq),
            applying: false,
        });
    }

    /// The oldest layer, if it is in the log, for the engine to apply; [`Layers::applied`] must follow.
    pub(crate) fn next_to_apply(&mut self) -> Option<(u64, Arc<Changes>)> {
        let oldest = self.sealed.front_mut()?;
        let seq = oldest.seq?;
        oldest.applying = true;
        Some((seq, oldest.changes.clone()))
    }

    /// The oldest layer is in the engine.
    pub(crate) fn applied(&mut self) -> Option<Arc<Changes>> {
        self.sealed.pop_front().map(|layer| layer.changes)
    }

    /// Bytes of the sealed layers.
    pub(crate) fn sealed_bytes(&self) -> usize {
        self.byte_size() - self.active.byte_size()
    }

    /// Bytes of all layers.
    pub(crate) fn byte_size(&self) -> usize {
        self.active.byte_size()
            + self
                .sealed
                .iter()
                .map(|layer| layer.changes.byte_size())
                .sum::<usize>()
    }

    /// The changes within the bounds, at most `limit` from each layer.
    pub(crate) fn overlay(&self, from: Bound<&[u8]>, to: Bound<&[u8]>, limit: usize) -> Overlay {
        let mut changes: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        let mut complete_to: Option<Bytes> = None;
        let newest_first = std::iter::once(&self.active)
            .chain(self.sealed.iter().rev().map(|layer| &*layer.changes));
        for layer in newest_first {
            let mut range = layer.range(from, to);
            let before = changes.len();
            let taken = range
                .by_ref()
                .take(limit)
                .map(|(key, value)| (key.clone(), value.cloned()));
            changes.extend(taken);
            if changes.len() - before == limit && range.next().is_some() {
                let last = changes.last().map(|(key, _)| key.clone());
                complete_to = match (complete_to, last) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        }
        // The sort is stable, so of equal keys the newest comes first and is the one kept.
        changes.sort_by(|a, b| a.0.cmp(&b.0));
        changes.dedup_by(|later, earlier| later.0 == earlier.0);
        if let Some(bound) = &complete_to {
            changes.truncate(changes.partition_point(|(key, _)| key <= bound));
        }
        Overlay {
            changes,
            complete_to,
        }
    }
}
