//! Tests the isolation of transactions: plays histories of concurrent transactions on a store, and checks that they are serialisable.
//!
//! A [`Plan`] has the steps of each party, and their order. [`Stage::play`] plays it on one thread, with the same result each
//! time; [`Stage::play_threaded`] gives each party a thread of its own. Both write a [`History`]: what each operation answered, in which
//! transaction, and when. [`History::is_serialisable`] looks for a serial order: the committed transactions and the operations outside
//! of all, one after the other, must have answered the same on a file system that does one thing at a time ([`Model`]). In more detail:
//!
//! - What had ended before something else began comes before it (strict serialisability).
//! - A transaction that was aborted has its place in the order, too, and takes no effect: what it read must make sense.
//! - Transactions inside another one have an order within it. One of them that was aborted has let go of its locks, so it has a
//!   place of its own: what came before it in those around it, then it, then an abort of all.
//! - A stat in a transaction reads the links of a directory without a lock: they are not those of the order, but what was committed
//!   in the instant of the stat, with the transaction's own changes. What else it shows of a directory is of the order.
//! - The last operation of each history looks at everything there is.

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
