//! The client's part: connects to the owner of a store, and sends requests.
//!
//! [`Connection`] is a connection to the owner. [`run`] asks the owner to run a command. [`RemoteFs`] is the tree of the
//! owner's store. [`reach()`] serves commands that can open the store themselves when it has no owner.

mod connection;
mod launch;
mod reach;
mod remote;
mod requests;

pub use connection::Connection;
pub use launch::{Messages, run};
pub use reach::reach;
pub use remote::{RemoteFs, RemoteWriter};
pub use requests::{check, compact, dump, facts, status, stop};

pub use crate::protocol::message::Access;
