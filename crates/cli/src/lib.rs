//! The commands `amino` and `goanna`: command lines, mount specifications, and the offline commands on a store
//! or an image.
//!
//! This crate is the only one that knows all back ends and picks among them. It is also the only one that
//! talks to the terminal: the libraries below it return values and errors.

pub mod args;
mod caller;
mod child;
mod commands;
mod daemon;
mod error;
mod mounts;
mod profile;
mod program;
mod report;
mod run;
mod spec;
mod store;
mod tab;

pub use error::Error;
pub use program::{amino, goanna};
