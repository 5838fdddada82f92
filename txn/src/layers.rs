//! The overlay: changes that were submitted and are not in the engine yet. The active layer takes changes. The sealed layers
//! below it wait for the log or are in it, and are applied one by one. Readers look in the newest layer first.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use amino_schema::log::Author;
use bytes::Bytes;

use crate::Changes;

/// With more sealed layers than this, layers are merged: each layer costs readers a look-up.
const SEALED_MAX: usize = 4;

/// The header fields of a frame of the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) author: Author,
    /// Whether other processes made changes in it, too.
    pub(crate) others: bool,
    /// Whether it is an explicit transaction.
    pub(crate) transaction: bool,
    /// Nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

/// A layer that is to become a frame of the log.
pub(crate) struct Waiting {
    pub(crate) changes: Arc<Changes>,
    pub(crate) origin: Origin,
}

#[derive(Clone, Copy)]
enum Stage {
    /// To be written to the log, where this many bytes are reserved for it.
    Waiting { origin: Origin, reserved: u64 },
    /// It is in the log. If layers were merged, this is the last frame.
    Logged(u64),
    /// The engine is taking it over, so it must stay as it is.
    Applying(u64),
}

#[derive(Clone)]
struct Sealed {
    changes: Arc<Changes>,
    stage: Stage,
}

/// The layers; oldest sealed one at the front. Those that wait for the log lie behind the others.
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
    /// Layers with changes that the log has up to frame `seq`.
    pub(crate) fn behind(changes: Changes, seq: u64) -> Self {
        let mut layers = Self::default();
        if !changes.is_empty() {
            layers.sealed.push_back(Sealed {
                changes: Arc::new(changes),
                stage: Stage::Logged(seq),
            });
        }
        layers
    }

    pub(crate) fn submit(&mut self, changes: Changes) {
        self.active.merge(changes);
    }

    /// The newest change to `key` in the layers: none, its deletion, or its value.
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

    /// Seals the active layer, with `more`: it waits for the log, where `reserved` bytes are reserved for its frame. Returns
    /// whether it has any changes.
    pub(crate) fn seal(&mut self, more: Changes, origin: Origin, reserved: u64) -> bool {
        self.active.merge(more);
        if self.active.is_empty() {
            return false;
        }
        self.sealed.push_back(Sealed {
            changes: Arc::new(std::mem::take(&mut self.active)),
            stage: Stage::Waiting { origin, reserved },
        });
        true
    }

    /// The layers that wait for the log, oldest first.
    pub(crate) fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.sealed.iter().filter_map(|layer| match layer.stage {
            Stage::Waiting { origin, .. } => Some(Waiting {
                changes: layer.changes.clone(),
                origin,
            }),
            _ => None,
        });
        waiting.collect()
    }

    /// Number of layers that wait for the log, and the bytes reserved for them there.
    pub(crate) fn waiting_reserved(&self) -> (usize, u64) {
        let reserved = self.sealed.iter().filter_map(|layer| match layer.stage {
            Stage::Waiting { reserved, .. } => Some(reserved),
            _ => None,
        });
        reserved.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
    }

    /// The present sealed layers, without changes above them.
    pub(crate) fn frozen(&self) -> Self {
        Self {
            active: Changes::new(),
            sealed: self.sealed.clone(),
        }
    }

    /// Records that the oldest waiting layers are in the log, as the frames `seqs`. Merges some of the layers that only
    /// readers and the engine still need.
    pub(crate) fn logged(&mut self, seqs: impl Iterator<Item = u64>) {
        let waits = |layer: &&mut Sealed| matches!(layer.stage, Stage::Waiting { .. });
        for (layer, seq) in self.sealed.iter_mut().filter(waits).zip(seqs) {
            layer.stage = Stage::Logged(seq);
        }
        while self.sealed.len() > SEALED_MAX && self.merge_newest() {}
    }

    /// Merges the two newest layers that are in the log and that the engine is not taking over. Returns whether there were
    /// two.
    fn merge_newest(&mut self) -> bool {
        let is_logged = |layer: &Sealed| matches!(layer.stage, Stage::Logged(_));
        let Some(newest) = self.sealed.iter().rposition(is_logged) else {
            return false;
        };
        let Some(next) = newest.checked_sub(1) else {
            return false;
        };
        if !self.sealed.get(next).is_some_and(is_logged) {
            return false;
        }
        let Some(newer) = self.sealed.remove(newest) else {
            return false;
        };
        if let Some(older) = self.sealed.get_mut(next) {
            let changes = std::mem::take(&mut older.changes);
            let mut changes = Arc::unwrap_or_clone(changes);
            changes.merge(Arc::unwrap_or_clone(newer.changes));
            *older = Sealed {
                changes: Arc::new(changes),
                stage: newer.stage,
            };
        }
        true
    }

    /// The oldest layer, if it is in the log, for the engine to apply; [`Layers::applied`] must follow.
    pub(crate) fn next_to_apply(&mut self) -> Option<(u64, Arc<Changes>)> {
        let oldest = self.sealed.front_mut()?;
        let (Stage::Logged(seq) | Stage::Applying(seq)) = oldest.stage else {
            return None;
        };
        oldest.stage = Stage::Applying(seq);
        Some((seq, oldest.changes.clone()))
    }

    /// Removes the oldest layer, which is in the engine now.
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
