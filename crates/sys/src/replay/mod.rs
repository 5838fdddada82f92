//! System calls of the replayer. It performs calls on descriptors by their numbers, as the replayed program did: they are in a
//! table, and any thread may close one while another uses it. A caller passes only numbers that these functions have given it.
//!
//! Results are those of the kernel. `calls.rs` has the calls, `memory.rs` mappings of files.

mod calls;
mod memory;

pub use calls::*;
pub use memory::{Mapping, View};
