//! Transactions for programs that run under `amino run`.
//!
//! Each thread has a stack of transactions. The innermost is the *current* one: every operation on files of the store
//! belongs to it. Most programs use [`transaction`]:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! amino_client::transaction(3, || -> Result<(), Box<dyn std::error::Error>> {
//!     std::fs::write("/amino/passwd", "...")?;
//!     std::fs::write("/amino/shadow", "...")?;
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Transaction`] is a guard that aborts unless it is committed. The functions ([`begin`], [`commit`], ...) are the single
//! calls. Each call can also act on another process of the same run and the same user: [`Target::Process`].
//!
//! The run holds a transaction with a [`Name`], so that it stays open without participants.
//!
//! Outside of `amino run` every call fails with [`Error::NotUnderAmino`]. This crate starts no threads and keeps no state.

mod error;
#[cfg(test)]
mod fake;
mod id;
mod named;
mod status;
mod target;
mod transaction;

pub use error::Error;
pub use goanna_sys::Errno;
pub use id::Id;
pub use named::{List, Listed, Name};
pub use status::{Open, Status};
pub use target::Target;
pub use transaction::{Transaction, transaction};

/// Begins a transaction in this thread, nested when there is a current one. Errors: see [`Target::begin`].
pub fn begin() -> Result<Id, Error> {
    Target::Me.begin()
}

/// Commits this thread's current transaction. Errors: see [`Target::commit`].
pub fn commit() -> Result<(), Error> {
    Target::Me.commit()
}

/// Aborts this thread's current transaction. Errors: see [`Target::abort`].
pub fn abort() -> Result<(), Error> {
    Target::Me.abort()
}

/// Describes this thread's transactions. Errors: see [`Target::status`].
pub fn status() -> Result<Status, Error> {
    Target::Me.status()
}

/// Sets this thread's current transaction aside. Errors: see [`Target::suspend`].
pub fn suspend() -> Result<Id, Error> {
    Target::Me.suspend()
}

/// Makes a suspended transaction this thread's current one again. Errors: see [`Target::resume`].
pub fn resume(id: &Id) -> Result<(), Error> {
    Target::Me.resume(id)
}

/// Joins a transaction of another process. Errors: see [`Target::attach`].
pub fn attach(id: &Id) -> Result<(), Error> {
    Target::Me.attach(id)
}

/// Leaves the current transaction without ending it. Errors: see [`Target::detach`].
pub fn detach() -> Result<(), Error> {
    Target::Me.detach()
}
