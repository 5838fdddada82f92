//! The targets, a file for each kind of bytes.

pub mod filter;
pub mod image;
pub mod library;
pub mod recording;
pub mod replay;
pub mod store;
pub mod trace;
pub mod volume;
