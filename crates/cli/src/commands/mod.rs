//! The commands, one file for each or for a few that are alike. A command takes its arguments and returns an exit status.
//!
//! [`open`] is shared by those that work on a store without a monitor.

pub mod aes;
pub mod daemon;
pub mod inspect;
pub mod iso;
mod mounting;
mod nested;
mod open;
pub mod run;
pub mod store;
pub mod tree;
pub mod txn;
