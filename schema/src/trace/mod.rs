//! Traces: the layout of a file or stream of `goanna-trace`. `docs/trace-format.md` describes the same layout for readers in other
//! languages.
//!
//! A trace is a [`FileHeader`] and blocks. Each block has a [`BlockHeader`] and can be read on its own, given a schema block: kinds are
//! the schema ([`Schema`]), the context and the end ([`pairs`]), and records ([`record`]). An index ([`Footer`]) may follow the last
//! block; a program can rebuild it by reading the block headers.
//!
//! ```text
//! file header | schema | context | records | records | ... | schema | records | ... | end | footer
//! ```

mod block;
mod definitions;
mod file;
pub mod pairs;
pub mod record;
mod selection;

pub use block::{BlockHeader, Codec, Kind, MAX_BLOCK, SYNC, Stored};
pub use definitions::{Argument, Hidden, Message, Schema, Symbols, Type};
pub use file::{FILE_HEADER_LEN, FileHeader, Footer, Indexed, MAGIC, claimed_version};
pub use selection::Conflict;

/// Major version that this program writes and reads. A program refuses traces with another one.
pub const VERSION: u16 = 1;
