//! The name spaces of an image. `names.rs` decodes the names.

use serde::{Deserialize, Serialize};

/// The kinds of names an image can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Namespace {
    /// POSIX names and attributes.
    RockRidge,
    /// Unicode names in a tree of their own.
    Joliet,
    /// The names that every image has.
    Plain,
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::RockRidge => "Rock Ridge",
            Self::Joliet => "Joliet",
            Self::Plain => "plain",
        })
    }
}
