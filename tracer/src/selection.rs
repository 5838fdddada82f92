//! Selects the events of a trace by its filter.

use std::sync::Arc;

use crate::Event;
use crate::select::{CallSet, Facts, Filter, NameCache};

/// A filter, applied to the events of one capture, in order.
#[derive(Debug)]
pub struct Selection {
    filter: Arc<Filter>,
    calls: CallSet,
    names: NameCache,
}

impl Selection {
    /// Selects by `filter`.
    pub fn new(filter: impl Into<Arc<Filter>>) -> Self {
        let filter = filter.into();
        Self {
            calls: filter.traced_calls(),
            names: filter.name_cache(),
            filter,
        }
    }

    /// The filter.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Whether the filter selects `event`: a call, or another event of a thread whose calls it could select. A capture serves several
    /// tracers, so there may be calls that this filter's tracer does not record.
    pub fn selects(&mut self, event: &Event) -> bool {
        match (event, event.subject()) {
            (Event::Call(call), _) => {
                self.calls.contains(call.call.nr)
                    && self.filter.selects(&Facts::of(call), &mut self.names)
            }
            (_, Some(subject)) => self.filter.selects_subject(subject),
            (_, None) => true,
        }
    }
}
