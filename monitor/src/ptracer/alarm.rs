//! Wakes the supervisor at the deadlines of waits that were restarted ([`super::undisturbed`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::undisturbed::Deadline;
use crate::Monitor;
use crate::ptracer::mailbox::Message;

/// Deadlines, and the thread that waits for them, from the first one on.
#[derive(Default)]
pub struct Alarm {
    shared: Arc<Shared>,
    has_thread: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// When, which thread, which wait of it.
    due: BTreeSet<(Instant, i32, u64)>,
    is_closed: bool,
}

impl Alarm {
    /// Has the supervisor get [`Message::Due`] at `deadline`. Where no thread can be started the wait lasts longer.
    pub fn set(&mut self, monitor: &Arc<Monitor>, tid: i32, deadline: Deadline) {
        let mut state = self.shared.state.lock();
        state.due.insert((deadline.at, tid, deadline.number));
        drop(state);
        self.shared.changed.notify_one();
        if !self.has_thread {
            let (shared, monitor) = (Arc::clone(&self.shared), Arc::clone(monitor));
            let thread = thread::Builder::new().name("deadlines".into());
            self.has_thread = thread.spawn(move || shared.run(&monitor)).is_ok();
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.shared.state.lock().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn run(&self, monitor: &Monitor) {
        let mut state = self.state.lock();
        while !state.is_closed {
            let Some((at, tid, number)) = state.due.first().copied() else {
                self.changed.wait(&mut state);
                continue;
            };
            if Instant::now() < at {
                self.changed.wait_until(&mut state, at);
                continue;
            }
            state.due.pop_first();
            drop(state);
            monitor.mailbox.post(Message::Due(tid, number));
            state = self.state.lock();
        }
    }
}
