//! Several commands on one store: `aminod`, the process that owns the store, and its clients.
//!
//! ```text
//! amino run A ──┐ socket STORE/aminod.sock
//! amino run B ──┼──────────────> aminod: has the store open, traces A and B, answers their calls
//! amino ls    ──┘
//! ```
//!
//! A command that needs the store connects to its owner. `amino run` starts `aminod` where there is none. It remains the parent
//! of its command, on its terminal: it starts the command up to the gate, hands the seccomp listener over, and waits. So a call
//! goes from the kernel straight to the owner of the store. When `amino run` ends, `aminod` kills the command; when `aminod`
//! ends, the kernel kills all its tracees. When its last client has disconnected, `aminod` closes the store and ends.
//!
//! * [`protocol`] has the messages, and the connection that carries them.
//! * [`serve`] is `aminod`; `server/` has one file for each kind of request.
//! * [`client`] is the other end: [`client::run`] for `amino run`, [`client::reach`] for commands that need the store itself.
//!
//! Read `protocol/message.rs` next.

pub mod client;
mod error;
pub mod protocol;
mod server;

pub use error::{Error, Program};
pub use protocol::message::NAME;
pub use server::{serve, started_as_daemon};
