//! A panic inside an engine is an error of its store, and not the end of the process that has it.
//!
//! Engines are other people's code and read files that may be damaged. After a panic the engine's memory can no longer be
//! trusted: every later call fails.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once, OnceLock, mpsc};
use std::thread;

use amino_schema::header::FileSum;
use bytes::Bytes;

use super::{Engine, Entry, Files, NoFiles, Snapshot};
use crate::{Changes, Error};

/// Takes the message of a panic.
type Report = Box<dyn Fn(String)>;

thread_local! {
    /// Whether this thread is inside an engine, where a panic is reported as an error.
    static INSIDE: Cell<bool> = const { Cell::new(false) };

    /// Where this thread sends the message of a panic, and stops forever.
    static HALT: RefCell<Option<Report>> = const { RefCell::new(None) };
}

/// What a panic without a message says.
const UNKNOWN: &str = "for an unknown reason";

/// An engine whose panics are errors.
pub(super) struct Guarded {
    name: &'static str,
    /// `None` only while it is dropped.
    engine: Option<Box<dyn Engine>>,
    panicked: Panicked,
}

/// Whether an engine or one of its snapshots has panicked, and the message. Snapshots share it with their engine.
#[derive(Clone)]
struct Panicked {
    engine: &'static str,
    why: Arc<OnceLock<Box<str>>>,
}

impl Panicked {
    /// Fails if there was a panic.
    fn check(&self, what: &'static str) -> Result<(), Error> {
        let why = self.why.get();
        why.map_or(Ok(()), |why| Err(error(self.engine, what, why)))
    }

    fn set(&self, what: &'static str, why: String) -> Error {
        let why = self.why.get_or_init(|| why.into());
        error(self.engine, what, why)
    }
}

/// The files of an engine, or none.
fn of(engine: &dyn Engine) -> &dyn Files {
    engine.files().unwrap_or(&NoFiles)
}

/// Opens an engine by `open`.
pub(super) fn open<E: Engine + 'static>(
    name: &'static str,
    open: impl FnOnce() -> Result<E, Error> + Send + 'static,
) -> Result<Box<dyn Engine>, Error> {
    let opened = halt_at_panic(open).map_err(|source| Error::Io {
        what: "start a thread for",
        path: name.into(),
        source,
    })?;
    let opened = opened.map_err(|why| error(name, "open its files", &why))??;
    Ok(Box::new(Guarded {
        name,
        engine: Some(Box::new(opened)),
        panicked: Panicked {
            engine: name,
            why: Arc::default(),
        },
    }))
}

/// The result of `call`, or the message of its panic. `call` runs on a thread of its own, which stops forever where it panics.
///
/// Unwinding would drop what is half open. An engine panics a second time then where a panic has poisoned one of its locks, and that
/// aborts the process.
fn halt_at_panic<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, String>> {
    keep_quiet();
    let (send, result) = mpsc::channel();
    let panicked = send.clone();
    let run = move || {
        HALT.set(Some(Box::new(move |why| drop(panicked.send(Err(why))))));
        // The other end waits for it.
        let _ = send.send(Ok(call()));
    };
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(run)?;
    Ok(result.recv().unwrap_or_else(|_| Err(UNKNOWN.to_owned())))
}

/// The result of `call`, or the words of its panic.
fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    keep_quiet();
    let outer = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(outer);
    result.map_err(|panic| words(&*panic))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or(UNKNOWN).to_owned()
}

/// Keeps the default hook from printing a panic that becomes an error, and stops threads that must not unwind.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some(report) = HALT.take() {
                report(words(info.payload()));
                loop {
                    thread::park();
                }
            }
            if !INSIDE.get() {
                former(info);
            }
        }));
    });
}

fn error(engine: &'static str, what: &'static str, why: &str) -> Error {
    Error::Engine {
        engine,
        what,
        why: format!("it panicked: {why}"),
    }
}

impl Guarded {
    fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&dyn Engine) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.panicked.check(what)?;
        let Some(engine) = &self.engine else {
            return Err(error(self.name, what, "it is closed"));
        };
        catch(|| call(&**engine)).unwrap_or_else(|why| Err(self.panicked.set(what, why)))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let engine = self.engine.take();
        let _ = catch(|| drop(engine));
    }
}

impl Engine for Guarded {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.call("read", |engine| engine.get(key))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let view = self.call("read", |engine| engine.snapshot())?;
        Ok(Box::new(GuardedSnapshot {
            panicked: self.panicked.clone(),
            view: Some(view),
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        self.call("apply a batch", |engine| engine.apply(changes, applied))
    }

    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.call("sync its files", |engine| engine.checkpoint(last, publish))
    }

    fn applied(&self) -> Result<Option<Bytes>, Error> {
        self.call("read", |engine| engine.applied())
    }

    fn is_persistent(&self) -> bool {
        self.engine
            .as_ref()
            .is_some_and(|engine| engine.is_persistent())
    }

    fn files(&self) -> Option<&dyn Files> {
        let files = self.engine.as_ref().and_then(|engine| engine.files());
        files.map(|_| self as &dyn Files)
    }
}

impl Files for Guarded {
    fn reopen(&self) -> Result<(), Error> {
        self.call("open its files again", |engine| of(engine).reopen())
    }

    fn room(&self, pending: u64) -> u64 {
        let room = self.call("tell its size", |engine| Ok(of(engine).room(pending)));
        room.unwrap_or(pending)
    }

    fn room_of_one(&self) -> u64 {
        let room = self.call("tell its size", |engine| Ok(of(engine).room_of_one()));
        room.unwrap_or(1)
    }

    fn returnable(&self) -> u64 {
        let bytes = self.call("tell its size", |engine| Ok(of(engine).returnable()));
        bytes.unwrap_or(0)
    }

    fn reclaim(&self, available: u64) -> Result<bool, Error> {
        self.call("give back space", |engine| of(engine).reclaim(available))
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        self.call("tell its size", |engine| of(engine).size_on_disk())
    }

    fn changes_by_itself(&self) -> bool {
        self.engine
            .as_ref()
            .is_some_and(|engine| of(&**engine).changes_by_itself())
    }
}

struct GuardedSnapshot {
    panicked: Panicked,
    /// `None` only while it is dropped.
    view: Option<Box<dyn Snapshot>>,
}

impl Drop for GuardedSnapshot {
    fn drop(&mut self) {
        let view = self.view.take();
        let _ = catch(|| drop(view));
    }
}

impl Snapshot for GuardedSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        self.panicked.check("read")?;
        let view = self.view.as_deref();
        let found = catch(|| view.map_or(Ok(None), |view| view.get(key)));
        found.unwrap_or_else(|why| Err(self.panicked.set("read", why)))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        if let Err(error) = self.panicked.check("read a range") {
            return Box::new(std::iter::once(Err(error)));
        }
        let view = self.view.as_deref();
        match catch(|| view.map(|view| view.range(from, to))) {
            Ok(Some(entries)) => Box::new(GuardedRange {
                panicked: &self.panicked,
                entries: Some(entries),
            }),
            Ok(None) => Box::new(std::iter::empty()),
            Err(why) => {
                let error = self.panicked.set("read a range", why);
                Box::new(std::iter::once(Err(error)))
            }
        }
    }
}

struct GuardedRange<'a> {
    panicked: &'a Panicked,
    /// `None` after a panic, and while it is dropped.
    entries: Option<Box<dyn Iterator<Item = Entry> + 'a>>,
}

impl Drop for GuardedRange<'_> {
    fn drop(&mut self) {
        let entries = self.entries.take();
        let _ = catch(|| drop(entries));
    }
}

impl Iterator for GuardedRange<'_> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let entries = self.entries.as_mut()?;
        match catch(|| entries.next()) {
            Ok(entry) => entry,
            Err(why) => {
                self.entries = None;
                Some(Err(self.panicked.set("read a range", why)))
            }
        }
    }
}
