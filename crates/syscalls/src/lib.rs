//! What the system calls of x86-64 Linux take and return, as data, and the decoded form of a call.
//!
//! The table of [`Signature`]s is the single source for everything that must know what an argument means: the monitor's observers, the
//! capture by ptrace, the messages of a trace's schema, and filters that name a call or an operation. It knows nothing of how a call
//! was intercepted.

mod signature;
mod value;

pub use signature::{Class, Extent, Kind, Param, Returns, Signature, Symbols};
pub use value::{DecodedCall, Outcome, Subject, Treatment, Value};
