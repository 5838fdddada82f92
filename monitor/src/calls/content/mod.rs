//! The calls on the content of files: reads, writes, sizes, copies, mappings, syncs, and the leases and moves that come with them.

pub mod aio;
mod buffers;
pub mod copy;
pub mod lease;
pub mod map;
pub mod outgrow;
pub mod output;
pub mod read;
pub mod size;
pub mod sync;
pub mod write;
