//! How submitted changes reach the log and the engine.
//!
//! A flush point lies between operations. The changes between two flush points become a frame of the log: an explicit
//! transaction, or the single operations between two. A commit chooses a flush point and appends the waiting frames with one
//! write; the committer thread applies them to the engine later. The thread that holds the writer lock makes the commit: the
//! committer thread from time to time, or a caller of `sync`, so that it need not wake another thread. Threads that call `sync`
//! meanwhile wait; then their changes are durable, or one of them commits for all.
//!
//! Lock order, first to last: `writer`, `barrier`, `source` and the locks of the source, `layers`, the engine's, the
//! log's `space`, `signals`. No other lock is held together with `leading`. An operation holds the barrier shared and never takes
//! `writer`. The committer thread is the only one that applies to the engine, and holds none of these while it does, except in
//! [`Shared::stop_the_world`].
//!
//! When the host's disk is full and the engine cannot take a layer, the layer stays in memory: readers find it, the log has
//! it, and the committer tries again. Only a failed write or sync of the log stops the store.

mod apply;
mod flush;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use amino_schema::log::{Author, Frames};
use parking_lot::{Condvar, Mutex, RwLock};

use crate::engine::Counted;
use crate::layers::Layers;
use crate::log::Log;
use crate::log::author::{Actor, Authors};
use crate::options::{DirtySource, Info, Options, Stats};
use crate::space::{DiskSpace, Needed, Purpose};
use crate::{Changes, Error, dir};

/// How long a throttled thread sleeps before it checks again without a wake-up.
const THROTTLE_RECHECK: Duration = Duration::from_millis(50);

/// When more bytes of changes than this wait for the engine, the committer applies them.
const BATCH_BYTES: usize = 2 << 20;

/// With less free space than this on the disk, a log longer than `LOW_LOG` is released.
const LOW: u64 = 24 << 20;
const LOW_LOG: u64 = 8 << 20;
/// If less space than this is free when a store is opened, the disk counts as nearly full.
const LOW_AT_OPEN: u64 = 256 << 20;
/// Number of deleted keys, mostly of pages, from which on the engine's files are rewritten without them.
const DELETED_MIN: u64 = 64;

/// The state that only the committing thread uses.
#[derive(Default)]
pub(crate) struct Writer {
    /// Last frame appended.
    seq: u64,
    /// Last frame known to be on disk.
    durable: u64,
    frames: Frames,
}

#[derive(Default)]
struct Signals {
    stop: bool,
    kicked: bool,
}

/// Counters of [`Stats`].
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) submits: AtomicU64,
    frames: AtomicU64,
    syncs: AtomicU64,
    checkpoints: AtomicU64,
}

/// The state that the clones of a store and its committer share.
pub(crate) struct Shared {
    path: PathBuf,
    store_id: [u8; 16],
    created: bool,
    options: Options,
    replayed: u64,
    /// The processes that made the changes which are not sealed.
    pub(crate) authors: Authors,
    /// This process: the author of changes that no program has made.
    owner: Author,
    pub(crate) engine: Counted,
    pub(crate) log: Log,
    pub(crate) layers: RwLock<Layers>,
    pub(crate) barrier: RwLock<()>,
    pub(crate) source: RwLock<Option<Weak<dyn DirtySource>>>,
    pub(crate) counters: Counters,
    writer: Mutex<Writer>,
    /// Number of flush points chosen, and the last of them before which everything is on disk.
    flush_points: AtomicU64,
    durable_flush_point: AtomicU64,
    appended_seq: AtomicU64,
    durable_seq: AtomicU64,
    /// Bytes in `layers`, also readable without a lock.
    pending: AtomicUsize,
    /// The same number, without bytes that are only reserved in the log.
    sealed: AtomicUsize,
    kick_sent: AtomicBool,
    /// The log could not grow: a checkpoint may help.
    log_full: AtomicBool,
    pub(crate) disk_space: DiskSpace,
    /// The disk was nearly full at the last check.
    low: AtomicBool,
    /// Last frame applied; the engine must not forget it when it is opened again.
    applied_seq: AtomicU64,
    /// Since when the engine cannot apply because of a full disk.
    engine_full: Mutex<Option<Instant>>,
    /// Whether it cannot. Kept without a lock, because it is read often.
    full: AtomicBool,
    /// The engine has batches that are not synced.
    unsynced: AtomicBool,
    /// Number of keys deleted since the engine last had to free their disk space.
    deleted: AtomicU64,
    /// Since when the engine cannot do that because of a full disk.
    unreclaimed: Mutex<Option<Instant>>,
    closed: AtomicBool,
    failed: OnceLock<Arc<str>>,
    /// Whether a caller of `sync` is committing for the threads that wait on `synced`.
    leading: Mutex<bool>,
    synced: Condvar,
    signals: Mutex<Signals>,
    wake: Condvar,
    drained: Condvar,
    /// The last field, so that the directory is unlocked after the engine has closed its files.
    _lock: dir::Lock,
}

/// The result of opening the parts of a store.
pub(crate) struct Found {
    pub(crate) store_id: [u8; 16],
    pub(crate) created: bool,
    pub(crate) engine: Counted,
    pub(crate) log: Log,
    pub(crate) disk_space: DiskSpace,
    /// Changes in the log that the engine could not apply, because the disk is full.
    pub(crate) layers: Layers,
    /// Last frame in the log.
    pub(crate) seq: u64,
    pub(crate) replayed: u64,
}

impl Shared {
    pub(crate) fn new(path: &Path, lock: dir::Lock, options: Options, found: Found) -> Self {
        let Found {
            store_id,
            created,
            engine,
            log,
            disk_space,
            layers,
            seq,
            replayed,
        } = found;
        let (behind, frozen) = (layers.byte_size() > 0, log.is_frozen());
        Self {
            path: path.to_owned(),
            store_id,
            created,
            options,
            replayed,
            authors: Authors::default(),
            owner: Actor::own().author(),
            engine,
            log,
            pending: AtomicUsize::new(layers.byte_size()),
            sealed: AtomicUsize::new(layers.sealed_bytes()),
            layers: RwLock::new(layers),
            barrier: RwLock::new(()),
            source: RwLock::new(None),
            counters: Counters::default(),
            writer: Mutex::new(Writer {
                seq,
                durable: seq,
                frames: Frames::default(),
            }),
            flush_points: AtomicU64::new(0),
            durable_flush_point: AtomicU64::new(0),
            appended_seq: AtomicU64::new(seq),
            durable_seq: AtomicU64::new(seq),
            kick_sent: AtomicBool::new(false),
            log_full: AtomicBool::new(frozen),
            low: AtomicBool::new(
                disk_space
                    .disk()
                    .is_ok_and(|disk| disk.available < LOW_AT_OPEN),
            ),
            disk_space,
            applied_seq: AtomicU64::new(if behind { 0 } else { seq }),
            engine_full: Mutex::new(behind.then(Instant::now)),
            full: AtomicBool::new(behind),
            unsynced: AtomicBool::new(replayed > 0 || frozen),
            // The number of keys that earlier processes have deleted is not known.
            deleted: AtomicU64::new(DELETED_MIN),
            unreclaimed: Mutex::new(None),
            closed: AtomicBool::new(false),
            failed: OnceLock::new(),
            leading: Mutex::new(false),
            synced: Condvar::new(),
            signals: Mutex::default(),
            wake: Condvar::new(),
            drained: Condvar::new(),
            _lock: lock,
        }
    }

    /// Fails when the store accepts no more changes.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if let Some(why) = self.failed.get() {
            return Err(Error::Stopped { why: why.clone() });
        }
        if self.closed.load(SeqCst) {
            return Err(Error::Stopped {
                why: "it was closed".into(),
            });
        }
        Ok(())
    }

    /// Stops the store for good: after a failed write or sync the content of the disk is unknown, and a retry would only
    /// seem to succeed (the kernel drops the pages that it could not write).
    fn fail(&self, error: &Error) -> Error {
        let mut why = error.to_string();
        if let Error::Io { source, .. } = error {
            why = format!("{why}: {source}");
        }
        let why = self.failed.get_or_init(|| why.into()).clone();
        self.drained.notify_all();
        Error::Stopped { why }
    }

    pub(crate) fn reserve(&self, bytes: usize, purpose: Purpose) -> Result<(), Error> {
        if purpose == Purpose::Removal && self.log.reserve_allocated(bytes as u64, 0) {
            // On a full disk the layer stays in the log until the engine can apply it.
            return Ok(());
        }
        let granted = if purpose == Purpose::Growth && self.is_full() {
            Err(Error::NoSpace)
        } else {
            let left = self.disk_space.reserve(bytes, purpose, || self.needed());
            left.map(|left| {
                if let Some(left) = left {
                    self.low.store(left < LOW, SeqCst);
                }
            })
        };
        let reserved = granted.and_then(|()| self.log.reserve(bytes as u64, purpose));
        reserved.inspect_err(|error| {
            if error.is_no_space() {
                self.low.store(true, SeqCst);
                self.clean_up();
            }
        })
    }

    /// Whether a checkpoint of the committer could free space.
    fn can_clean_up(&self) -> bool {
        self.log.used_bytes().saturating_add(self.accepted()) > LOW_LOG
            || self.deleted.load(SeqCst) >= DELETED_MIN
    }

    /// Requests that the committer free space. The next operation waits for that in [`Shared::throttle`].
    fn clean_up(&self) {
        if !self.log_full.swap(true, SeqCst) {
            self.wake_committer();
        }
    }

    /// Applies all changes to the engine, and lets it free the disk space of deleted entries, as far as it can. Operations that
    /// change something wait meanwhile.
    pub(crate) fn compact(&self) -> Result<(), Error> {
        self.sync()?;
        self.deleted.fetch_max(DELETED_MIN, SeqCst);
        self.clean_up();
        let mut signals = self.signals.lock();
        while self.log_full.load(SeqCst) && self.check().is_ok() {
            self.drained.wait_for(&mut signals, THROTTLE_RECHECK);
        }
        drop(signals);
        self.check()
    }

    /// Bytes of accepted changes that are not in the engine.
    fn accepted(&self) -> u64 {
        (self.sealed.load(SeqCst) as u64).saturating_add(self.log.reserved())
    }

    /// The disk space that the engine needs for all accepted changes, and for later ones.
    fn needed(&self) -> Needed {
        let engine = self.engine.files();
        Needed {
            accepted: engine.space_needed(self.accepted()),
            each: engine.space_per_byte(),
        }
    }

    fn is_full(&self) -> bool {
        self.full.load(SeqCst)
    }

    fn wake_committer(&self) {
        self.signals.lock().kicked = true;
        self.wake.notify_one();
    }

    /// Number of pending bytes that wakes the committer before its time. It is small, so that the engine has nearly everything when
    /// the store is closed (docs/decisions/0089).
    fn batch_bytes(&self) -> usize {
        (self.options.max_pending_bytes / 4).min(BATCH_BYTES)
    }

    pub(crate) fn submit(&self, changes: Changes) {
        let pending = {
            let mut layers = self.layers.write();
            layers.submit(changes);
            self.note_pending(&layers)
        };
        self.counters.submits.fetch_add(1, SeqCst);
        if pending >= self.batch_bytes() && !self.kick_sent.swap(true, SeqCst) {
            self.wake_committer();
        }
    }

    fn note_pending(&self, layers: &Layers) -> usize {
        let pending = layers.byte_size();
        self.pending.store(pending, SeqCst);
        self.sealed.store(layers.sealed_bytes(), SeqCst);
        pending
    }

    /// The dirty source. Drop it only when no lock is held: it may be the last reference, and dropping the source may close the
    /// store.
    pub(crate) fn source(&self) -> Option<Arc<dyn DirtySource>> {
        self.source.read().as_ref().and_then(Weak::upgrade)
    }

    fn dirty_bytes(&self) -> usize {
        self.source().map_or(0, |source| source.dirty_bytes())
    }

    pub(crate) fn throttle(&self) {
        let pending = || self.pending.load(SeqCst).saturating_add(self.dirty_bytes());
        let mut now = pending();
        if now >= self.batch_bytes() && !self.kick_sent.swap(true, SeqCst) {
            self.wake_committer();
        }
        if self.low.load(SeqCst) && self.can_clean_up() {
            self.clean_up();
        }
        let too_much = |now| now > self.options.max_pending_bytes || self.log_full.load(SeqCst);
        // On a full disk nothing is drained, and changes that need space are refused.
        while too_much(now) && self.check().is_ok() && !self.is_full() {
            let mut signals = self.signals.lock();
            signals.kicked = true;
            self.wake.notify_one();
            self.drained.wait_for(&mut signals, THROTTLE_RECHECK);
            drop(signals);
            now = pending();
        }
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.counters.syncs.fetch_add(1, SeqCst);
        // Every flush point chosen from now on includes this thread's changes.
        let needed = self.flush_points.load(SeqCst) + 1;
        let mut leading = self.leading.lock();
        loop {
            if self.durable_flush_point.load(SeqCst) >= needed {
                return Ok(());
            }
            self.check()?;
            if !*leading {
                break;
            }
            self.synced.wait(&mut leading);
        }
        *leading = true;
        drop(leading);
        let source = self.source();
        // Dropping it wakes the waiting threads: those whose changes this commit has made durable return, and one of the others
        // commits for the rest.
        let _leader = Leader(self);
        let mut writer = self.writer.lock();
        // The committer thread may have committed meanwhile.
        if self.durable_flush_point.load(SeqCst) >= needed {
            return Ok(());
        }
        self.commit(&mut writer, source.as_deref(), true)
    }

    pub(crate) fn ask_to_stop(&self) {
        self.signals.lock().stop = true;
        self.wake.notify_one();
    }

    /// The committer thread.
    pub(crate) fn run(&self) {
        let _stops = StopOnPanic(self);
        let mut due_at = Instant::now() + self.options.flush_interval;
        loop {
            let stop = {
                let mut signals = self.signals.lock();
                while !signals.stop && !signals.kicked {
                    if self.wake.wait_until(&mut signals, due_at).timed_out() {
                        break;
                    }
                }
                signals.kicked = false;
                signals.stop
            };
            if stop {
                // The store keeps the failure, and returns it when it is closed.
                if self.low.load(SeqCst) && !self.is_full() {
                    let _ = self.stop_the_world(false).and_then(|()| self.make_space());
                }
                let _ = self.stop_the_world(true);
                self.closed.store(true, SeqCst);
                self.drained.notify_all();
                return;
            }
            let due = Instant::now() >= due_at;
            if due {
                due_at = Instant::now() + self.options.flush_interval;
                self.log.sync_note();
            }
            if self.check().is_ok() {
                // A failure stops the store; every caller gets the error from then on.
                let _ = self.round(due);
            }
        }
    }

    fn round(&self, due: bool) -> Result<(), Error> {
        self.apply_logged()?;
        if due || self.pending.load(SeqCst).saturating_add(self.dirty_bytes()) >= self.batch_bytes()
        {
            let source = self.source();
            self.commit(&mut self.writer.lock(), source.as_deref(), due)?;
            self.apply_logged()?;
        }
        if self.log_full.load(SeqCst) {
            // The changes that fill the log may not even be written yet.
            let made = self.stop_the_world(false).and_then(|()| self.make_space());
            self.log_full.store(false, SeqCst);
            self.notify_waiting();
            made?;
        } else if self.is_full() {
            // Only in the next round, when the engine has applied the layers that it could not apply before.
            self.log_full.store(due && self.apply_logged()?, SeqCst);
        } else if due && self.low.load(SeqCst) && !self.disk_space.has_ballast() {
            self.disk_space.keep_ballast(self.needed());
        } else if self.log.used_bytes() > self.options.checkpoint_bytes {
            self.checkpoint()?;
            self.disk_space.keep_ballast(self.needed());
        }
        Ok(())
    }

    pub(crate) fn closing_result(&self) -> Result<(), Error> {
        match self.failed.get() {
            Some(why) => Err(Error::Stopped { why: why.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            submits: self.counters.submits.load(SeqCst),
            frames: self.counters.frames.load(SeqCst),
            log_bytes: self.log.appended_bytes(),
            syncs: self.counters.syncs.load(SeqCst),
            fdatasyncs: self.log.syncs(),
            checkpoints: self.counters.checkpoints.load(SeqCst),
            replayed: self.replayed,
            pending_bytes: self.pending.load(SeqCst) as u64,
        }
    }

    pub(crate) fn info(&self) -> Info {
        Info {
            path: self.path.clone(),
            engine: self.options.engine,
            store_id: self.store_id,
            created: self.created,
            appended_seq: self.appended_seq.load(SeqCst),
            durable_seq: self.durable_seq.load(SeqCst),
            applied_seq: self.engine.applied_seq(),
            log_bytes_on_disk: self.log.allocated_bytes(),
            engine_bytes_on_disk: self.engine.files().size_on_disk().unwrap_or(0),
        }
    }
}

/// Stops the store when a panic drops it, because the thread's progress is unknown.
struct StopOnPanic<'a>(&'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.get_or_init(|| "a commit panicked".into());
            self.0.drained.notify_all();
        }
    }
}

/// The caller of `sync` that commits for the others. Lets them continue when it is dropped.
struct Leader<'a>(&'a Shared);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        drop(StopOnPanic(self.0));
        *self.0.leading.lock() = false;
        self.0.synced.notify_all();
    }
}
