//! The commands, one file for each or for a few that are alike. A command takes its arguments and returns an exit status.
//!
//! [`open`] is shared by those that work on a store without a monitor.

pub mod aes;
pub mod compact;
pub mod copy;
pub mod daemon;
pub mod dump;
pub mod fsck;
pub mod info;
pub mod inspect;
pub mod iso;
pub mod list;
mod open;
pub mod run;
pub mod txn;
