//! The options and the properties of a store, and the interface of the component that keeps dirty data above it.

use std::path::PathBuf;
use std::time::Duration;

use crate::Changes;
use crate::engine::EngineKind;

/// The options for opening a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The engine of a new store; an existing store must have been created with it.
    pub engine: EngineKind,
    /// Whether to make a store in a directory that is empty or does not exist.
    pub create: bool,
    /// Maximum time that a change stays in memory only.
    pub flush_interval: Duration,
    /// Bytes of changes not yet in the engine from which on [`crate::Store::throttle`] waits.
    pub max_pending_bytes: usize,
    /// The log's file grows by this many bytes.
    pub log_segment_bytes: u64,
    /// The log takes at most this many bytes of the host's disk.
    pub log_limit_bytes: u64,
    /// A checkpoint releases the log when it is longer than this.
    pub checkpoint_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            engine: EngineKind::Fjall,
            create: false,
            flush_interval: Duration::from_millis(500),
            max_pending_bytes: 64 << 20,
            log_segment_bytes: 32 << 20,
            log_limit_bytes: u64::MAX,
            checkpoint_bytes: 128 << 20,
        }
    }
}

/// A component that keeps changes in memory in a form of its own, such as pages written by programs.
pub trait DirtySource: Send + Sync {
    /// Prepares a flush point. All operations wait while [`DirtySource::collect`] runs, so submit as many changes as
    /// possible now. The caller holds only the writer lock, so this method may begin operations and submit changes; it must
    /// not wait for the committer.
    fn prepare(&self) {}

    /// Moves all changes to `out`. No operation is in progress, so they are the state between two operations. Each change
    /// must have been [reserved](crate::Store::reserve) when it was made. This method must not call the store. Changes that
    /// cannot be handed over now continue to count in `dirty_bytes`, and as much of the reservations stays.
    fn collect(&self, out: &mut Changes);

    /// Approximate number of bytes of changes that the source keeps. Called often.
    fn dirty_bytes(&self) -> usize;
}

/// Counters since the store was opened, and the bytes pending now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls of `submit` that changed something.
    pub submits: u64,
    /// Frames appended to the log: one for each explicit transaction, and for the single operations between two.
    pub frames: u64,
    /// Bytes appended to the log.
    pub log_bytes: u64,
    /// Calls of `sync`.
    pub syncs: u64,
    /// Calls of fdatasync(2) on the log.
    pub fdatasyncs: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Frames replayed when the store was opened.
    pub replayed: u64,
    /// Bytes of changes that are not yet in the engine, without those of the dirty source.
    pub pending_bytes: u64,
}

impl Stats {
    /// The counts since `earlier`, and the bytes pending now.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            submits: self.submits - earlier.submits,
            frames: self.frames - earlier.frames,
            log_bytes: self.log_bytes - earlier.log_bytes,
            syncs: self.syncs - earlier.syncs,
            fdatasyncs: self.fdatasyncs - earlier.fdatasyncs,
            checkpoints: self.checkpoints - earlier.checkpoints,
            replayed: self.replayed,
            pending_bytes: self.pending_bytes,
        }
    }
}

/// The properties of a store, and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Info {
    /// Its directory.
    pub path: PathBuf,
    /// Its engine.
    pub engine: EngineKind,
    /// Its random id.
    pub store_id: [u8; 16],
    /// Whether this process created it just now.
    pub created: bool,
    /// Sequence number of the last frame appended to the log.
    pub appended_seq: u64,
    /// Sequence number up to which frames are known to be on disk.
    pub durable_seq: u64,
    /// Sequence number that the engine has reached.
    pub applied_seq: u64,
    /// Bytes of the log's files.
    pub log_bytes_on_disk: u64,
    /// Bytes of the engine's files.
    pub engine_bytes_on_disk: u64,
}
