//! The committer's work with the engine: it applies the changes in the log, makes checkpoints, and handles a full disk.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use super::{DELETED_MIN, LOW, Shared};
use crate::engine::Reclaim;
use crate::space::Purpose;
use crate::{Changes, Error, dir};

/// How long the committer waits before it retries what the engine could not do on a full disk.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// On a full disk the engine is opened again when that gives back more than this.
const RETURNABLE_LOW: u64 = 4 << 20;

impl Shared {
    /// Hands the engine every layer that is in the log. Returns whether it now has them all. Only the committer thread
    /// calls this.
    pub(super) fn apply_logged(&self) -> Result<bool, Error> {
        loop {
            let next = self.layers.write().next_to_apply();
            let Some((seq, changes)) = next else {
                return Ok(true);
            };
            if !self.apply(&changes, seq)? {
                return Ok(false);
            }
            let deleted = changes.iter().filter(|(_, value)| value.is_none()).count();
            self.deleted.fetch_add(deleted as u64, SeqCst);
            drop(changes);
            let mut layers = self.layers.write();
            let applied = layers.applied();
            self.note_pending(&layers);
            drop(layers);
            // Freeing many small values takes time; no thread waits for it.
            drop(applied);
            self.notify_waiting();
        }
    }

    pub(super) fn notify_waiting(&self) {
        let _signals = self.signals.lock();
        self.drained.notify_all();
    }

    /// Hands the engine one layer. Returns false when the disk is too full for it.
    pub(super) fn apply(&self, changes: &Changes, seq: u64) -> Result<bool, Error> {
        let since = *self.engine_full.lock();
        if since.is_some_and(|since| since.elapsed() < FULL_PAUSE) {
            return Ok(false);
        }
        self.unsynced.store(true, SeqCst);
        let mut result = self.engine.apply(changes, seq);
        if matches!(&result, Err(error) if error.is_no_space()) {
            self.disk_space.release_ballast();
            result = self
                .reopen_engine()
                .and_then(|()| self.engine.apply(changes, seq));
        }
        match result {
            Ok(()) => {
                self.applied_seq.store(seq, SeqCst);
                self.note_full(false);
                Ok(true)
            }
            Err(error) if error.is_no_space() => {
                self.reopen_if_space()?;
                self.note_full(true);
                Ok(false)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Records whether the engine cannot continue because of a full disk.
    fn note_full(&self, full: bool) {
        *self.engine_full.lock() = full.then(Instant::now);
        self.full.store(full, SeqCst);
        if full {
            self.notify_waiting();
        }
    }

    /// Opens the engine again. On a disk that is too full even for that it stays closed, and the committer tries later.
    fn reopen_if_space(&self) -> Result<(), Error> {
        match self.reopen_engine() {
            Err(error) if error.is_no_space() => {
                self.note_full(true);
                Ok(())
            }
            result => result.map_err(|error| self.fail(&error)),
        }
    }

    fn reopen_engine(&self) -> Result<(), Error> {
        self.engine.reopen()?;
        let (found, applied) = (self.engine.applied_seq(), self.applied_seq.load(SeqCst));
        if found < applied {
            return Err(Error::Damaged {
                place: self.path.join(dir::ENGINE).display().to_string(),
                why: format!("it has lost what came after transaction {found}, up to {applied}"),
            });
        }
        Ok(())
    }

    /// Makes a checkpoint: syncs the engine, and releases the log before it, with `all` the current segment, too. Returns
    /// false when the disk is too full for it. `last`: the store is being closed.
    fn sync_engine(&self, all: bool, last: bool) -> Result<bool, Error> {
        let mut engine_failed = false;
        let changed = self.unsynced.swap(false, SeqCst);
        let result = if changed || last && self.engine.files().changes_by_itself() {
            engine_failed = true;
            self.engine.checkpoint(last, &mut |checkpoint| {
                let published = self.log.release_segments(all, Some(checkpoint));
                engine_failed = published.is_ok();
                published
            })
        } else {
            self.log.release_segments(all, None)
        };
        match result {
            Ok(()) => {
                self.counters.checkpoints.fetch_add(1, SeqCst);
                self.note_full(false);
                Ok(true)
            }
            Err(error) if error.is_no_space() => {
                self.unsynced.store(true, SeqCst);
                self.disk_space.release_ballast();
                if engine_failed {
                    self.reopen_if_space()?;
                }
                Ok(false)
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Syncs the engine and releases the log before it.
    pub(super) fn checkpoint(&self) -> Result<(), Error> {
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
        if self.apply_logged()? {
            self.sync_engine(false, false)?;
        }
        Ok(())
    }

    /// A checkpoint that needs no space for a new segment, because no operation is in progress until all of the log is
    /// released. For a full disk, and for the end.
    pub(super) fn stop_the_world(&self, closing: bool) -> Result<(), Error> {
        self.check()?;
        let source = self.source();
        let mut writer = self.writer.lock();
        let line = self.barrier.write();
        let point = self.flush_point(source.as_deref());
        let released = self
            .write_out(&mut writer, Some(point))
            .and_then(|()| self.release_log(closing));
        if closing {
            self.closed.store(true, SeqCst);
        } else {
            // Done at once, before other programs take the released space.
            self.log.keep_for_removals();
        }
        drop((line, writer));
        released
    }

    /// Releases all of the log if the engine can take it.
    fn release_log(&self, last: bool) -> Result<(), Error> {
        if self.apply_logged()? && self.engine.is_persistent() {
            self.sync_engine(true, last)?;
        }
        Ok(())
    }

    /// Lets the engine free disk space after a checkpoint, and makes the ballast file when there is enough space. If a
    /// failure leaves the engine unusable, the next batch reports it.
    pub(super) fn make_space(&self) -> Result<(), Error> {
        if !self.is_full() {
            let reclaim = self.should_reclaim();
            // The deletions must be in the files that are rewritten.
            let least = if reclaim { 0 } else { RETURNABLE_LOW };
            if self.engine.files().returnable() > least {
                self.reopen_if_space()?;
            }
            if reclaim {
                self.reclaim()?;
            }
        }
        let needed = self.needed();
        self.disk_space.keep_ballast(needed);
        if let Ok(Some(left)) = self.disk_space.look(0, Purpose::Growth, || needed) {
            self.low.store(left < LOW, SeqCst);
        }
        Ok(())
    }

    fn should_reclaim(&self) -> bool {
        let since = *self.unreclaimed.lock();
        self.deleted.load(SeqCst) >= DELETED_MIN
            || since.is_some_and(|since| since.elapsed() >= FULL_PAUSE)
    }

    /// Lets the engine free the disk space of deleted entries.
    fn reclaim(&self) -> Result<(), Error> {
        let Ok(disk) = self.disk_space.disk() else {
            return Ok(());
        };
        self.deleted.store(0, SeqCst);
        let rewritten = self.engine.files().reclaim(disk.available);
        let failed = matches!(rewritten, Ok(Reclaim::NoSpace) | Err(_));
        *self.unreclaimed.lock() = failed.then(Instant::now);
        if matches!(rewritten, Ok(Reclaim::Done) | Err(_)) {
            // By now the replaced files are deleted.
            self.reopen_if_space()?;
        }
        if matches!(rewritten, Ok(Reclaim::Done)) && self.engine.files().changes_by_itself() {
            // Files of the copy that the last checkpoint relies on are deleted with the next checkpoint.
            self.unsynced.store(true, SeqCst);
            self.sync_engine(false, false)?;
        }
        Ok(())
    }
}
