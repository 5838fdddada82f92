//! Flush points: seals the changes before a flush point, and appends them to the log.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_schema::log::{Author, FrameHeader};

use super::{Shared, Writer};
use crate::host::now_ns;
use crate::layers::Origin;
use crate::log::OVERHEAD;
use crate::options::DirtySource;
use crate::snapshot::Snapshot;
use crate::space::Purpose;
use crate::{Changes, Error};

/// When more layers than this wait for the log, the thread that has made the last one writes them: each layer costs readers
/// a look-up.
const WAITING_MAX: usize = 4;

impl Shared {
    /// Appends everything submitted and dirty to the log; when `durable`, returns when it is on disk.
    pub(super) fn commit(
        &self,
        writer: &mut Writer,
        source: Option<&dyn DirtySource>,
        durable: bool,
    ) -> Result<(), Error> {
        self.check()?;
        if let Some(source) = source {
            source.prepare();
        }
        let barrier = self.barrier.write();
        let point = self.flush_point(source);
        drop(barrier);
        self.write_out(writer, durable.then_some(point))
    }

    /// The state at a flush point chosen now, before which everything is appended to the log as by a commit.
    pub(crate) fn snapshot(self: &Arc<Self>) -> Result<Snapshot, Error> {
        self.check()?;
        let source = self.source();
        let mut writer = self.writer.lock();
        if let Some(source) = &source {
            source.prepare();
        }
        let barrier = self.barrier.write();
        self.flush_point(source.as_deref());
        // Taken together: a layer is in the one or in the other.
        let layers = self.layers.read();
        let engine = self.engine.snapshot();
        let snapshot =
            engine.map(|engine| Snapshot::new(layers.frozen(), engine, Arc::clone(self)));
        drop((layers, barrier));
        self.write_out(&mut writer, None)?;
        drop(writer);
        snapshot
    }

    /// Seals the changes before a transaction, and reserves log space for their frame and that of the transaction. The
    /// caller holds the barrier exclusively. A failure has no effect.
    pub(crate) fn begin_transaction(&self, source: Option<&dyn DirtySource>) -> Result<(), Error> {
        self.check()?;
        self.reserve(OVERHEAD as usize, Purpose::Removal)?;
        self.flush_point(source);
        self.reserve(OVERHEAD as usize, Purpose::Removal)
    }

    /// Seals the changes of a transaction since [`Shared::begin_transaction`]: they become a frame of their own.
    pub(crate) fn end_transaction(
        &self,
        source: Option<&dyn DirtySource>,
        by: Option<(Author, bool)>,
    ) {
        self.seal(source, by, true);
    }

    /// Appends the layers that wait for the log if they are many.
    pub(crate) fn write_waiting(&self) {
        if self.layers.read().waiting_reserved().0 > WAITING_MAX {
            // A failure stops the store; every caller gets the error from then on.
            let _ = self.write_out(&mut self.writer.lock(), None);
        }
    }

    /// Chooses a flush point, seals the single operations before it, and returns the point's number. The caller holds the
    /// barrier exclusively.
    pub(super) fn flush_point(&self, source: Option<&dyn DirtySource>) -> u64 {
        self.seal(source, self.authors.take(), false)
    }

    fn seal(
        &self,
        source: Option<&dyn DirtySource>,
        by: Option<(Author, bool)>,
        transaction: bool,
    ) -> u64 {
        let number = self.flush_points.fetch_add(1, SeqCst) + 1;
        let mut dirty = Changes::new();
        let mut kept = 0;
        if let Some(source) = source {
            source.collect(&mut dirty);
            kept = source.dirty_bytes() as u64;
        }
        self.kick_sent.store(false, SeqCst);
        let mut layers = self.layers.write();
        let (_, waiting) = layers.waiting_reserved();
        let reserved = self.log.reserved().saturating_sub(kept);
        let reserved = reserved.saturating_sub(waiting);
        let (author, others) = by.unwrap_or((self.owner, false));
        let origin = Origin {
            author,
            others,
            transaction,
            time_ns: now_ns(),
        };
        if !layers.seal(dirty, origin, reserved) {
            self.log.release(reserved);
        }
        self.note_pending(&layers);
        number
    }

    /// Appends the layers that wait for the log. `durable` is the number of a flush point: with it, returns when all changes
    /// before that point are on disk.
    pub(super) fn write_out(&self, writer: &mut Writer, durable: Option<u64>) -> Result<(), Error> {
        let fail = |error: Error| self.fail(&error);
        let (waiting, reserved) = {
            let layers = self.layers.read();
            (layers.waiting(), layers.waiting_reserved().1)
        };
        let first = writer.seq + 1;
        let headers: Vec<_> = (first..)
            .zip(&waiting)
            .map(|(seq, layer)| FrameHeader {
                payload_len: 0,
                seq,
                parent: seq - 1,
                durable: writer.durable,
                time_ns: layer.origin.time_ns,
                author: layer.origin.author,
                others: layer.origin.others,
                transaction: layer.origin.transaction,
                changes: u32::try_from(layer.changes.len()).unwrap_or(u32::MAX),
            })
            .collect();
        let count = headers.len() as u64;
        if count > 0 {
            self.log
                .append(&waiting, &headers, reserved, &mut writer.frames)
                .map_err(fail)?;
            writer.seq += count;
            self.appended_seq.store(writer.seq, SeqCst);
            self.counters.frames.fetch_add(count, SeqCst);
        }
        drop(waiting);
        if let Some(number) = durable {
            self.make_durable(writer).map_err(fail)?;
            self.durable_flush_point.store(number, SeqCst);
        }
        if count > 0 {
            let mut layers = self.layers.write();
            layers.logged(first..first + count);
            self.note_pending(&layers);
            drop(layers);
            self.wake_committer();
        }
        Ok(())
    }

    pub(super) fn make_durable(&self, writer: &mut Writer) -> Result<(), Error> {
        if writer.durable < writer.seq {
            self.log.sync()?;
            self.log.note_synced(writer.seq);
            writer.durable = writer.seq;
            self.durable_seq.store(writer.seq, SeqCst);
        }
        Ok(())
    }
}
