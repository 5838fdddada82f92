//! Several commands on one store: the process that owns it, `aminod`, and how others reach it.
//!
//! ```text
//! amino run A ──┐ socket STORE/aminod.sock
//! amino run B ──┼──────────────> aminod: has the store open, traces A and B, answers their calls
//! amino ls    ──┘
//! ```
//!
//! Who needs the store connects, and starts `aminod` where nobody listens. A run's launcher stays the parent of its command, on
//! its terminal; it starts it up to the gate, hands the seccomp listener over, and waits. So a call goes from the kernel
//! straight to the owner of the store. When a launcher goes, `aminod` kills what it had started; when `aminod` goes, the
//! kernel kills all that it traced. It leaves when its last client has left, and closes the store before.
//!
//! * [`link`] carries messages and descriptors, [`message`] says which; [`socket`] is where the two meet.
//! * [`serve`] is `aminod`; [`follow`] its part in a run, [`launch`] the launcher's.
//! * [`remote`] is the tree of a store that another process owns, for the offline commands, [`room`] where `aminod` serves
//!   it, [`operation`] what the two say to each other.

mod follow;
mod launch;
mod link;
mod message;
mod operation;
mod remote;
mod room;
mod serve;
mod socket;
mod status;

pub use launch::run;
pub use message::Told;
pub use remote::{RemoteFs, RemoteWriter, check, facts, reach};
pub use serve::{NAME, is_meant, serve};
pub use status::daemon;
