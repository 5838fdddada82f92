//! The receiver of a source's events.

use crate::{Error, Event};

/// Receives the events of a source. The pipeline is the sink that writes a trace; tests and live displays have their own.
///
/// Several threads may call it at the same time. The order of the calls is the order of the records, so a source that knows an order
/// must keep it. A call may block: a source waits for a full queue, and no event is dropped silently.
pub trait Sink: Send + Sync {
    /// Receives an event. An error means that the trace cannot continue and that the user chose to stop the program in this case;
    /// otherwise a sink counts the events that it cannot store, and continues.
    fn take(&self, event: &Event) -> Result<(), Error>;

    /// Writes all buffered events.
    fn flush(&self) -> Result<(), Error>;
}
