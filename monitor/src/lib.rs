//! The monitor (Goanna paper, section 3): runs an unmodified program and its children, and routes their file calls through
//! the switch.
//!
//! * [`table`] defines how each system call is treated; [`table::filter`] generates the seccomp filter from it.
//! * `intercept` answers notifications: it finds the row, makes a [`call::Call`], and runs the row's handler
//!   from [`calls`].
//! * `ptracer` has the supervisor: process tree, signals, and the few calls whose arguments must change.
//! * `run` follows a command to its end; `state` holds the state that the threads of a run share.
//! * [`shadow`] maps host objects to virtual ones; it keeps no state that the kernel already has.
//!
//! Files depend on each other in one direction, with one exception: [`Monitor`] (`state`) holds the state of every module, and the
//! functions of those modules get it as an argument. So `state` and the modules form one family; apart from `Monitor` there is no cycle.
//!
//! Threads of a run: one supervisor (the thread that calls [`Run::follow`]; ptrace belongs to a thread), a small pool, one
//! sweeper, one for signals, and those of the executor: a clock, and threads that run attempts. A call that waits holds none
//! ([ADR 0067](../../docs/decisions/0067-calls-that-wait-hold-no-thread.md)). Lock order: `changing` of `process::nested_runs` comes first, then the table of `profiled`; `tasks` and `shadows` tables and
//! `programs` are leaves, as are the registry of `participants` and the supervisor's `mailbox`; no thread waits for a tracee or a back end while it holds one
//! of them, except `programs` while a program is copied, and the table of `profiled` while a transaction begins.

mod abi;
pub mod answer;
pub mod call;
pub mod calls;
mod check;
mod defect;
mod errno;
pub mod inprocess;
mod intercept;
mod launch;
pub mod observe;
pub mod participants;
mod process;
mod ptracer;
mod reporter;
mod run;
pub mod shadow;
mod signals;
mod state;
mod stats;
pub mod table;
pub mod watches;

use std::io;

use goanna_sys::limits;

pub use check::{Facility, check};
pub use goanna_sys::inherited::close as close_inherited;
pub use goanna_sys::launch::{ExecReport, Launched};
pub use goanna_sys::limits::raise_others as raise_limits;
pub use launch::{Command, Program, Start, inside, start};
pub use participants::delegate::Delegate;
pub use participants::outside::Outside;
pub use participants::run_transaction::{Abort, TransactionOutcome};
pub use process::nested_runs::Nesting;
pub use process::task::credentials;
pub use reporter::Reporter;
pub use run::config::{Config, Interception, Stubs};
pub use run::error::Error;
pub use run::status::Status;
pub use run::{Killer, Outcome, Run, not_executed};
pub use signals::{End, Signals};
pub use state::Monitor;
pub use stats::{CallStats, Counters};

/// Prepares the process to host a monitor and back ends. Call this before the first thread is started.
pub fn prepare() -> io::Result<Signals> {
    // The number of files in use depends on this limit; tracees keep their former limit.
    let _ = limits::raise_nofile();
    limits::widen_descriptor_table();
    block_signals()
}

/// Blocks the signals that would end this process while it waits for a command. Call this before the first thread is started.
pub fn block_signals() -> io::Result<Signals> {
    Signals::block()
}
