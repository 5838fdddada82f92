//! What the monitor knows of processes and threads: credentials, working directory, and which of them live.
//!
//! Start with [`task`].

pub mod core_files;
pub mod living;
pub mod task;
