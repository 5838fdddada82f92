//! Snapshots: the batches in memory, the open copy, and the former values of entries that checkpoints have overwritten there
//! since.

use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::copies::Copies;
use super::database::{error, owned};
use super::recent::Recent;
use crate::changes::is_empty_range;
use crate::engine::overlaid::Overlaid;
use crate::engine::{Entry, Snapshot, visible_from};
use crate::{Changes, Error};

/// Former values of the entries that a checkpoint overwrote in the files, for older snapshots. A chain, oldest first: each
/// snapshot holds the link that was the last one when it was taken, so values that no snapshot needs are freed.
#[derive(Default)]
pub(super) struct Former(pub(super) OnceLock<(Changes, Arc<Former>)>);

impl Former {
    /// The former values in this link and those after it, oldest first.
    fn chain(&self) -> impl Iterator<Item = &Changes> {
        let link = std::iter::successors(self.0.get(), |(_, next)| next.0.get());
        link.map(|(changes, _)| changes)
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        // A chain can be long: not by recursion.
        let mut next = self.0.take();
        while let Some(mut link) = next.and_then(|(_, link)| Arc::into_inner(link)) {
            next = link.0.take();
        }
    }
}

pub(super) struct SledSnapshot {
    pub(super) recent: Arc<Recent>,
    /// Former values that checkpoints have overwritten since. Read them after the copy: a checkpoint records them before it
    /// changes the copy.
    pub(super) former: Arc<Former>,
    pub(super) copies: Arc<Copies>,
}

/// Entries that a snapshot's range takes from the open copy at a time.
const RANGE_CHUNK: usize = 256;

impl SledSnapshot {
    /// The first entries within the bounds, and the key up to which they are complete, if not to the end.
    fn chunk(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<(Vec<Entry>, Option<Bytes>), Error> {
        let entries = self
            .copies
            .opened()?
            .database
            .range::<&[u8], _>((from, to))
            .take(RANGE_CHUNK)
            .map(|entry| entry.map(|(key, value)| (owned(&key), owned(&value))))
            .collect::<Result<Vec<_>, _>>()
            .map_err(error("read a range"))?;
        let last = entries.last().filter(|_| entries.len() == RANGE_CHUNK);
        let complete_to = last.map(|(key, _)| key.clone());
        let to = complete_to.as_deref().map_or(to, Bound::Included);
        let former: Vec<_> = self.former.chain().collect();
        // Later maps take precedence: the oldest former value over newer ones, and changes in memory over all of them.
        let above = former.into_iter().rev().chain([&self.recent.changes]);
        let changes: Changes = above
            .flat_map(|changes| changes.range(from, to))
            .map(|(key, value)| (key.clone(), value.cloned()))
            .collect();
        let entries = Overlaid::new(entries.into_iter().map(Ok), changes.iter());
        Ok((entries.collect(), complete_to))
    }
}

impl Snapshot for SledSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        if let Some(value) = self.recent.change(key) {
            return Ok(value);
        }
        let current = self.copies.opened()?.get(key)?;
        let former = self.former.chain().find_map(|changes| changes.get(key));
        Ok(former.map_or(current, Option::<&Bytes>::cloned))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let to = to.map(<[u8]>::to_vec);
        let mut next = Some(visible_from(from).map(<[u8]>::to_vec));
        let chunks = std::iter::from_fn(move || {
            let from = next.take()?;
            let (from, to) = (
                from.as_ref().map(Vec::as_slice),
                to.as_ref().map(Vec::as_slice),
            );
            if is_empty_range(from, to) {
                return None;
            }
            match self.chunk(from, to) {
                Ok((entries, complete_to)) => {
                    next = complete_to.map(|key| Bound::Excluded(key.to_vec()));
                    Some(entries)
                }
                Err(error) => Some(vec![Err(error)]),
            }
        });
        Box::new(chunks.flatten())
    }
}
