//! Runs: their description, and their execution.
//!
//! A [`Plan`] describes a run: the mounts, the options, and where transactions are inserted. [`perform`] makes the mounts,
//! runs the command, makes its changes durable, and returns a [`RunResult`]. The crate prints nothing: it returns an
//! [`Error`], to which the commands (`crates/cli`) add a hint for the user.
//!
//! * [`mounts`] has mount specifications, mount files, and the mount table made of them.
//! * [`nested`] makes the mounts of runs inside of a run.
//! * [`store`] opens, makes and closes stores.
//! * [`profile`] reads the rules by which transactions are inserted.
//! * [`trace`] writes a trace of the run.
//! * [`subprocess`] runs a command without a monitor, for `amino txn run`.

pub mod credentials;
mod error;
pub mod mounts;
pub mod nested;
mod options;
mod perform;
mod plan;
pub mod profile;
mod run_stats;
pub mod store;
pub mod subprocess;
pub mod trace;

pub use error::{Error, MountPointError, Report, StoreError, error_chain};
pub use mounts::OpenStore;
pub use options::{Durability, Engine, Outside};
pub use perform::{Environment, perform};
pub use plan::{AbortReason, Plan, RunResult};
pub use run_stats::{RunStats, StoreStats};
pub use trace::TraceFile;
