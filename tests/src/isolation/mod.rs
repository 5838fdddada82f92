//! Tests the isolation of transactions: plays histories of concurrent transactions on a store, and checks that they are serialisable.
//!
//! A [`Plan`] has the steps of each party, and their order. [`Stage::play`] plays it on one thread, with the same result each
//! time; [`Stage::play_threaded`] gives each party a thread of its own. Both write a [`History`]: the outcome of each operation, its
//! transaction, and its time. [`History::is_serialisable`] looks for a serial order: the committed transactions and the operations
//! outside of all, one after the other, must have the same outcomes on a file system that performs one operation at a time ([`Model`]).
//! In more detail:
//!
//! - If one unit ended before another one began, it precedes that one in the order (strict serialisability).
//! - An aborted transaction has its place in the order, too, and takes no effect: its reads must be consistent.
//! - Transactions inside another one have an order within it. An aborted inner transaction has released its locks, so it has a place of
//!   its own: the operations before it in the enclosing transactions, then the inner transaction, then an abort of all.
//! - A stat in a transaction reads the links of a directory without a lock: the number of links is not that of the order, but the one
//!   committed at the instant of the stat, with the transaction's own changes. All other results follow the order.
//! - The last operation of each history reads the whole tree.

mod history;
mod model;
mod op;
mod plan;
mod play;
mod user;

pub use self::history::{Event, History, What};
pub use self::model::Model;
pub use self::op::{Calls, Kind, Op, Outcome, Path, Seen, Stat, perform, told};
pub use self::plan::{Item, LAYOUTS, Layout, Plan, Program};
pub use self::play::Stage;
pub use self::user::{Reached, Site, User};
