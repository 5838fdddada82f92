//! The redo log on disk: one segment file that grows in steps, and a new one at each checkpoint.
//!
//! Space is reserved before it is used: [`Log::reserve`] succeeds only when the segment has space for everything that is
//! reserved and not yet written, so that an accepted change can always be logged. `reserved` is raised before `capacity` is
//! read, and `capacity` is lowered before `reserved` is read, each sequentially consistent: one of two racing threads sees
//! the other.
//!
//! A segment is used only after the store's header lists it with the length of its file, and removed only after the header
//! does not list it any more: a segment that is missing or shorter is damage. [`note`] records up to which transaction the
//! log is synced. A store can keep the segments that it does not need any more ([`kept`]).

pub mod author;
mod kept;
mod note;
mod recover;
mod segment_files;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use amino_schema::header::{Checkpoint, Kept, SegmentSize};
use amino_schema::log::{
    FRAME_ALIGN, FRAME_HEADER_LEN, FrameHeader, Frames, LOG_FORMAT, SEGMENT_HEADER_LEN,
    SegmentHeader,
};
use parking_lot::Mutex;

pub use kept::KeptLog;
use note::Note;
pub(crate) use note::read_synced;
pub(crate) use recover::{Recovered, recover};
use segment_files::segment_name;

use crate::Error;
use crate::dir::{HeaderFile, LOG};
use crate::host::{allocate, now_ns, sync_dir};
use crate::layers::Waiting;
use crate::space::Purpose;

/// Maximum number of bytes of a frame beside its changes.
pub(crate) const OVERHEAD: u64 = (FRAME_HEADER_LEN + FRAME_ALIGN) as u64;
const HEADER: u64 = SEGMENT_HEADER_LEN as u64;
/// Smallest step by which a segment grows when the host has no space for a whole one.
const SMALL_STEP: u64 = 64 << 10;

/// At most this many bytes are kept for removals: a few thousand of them.
const KEPT_MAX: u64 = 1 << 20;

struct Segment {
    file: Arc<File>,
    path: PathBuf,
    header: SegmentHeader,
    allocated: u64,
    position: u64,
    frames: Option<Kept>,
}

impl Segment {
    fn free(&self) -> u64 {
        (self.allocated - self.position).saturating_sub(OVERHEAD)
    }

    const fn listed(&self) -> SegmentSize {
        SegmentSize {
            number: self.header.number,
            bytes: self.allocated,
        }
    }

    fn former(&self) -> Former {
        Former {
            path: self.path.clone(),
            bytes: self.allocated,
            used: self.position,
            frames: self.frames,
        }
    }
}

/// A segment that is complete.
#[derive(Debug)]
pub(crate) struct Former {
    pub(crate) path: PathBuf,
    /// Length of its file.
    pub(crate) bytes: u64,
    /// The end of its last frame.
    pub(crate) used: u64,
    /// The transactions that it has.
    pub(crate) frames: Option<Kept>,
}

struct Space {
    current: Option<Segment>,
    /// Segments before the current one; released by the next checkpoint.
    old: Vec<Former>,
    last_number: u64,
}

impl Space {
    fn old_bytes(&self) -> u64 {
        self.old.iter().map(|segment| segment.bytes).sum()
    }

    fn allocated(&self) -> u64 {
        self.old_bytes() + self.current.as_ref().map_or(0, |segment| segment.allocated)
    }
}

/// The log, for writing. Only the thread that holds the writer lock appends, rotates and releases; any thread reserves.
pub(crate) struct Log {
    dir: PathBuf,
    store_id: [u8; 16],
    header: Arc<HeaderFile>,
    note: Note,
    step: u64,
    limit: u64,
    space: Mutex<Space>,
    reserved: AtomicU64,
    capacity: AtomicU64,
    appended_bytes: AtomicU64,
    syncs: AtomicU64,
    /// Nothing can be appended before the segments that recovery has read are released, because their frame numbers may be
    /// used again.
    frozen: AtomicBool,
    #[cfg(test)]
    pub(crate) fail_sync: std::sync::atomic::AtomicBool,
}

impl Former {
    /// A segment without frames.
    fn unused(path: PathBuf) -> Self {
        Self {
            path,
            bytes: 0,
            used: HEADER,
            frames: None,
        }
    }

    /// Renames a segment that is kept, and frees the disk space after its last frame. Both may happen later, or never: only
    /// the frames count.
    fn put_aside(&self) {
        let trimmed = OpenOptions::new().write(true).open(&self.path);
        let _ = trimmed.and_then(|file| file.set_len(self.used));
        let _ = kept::rename(&self.path);
    }
}

impl Log {
    /// The log of the store in a directory, after recovery; no file is made before the first reservation.
    pub(crate) fn new(
        store: &Path,
        header: Arc<HeaderFile>,
        step: u64,
        limit: u64,
        recovered: Recovered,
    ) -> Result<Self, Error> {
        let store_id = header.get().store_id;
        let space = Space {
            current: None,
            old: recovered.segments,
            last_number: recovered.last_number,
        };
        Ok(Self {
            note: Note::open(store, store_id)?,
            dir: store.join(LOG),
            store_id,
            header,
            step: step.max(SMALL_STEP),
            limit,
            space: Mutex::new(space),
            reserved: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
            appended_bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            frozen: AtomicBool::new(false),
            #[cfg(test)]
            fail_sync: std::sync::atomic::AtomicBool::new(false),
        })
    }

    /// Refuses everything until the segments that recovery has found are released.
    pub(crate) fn freeze(&self) {
        self.frozen.store(true, SeqCst);
    }

    /// Whether the log still refuses everything for that reason.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(SeqCst)
    }

    /// Reserves space for `bytes` of changes, or fails without effect. A change that needs space leaves some allocated space
    /// to removals.
    pub(crate) fn reserve(&self, bytes: u64, purpose: Purpose) -> Result<(), Error> {
        let kept = match purpose {
            Purpose::Growth => self.kept_for_removals(),
            Purpose::Removal => 0,
        };
        if self.reserve_allocated(bytes, kept) {
            return Ok(());
        }
        self.reserved.fetch_add(bytes, SeqCst);
        let mut space = self.space.lock();
        self.ensure_reserved_space(&mut space, kept)
            .inspect_err(|_| self.release(bytes))
    }

    /// Allocates the space that is kept for removals, if the disk has it.
    pub(crate) fn keep_for_removals(&self) {
        let mut space = self.space.lock();
        // Otherwise the next removal allocates space itself.
        let _ = self.ensure_reserved_space(&mut space, self.kept_for_removals());
    }

    /// Reserves space for `bytes` if the segment has that much allocated beside `kept`. Returns whether it had.
    pub(crate) fn reserve_allocated(&self, bytes: u64, kept: u64) -> bool {
        let reserved = self.reserved.fetch_add(bytes, SeqCst) + bytes;
        let fits = reserved.saturating_add(kept) <= self.capacity.load(SeqCst);
        if !fits {
            self.release(bytes);
        }
        fits
    }

    /// Bytes of allocated space that are kept for removals.
    fn kept_for_removals(&self) -> u64 {
        KEPT_MAX.min(self.step / 16).min(self.limit / 16)
    }

    /// Allocates space for all reservations and `kept` beside them, including reservations that other threads make meanwhile
    /// against the former capacity.
    fn ensure_reserved_space(&self, space: &mut Space, kept: u64) -> Result<(), Error> {
        loop {
            self.ensure_space(space, self.reserved().saturating_add(kept))?;
            if self.reserved() <= self.capacity.load(SeqCst) {
                return Ok(());
            }
        }
    }

    /// Bytes reserved and not yet released by an append.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(SeqCst)
    }

    /// Grows the current segment, or makes one, until it has space for a frame with `need` bytes of payload.
    fn ensure_space(&self, space: &mut Space, need: u64) -> Result<(), Error> {
        if self.frozen.load(SeqCst) {
            return Err(Error::NoSpace);
        }
        let allowed = self.limit.saturating_sub(space.old_bytes());
        if space.current.is_none() {
            let segment = self.create(space, need, allowed)?;
            space.current = Some(segment);
        }
        let Some(segment) = &mut space.current else {
            return Err(Error::NoSpace);
        };
        let target = segment.position + need + OVERHEAD;
        if target > segment.allocated {
            let (from, path) = (segment.allocated, &segment.path);
            let grown = self.grow(from, target, allowed, |to| {
                allocate(&segment.file, path, from, to)
            })?;
            segment.file.sync_all().map_err(Error::io("sync", path))?;
            let number = segment.header.number;
            self.list(SegmentSize {
                number,
                bytes: grown,
            })?;
            segment.allocated = grown;
        }
        self.capacity.store(segment.free(), SeqCst);
        Ok(())
    }

    /// Adds a segment, whose file is on disk, to the header's list. NoSpace has no effect.
    fn list(&self, listed: SegmentSize) -> Result<(), Error> {
        let listing = self.header.update(|header| {
            let segments = &mut header.segments;
            segments.retain(|segment| segment.number != listed.number);
            segments.push(listed);
        });
        listing.map_err(|error| match error.is_no_space() {
            true => Error::NoSpace,
            false => error,
        })
    }

    /// Allocates up to `target` at least: by a whole step if the disk has the space, otherwise only as much as needed.
    fn grow(
        &self,
        from: u64,
        target: u64,
        allowed: u64,
        mut allocate: impl FnMut(u64) -> Result<(), Error>,
    ) -> Result<u64, Error> {
        let mut result = Err(Error::NoSpace);
        for step in [self.step, SMALL_STEP] {
            let to = from.saturating_add((target - from).next_multiple_of(step));
            if to <= allowed {
                result = allocate(to).map(|()| to);
                if !matches!(result, Err(Error::NoSpace)) {
                    break;
                }
            }
        }
        result
    }

    fn create(&self, space: &mut Space, need: u64, allowed: u64) -> Result<Segment, Error> {
        let now = now_ns();
        let number = space.last_number + 1;
        let path = self.dir.join(segment_name(number));
        let header = SegmentHeader {
            store_id: self.store_id,
            number,
            created_ns: now,
            format: LOG_FORMAT,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(Error::io("create", &path))?;
        let prepare = || {
            let allocated = self.grow(0, HEADER + need + OVERHEAD, allowed, |to| {
                allocate(&file, &path, 0, to)
            })?;
            file.write_all_at(&header.encode(), 0)
                .map_err(Error::io("write", &path))?;
            file.sync_all().map_err(Error::io("sync", &path))?;
            sync_dir(&self.dir)?;
            Ok::<u64, Error>(allocated)
        };
        match prepare() {
            Ok(allocated) => {
                // Even if the header cannot be written, it may list this one.
                space.last_number = number;
                let segment = Segment {
                    file: Arc::new(file),
                    path,
                    header,
                    allocated,
                    position: HEADER,
                    frames: None,
                };
                self.list(segment.listed())?;
                Ok(segment)
            }
            Err(error) => {
                // A file without a frame means nothing, even if it cannot be removed.
                let _ = fs::remove_file(&path);
                Err(if error.is_no_space() {
                    Error::NoSpace
                } else {
                    error
                })
            }
        }
    }

    /// Appends a frame for each of `layers`, by one write, and releases their reservations. The frames' headers are
    /// `headers`; their numbers are consecutive.
    pub(crate) fn append(
        &self,
        layers: &[Waiting],
        headers: &[FrameHeader],
        reserved: u64,
        frames: &mut Frames,
    ) -> Result<(), Error> {
        frames.clear();
        let sizes = layers.iter().map(|layer| layer.changes.byte_size());
        frames.reserve(sizes.sum::<usize>() + layers.len() * OVERHEAD as usize);
        for layer in layers {
            frames.begin();
            for (key, value) in layer.changes.iter() {
                frames.put_change(key, value.map(|value| &value[..]));
            }
            frames.end();
        }
        let len = frames.len() as u64;
        let (file, path, segment, position) = {
            let mut space = self.space.lock();
            self.ensure_space(&mut space, len.saturating_sub(OVERHEAD))?;
            let Some(segment) = &space.current else {
                return Err(Error::NoSpace);
            };
            (
                segment.file.clone(),
                segment.path.clone(),
                segment.header,
                segment.position,
            )
        };
        let raw = frames.seal(&segment, headers.iter().copied());
        file.write_all_at(raw, position)
            .map_err(Error::io("append to", &path))?;
        self.appended_bytes.fetch_add(len, SeqCst);
        let mut space = self.space.lock();
        if let Some(segment) = &mut space.current {
            segment.position = position + len;
            for header in headers {
                let first = segment.frames.map_or(header.seq, |frames| frames.first);
                let last = header.seq;
                segment.frames = Some(Kept { first, last });
            }
            self.capacity.store(segment.free(), SeqCst);
        }
        self.release(reserved);
        Ok(())
    }

    /// Releases reservations that no frame needed, or whose frame is written.
    pub(crate) fn release(&self, reserved: u64) {
        // Saturating, so that a reservation made outside an operation cannot turn into a full log.
        let _ = self
            .reserved
            .fetch_update(SeqCst, SeqCst, |all| Some(all.saturating_sub(reserved)));
    }

    /// Returns when every appended frame is on disk. After a failure their state is unknown.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let (file, path) = match &self.space.lock().current {
            Some(segment) => (segment.file.clone(), segment.path.clone()),
            None => return Ok(()),
        };
        self.syncs.fetch_add(1, SeqCst);
        #[cfg(test)]
        if self.fail_sync.load(SeqCst) {
            return Err(Error::io("sync", &path)(nix::errno::Errno::EIO.into()));
        }
        file.sync_data().map_err(Error::io("sync", &path))
    }

    /// Starts a new segment, so that all before it can be released when the engine is synced. The caller has synced
    /// the log. Without space for it the current segment stays in use.
    pub(crate) fn rotate(&self) -> Result<(), Error> {
        let mut space = self.space.lock();
        let Some(former) = space.current.take() else {
            return Ok(());
        };
        if former.position == HEADER {
            space.current = Some(former);
            return Ok(());
        }
        space.old.push(former.former());
        let made = self.ensure_reserved_space(&mut space, self.kept_for_removals());
        if made.is_err() {
            // The header may list it, so its file stays until a checkpoint.
            let unused = space.current.take();
            space.old.pop();
            space.old.extend(unused.map(|segment| segment.former()));
            self.capacity.store(former.free(), SeqCst);
            space.current = Some(former);
        }
        made
    }

    /// Notes that every frame up to `seq` is on disk.
    pub(crate) fn note_synced(&self, seq: u64) {
        self.note.write(seq);
    }

    /// Syncs that note. After a power cut it distinguishes damage of the log from a torn tail.
    pub(crate) fn sync_note(&self) {
        self.note.sync();
    }

    /// Writes a new checkpoint of the engine to the header, and deletes or keeps the segments that are not needed any more:
    /// all before the current one, since the engine has their frames. With `all`, the current one, too; then there must be
    /// no reservations, and none meanwhile.
    pub(crate) fn release_segments(
        &self,
        all: bool,
        checkpoint: Option<Checkpoint>,
    ) -> Result<(), Error> {
        let mut space = self.space.lock();
        let current = space.current.as_ref();
        let listed = current.filter(|_| !all).map(Segment::listed);
        let used = current.filter(|_| all).and_then(|segment| segment.frames);
        let frames = space.old.iter().filter_map(|segment| segment.frames);
        let frames: Vec<_> = frames.chain(used).collect();
        let mut keep = false;
        self.header.update(|header| {
            header.segments = listed.into_iter().collect();
            header.checkpoint = checkpoint.or(header.checkpoint.take());
            keep = header.keep_log;
            if keep {
                kept::extend(&mut header.kept, &frames);
            }
        })?;
        let mut released = std::mem::take(&mut space.old);
        if all {
            self.capacity.store(0, SeqCst);
            released.extend(space.current.take().map(|segment| segment.former()));
        }
        drop(space);
        for segment in released {
            if keep && segment.frames.is_some() {
                segment.put_aside();
            } else {
                kept::remove(&segment.path)?;
            }
        }
        self.frozen.store(false, SeqCst);
        // The directory is not synced: if a segment exists again after a power cut, the header does not list it, and it has
        // no new frames.
        Ok(())
    }

    /// Sets whether segments are kept.
    pub(crate) fn set_keep(&self, keep: bool) -> Result<(), Error> {
        self.header.update(|header| header.keep_log = keep)
    }

    /// The content of the kept segments; with `payloads` everything in them is read.
    pub(crate) fn kept(&self, payloads: bool) -> Result<KeptLog, Error> {
        // While the lock is held, no segment is released.
        let _space = self.space.lock();
        kept::read(&self.dir, &self.header.get(), payloads)
    }

    /// Bytes of frames since the log was last released.
    pub(crate) fn used_bytes(&self) -> u64 {
        let space = self.space.lock();
        space.old_bytes()
            + space
                .current
                .as_ref()
                .map_or(0, |segment| segment.position - HEADER)
    }

    /// Bytes of host files.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        self.space.lock().allocated()
    }

    /// Bytes appended since the store was opened.
    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes.load(SeqCst)
    }

    /// Number of fdatasync(2) calls since the store was opened.
    pub(crate) fn syncs(&self) -> u64 {
        self.syncs.load(SeqCst)
    }
}
