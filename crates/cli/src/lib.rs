//! The commands `amino` and `goanna`: command lines, mount specifications, and the offline commands on a store
//! or an image.
//!
//! This crate is the only one that knows all back ends and picks among them. It is also the only one that
//! talks to the terminal: the libraries below it return values and errors.

pub mod args;
mod commands;
mod error;
mod program;
mod report;

pub use error::Error;
pub use program::{amino, goanna};
