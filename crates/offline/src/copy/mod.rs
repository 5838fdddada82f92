//! Copies directories between the host and a tree: [`Import`] and [`Export`].
//!
//! A copy continues when a single name fails; its [`Summary`] lists the names that failed. A [`CopyObserver`] receives the
//! events meanwhile.

mod content;
mod error;
mod export;
mod host;
mod import;
mod progress;

pub use content::{
    ContentSource, ContentWriter, Copied, FileSystemWriter, StoreWriter, write_content,
};
pub use error::CopyError;
pub use export::{Export, Modes, Selection, make_target, open_target, total as export_total};
pub use host::raise_descriptor_limit;
pub use import::{Import, total as import_total};
pub use progress::{CopyObserver, Counts, Skipped, Summary, Total};
