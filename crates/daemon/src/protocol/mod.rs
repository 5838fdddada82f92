//! The protocol between `aminod` and its clients: messages, and the connection.
//!
//! [`message`] has requests and answers; [`operation`] has those of clients that work on the tree. [`Link`] carries them over
//! the socket of the store (`socket`).

mod link;
pub mod message;
pub mod operation;
pub(crate) mod socket;

pub use link::Link;
