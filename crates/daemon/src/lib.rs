//! Several commands on one store: the process that owns it, `aminod`, and how others reach it.
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
//! ends, the kernel kills all that it traced. When its last client has left, `aminod` closes the store and ends.
//!
//! * [`protocol`] has the messages, and the connection that carries them.
//! * [`serve`] is `aminod`; `server/` has one file for what each kind of client asks for.
//! * [`client`] is the other end: [`client::run`] for `amino run`, [`client::reach`] for commands that need the store itself.
//!
//! Read `protocol/message.rs` next.

pub mod client;
mod error;
pub mod protocol;
mod server;

pub use error::{Error, Program, Report};
pub use protocol::message::NAME;
pub use server::{serve, started_as_daemon};
