//! A whole store as a stream: `amino dump` and `amino load`. The stream's layout is in [`amino_schema::dump`].

mod error;
mod load;
mod read;
mod write;

pub use amino_schema::dump::DumpTotals;
pub use error::DumpError;
pub use load::load;
pub use write::{dump, write};
