//! Byte layouts of everything Amino stores, and nothing else: no I/O, no locks, no clock.
//!
//! A store is one ordered key space ([`key`]), the values under those keys ([`record`], [`meta`]), a redo log
//! ([`log`], [`synced`]) and a header ([`header`]) that records their minimum content. A [`dump`] is a store as a stream.
//! Integers inside keys are big-endian so that byte order is numeric order; integers inside values are little-endian. Every value
//! starts with a version byte. [`trace`] and [`replay`] have the files of `goanna-trace` and `replayer`.
//!
//! Decoding never panics: damaged bytes give a [`DecodeError`] that names the record and the offset.

pub mod dump;
mod error;
pub mod header;
pub mod holdings;
pub mod key;
pub mod log;
pub mod meta;
pub mod record;
pub mod replay;
pub mod synced;
pub mod trace;
mod wire;

pub use error::DecodeError;
pub use key::ParsedKey;
pub use meta::{FileKind, Meta, MetaFlags, Timestamp};
pub use record::{DataRecord, OrphanRecord, PathRecord, Super};

/// Bytes of a data page in a newly created store; [`Super::page_size`] has the size in a given store.
pub const PAGE_SIZE: u32 = 16 * 1024;

/// The largest size of a file: the largest offset that the system calls have. Readers refuse larger ones, and pages behind it, so that
/// sums and products of the numbers in a store fit into 64 bits.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// A regular file of at most this many bytes is stored inside its metadata and has no pages.
pub const INLINE_MAX: usize = 512;

/// Longest inline content accepted: a symbolic link's target (`PATH_MAX` - 1).
pub const SYMLINK_MAX: usize = 4095;

/// Longest name in a directory, as on Linux (`NAME_MAX`).
pub const NAME_MAX: usize = 255;

/// Inode number of the root directory; its name is `path_key(ROOT_PARENT, b"")`.
pub const ROOT_INO: u64 = 1;

/// The parent id under which only the root directory's own entry is filed.
pub const ROOT_PARENT: u64 = 0;
