//! What `aminod` and its clients send to each other, and over which connection.
//!
//! [`message`] has requests and answers; [`operation`] has those of clients that work on the tree. [`Link`] carries them over
//! the socket of the store (`socket`).

mod link;
pub mod message;
pub mod operation;
pub(crate) mod socket;

pub use link::Link;
