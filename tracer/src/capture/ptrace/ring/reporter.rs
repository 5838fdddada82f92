//! A thread that makes events from records, and reports all events in order, while the tracing thread follows the programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use goanna_affinity::leave_one_cpu;
use goanna_sys::recorder::Record;
use goanna_syscalls::Subject;

use super::call;
use super::order::Held;
use crate::capture::Wanted;
use crate::{Error, Event, Sink};

/// Batches that wait for the thread; the tracing thread then waits for it.
const BATCHES: usize = 16;

/// What the tracing thread has seen.
#[derive(Debug)]
pub enum Message {
    /// At a stop.
    Event(Event),
    /// In the ring of a process.
    Records(Subject, Vec<u8>),
    /// The record of the call in which a process was killed.
    Unfinished(Subject, Vec<u8>),
    /// All events before this time were sent.
    Until(u64),
}

/// The thread.
#[derive(Debug)]
pub struct Reporter<'scope> {
    sender: SyncSender<Vec<Message>>,
    thread: ScopedJoinHandle<'scope, Option<Error>>,
    has_failed: Arc<AtomicBool>,
}

impl<'scope> Reporter<'scope> {
    /// Starts the thread. `None`: there can be no more threads.
    pub fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        wanted: &'env Wanted,
        sink: &'env dyn Sink,
    ) -> Option<Self> {
        let (sender, receiver) = sync_channel(BATCHES);
        let has_failed = Arc::new(AtomicBool::new(false));
        let of_thread = Arc::clone(&has_failed);
        let thread = Builder::new().name("reporter".into());
        let report = move || {
            leave_one_cpu();
            let failure = report(&receiver, wanted, sink, &of_thread);
            failure.err()
        };
        Some(Self {
            sender,
            thread: thread.spawn_scoped(scope, report).ok()?,
            has_failed,
        })
    }

    /// Sends what was seen. Waits while the thread has much to do.
    pub fn send(&self, batch: Vec<Message>) {
        // A thread that has failed has ended.
        let _ = self.sender.send(batch);
    }

    /// Whether the sink has refused an event.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Waits until everything is reported. The error with which the sink has refused an event.
    pub fn finish(self) -> Option<Error> {
        drop(self.sender);
        self.thread.join().ok().flatten()
    }
}

fn report(
    receiver: &Receiver<Vec<Message>>,
    wanted: &Wanted,
    sink: &dyn Sink,
    has_failed: &AtomicBool,
) -> Result<(), Error> {
    let mut held = Held::default();
    let reports = |held: &mut Held, until: u64| {
        while let Some(event) = held.take(until) {
            sink.take(&event)
                .inspect_err(|_| has_failed.store(true, Ordering::Release))?;
        }
        Ok(())
    };
    for message in receiver.iter().flatten() {
        match message {
            Message::Event(event) => held.push(event),
            Message::Records(subject, records) => {
                let mut rest = records.as_slice();
                while let Some(record) = Record::take(&mut rest) {
                    hold(&mut held, record, &subject, wanted, true);
                }
            }
            Message::Unfinished(subject, record) => {
                let record = Record::take(&mut record.as_slice()).flatten();
                hold(&mut held, record, &subject, wanted, false);
            }
            Message::Until(until) => reports(&mut held, until)?,
        }
    }
    reports(&mut held, u64::MAX)
}

fn hold(
    held: &mut Held,
    record: Option<Record<'_>>,
    subject: &Subject,
    wanted: &Wanted,
    finished: bool,
) {
    let call = record.and_then(|record| call::event(&record, subject, wanted, finished));
    if let Some(call) = call {
        held.push(Event::Call(Box::new(call)));
    }
}
