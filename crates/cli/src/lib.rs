//! The commands `amino` and `goanna`: command lines, mount specifications, and the offline commands on a store
//! or an image.
//!
//! This crate is the only one that knows all back ends and picks among them. It is also the only one that
//! talks to the terminal: the libraries below it return values and errors.

pub mod args;
mod caller;
mod child;
mod daemon;
mod error;
mod inspect;
mod iso;
mod lines;
mod manual;
mod messages;
mod mounts;
mod names;
mod offline;
mod output;
mod profile;
mod program;
mod run;
mod spec;
mod stats;
mod store;
mod tab;
mod txn;

pub use error::Error;
pub use program::{amino, goanna};
