//! Replays traces of `goanna-trace`: compiles a trace into a file of commands, creates the initial state, performs the commands below
//! a directory, checks the results, and compares traces.
//!
//! The design follows Replayfs (Joukov, Wong, Zadok; FAST 2005). The stages are [`source`] (the operations of a trace, on descriptors and
//! paths), [`compile`] (commands, lanes, dependencies, buffers), [`prepare`] and [`run`]; [`compare`] uses [`source`], too.
//! [`import`] converts recordings of other programs. The byte layout
//! of compiled files is in `schema::replay`.

pub mod compare;
pub mod compile;
mod error;
pub mod import;
pub mod prepare;
pub mod run;
pub mod source;
pub mod stored;

pub use error::Error;
