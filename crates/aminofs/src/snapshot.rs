//! The store at one moment, as a file system that cannot be changed.
//!
//! It is the same file system as over the store itself: a [`Volume`] whose records are a snapshot's. An operation that would
//! change something fails with EROFS before it begins ([`crate::view::View::change`]).

use std::sync::Arc;

use crate::{AminoFs, Error, Volume};

impl AminoFs {
    /// The file system as it is now, between two operations, without what open transactions have changed. Later changes do
    /// not show in it. It keeps the store open as long as it is used, with what [`amino_txn::Snapshot`] keeps.
    pub fn snapshot(&self) -> Result<Arc<Self>, Error> {
        let _operation = self.operation();
        if !self.is_snapshot {
            // What cannot be stored for want of space is not part of the store yet.
            let _ = self.find_all_mapped_writes();
        }
        let records = Box::new(self.store.snapshot()?);
        let (dir, options) = (&self.dir, self.options.clone());
        let mut volume = Volume::over(dir, options, self.store.clone(), records, true)?;
        volume.versions = self.versions.of_snapshot();
        Ok(Arc::new(Self {
            volume: Arc::new(volume),
            durability: self.durability,
        }))
    }
}
