//! The trait [`Records`], by which all readers read records; snapshots of the store; and the merge of layers and engine.

use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::vec::IntoIter;

use amino_schema::key::prefix_end;
use bytes::Bytes;

use crate::commit::Shared;
use crate::layers::{Layers, Overlay};
use crate::{Error, engine};

/// Number of changes that a scan takes from each layer at first, and the maximum: most readers want only some entries.
const SCAN_CHUNK: usize = 128;
const SCAN_CHUNK_MAX: usize = 8192;

/// The closure that a scan calls with each record: its key and its value. `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &Bytes) -> ControlFlow<()> + 'a;

/// Records by their keys, in key order: those of the store as it is now ([`crate::Store`]), of one moment ([`Snapshot`]), or
/// those that one transaction sees.
pub trait Records {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// Visits the records whose keys start with `prefix` and lie behind `from`, in key order, until `visit` breaks.
    fn scan(&self, from: Bound<&[u8]>, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), Error>;
}

/// The store as it was between two operations. Nothing that happens later changes what it shows, however long it is kept.
///
/// A snapshot borrows nothing. While it exists, the store's directory cannot be opened again, and the engine keeps
/// overwritten entries: fjall on disk, sled in memory. Dropping it frees all of that. On a full disk the engine may have to
/// be opened again; entries that fjall deletes then are missing from older snapshots, and reading them is an error.
pub struct Snapshot {
    layers: Layers,
    engine: Box<dyn engine::Snapshot>,
    /// Last: the engine's files are in use before.
    _shared: Arc<Shared>,
}

impl Snapshot {
    /// `layers` above `engine`, both of the same moment.
    pub(crate) fn new(
        layers: Layers,
        engine: Box<dyn engine::Snapshot>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            layers,
            engine,
            _shared: shared,
        }
    }

    /// Reads all entries of the engine. Returns a description of each difference from the stored count, with the tag of the
    /// key space.
    pub fn differences(&self) -> Result<Vec<(u8, String)>, Error> {
        engine::differences(&*self.engine)
    }
}

impl Records for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        match self.layers.get(key) {
            Some(value) => Ok(value),
            None => self.engine.get(key),
        }
    }

    fn scan(&self, from: Bound<&[u8]>, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        in_chunks(from, prefix, |from, end, chunk| {
            let mut merge = Merge::new(self.layers.overlay(from, end, chunk), end);
            if merge.entries(&*self.engine, from, visit)?.is_break() {
                return Ok(None);
            }
            Ok(merge.rest(visit))
        })
    }
}

/// Scans by `chunk`, which is given bounds and how many changes to take from each layer, and returns the key up to which it
/// came, or `None` at the end.
pub(crate) fn in_chunks(
    from: Bound<&[u8]>,
    prefix: &[u8],
    mut chunk: impl FnMut(Bound<&[u8]>, Bound<&[u8]>, usize) -> Result<Option<Bytes>, Error>,
) -> Result<(), Error> {
    let end = prefix_end(prefix);
    let end = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut start = match from {
        Bound::Included(key) | Bound::Excluded(key) if key >= prefix => from.map(<[u8]>::to_vec),
        _ => Bound::Included(prefix.to_vec()),
    };
    let mut size = SCAN_CHUNK;
    loop {
        let from = start.as_ref().map(Vec::as_slice);
        let Some(complete_to) = chunk(from, end, size)? else {
            return Ok(());
        };
        start = Bound::Excluded(complete_to.to_vec());
        size = (size * 4).min(SCAN_CHUNK_MAX);
    }
}

/// One chunk of a scan: the layers' changes over the engine's entries.
pub(crate) struct Merge<'a> {
    changes: Peekable<IntoIter<(Bytes, Option<Bytes>)>>,
    complete_to: Option<Bytes>,
    end: Bound<&'a [u8]>,
}

impl<'a> Merge<'a> {
    /// The changes of `overlay`, up to `end`.
    pub(crate) fn new(overlay: Overlay, end: Bound<&'a [u8]>) -> Self {
        Self {
            changes: overlay.changes.into_iter().peekable(),
            complete_to: overlay.complete_to,
            end,
        }
    }

    /// Visits the engine's entries, and the changes up to the last of them.
    pub(crate) fn entries(
        &mut self,
        engine: &dyn engine::Snapshot,
        from: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, Error> {
        let end = self.complete_to.as_deref();
        let end = end.map_or(self.end, Bound::Included);
        for entry in engine.range(from, end) {
            let (key, value) = entry?;
            while let Some((changed, new)) = self.changes.next_if(|(changed, _)| *changed < key) {
                if new.is_some_and(|new| visit(&changed, &new).is_break()) {
                    return Ok(ControlFlow::Break(()));
                }
            }
            let seen = match self.changes.next_if(|(changed, _)| *changed == key) {
                Some((_, None)) => ControlFlow::Continue(()),
                Some((_, Some(new))) => visit(&key, &new),
                None => visit(&key, &value),
            };
            if seen.is_break() {
                return Ok(seen);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits the remaining changes. Returns the key up to which the chunk is complete, `None` at the end.
    pub(crate) fn rest(self, visit: &mut Visit<'_>) -> Option<Bytes> {
        for (key, new) in self.changes {
            if new.is_some_and(|new| visit(&key, &new).is_break()) {
                return None;
            }
        }
        self.complete_to
    }
}
