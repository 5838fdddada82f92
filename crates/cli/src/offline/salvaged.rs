//! What is missing from a store that was salvaged.

use std::io::Write;
use std::path::{Path, PathBuf};

use amino_fs::{Loss, Salvaged};
use serde_json::{Value, json};

use crate::error::Error;
use crate::names;

/// What was saved of a damaged store, and what was not; nothing of both for a store that is read as it is.
#[derive(Debug, Default)]
pub struct Losses(Option<Salvaged>);

impl Losses {
    /// Saves what can be read of the store in `dir`.
    pub fn find(dir: &Path) -> Result<Self, Error> {
        crate::store::must_exist(dir)?;
        let salvaged = amino_fs::salvage(dir).map_err(|why| Error::store(dir, why))?;
        Ok(Self(Some(salvaged)))
    }

    /// The store with what was saved.
    pub fn store(&self) -> Result<PathBuf, Error> {
        let salvaged = self.0.as_ref().map(Salvaged::store);
        salvaged.ok_or(Error::NoStoreDir)
    }

    fn all(&self) -> &[Loss] {
        self.0.as_ref().map_or(&[], |salvaged| &salvaged.losses)
    }

    /// 1 when something is missing.
    pub fn status(&self) -> u8 {
        u8::from(!self.all().is_empty())
    }

    /// A line for each.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.all().iter().map(|Loss { place, what }| {
            format!(
                "{}: {}",
                names::escape(place.as_bytes()),
                names::escape(what.as_bytes())
            )
        });
        lines.collect()
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let all = self.all().iter();
        all.map(|Loss { place, what }| json!({"place": place, "what": what}))
            .collect()
    }

    /// Says on stderr what is missing.
    pub fn report(&self) {
        for line in self.lines() {
            let _ = writeln!(std::io::stderr(), "amino: missing: {line}");
        }
    }
}
