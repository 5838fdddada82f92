//! Compiled replays: the output of `replayer compile`. `docs/replay-format.md` draws the file.
//!
//! A file is a [`Head`], command blocks and buffers in any order, and an [`Index`]. A [`Command`] is one operation of one lane; one
//! thread of the replay performs the commands of a lane. A reader checks every number before its use, because the file may be hostile:
//! see [`Block::commands`] and [`Index::decode`].
//!
//! ```text
//! head | block of lane 0 | buffer | buffer | block of lane 1 | ... | index
//! ```

mod call;
mod command;
mod file;
mod index;

pub use call::Call;
pub use command::{Command, Content, Data, Place, Target, Wait};
pub use file::{Block, Commands, HEAD_LEN, Head, MAGIC, MAX_BLOCK};
pub use index::{Attribute, Counts, Extent, Index, Initial, Lane, Located, MAX_VALUE, What};

/// Major version that this program writes and reads.
pub const VERSION: u16 = 2;
/// Maximum number of descriptors of a trace that may be open at the same time, and of its mappings.
pub const MAX_SLOTS: u32 = 1 << 20;
/// Maximum number of lanes.
pub const MAX_LANES: u32 = 1 << 16;
/// Longest name of a file, in bytes, and longest path of a directory.
pub const MAX_NAME: usize = 255;
/// Longest path, in bytes.
pub const MAX_PATH: usize = 4096;
