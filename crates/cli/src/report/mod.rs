//! What the commands print: messages on stderr, text and JSON on standard output.
//!
//! [`messages`] and [`output`] write; the other modules say what: names, metadata, facts, figures, ends of commands, the
//! report of a copy.

pub mod copy;
pub mod lines;
pub mod messages;
pub mod metadata;
pub mod names;
pub mod output;
pub mod stats;
pub mod status;
