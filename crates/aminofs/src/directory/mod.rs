//! Directories and names: look-up, listing, making, renaming, removing.

pub(crate) mod dentry;
pub(crate) mod names;
pub(crate) mod order;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
