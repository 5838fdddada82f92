//! Reports changes of the store to a client that keeps copies of files ([`Identity::subscribe`](goanna_vfs::Identity::subscribe)).
//!
//! The guarantee is the same as for a subscriber in this process: a call that has changed a file returns after the client's
//! subscriber has received the report. A client has [`LIMIT`] to acknowledge it. A client that does not, because it is stopped or
//! hangs, loses its subscription: `aminod` closes the connection, by which the client learns of the loss, and the call returns.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use goanna_vfs::{Change, Subscriber};
use parking_lot::{Condvar, Mutex};

use crate::protocol::Link;
use crate::protocol::operation::Acknowledged;

/// Longest time that a change waits for a client.
const LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of changes in one message.
const CHANGES_MAX: usize = 10_000;

/// Forwards the reports to one client, until it is dropped.
pub struct Reports(Arc<Forwarder>);

struct Forwarder {
    link: Link,
    /// Number of messages sent. The mutex is held while a message is sent, so that the client receives them in this order.
    sent: Mutex<u64>,
    received: Mutex<Received>,
    /// Wakes the threads that wait for an acknowledgement.
    wake: Condvar,
}

#[derive(Default)]
struct Received {
    /// Number of messages that the client has acknowledged.
    count: u64,
    /// The client receives no more reports.
    is_lost: bool,
}

impl Reports {
    /// Reports to the client at the other end of `link`. Fails when no thread can be started.
    pub fn to(link: Link) -> std::io::Result<Self> {
        link.limit_sends(LIMIT)?;
        let forwarder = Arc::new(Forwarder {
            link,
            sent: Mutex::default(),
            received: Mutex::default(),
            wake: Condvar::new(),
        });
        let receiver = Arc::clone(&forwarder);
        let thread = thread::Builder::new().name("reports".into());
        thread.spawn(move || receiver.receive())?;
        Ok(Self(forwarder))
    }

    /// The subscriber to register with the store.
    pub fn subscriber(&self) -> Arc<dyn Subscriber> {
        Arc::clone(&self.0) as Arc<dyn Subscriber>
    }

    /// Whether the client no longer receives reports.
    pub fn is_lost(&self) -> bool {
        self.0.received.lock().is_lost
    }
}

impl Drop for Reports {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Forwarder {
    /// Receives acknowledgements until the connection is closed.
    fn receive(&self) {
        while let Ok(Some((Acknowledged, _))) = self.link.receive() {
            self.received.lock().count += 1;
            self.wake.notify_all();
        }
        self.close();
    }

    /// Closes the connection. From now on no thread waits for the client.
    fn close(&self) {
        self.received.lock().is_lost = true;
        self.wake.notify_all();
        self.link.shutdown_read();
        self.link.shutdown_write();
    }

    /// Sends the report in one or several messages. Returns the number of the last one, `None` when the client is lost.
    fn send(&self, changes: &[Change]) -> Option<u64> {
        let mut sent = self.sent.lock();
        for part in changes.chunks(CHANGES_MAX) {
            if self.received.lock().is_lost || self.link.send(&part, None).is_err() {
                return None;
            }
            *sent += 1;
        }
        Some(*sent)
    }

    /// Waits until the client has acknowledged message `number`. Returns whether it has.
    fn wait(&self, number: u64) -> bool {
        let deadline = Instant::now() + LIMIT;
        let mut received = self.received.lock();
        while received.count < number && !received.is_lost {
            if self.wake.wait_until(&mut received, deadline).timed_out() {
                return received.count >= number;
            }
        }
        !received.is_lost
    }
}

impl Subscriber for Forwarder {
    fn changed(&self, changes: &[Change]) {
        let is_received = self.send(changes).is_some_and(|number| self.wait(number));
        if !is_received {
            self.close();
        }
    }

    fn lost(&self) {
        self.close();
    }
}
