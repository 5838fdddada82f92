//! The monitor's knowledge of processes and threads: credentials, working directories, the memory that arguments point to, and which
//! threads exist.
//!
//! Start with [`task`].

pub mod aio;
pub mod core_files;
pub mod deliveries;
pub mod living;
pub mod memory;
pub mod namespaces;
pub mod nested_runs;
pub mod roots;
pub mod task;
