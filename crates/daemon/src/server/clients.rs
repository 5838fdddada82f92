//! The registry of the clients of `aminod`: the processes that use the store, and their commands.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use goanna_monitor::Delegate;
use goanna_session::OpenStore;
use parking_lot::Mutex;

use crate::protocol::Link;
use crate::protocol::message::{Answer, Followed, Status};
use crate::{Error, Program};

/// The open store and its clients.
pub struct Registry {
    /// The store.
    pub store: OpenStore,
    begun: Instant,
    clients: Mutex<Clients>,
    /// Wakes the main thread.
    wake: UnixStream,
    /// The program that this process is a part of.
    pub program: Program,
}

#[derive(Default)]
struct Clients {
    present: BTreeMap<u64, ClientEntry>,
    /// Connections of clients that have disconnected. When `aminod` ends, they stay open until the store is closed,
    /// because those clients wait for that.
    left: Vec<Arc<Link>>,
    next_id: u64,
    /// No new clients are served.
    ending: bool,
}

/// The registry's data of a client.
struct ClientEntry {
    link: Arc<Link>,
    run: Option<(Followed, Instant, Delegate)>,
}

/// A client, for the thread that serves it.
pub struct Client {
    /// The connection to it.
    pub link: Arc<Link>,
    /// Process id.
    pub pid: i32,
    /// The registry that it is in.
    pub registry: Arc<Registry>,
    id: u64,
}

impl Client {
    /// Registers the client's command `argv`, process `pid`. `delegate` performs operations for processes of that run.
    pub fn set_run(&self, pid: i32, argv: &[OsString], delegate: Delegate) {
        let run = Followed {
            launcher: self.pid,
            pid,
            argv: argv.to_vec(),
            seconds: 0,
        };
        if let Some(entry) = self.registry.clients.lock().present.get_mut(&self.id) {
            entry.run = Some((run, Instant::now(), delegate));
        }
    }

    /// Performs operations for this client, if it is a process of a run that is followed here.
    pub fn delegate(&self) -> Option<Delegate> {
        let clients = self.registry.clients.lock();
        let mut runs = clients.present.values().filter_map(|it| it.run.as_ref());
        let found = runs.find(|(.., delegate)| delegate.follows(self.pid));
        found.map(|(.., delegate)| delegate.clone())
    }
}

impl Registry {
    /// A registry of the open `store`, without clients. `wake` wakes the main thread.
    pub fn new(store: OpenStore, wake: UnixStream, program: Program) -> Self {
        Self {
            store,
            begun: Instant::now(),
            clients: Mutex::default(),
            wake,
            program,
        }
    }

    /// The answer that reports `error`.
    pub fn failed(&self, error: impl Into<Error>) -> Answer {
        Answer::Failed((self.program.describe)(&error.into()))
    }

    /// The status of this process.
    pub fn status(&self) -> Status {
        let clients = self.clients.lock();
        let runs = clients.present.values().filter_map(|entry| {
            let (run, begun, _) = entry.run.as_ref()?;
            Some(Followed {
                seconds: begun.elapsed().as_secs(),
                ..run.clone()
            })
        });
        Status {
            pid: std::process::id() as i32,
            seconds: self.begun.elapsed().as_secs(),
            runs: runs.collect(),
        }
    }

    /// Ends the process at a client's request.
    pub fn stop(&self, force: bool) -> Answer {
        // The requesting client is one of them.
        let others = self.clients.lock().present.len().saturating_sub(1);
        if others > 0 && !force {
            return self.failed(Error::Busy(self.store.0.clone(), others));
        }
        self.end();
        Answer::Closing
    }

    /// Refuses new clients, and disconnects the present ones, which kills their commands.
    pub fn end(&self) {
        let mut clients = self.clients.lock();
        clients.ending = true;
        for entry in clients.present.values() {
            entry.link.shutdown_read();
        }
        drop(clients);
        self.wake();
    }

    fn wake(&self) {
        // If its buffer is full the main thread is awake.
        let _ = (&self.wake).write(&[0]);
    }

    /// Registers the client at the other end of `link`, process `pid`; `None` when this process is about to end.
    pub fn add(self: &Arc<Self>, link: Link, pid: i32) -> Option<Client> {
        let link = Arc::new(link);
        let mut clients = self.clients.lock();
        if clients.ending {
            return None;
        }
        let id = clients.next_id;
        clients.next_id += 1;
        let entry = ClientEntry {
            link: Arc::clone(&link),
            run: None,
        };
        clients.present.insert(id, entry);
        Some(Client {
            link,
            pid,
            registry: Arc::clone(self),
            id,
        })
    }

    /// Whether there is a client.
    pub fn has_clients(&self) -> bool {
        !self.clients.lock().present.is_empty()
    }

    /// Ends the process if its last client has disconnected, or if its end was requested. Returns whether it ends.
    pub fn end_if_unused(&self) -> bool {
        let mut clients = self.clients.lock();
        if clients.ending || clients.present.is_empty() {
            clients.ending = true;
            return true;
        }
        // The store stays open for other clients, so disconnected clients need not wait until it is closed.
        clients.left.clear();
        false
    }
}

/// Unregisters the client when its thread ends, also by a panic.
impl Drop for Client {
    fn drop(&mut self) {
        let mut clients = self.registry.clients.lock();
        clients.present.remove(&self.id);
        clients.left.push(Arc::clone(&self.link));
        drop(clients);
        self.registry.wake();
    }
}
