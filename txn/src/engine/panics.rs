//! Turns a panic inside an engine into an error of its store, so that the process continues.
//!
//! Engines are third-party code and read files that may be damaged. After a panic the state of the engine's memory is not
//! known, so every later call fails.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Once, OnceLock, mpsc};
use std::thread;

use amino_schema::header::FileSum;
use bytes::Bytes;

use super::{Engine, Entry, Files, NoFiles, Reclaim, Snapshot};
use crate::{Changes, Error};

/// Takes the message of a panic.
type Report = Box<dyn Fn(String)>;

thread_local! {
    /// Whether this thread is inside an engine, where a panic is reported as an error.
    static INSIDE: Cell<bool> = const { Cell::new(false) };

    /// Where this thread sends the message of a panic, and stops forever.
    static HALT: RefCell<Option<Report>> = const { RefCell::new(None) };
}

/// The message for a panic without one.
const UNKNOWN: &str = "for an unknown reason";

/// An engine whose panics are errors.
pub(super) struct PanicCatcher {
    /// `None` only while it is dropped.
    engine: Option<Box<dyn Engine>>,
    panicked: Panicked,
}

/// The message of a panic of an engine or of one of its snapshots, if any. Snapshots share it with their engine.
#[derive(Clone)]
struct Panicked {
    engine: &'static str,
    dir: Arc<Path>,
    why: Arc<OnceLock<Box<str>>>,
}

impl Panicked {
    /// Fails if there was a panic.
    fn check(&self, what: &'static str) -> Result<(), Error> {
        let why = self.why.get();
        why.map_or(Ok(()), |why| Err(self.error(what, why)))
    }

    fn set(&self, what: &'static str, why: String) -> Error {
        let why = self.why.get_or_init(|| why.into());
        self.error(what, why)
    }

    fn error(&self, what: &'static str, why: &str) -> Error {
        error(self.engine, &self.dir, what, why)
    }
}

/// The files of an engine, or none.
fn of(engine: &dyn Engine) -> &dyn Files {
    engine.files().unwrap_or(&NoFiles)
}

/// Opens an engine by `open`, which calls [`open_files`] to let the engine's library open its files.
pub(super) fn open<E: Engine + 'static>(
    name: &'static str,
    dir: &Path,
    open: impl FnOnce() -> Result<E, Error>,
) -> Result<Box<dyn Engine>, Error> {
    let opened = catch(open).map_err(|why| error(name, dir, "open its files", &why))??;
    Ok(Box::new(PanicCatcher {
        engine: Some(Box::new(opened)),
        panicked: Panicked {
            engine: name,
            dir: dir.into(),
            why: Arc::default(),
        },
    }))
}

/// Opens the files in `dir` by `open`, a function of the library of `engine`, for the first time or again. A panic in it is an error.
pub(super) fn open_files<T: Send + 'static>(
    engine: &'static str,
    dir: &Path,
    open: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let opened = halt_at_panic(open).map_err(Error::io("start a thread for", dir))?;
    opened.map_err(|why| error(engine, dir, "open its files", &why))
}

/// The result of `call`, or the message of its panic. `call` runs on a thread of its own, which stops forever where it panics.
///
/// Unwinding would drop a half-open engine. If a panic has poisoned one of its locks, the engine would panic a second time then, which
/// aborts the process.
fn halt_at_panic<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Result<T, String>> {
    install_panic_hook();
    let (send, result) = mpsc::channel();
    let panicked = send.clone();
    let run = move || {
        HALT.set(Some(Box::new(move |why| drop(panicked.send(Err(why))))));
        // The receiver waits for it.
        let _ = send.send(Ok(call()));
    };
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(run)?;
    Ok(result.recv().unwrap_or_else(|_| Err(UNKNOWN.to_owned())))
}

/// The result of `call`, or the message of its panic.
fn catch<T>(call: impl FnOnce() -> T) -> Result<T, String> {
    inside(call).map_err(|panic| words(&*panic))
}

/// The result of `call`, or its panic, without a printed message. For a thread that calls an engine for another one.
pub(super) fn inside<T>(call: impl FnOnce() -> T) -> thread::Result<T> {
    install_panic_hook();
    let outer = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    INSIDE.set(outer);
    result
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or(UNKNOWN).to_owned()
}

/// Keeps the default hook from printing a panic that becomes an error, and stops threads that must not unwind.
///
/// A stopped thread holds std's lock on the hook, shared. Other threads that panic share it with this one. Only a thread that
/// replaced the hook would wait for it, so no code replaces the hook after this function (`clippy.toml` refuses it).
#[expect(
    clippy::disallowed_methods,
    reason = "before any thread can stop in the hook"
)]
fn install_panic_hook() {
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

fn error(engine: &'static str, dir: &Path, what: &'static str, why: &str) -> Error {
    Error::Engine {
        engine,
        what,
        why: format!("it panicked in {}: {why}", dir.display()),
    }
}

impl PanicCatcher {
    fn call<T>(
        &self,
        what: &'static str,
        call: impl FnOnce(&dyn Engine) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.panicked.check(what)?;
        let Some(engine) = &self.engine else {
            return Err(self.panicked.error(what, "it is closed"));
        };
        catch(|| call(&**engine)).unwrap_or_else(|why| Err(self.panicked.set(what, why)))
    }
}

impl Drop for PanicCatcher {
    /// Closes the engine on a thread that halts if it panics: an engine that has panicked may panic twice more while it is closed, and
    /// the second of these panics would abort the process.
    fn drop(&mut self) {
        let engine = self.engine.take();
        // This thread closes it if no other one can be started.
        let _ = catch(|| halt_at_panic(|| drop(engine)));
    }
}

impl Engine for PanicCatcher {
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

impl Files for PanicCatcher {
    fn reopen(&self) -> Result<(), Error> {
        self.call("open its files again", |engine| of(engine).reopen())
    }

    fn space_needed(&self, pending: u64) -> u64 {
        let space = self.call("report its size", |engine| {
            Ok(of(engine).space_needed(pending))
        });
        space.unwrap_or(pending)
    }

    fn space_per_byte(&self) -> u64 {
        let space = self.call("report its size", |engine| Ok(of(engine).space_per_byte()));
        space.unwrap_or(1)
    }

    fn returnable(&self) -> u64 {
        let bytes = self.call("report its size", |engine| Ok(of(engine).returnable()));
        bytes.unwrap_or(0)
    }

    fn reclaim(&self, available: u64) -> Result<Reclaim, Error> {
        self.call("give back space", |engine| of(engine).reclaim(available))
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        self.call("report its size", |engine| of(engine).size_on_disk())
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::memory::MemoryEngine;
    use super::*;

    const CHILD: &str = "AMINO_TXN_TEST_BROKEN_ENGINE";
    const DIR: &str = "/store/engine";

    /// Panics when it is dropped, as a database with a poisoned lock does.
    struct Poisoned;

    impl Drop for Poisoned {
        fn drop(&mut self) {
            panic!("poisoned");
        }
    }

    /// An engine that panics in each call, and twice when it is closed.
    struct Broken(Poisoned, Poisoned);

    impl Engine for Broken {
        fn get(&self, _key: &[u8]) -> Result<Option<Bytes>, Error> {
            panic!("no such table");
        }

        fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
            MemoryEngine::default().snapshot()
        }

        fn apply(&self, _changes: &Changes, _applied: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn checkpoint(
            &self,
            _last: bool,
            _publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
        ) -> Result<(), Error> {
            Ok(())
        }

        fn applied(&self) -> Result<Option<Bytes>, Error> {
            Ok(None)
        }

        fn is_persistent(&self) -> bool {
            false
        }

        fn files(&self) -> Option<&dyn Files> {
            Some(self)
        }
    }

    impl Files for Broken {
        fn reopen(&self) -> Result<(), Error> {
            open_files("broken", Path::new(DIR), || {
                let _half_open = Poisoned;
                panic!("no such version");
            })
        }

        fn space_needed(&self, _pending: u64) -> u64 {
            0
        }

        fn space_per_byte(&self) -> u64 {
            0
        }

        fn reclaim(&self, _available: u64) -> Result<Reclaim, Error> {
            Ok(Reclaim::NotWorthwhile)
        }

        fn size_on_disk(&self) -> Result<u64, Error> {
            Ok(0)
        }
    }

    /// No test by itself: the process that the next test starts.
    #[test]
    fn child_with_a_broken_engine() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let open = || Ok(Broken(Poisoned, Poisoned));
        let engine = super::open("broken", Path::new(DIR), open).unwrap();
        println!("{}", engine.files().unwrap().reopen().unwrap_err());
        println!("{}", engine.get(b"a").unwrap_err());
        drop(engine);
        println!("closed");
        // This is checked while threads have halted in the hook.
        let panicked = thread::spawn(|| panic!("elsewhere")).join();
        println!("went on: {}", panicked.is_err());
        // A halted thread holds std's lock on the panic hook, which the end of a test executable takes.
        std::process::exit(0);
    }

    /// When an engine panicked while it was opened again, what was half open panicked a second time, and that aborted the process. The
    /// same happened when an engine that had panicked was closed.
    #[test]
    fn an_engine_that_panics_again_while_it_is_cleaned_up_is_an_error_that_names_the_store() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "engine::panics::tests::child_with_a_broken_engine",
            "--nocapture",
        ]);
        let ended = child.env(CHILD, "").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{ended:?}");
        for why in ["no such version", "no such table"] {
            let line = said.lines().find(|line| line.contains(why)).unwrap();
            assert!(line.contains(DIR), "{line}");
        }
        assert!(said.contains("closed"), "{said}");
        assert!(said.contains("went on: true"), "{said}");
        let printed = String::from_utf8_lossy(&ended.stderr);
        assert!(printed.contains("elsewhere"), "{printed}");
    }
}
