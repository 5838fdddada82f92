//! The unreadable parts of a damaged store or log. `salvage.rs` and `log/kept.rs` collect them.

use std::path::Path;

use crate::Error;

/// A part that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The file and offset, or the records.
    pub place: String,
    /// The damage, or the missing part.
    pub what: String,
}

impl Loss {
    pub(crate) fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            place: place.into(),
            what: what.into(),
        }
    }

    pub(crate) fn of(path: &Path, error: &Error) -> Self {
        match error {
            Error::Damaged { place, why } => Self::new(place.clone(), why.clone()),
            Error::Io { what, path, source } => {
                let place = path.display().to_string();
                Self::new(place, format!("cannot {what} it: {source}"))
            }
            other => Self::new(path.display().to_string(), other.to_string()),
        }
    }
}
