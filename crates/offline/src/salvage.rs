//! Opens the readable part of a damaged store, and lists what is missing.

use std::path::{Path, PathBuf};

use amino_fs::Salvaged;
pub use amino_fs::{Error, Loss};

/// The sound part of a damaged store, as a store of its own that is removed with this value. The default value has no store,
/// and no missing parts.
#[derive(Debug, Default)]
pub struct Salvage(Option<Salvaged>);

impl Salvage {
    /// Salvages the readable part of the store in `dir`, which is not changed.
    pub fn of(dir: &Path) -> Result<Self, Error> {
        amino_fs::salvage(dir).map(|salvaged| Self(Some(salvaged)))
    }

    /// The directory of the salvaged store; `None` if nothing was salvaged.
    pub fn store(&self) -> Option<PathBuf> {
        self.0.as_ref().map(Salvaged::store)
    }

    /// The missing parts.
    pub fn losses(&self) -> &[Loss] {
        self.0.as_ref().map_or(&[], |salvaged| &salvaged.losses)
    }
}
