//! Storage engines: an ordered map that applies batches whole and in order. The log provides durability; an engine
//! must be on disk only at a checkpoint.
//!
//! The store uses an engine through `Counted`, which knows the number and the sum of its entries.

mod archive;
mod counted;
mod files;
mod fjall;
mod memory;
#[cfg(feature = "sled")]
mod overlaid;
mod panics;
pub(crate) mod repair;
#[cfg(feature = "sled")]
mod sled;
#[cfg(feature = "sled")]
mod tree;

use std::ops::Bound;
use std::path::Path;

use amino_schema::header::FileSum;
use bytes::Bytes;

pub(crate) use counted::{Counted, Origin, compare, differences};
pub(crate) use files::link_tree;

use crate::{Changes, Error};

/// The engines that a store can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Log-structured merge trees; the default.
    Fjall,
    /// A lock-free tree over a log. Programs can be built without it: the crate's feature `sled`.
    Sled,
    /// A map in memory, rebuilt from the log at open; the log is never shortened. For tests.
    Memory,
}

impl EngineKind {
    /// The engine's name in the marker file and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fjall => "fjall",
            Self::Sled => "sled",
            Self::Memory => "memory",
        }
    }

    /// The engine with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Fjall, Self::Sled, Self::Memory]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Fails for an engine that this program was built without.
    pub(crate) fn check_built_in(self) -> Result<(), Error> {
        if cfg!(feature = "sled") || self != Self::Sled {
            return Ok(());
        }
        Err(Error::NotBuiltIn {
            engine: self.name(),
        })
    }

    /// Opens the engine in `dir`, creating it where there is none. `files` is what the last checkpoint recorded of its files;
    /// files that have changed since are an error, and later additions may be dropped.
    pub fn open(self, dir: &Path, files: Option<&[FileSum]>) -> Result<Box<dyn Engine>, Error> {
        let name = self.name();
        match self {
            Self::Fjall => panics::open(name, dir, || fjall::FjallEngine::open(dir, files)),
            #[cfg(feature = "sled")]
            Self::Sled => panics::open(name, dir, || sled::SledEngine::open(dir, files)),
            #[cfg(not(feature = "sled"))]
            Self::Sled => Err(Error::NotBuiltIn { engine: name }),
            Self::Memory => panics::open(name, dir, || Ok(memory::MemoryEngine::default())),
        }
    }
}

/// An entry of a range read.
pub type Entry = Result<(Bytes, Bytes), Error>;

/// An ordered map of bytes to bytes. Keys that start with a zero byte belong to the adapter and are not visible outside.
pub trait Engine: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// The state between two batches. It stays as it is, however long the caller keeps it: through batches, checkpoints,
    /// [`Files::reclaim`] and [`Files::reopen`]. Dropping it frees the memory and the disk space that it needs beyond the
    /// current state.
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error>;

    /// Applies all changes or none, and keeps `applied` with them. Called by one thread at a time. A full disk
    /// is an error of its own ([`Error::NoSpace`] or the host's), here and at a checkpoint; [`Files::reopen`] must follow it.
    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error>;

    /// Makes a checkpoint: syncs all applied batches, and calls `publish` to record the files that this relies on. The `last`
    /// checkpoint before the engine is closed should not take long. When `publish` fails, the former checkpoint holds.
    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error>;

    /// The value `applied` of the last batch; `None` in an engine without a batch.
    fn applied(&self) -> Result<Option<Bytes>, Error>;

    /// Whether synced entries are still there when the engine is opened again.
    fn is_persistent(&self) -> bool;

    /// Its files on the store's disk; `None` for an engine without files.
    fn files(&self) -> Option<&dyn Files> {
        None
    }
}

/// What an engine did to free the disk space of deleted entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reclaim {
    /// It has rewritten its files: a new open, or a checkpoint, frees the space.
    Done,
    /// It cannot at present, because the disk is too full.
    NoSpace,
    /// It would free little.
    NotWorthwhile,
}

/// The files of an engine on the store's disk, which can become full.
pub trait Files {
    /// Opens the files again after a write has failed because of a full disk. All applied batches are still there. If even
    /// this needs more space than is free, the engine cannot be read until a later call succeeds.
    fn reopen(&self) -> Result<(), Error>;

    /// Bytes of disk that the engine may still need until its present content and `pending` more bytes are in its files.
    fn space_needed(&self, pending: u64) -> u64;

    /// The maximum growth of [`Files::space_needed`] for each pending byte.
    fn space_per_byte(&self) -> u64;

    /// Bytes of disk that a new open would free.
    fn returnable(&self) -> u64 {
        0
    }

    /// Rewrites the files without deleted entries, if `available` bytes are enough, and waits for that. [`Files::reopen`] must
    /// follow an error.
    fn reclaim(&self, available: u64) -> Result<Reclaim, Error>;

    /// Bytes of the files, as far as the engine knows.
    fn size_on_disk(&self) -> Result<u64, Error>;

    /// Whether they change without a batch, so that the last checkpoint must be made in any case.
    fn changes_by_itself(&self) -> bool {
        false
    }
}

/// No files at all.
struct NoFiles;

impl Files for NoFiles {
    fn reopen(&self) -> Result<(), Error> {
        Ok(())
    }

    fn space_needed(&self, _pending: u64) -> u64 {
        0
    }

    fn space_per_byte(&self) -> u64 {
        0
    }

    fn reclaim(&self, _available: u64) -> Result<Reclaim, Error> {
        Ok(Reclaim::NotWorthwhile)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        Ok(0)
    }
}

/// An engine's state at one moment. It owns the parts of the engine that it needs.
pub trait Snapshot: Send + Sync {
    /// The value of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error>;

    /// The entries within the bounds, in key order.
    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_>;
}

/// `from`, moved past the adapter's own keys.
fn visible_from(from: Bound<&[u8]>) -> Bound<&[u8]> {
    const FIRST: &[u8] = &[1];
    match from {
        Bound::Included(key) | Bound::Excluded(key) if key >= FIRST => from,
        _ => Bound::Included(FIRST),
    }
}
