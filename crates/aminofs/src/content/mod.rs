//! Reads and writes the content of files through cache objects, and tracks which content the store does not have yet.

pub(crate) mod collect;
pub(crate) mod cost;
pub(crate) mod failures;
pub(crate) mod fallocate;
pub(crate) mod fill;
pub(crate) mod grants;
pub(crate) mod idle;
pub(crate) mod relocate;
pub(crate) mod write;
