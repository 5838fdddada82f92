//! Assembly drivers: make records of the events that the input filter selected.

mod aggregate;
mod definitions;
mod groups;
mod plan;
mod stream;
mod writer;

use amino_schema::trace::Schema;

pub use aggregate::{Aggregate, By};
pub use definitions::Definitions;
pub use groups::{Groups, UnknownGroup};
pub use stream::{DataMode, StreamAssembly};
pub use writer::{RotateWhen, Writer, WriterOptions};

use crate::{Error, Event};

/// Makes records of events.
///
/// The smallest ones count, and write one record at the end:
///
/// ```
/// use amino_schema::trace::Schema;
/// use amino_schema::trace::record::Value;
/// use goanna_tracer::assemble::{Assembly, Definitions, Writer};
/// use goanna_tracer::{Error, Event};
///
/// #[derive(Default)]
/// struct Counter {
///     creates: u64,
///     unlinks: u64,
/// }
///
/// impl Assembly for Counter {
///     fn schema(&mut self) -> Schema {
///         Definitions::counters("files", &["creates", "unlinks"])
///     }
///
///     fn event(&mut self, event: &Event, _out: &mut Writer) -> Result<(), Error> {
///         match event.succeeded() {
///             Some("creat" | "mknod" | "mknodat") => self.creates += 1,
///             Some("unlink" | "unlinkat") => self.unlinks += 1,
///             _ => {}
///         }
///         Ok(())
///     }
///
///     fn finish(&mut self, out: &mut Writer) -> Result<(), Error> {
///         out.put(0, 0, 0, &[Value::Number(self.creates), Value::Number(self.unlinks)])
///     }
/// }
/// ```
pub trait Assembly: Send {
    /// The messages that the assembly writes. The pipeline calls this once, before the first event.
    fn schema(&mut self) -> Schema;

    /// Processes an event.
    fn event(&mut self, event: &Event, out: &mut Writer) -> Result<(), Error>;

    /// Writes the remaining records when the capture ends.
    fn finish(&mut self, _out: &mut Writer) -> Result<(), Error> {
        Ok(())
    }

    /// The pairs of the context block that describe the assembly: names and values.
    fn describe(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}
