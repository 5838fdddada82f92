//! The trace pipeline: a source captures [`Event`]s, an input filter selects them, an assembly driver makes records or counters of
//! them, output filters transform blocks of records, and output drivers store or send the blocks.
//!
//! The design follows Tracefs (Aranya, Wright, Zadok; FAST 2004). The byte layout is in `schema`, and described in `docs/trace-format.md`.

pub mod assemble;
pub mod capture;
pub mod codec;
pub mod context;
mod error;
pub mod event;
pub mod output;
mod pipeline;
pub mod read;
pub mod receive;
pub mod select;
mod selection;
mod sink;
pub mod tools;

pub use error::Error;
pub use event::Event;
pub use pipeline::{OutputFilter, Pipeline, PipelineOptions, Summary};
pub use selection::Selection;
pub use sink::Sink;
