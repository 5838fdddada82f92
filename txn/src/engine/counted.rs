//! An engine that counts its entries: each batch updates the number and the sum of the entries, which the engine stores in the
//! same batch. So the store detects an engine that has gone back to a former state, or has lost entries.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::Path;

use amino_schema::header::{Checkpoint, FileSum};
use amino_schema::holdings::{Holdings, Tally};
use amino_schema::key::APPLIED;
use bytes::Bytes;
use parking_lot::Mutex;

use super::{Engine, EngineKind, Files, NoFiles, Snapshot};
use crate::{Changes, Error};

/// An engine that counts. One thread applies batches; any thread reads.
pub(crate) struct Counted {
    engine: Box<dyn Engine>,
    holdings: Mutex<Holdings>,
}

/// The state of the count when an engine is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The engine is new: it has had no batch.
    Empty,
    /// An older version of the program has written it, without a count; its entries were counted now.
    Uncounted,
    /// It has a count.
    Counted,
}

impl Counted {
    /// Opens the engine in `dir`; `files` is the checkpoint's record of its files.
    pub(crate) fn open(
        kind: EngineKind,
        dir: &Path,
        files: Option<&[FileSum]>,
    ) -> Result<(Self, Origin), Error> {
        let engine = kind.open(dir, files)?;
        let raw = engine.applied()?;
        let (holdings, origin) = match &raw {
            None => (Holdings::default(), Origin::Empty),
            Some(raw) => match Holdings::former_seq(raw) {
                Some(seq) => (count(&*engine.snapshot()?, seq)?, Origin::Uncounted),
                None => (Holdings::decode(raw)?, Origin::Counted),
            },
        };
        let holdings = Mutex::new(holdings);
        Ok((Self { engine, holdings }, origin))
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.engine.get(key)
    }

    /// The state between two batches, as [`Engine::snapshot`].
    pub(crate) fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        self.engine.snapshot()
    }

    /// Applies all changes or none, as transaction `seq`. See [`Engine::apply`].
    pub(crate) fn apply(&self, changes: &Changes, seq: u64) -> Result<(), Error> {
        let mut holdings = self.holdings.lock().clone();
        holdings.seq = seq;
        for (key, value) in changes.iter() {
            if let Some(former) = self.engine.get(key)? {
                holdings.remove(key, &former);
            }
            if let Some(value) = value {
                holdings.add(key, value);
            }
        }
        self.engine.apply(changes, &holdings.encode())?;
        *self.holdings.lock() = holdings;
        Ok(())
    }

    /// Makes a checkpoint: everything applied is on disk, and `publish` records the files that it relies on.
    pub(crate) fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Checkpoint) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let holdings = self.holdings();
        self.engine.checkpoint(last, &mut |files| {
            let holdings = holdings.clone();
            publish(Checkpoint { holdings, files })
        })
    }

    /// Opens the files again, as [`Files::reopen`].
    pub(crate) fn reopen(&self) -> Result<(), Error> {
        self.files().reopen()?;
        *self.holdings.lock() = match self.engine.applied()? {
            Some(raw) => Holdings::decode(&raw)?,
            None => Holdings::default(),
        };
        Ok(())
    }

    /// The count of the engine's entries.
    pub(crate) fn holdings(&self) -> Holdings {
        self.holdings.lock().clone()
    }

    /// The last transaction applied.
    pub(crate) fn applied_seq(&self) -> u64 {
        self.holdings.lock().seq
    }

    /// The engine's files on the store's disk.
    pub(crate) fn files(&self) -> &dyn Files {
        self.engine.files().unwrap_or(&NoFiles)
    }

    /// Whether synced entries are still there when the engine is opened again.
    pub(crate) fn is_persistent(&self) -> bool {
        self.engine.is_persistent()
    }
}

/// Counts all entries of an engine that has reached `seq`.
fn count(view: &dyn Snapshot, seq: u64) -> Result<Holdings, Error> {
    let mut holdings = Holdings {
        seq,
        ..Holdings::default()
    };
    for entry in view.range(Bound::Unbounded, Bound::Unbounded) {
        let (key, value) = entry?;
        holdings.add(&key, &value);
    }
    Ok(holdings)
}

/// Reads all entries of `view`. Returns descriptions of the differences from the stored count, one for each key space.
pub(crate) fn differences(view: &dyn Snapshot) -> Result<Vec<(u8, String)>, Error> {
    let said = match view.get(APPLIED)? {
        Some(raw) => Holdings::decode(&raw)?,
        None => Holdings::default(),
    };
    let found = count(view, said.seq)?;
    Ok(compare(&said, &found))
}

/// Descriptions of the differences of `found`, one for each key space.
pub(crate) fn compare(expected: &Holdings, found: &Holdings) -> Vec<(u8, String)> {
    let tags: BTreeSet<u8> = expected
        .spaces
        .keys()
        .chain(found.spaces.keys())
        .copied()
        .collect();
    let of = |holdings: &Holdings, tag| holdings.spaces.get(&tag).copied().unwrap_or_default();
    let differing = tags.into_iter().filter_map(|tag| {
        let (expected, found): (Tally, Tally) = (of(expected, tag), of(found, tag));
        let name = tag.escape_ascii();
        let what = if expected.entries != found.entries {
            format!(
                "key space {name} has {} entries of {}",
                found.entries, expected.entries
            )
        } else {
            format!(
                "of the {} entries of key space {name} some are not what was written",
                found.entries
            )
        };
        (expected != found).then_some((tag, what))
    });
    differing.collect()
}
