//! Commands on the files of a store: they list, show and copy them.

pub mod copy;
pub mod list;
