//! What the monitor knows of processes and threads: credentials, working directory, who lives.
//!
//! Start with [`task`].

pub mod core_files;
pub mod living;
pub mod task;
