//! The traits that a back end implements, and the values that they exchange. Start with [`fs`].

pub mod backend;
pub mod content;
pub mod error;
pub mod fs;
pub mod identity;
pub mod layer;
pub mod linkfree;
pub mod opened;
pub mod synth;
pub mod txn;
pub mod types;
