//! The output of the commands: messages on stderr, text and JSON on standard output.
//!
//! [`messages`] and [`output`] write; the other modules format: names, metadata, facts, figures, exit statuses, the report
//! of a copy.

pub mod copy;
pub mod lines;
pub mod messages;
pub mod metadata;
pub mod names;
pub mod output;
pub mod stats;
pub mod status;
