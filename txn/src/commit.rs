//! How submitted changes reach the log and the engine.
//!
//! A commit draws a line between operations, takes what lies before it as one record, appends it to the log, and leaves
//! it to the committer thread to apply to the engine. It is made by whoever holds the writer lock: the committer thread
//! from time to time, or a caller of `sync`, who thereby needs no other thread to be woken; those who call `sync`
//! meanwhile wait, find their changes durable or one of them commits for all.
//!
//! Lock order, first to last: `writer`, `barrier`, `source` and the locks of the source, `layers`, the engine's, the
//! log's `space`, `signals`. `leading` is held alone. An operation holds the barrier shared and never takes `writer`.
//! The committer thread is the only one that applies to the engine, and holds none of these while it does, except in
//! [`Shared::stop_the_world`].

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use amino_schema::log::RecordHeader;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::engine::Engine;
use crate::layers::Layers;
use crate::log::{Log, now_ns};
use crate::store::{DirtySource, Info, Options, Stats};
use crate::{Changes, Error, dir};

/// How long a throttled thread sleeps before it looks again by itself.
const THROTTLE_RECHECK: Duration = Duration::from_millis(50);

/// What only the thread that commits needs.
#[derive(Default)]
pub(crate) struct Writer {
    /// Last record appended.
    seq: u64,
    /// Last record known to be on disk.
    durable: u64,
    buffer: Vec<u8>,
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
    records: AtomicU64,
    syncs: AtomicU64,
    checkpoints: AtomicU64,
}

/// All that the clones of a store and its committer share.
pub(crate) struct Shared {
    path: PathBuf,
    store_id: [u8; 16],
    created: bool,
    options: Options,
    replayed: u64,
    uid: u32,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) log: Log,
    pub(crate) layers: RwLock<Layers>,
    pub(crate) barrier: RwLock<()>,
    pub(crate) source: RwLock<Option<Weak<dyn DirtySource>>>,
    pub(crate) counters: Counters,
    writer: Mutex<Writer>,
    /// Number of lines drawn, and the last of them before which everything is on disk.
    cuts: AtomicU64,
    durable_cut: AtomicU64,
    appended_seq: AtomicU64,
    durable_seq: AtomicU64,
    /// Bytes in `layers`, kept aside so that it can be looked at without a lock.
    pending: AtomicUsize,
    kick_sent: AtomicBool,
    /// The log could not grow: a checkpoint may help.
    log_full: AtomicBool,
    closed: AtomicBool,
    failed: OnceLock<Arc<str>>,
    /// Whether a caller of `sync` is committing for those who wait on `synced`.
    leading: Mutex<bool>,
    synced: Condvar,
    signals: Mutex<Signals>,
    wake: Condvar,
    drained: Condvar,
    /// Last, so that the directory is given free after the engine has let go of its files.
    _lock: dir::Lock,
}

impl Shared {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, with what opening has found"
    )]
    pub(crate) fn new(
        path: &Path,
        lock: dir::Lock,
        store_id: [u8; 16],
        options: Options,
        engine: Box<dyn Engine>,
        log: Log,
        seq: u64,
        replayed: u64,
        created: bool,
    ) -> Self {
        Self {
            path: path.to_owned(),
            store_id,
            created,
            options,
            replayed,
            uid: nix::unistd::getuid().as_raw(),
            engine,
            log,
            layers: RwLock::default(),
            barrier: RwLock::new(()),
            source: RwLock::new(None),
            counters: Counters::default(),
            writer: Mutex::new(Writer {
                seq,
                durable: seq,
                buffer: Vec::new(),
            }),
            cuts: AtomicU64::new(0),
            durable_cut: AtomicU64::new(0),
            appended_seq: AtomicU64::new(seq),
            durable_seq: AtomicU64::new(seq),
            pending: AtomicUsize::new(0),
            kick_sent: AtomicBool::new(false),
            log_full: AtomicBool::new(false),
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

    /// Fails when the store takes no more changes.
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

    /// Stops the store for good: after a failed write or sync nobody knows what is on disk, and trying again would only
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

    pub(crate) fn promise(&self, bytes: usize) -> Result<(), Error> {
        self.log.promise(bytes as u64).inspect_err(|error| {
            if error.is_no_space() && !self.log_full.swap(true, SeqCst) {
                self.kick();
            }
        })
    }

    fn kick(&self) {
        self.signals.lock().kicked = true;
        self.wake.notify_one();
    }

    /// Bytes pending from which on the committer does not wait for its time.
    fn batch_bytes(&self) -> usize {
        (self.options.max_pending_bytes / 4).min(8 << 20)
    }

    pub(crate) fn submit(&self, changes: Changes) {
        let pending = {
            let mut layers = self.layers.write();
            layers.submit(changes);
            self.note_pending(&layers)
        };
        self.counters.submits.fetch_add(1, SeqCst);
        if pending >= self.batch_bytes() && !self.kick_sent.swap(true, SeqCst) {
            self.kick();
        }
    }

    fn note_pending(&self, layers: &Layers) -> usize {
        let pending = layers.byte_size();
        self.pending.store(pending, SeqCst);
        pending
    }

    /// The dirty source. To be dropped when no lock is held: it may be the last reference, and dropping the source may
    /// close the store.
    fn source(&self) -> Option<Arc<dyn DirtySource>> {
        self.source.read().as_ref().and_then(Weak::upgrade)
    }

    fn dirty_bytes(&self) -> usize {
        self.source().map_or(0, |source| source.dirty_bytes())
    }

    pub(crate) fn throttle(&self) {
        let pending = || self.pending.load(SeqCst).saturating_add(self.dirty_bytes());
        let mut now = pending();
        if now >= self.batch_bytes() && !self.kick_sent.swap(true, SeqCst) {
            self.kick();
        }
        while now > self.options.max_pending_bytes && self.check().is_ok() {
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
        // What this thread submitted lies before every line drawn from now on.
        let needed = self.cuts.load(SeqCst) + 1;
        let mut leading = self.leading.lock();
        loop {
            if self.durable_cut.load(SeqCst) >= needed {
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
        let result = {
            let mut writer = self.writer.lock();
            // The committer thread may have been at it meanwhile.
            let done = self.durable_cut.load(SeqCst) >= needed;
            if done {
                Ok(())
            } else {
                self.commit(&mut writer, source.as_deref(), true)
            }
        };
        // All whom this commit covered go on at once, and one of the others, who came meanwhile, commits for the rest.
        *self.leading.lock() = false;
        self.synced.notify_all();
        result
    }

    /// Appends everything submitted and dirty as one record; when `durable`, returns when it is on disk.
    fn commit(
        &self,
        writer: &mut Writer,
        source: Option<&dyn DirtySource>,
        durable: bool,
    ) -> Result<(), Error> {
        self.check()?;
        let line = self.barrier.write();
        let cut = self.cut(source);
        drop(line);
        self.write_out(writer, cut, durable)
    }

    /// Draws the line; the caller holds the barrier alone.
    fn cut(&self, source: Option<&dyn DirtySource>) -> Cut {
        let number = self.cuts.fetch_add(1, SeqCst) + 1;
        let mut dirty = Changes::new();
        let mut kept = 0;
        if let Some(source) = source {
            source.collect(&mut dirty);
            kept = source.dirty_bytes() as u64;
        }
        self.kick_sent.store(false, SeqCst);
        let mut layers = self.layers.write();
        let changes = layers.seal(dirty);
        self.note_pending(&layers);
        Cut {
            number,
            changes,
            promised: self.log.promised().saturating_sub(kept),
        }
    }

    fn write_out(&self, writer: &mut Writer, cut: Cut, durable: bool) -> Result<(), Error> {
        let fail = |error: Error| self.fail(&error);
        match &cut.changes {
            Some(changes) => {
                let header = RecordHeader {
                    payload_len: 0,
                    seq: writer.seq + 1,
                    durable: writer.durable,
                    time_ns: now_ns(),
                    uid: self.uid,
                    pid: std::process::id(),
                    changes: u32::try_from(changes.len()).unwrap_or(u32::MAX),
                };
                self.log
                    .append(header, changes, cut.promised, &mut writer.buffer)
                    .map_err(fail)?;
                writer.seq += 1;
                self.appended_seq.store(writer.seq, SeqCst);
                self.counters.records.fetch_add(1, SeqCst);
            }
            None => self.log.release(cut.promised),
        }
        let logged = cut.changes.is_some();
        drop(cut.changes);
        if durable {
            self.make_durable(writer).map_err(fail)?;
            self.durable_cut.store(cut.number, SeqCst);
        }
        if logged {
            let mut layers = self.layers.write();
            layers.logged(writer.seq);
            self.note_pending(&layers);
            drop(layers);
            self.kick();
        }
        Ok(())
    }

    fn make_durable(&self, writer: &mut Writer) -> Result<(), Error> {
        if writer.durable < writer.seq {
            self.log.sync()?;
            writer.durable = writer.seq;
            self.durable_seq.store(writer.seq, SeqCst);
        }
        Ok(())
    }

    /// Hands the engine every layer that is in the log. Only by the committer thread.
    fn apply_logged(&self) -> Result<(), Error> {
        loop {
            let next = self.layers.write().next_to_apply();
            let Some((seq, changes)) = next else {
                return Ok(());
            };
            self.engine
                .apply(&changes, seq)
                .map_err(|error| self.fail(&error))?;
            drop(changes);
            let mut layers = self.layers.write();
            let applied = layers.applied();
            self.note_pending(&layers);
            drop(layers);
            // Freeing many small values takes its time; nobody waits for it.
            drop(applied);
            let _signals = self.signals.lock();
            self.drained.notify_all();
        }
    }

    /// Syncs the engine and releases the log before it.
    fn checkpoint(&self) -> Result<(), Error> {
        if !self.engine.is_persistent() {
            return Ok(());
        }
        let rotated = {
            let mut writer = self.writer.lock();
            self.make_durable(&mut writer)
                .map_err(|error| self.fail(&error))?;
            self.log.rotate()
        };
        match rotated {
            Ok(()) => {}
            Err(error) if error.is_no_space() => return self.stop_the_world(false),
            Err(error) => return Err(self.fail(&error)),
        }
        self.apply_logged()?;
        let released = self.engine.sync().and_then(|()| self.log.release_old());
        self.counters.checkpoints.fetch_add(1, SeqCst);
        released.map_err(|error| self.fail(&error))
    }

    /// A checkpoint that needs no room for a new segment, because no operation is under way until all of the log is
    /// released: when the host's disk is full, and at the end.
    fn stop_the_world(&self, closing: bool) -> Result<(), Error> {
        self.check()?;
        let source = self.source();
        let mut writer = self.writer.lock();
        let line = self.barrier.write();
        let cut = self.cut(source.as_deref());
        let released = self
            .write_out(&mut writer, cut, true)
            .and_then(|()| self.apply_logged())
            .and_then(|()| {
                if !self.engine.is_persistent() {
                    return Ok(());
                }
                self.counters.checkpoints.fetch_add(1, SeqCst);
                let released = self.engine.sync().and_then(|()| self.log.release_all());
                released.map_err(|error| self.fail(&error))
            });
        if closing {
            self.closed.store(true, SeqCst);
        }
        drop((line, writer));
        released
    }

    pub(crate) fn ask_to_stop(&self) {
        self.signals.lock().stop = true;
        self.wake.notify_one();
    }

    /// The committer thread.
    pub(crate) fn run(&self) {
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
                // Failures are kept and told to whoever closes.
                let _ = self.stop_the_world(true);
                self.closed.store(true, SeqCst);
                self.drained.notify_all();
                return;
            }
            let due = Instant::now() >= due_at;
            if due {
                due_at = Instant::now() + self.options.flush_interval;
            }
            if self.check().is_ok() {
                // A failure stops the store; every caller is told from then on.
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
            // What fills the log may not even be written yet.
            self.stop_the_world(false)?;
            self.log_full.store(false, SeqCst);
        } else if self.log.used_bytes() > self.options.checkpoint_bytes {
            self.checkpoint()?;
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
            records: self.counters.records.load(SeqCst),
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
            // A failing engine has stopped the store already, which is what tells about it.
            applied_seq: self.engine.applied_seq().ok().flatten().unwrap_or(0),
            log_bytes_on_disk: self.log.allocated_bytes(),
            engine_bytes_on_disk: self.engine.size_on_disk().unwrap_or(0),
        }
    }
}

/// A line drawn between operations, and what lies before it.
struct Cut {
    number: u64,
    changes: Option<Arc<Changes>>,
    /// What was promised for it.
    promised: u64,
}
