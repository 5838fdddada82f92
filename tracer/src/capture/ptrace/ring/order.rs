//! The order of events that come from rings and from stops.

use std::collections::BTreeMap;

use crate::Event;

/// Events that wait for earlier ones, which may still be in rings.
#[derive(Debug, Default)]
pub struct Held {
    /// By time, and the order in which they came.
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
}

impl Held {
    /// Adds an event.
    pub fn push(&mut self, event: Event) {
        let at_ns = time(&event);
        self.events.insert((at_ns, self.next), event);
        self.next += 1;
    }

    /// The earliest event, if it is not later than `until_ns`.
    pub fn take(&mut self, until_ns: u64) -> Option<Event> {
        let first = self.events.first_entry()?;
        (first.key().0 <= until_ns).then(|| first.remove())
    }
}

/// When an event was seen; a call when it has ended.
fn time(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call
            .outcome
            .map_or(call.entered_ns, |outcome| outcome.left_ns),
        Event::Began { at_ns, .. }
        | Event::Executed { at_ns, .. }
        | Event::Ended { at_ns, .. }
        | Event::Touched { at_ns, .. }
        | Event::Lost { at_ns, .. } => *at_ns,
        // Reported before anything else.
        Event::Descriptor { .. } | Event::Mapping { .. } => 0,
    }
}
