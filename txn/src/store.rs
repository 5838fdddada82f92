//! The store: the crate's interface. [`crate::commit`] has the implementation and the order of locks.

use std::ops::Bound;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};

use amino_schema::header::Header;
use bytes::Bytes;
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};

use crate::commit::{Found, Shared};
use crate::dir::HeaderFile;
use crate::engine::{Counted, Origin, compare};
use crate::layers::Layers;
use crate::log::{KeptLog, Log, recover};
use crate::options::{DirtySource, Info, Options, Stats};
use crate::snapshot::{Merge, Records, Snapshot, Visit, in_chunks};
use crate::space::{DiskSpace, Purpose};
use crate::{Actor, Author, Changes, EngineKind, Error, dir};

/// Keeps the committer from choosing a flush point while an operation is in progress.
///
/// One thread must not hold two, nor call [`Store::sync`], [`Store::throttle`] or [`Store::close`] while it holds one.
#[must_use]
pub struct OpGuard<'a>(#[expect(dead_code, reason = "held for its lock")] Barrier<'a>);

#[expect(dead_code, reason = "held for the lock")]
enum Barrier<'a> {
    Shared(RwLockReadGuard<'a, ()>),
    Alone(RwLockWriteGuard<'a, ()>),
}

/// A transaction that becomes a frame of the log. While it exists, no other operation is in progress. If it is dropped without
/// [`TransactionGuard::end`], its changes belong to the frame of the following single operations.
#[must_use]
pub struct TransactionGuard<'a> {
    shared: &'a Shared,
    guard: OpGuard<'a>,
    /// Dropped after the guard, because it may be the last reference.
    source: Option<Arc<dyn DirtySource>>,
}

impl<'a> TransactionGuard<'a> {
    /// The operation guard, for [`Store::submit`].
    pub const fn operation(&self) -> &OpGuard<'a> {
        &self.guard
    }

    /// Ends the transaction. `by` is its author, and whether other processes made changes, too; `None`: this process.
    pub fn end(self, by: Option<(Author, bool)>) {
        let shared = self.shared;
        shared.end_transaction(self.source.as_deref(), by);
        drop(self);
        shared.write_waiting();
    }
}

/// An open store. Clones are the same store; it is closed when the last is dropped, or by [`Store::close`].
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    committer: Arc<Committer>,
}

struct Committer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Committer {
    fn stop(&self) {
        self.shared.ask_to_stop();
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        // The committer drops a store itself when it happened to hold the dirty source's last reference.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Store {
    /// Opens the store in `path`, or makes one there. Replays the log first if a crash has left changes in it.
    ///
    /// A directory that is not a store is not changed.
    pub fn open(path: &Path, options: Options) -> Result<Self, Error> {
        options.engine.check_built_in()?;
        if dir::read_header(path)?.is_none() {
            if !options.create {
                let why = "there is no file AMINO in it";
                return Err(Error::NotAStore {
                    path: path.to_owned(),
                    why,
                });
            }
            dir::make(path)?;
        }
        let lock = dir::lock(path)?;
        // Another process may have made or changed the store before we had the lock.
        let header = dir::read_header(path)?;
        let created = header.is_none();
        let header = match header {
            Some(header) => header,
            None => dir::begin(path, options.engine)?,
        };
        if header.engine != options.engine.name() {
            let wanted = options.engine.name();
            return Err(Error::EngineMismatch {
                path: path.to_owned(),
                found: header.engine,
                wanted,
            });
        }
        let mut options = options;
        if options.engine == EngineKind::Sled {
            options.checkpoint_bytes = options.checkpoint_bytes.min(SLED_CHECKPOINT_BYTES);
        }
        let shared = Arc::new(start(path, lock, header, options, created)?);
        let runner = shared.clone();
        let thread = thread::Builder::new()
            .name("amino-commit".to_owned())
            .spawn(move || runner.run());
        let thread = Mutex::new(Some(thread.map_err(Error::io("start a thread for", path))?));
        let committer = Arc::new(Committer {
            shared: shared.clone(),
            thread,
        });
        Ok(Self { shared, committer })
    }

    /// The engine of the store in `path`; `None` when there is no store yet but one could be made.
    pub fn engine_of(path: &Path) -> Result<Option<EngineKind>, Error> {
        let Some(header) = dir::read_header(path)? else {
            return Ok(None);
        };
        EngineKind::from_name(&header.engine)
            .map(Some)
            .ok_or_else(|| Error::Damaged {
                place: path.display().to_string(),
                why: format!("this program has no engine {}", header.engine),
            })
    }

    /// The present state of the store, between two operations, including the changes of the dirty source.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.shared.snapshot()
    }

    /// Begins an operation: all that it submits is in one frame of the log.
    pub fn enter(&self) -> OpGuard<'_> {
        OpGuard(Barrier::Shared(self.shared.barrier.read()))
    }

    /// Begins a transaction: all that it submits, and its changes in the dirty source, become one frame of the log. Fails with
    /// [`Error::NoSpace`] when the log has no space for that.
    pub fn begin(&self) -> Result<TransactionGuard<'_>, Error> {
        let source = self.shared.source();
        if let Some(source) = &source {
            source.prepare();
        }
        let guard = OpGuard(Barrier::Alone(self.shared.barrier.write()));
        self.shared.begin_transaction(source.as_deref())?;
        Ok(TransactionGuard {
            shared: &self.shared,
            guard,
            source,
        })
    }

    /// Records that `actor` makes a single operation, which submits changes or leaves some to the dirty source. Call this within
    /// the operation.
    pub fn note_author(&self, actor: Actor) {
        self.shared.authors.note(actor);
    }

    /// Sets whether the store keeps segments of the log that it does not need any more. Kept segments stay in any case.
    pub fn keep_log(&self, keep: bool) -> Result<(), Error> {
        self.shared.check()?;
        self.shared.log.set_keep(keep)
    }

    /// The content of the kept segments; with `payloads` everything in them is read and checked.
    pub fn kept_log(&self, payloads: bool) -> Result<KeptLog, Error> {
        self.shared.log.kept(payloads)
    }

    /// Returns when every operation that was in progress has ended.
    pub fn wait_for_operations(&self) {
        drop(self.shared.barrier.write());
    }

    /// Reserves space for `bytes` of changes that the dirty source will hand over, or fails with [`Error::NoSpace`]. Call this
    /// within the operation that causes them, before it changes anything.
    pub fn reserve(&self, bytes: usize) -> Result<(), Error> {
        self.shared.check()?;
        self.shared.reserve(bytes, Purpose::Growth)
    }

    /// Returns a part of a [reservation](Store::reserve) that is not needed, within the flush point's epoch in which it was made.
    pub fn release(&self, bytes: usize) {
        self.shared.log.release(bytes as u64);
    }

    /// Free bytes of the host's disk; 0 if they cannot be determined.
    pub fn available_bytes(&self) -> u64 {
        let disk = self.shared.disk_space.disk();
        disk.map_or(0, |disk| disk.available)
    }

    /// As [`Store::reserve`], for an operation that frees space in the end: it may use space of the host's disk that is
    /// kept free for such operations.
    pub fn reserve_removal(&self, bytes: usize) -> Result<(), Error> {
        self.shared.check()?;
        self.shared.reserve(bytes, Purpose::Removal)
    }

    /// Makes `changes` visible at once and durable later, atomically. Reserves the space for them, as a removal if they delete
    /// entries and put little. A failure has no effect.
    pub fn submit(&self, _guard: &OpGuard<'_>, changes: Changes) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        self.shared.check()?;
        let bytes = changes.byte_size();
        self.shared.reserve(bytes, purpose(&changes))?;
        self.shared.submit(changes);
        Ok(())
    }

    /// As [`Store::submit`], for changes that were [reserved](Store::reserve) since the last flush point, and that the dirty
    /// source will not hand over at the next one.
    pub fn submit_reserved(&self, _guard: &OpGuard<'_>, changes: Changes) -> Result<(), Error> {
        self.shared.check()?;
        if !changes.is_empty() {
            self.shared.submit(changes);
        }
        Ok(())
    }

    /// Returns when everything submitted before is on disk. Threads that wait at the same time share one fdatasync(2).
    pub fn sync(&self) -> Result<(), Error> {
        self.shared.sync()
    }

    /// Frees the disk space of deleted entries, as far as the engine can, and releases the log. Operations that change something
    /// wait meanwhile.
    pub fn compact(&self) -> Result<(), Error> {
        self.shared.compact()
    }

    /// Waits while more than [`Options::max_pending_bytes`] are pending.
    pub fn throttle(&self) {
        self.shared.throttle();
    }

    /// Sets the component that keeps dirty data in memory.
    pub fn set_source(&self, source: Weak<dyn DirtySource>) {
        *self.shared.source.write() = Some(source);
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// The properties and the state of the store.
    pub fn info(&self) -> Info {
        self.shared.info()
    }

    /// Applies all changes to the engine, and releases the log. Other clones accept no more changes; the directory can be opened
    /// again when the last of them is dropped.
    pub fn close(self) -> Result<(), Error> {
        self.committer.stop();
        self.shared.closing_result()
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}

/// The present records, with everything submitted so far. A scan may show any part of the changes that are submitted during the
/// scan. `visit` may read and submit.
impl Records for Store {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        // The lock is released before the engine is read: a layer is removed only after the engine has it.
        let pending = self.shared.layers.read().get(key);
        match pending {
            Some(value) => Ok(value),
            None => self.shared.engine.get(key),
        }
    }

    fn scan(&self, from: Bound<&[u8]>, prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), Error> {
        in_chunks(from, prefix, |from, end, chunk| {
            let (overlay, snapshot) = {
                // Taken together: a layer is in the one or in the other.
                let layers = self.shared.layers.read();
                (
                    layers.overlay(from, end, chunk),
                    self.shared.engine.snapshot()?,
                )
            };
            let mut merge = Merge::new(overlay, end);
            if merge.entries(&*snapshot, from, visit)?.is_break() {
                return Ok(None);
            }
            drop(snapshot);
            Ok(merge.rest(visit))
        })
    }
}

/// sled writes applied batches to its files only at a checkpoint; until then they are in memory.
const SLED_CHECKPOINT_BYTES: u64 = 32 << 20;

/// Changes that delete entries and put at most this many bytes count as removals: metadata that moves with its name, for
/// example.
const REMOVAL_PUTS: usize = 4096;

fn purpose(changes: &Changes) -> Purpose {
    let mut deletes = false;
    let mut put = 0;
    for (_, value) in changes.iter() {
        match value {
            Some(value) => put += value.len(),
            None => deletes = true,
        }
        if put > REMOVAL_PUTS {
            return Purpose::Growth;
        }
    }
    if deletes {
        Purpose::Removal
    } else {
        Purpose::Growth
    }
}

/// Opens engine and log of the locked directory and brings the engine up to the log's end.
fn start(
    path: &Path,
    lock: dir::Lock,
    header: Header,
    options: Options,
    created: bool,
) -> Result<Shared, Error> {
    let disk_space = DiskSpace::new(path);
    let (engine, origin) = open_engine(path, &options, &disk_space, &header)?;
    let upgrade = !created && header.checkpoint.is_none() && engine.is_persistent();
    let file = Arc::new(HeaderFile::new(path, header));
    if created {
        engine.apply(&Changes::new(), 0)?;
        let last = !engine.files().changes_by_itself();
        engine.checkpoint(last, &mut |checkpoint| {
            file.update(|header| header.checkpoint = Some(checkpoint))
        })?;
        dir::finish(path);
    } else if engine.is_persistent() {
        check_engine(&path.join(dir::ENGINE), &file.get(), &engine, origin)?;
    }
    let mut catch_up = CatchUp {
        engine: &engine,
        disk_space: &disk_space,
        behind: Changes::new(),
    };
    let applied = engine.applied_seq();
    let recovered = recover(
        path,
        &file.get(),
        applied,
        &mut |seq, changes| catch_up.apply(seq, changes),
        &mut Err,
    )?;
    let behind = catch_up.behind;
    let (seq, replayed) = (recovered.seq, recovered.replayed);
    let leftover = !recovered.segments.is_empty();
    // On a small disk a whole step would be much of it.
    let step_max = disk_space.disk().map_or(u64::MAX, |disk| disk.total / 64);
    let log = Log::new(
        path,
        file.clone(),
        options.log_segment_bytes.min(step_max),
        options.log_limit_bytes,
        recovered,
    )?;
    // Frame numbers of a torn tail will be used again, so its segments must not be read again.
    if !behind.is_empty() {
        log.freeze();
    } else if leftover && engine.is_persistent() || upgrade {
        if upgrade {
            // So that the engine stores the present count.
            engine.apply(&Changes::new(), seq)?;
        }
        if !first_checkpoint(&engine, &log, &disk_space)? {
            log.freeze();
        }
    }
    let found = Found {
        store_id: file.get().store_id,
        created,
        engine,
        log,
        disk_space,
        layers: Layers::behind(behind, seq),
        seq,
        replayed,
    };
    Ok(Shared::new(path, lock, options, found))
}

/// Syncs the engine, and releases the log. Returns false when the disk is too full for it.
fn first_checkpoint(engine: &Counted, log: &Log, disk_space: &DiskSpace) -> Result<bool, Error> {
    for _ in 0..2 {
        let done = engine.checkpoint(false, &mut |checkpoint| {
            log.release_segments(true, Some(checkpoint))
        });
        match done {
            Ok(()) => return Ok(true),
            Err(error) if error.is_no_space() => engine.reopen()?,
            Err(error) => return Err(error),
        }
        if !disk_space.release_ballast() {
            break;
        }
    }
    Ok(false)
}

/// Fails when the engine has fewer transactions than it must have.
fn check_engine(
    dir: &Path,
    header: &Header,
    engine: &Counted,
    origin: Origin,
) -> Result<(), Error> {
    let damaged = |why: String| {
        let place = dir.display().to_string();
        Err(Error::Damaged { place, why })
    };
    if origin == Origin::Empty {
        return damaged("the engine is empty, which no store's is".to_owned());
    }
    let Some(checkpoint) = &header.checkpoint else {
        return Ok(());
    };
    let (least, found) = (&checkpoint.holdings, engine.holdings());
    if origin == Origin::Uncounted || found.seq < least.seq {
        return damaged(format!(
            "the engine has come up to transaction {} only; the checkpoint was at {}",
            found.seq, least.seq
        ));
    }
    if found.seq == least.seq && found != *least {
        let differing = compare(least, &found).into_iter().map(|(_, what)| what);
        return damaged(differing.collect::<Vec<_>>().join("; "));
    }
    Ok(())
}

fn open_engine(
    path: &Path,
    options: &Options,
    disk_space: &DiskSpace,
    header: &Header,
) -> Result<(Counted, Origin), Error> {
    let dir = path.join(dir::ENGINE);
    let files = header.checkpoint.as_ref().map(|at| &at.files[..]);
    match Counted::open(options.engine, &dir, files) {
        Err(error) if error.is_no_space() && disk_space.release_ballast() => {
            Counted::open(options.engine, &dir, files)
        }
        other => other,
    }
}

/// Applies the log to the engine up to its end, as far as the disk has space.
struct CatchUp<'a> {
    engine: &'a Counted,
    disk_space: &'a DiskSpace,
    /// The changes that did not fit on the disk, and all later ones.
    behind: Changes,
}

impl CatchUp<'_> {
    fn apply(&mut self, seq: u64, changes: &Changes) -> Result<(), Error> {
        let full = |result: &Result<(), Error>| matches!(result, Err(error) if error.is_no_space());
        let mut result = Err(Error::NoSpace);
        if self.behind.is_empty() {
            result = self.engine.apply(changes, seq);
            if full(&result) {
                let more = self.disk_space.release_ballast();
                self.engine.reopen()?;
                if more {
                    result = self.engine.apply(changes, seq);
                    if full(&result) {
                        self.engine.reopen()?;
                    }
                }
            }
        }
        if full(&result) {
            self.behind.merge(changes.clone());
            return Ok(());
        }
        result
    }
}
