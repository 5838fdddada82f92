//! The storage half of Amino: a redo log that makes changes durable, an engine that indexes them, and an overlay of changes that are not yet in
//! the engine.
//!
//! A [`Store`] takes [`Changes`]; each set is one atomic step. Changes are visible at once and reach the disk in
//! order, in the background or when a thread calls [`Store::sync`]. So a crash leaves a prefix of the steps, and at
//! least those before the last sync. A transaction ([`Store::begin`]) has a frame of the log of its own; the steps between
//! two transactions share one.
//!
//! Start with `store.rs` (the interface) and `commit` (the implementation and the order of locks). The directories hold the parts with more than
//! one file: the log, the engines, the locks, the store's directory. The other files stay at the top because each is one concept that several
//! of these parts share.

mod changes;
mod commit;
mod dir;
pub mod engine;
mod error;
mod host;
mod layers;
pub mod locks;
mod log;
mod loss;
mod options;
mod salvage;
mod snapshot;
mod space;
mod store;

pub use amino_schema::log::Author;
pub use changes::{Changes, change_cost};
pub use engine::EngineKind;
pub use error::Error;
pub use log::KeptLog;
pub use log::author::{Actor, Authors};
pub use loss::Loss;
pub use options::{DirtySource, Info, Options, Stats};
pub use salvage::{Salvaged, salvage};
pub use snapshot::{Records, Snapshot, Visit};
pub use store::{OpGuard, Store, TransactionGuard};

#[cfg(test)]
mod tests;
