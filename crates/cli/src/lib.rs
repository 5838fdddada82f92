//! The commands `amino` and `goanna`: arguments, text, JSON, and exit statuses. `program.rs` begins both.
//!
//! This crate is the only one that picks back ends (`mount_types.rs`) and the only one that writes to the terminal: the crates
//! below it return values and errors.
//!
//! * [`args`] has the command lines; `commands/` has a file for each command.
//! * `report/` has the output of commands; `error.rs` has their failures, hints and exit statuses.

pub mod args;
mod commands;
mod error;
mod mount_types;
mod program;
mod prompt;
mod report;

pub use error::Error;
pub use program::{amino, goanna};
