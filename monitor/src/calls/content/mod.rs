//! The calls on the content of files: reads, writes, sizes, copies, mappings, syncs, and the leases and moves that come with them.

pub mod copy;
pub mod lease;
pub mod map;
pub mod outgrow;
pub mod read;
pub mod rw;
pub mod size;
pub mod sync;
