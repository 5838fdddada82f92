//! Other processes: ptrace, memory, descriptors, `/proc`, signals and stops, and the call by which programs begin transactions.

pub mod descriptor_inbox;
pub mod descriptor_tables;
pub mod interrupt;
pub mod mappings;
pub mod page_watch;
pub mod pidfd;
pub mod procfs;
pub mod ptrace;
pub mod reports;
pub mod signals;
pub mod tracee;
pub mod txncall;
