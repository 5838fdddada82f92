//! What the system calls of x86-64 Linux take and return, as data, and the decoded form of a call.
//!
//! The table of [`Signature`]s is the single source for everything that must know what an argument means: the monitor's observers, the
//! capture by ptrace, the messages of a trace's schema, and filters that name a call or an operation. It knows nothing of how a call
//! was intercepted: [`decode`] reads a program's memory by the trait [`Memory`], [`DecodedCall::name`] asks for paths by the trait
//! [`Names`], and [`DecodedCall::complete_copy`] reads files by the trait [`OpenFiles`].
//!
//! Read next: `signature.rs` defines a call, `table/rows.rs` lists all calls, `decode/` turns registers into [`Value`]s.

mod decode;
mod decoded_call;
mod named;
pub mod numbers;
mod operation;
mod signature;
pub mod structures;
pub mod symbols;
mod sysno_set;
mod table;
mod value;

pub use decode::{Limits, Memory, Names, OpenFiles, decode};
pub use decoded_call::DecodedCall;
pub use named::Named;
pub use operation::Operation;
pub use signature::{
    Class, Extent, Field, Kind, LastLink, Param, Place, Returns, Signature, Structure, TimeFormat,
};
pub use symbols::Symbols;
pub use sysno_set::SysnoSet;
pub use table::{SIGNATURES, by_name, signature};
pub use value::{File, Outcome, Subject, Time, Treatment, Value};
