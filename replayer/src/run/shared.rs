//! The state that the lanes of a replay share.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use amino_schema::replay::{Command, Place, Target};
use goanna_sys::escape::escape;
use goanna_sys::procfs;
use goanna_sys::replay::{Mapping, View};
use parking_lot::{Mutex, RwLock};

use super::only::Only;
use super::options::Options;
use super::progress::Progress;
use super::report::Differences;
use crate::Error;
use crate::stored::{Stored, wrong};

/// The state that the lanes share.
#[derive(Debug)]
pub struct Shared {
    pub options: Options,
    /// The commands that are performed; all of them without it.
    pub only: Option<Only>,
    pub stored: Stored,
    /// Commands and buffers.
    pub view: View,
    /// The resource table: descriptors by slot, -1 where there is none.
    pub slots: Vec<AtomicI32>,
    /// Where the descriptors were opened, for reports.
    pub names: Vec<Mutex<Option<Place>>>,
    pub mappings: Vec<RwLock<Option<Mapping>>>,
    pub lanes: Vec<Progress>,
    pub root: i32,
    /// Handles of directories that a lane may keep.
    pub handles: usize,
    pub may_chown: bool,
    /// A tracer sees the calls of the replay.
    pub is_watched: bool,
    /// When the first command is due, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    pub stop: AtomicBool,
    pub differences: Mutex<Differences>,
    failure: Mutex<Option<Error>>,
    touched: AtomicU64,
    /// Bytes that long reads of all lanes may still take.
    pub spare: AtomicUsize,
    /// Content of writes whose content is not known.
    pub generated: Vec<u8>,
    /// `/dev/null`, to which the kernel sends the data of long reads without a copy. `None` if a tracer must see the reads.
    pub sink: Option<File>,
}

/// Bytes of files that may be in memory at the same time.
const HORIZON: u64 = 24 << 20;
/// Bytes of the compiled file that are used between two looks at the memory.
const LOOK_AFTER: u64 = 1 << 20;
/// Bytes of memory that reads of all lanes take at the same time, beside the lanes' own buffers.
pub const LONG_READS: usize = 16 << 20;
/// Each use takes a page at least.
const PAGE: u64 = 4096;
/// Bytes of generated content. A write of the maximum length needs at most as many pieces of it as a call may have
/// (`IOV_MAX`).
const GENERATED: usize = 2 << 20;

impl Shared {
    pub fn new(
        options: Options,
        stored: Stored,
        view: View,
        root: i32,
        handles: usize,
        only: Option<Only>,
    ) -> Self {
        let slots = stored.index.slots as usize;
        let mappings = stored.index.mappings as usize;
        let lanes = stored.index.lanes.len();
        let is_watched = is_watched();
        let sink = File::options().write(true).open("/dev/null").ok();
        Self {
            slots: (0..slots).map(|_| AtomicI32::new(-1)).collect(),
            names: (0..slots).map(|_| Mutex::default()).collect(),
            mappings: (0..mappings).map(|_| RwLock::default()).collect(),
            lanes: (0..lanes).map(|_| Progress::default()).collect(),
            options,
            only,
            stored,
            view,
            root,
            handles,
            is_watched,
            sink: sink.filter(|_| !is_watched),
            may_chown: goanna_sys::cred::own_ids().uid == 0,
            start_ns: goanna_sys::clock::monotonic_ns(),
            stop: AtomicBool::new(false),
            differences: Mutex::default(),
            failure: Mutex::default(),
            touched: AtomicU64::new(0),
            spare: AtomicUsize::new(LONG_READS),
            generated: generated(GENERATED),
        }
    }

    /// Stops the replay.
    pub fn fail(&self, error: Error) {
        self.failure.lock().get_or_insert(error);
        self.stop.store(true, Ordering::Release);
    }

    /// Why the replay was stopped, if it was.
    pub fn failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Bytes of the compiled file. Those used before go back to the page cache when they have become too many.
    pub fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let before = self
            .touched
            .fetch_add(length as u64 + PAGE, Ordering::Relaxed);
        if before >= LOOK_AFTER {
            self.touched.store(0, Ordering::Relaxed);
            // The kernel maps more than the pages that are used.
            if procfs::own_file_memory().map_or(true, |bytes| bytes >= HORIZON) {
                self.view.release();
            }
        }
        self.view.bytes(offset, length)
    }

    /// A buffer of the compiled file, whose checksum is right.
    pub fn buffer(&self, (offset, length, sum): (u64, u32, u32)) -> Result<&[u8], Error> {
        let end = offset.checked_add(length.into());
        let inside = end.is_some_and(|end| end <= self.stored.end);
        let bytes = self.bytes(offset, length as usize).filter(|_| inside);
        let Some(bytes) = bytes else {
            return Err(self.damaged("a buffer extends beyond the start of the index"));
        };
        if crc32c::crc32c(bytes) != sum {
            return Err(self.damaged("the checksum of a buffer does not match"));
        }
        Ok(bytes)
    }

    pub fn damaged(&self, why: &'static str) -> Error {
        self.stored.damaged(wrong(why))
    }

    /// Refuses a command that refers to a slot, directory or lane that does not exist.
    pub fn check(&self, command: &Command) -> Result<(), Error> {
        let known = |number: u32, length: usize| (number as usize) < length;
        let slot = |slot: u32| known(slot, self.slots.len());
        for target in &command.targets {
            match target {
                Target::Slot(number) if !slot(*number) => return Err(self.unknown_slot()),
                Target::Place(place)
                    if !known(place.directory, self.stored.index.directories.len()) =>
                {
                    return Err(self.damaged("a command names a directory that does not exist"));
                }
                Target::Slot(_) | Target::Place(_) => {}
            }
        }
        if command.result.is_some_and(|number| !slot(number)) {
            return Err(self.unknown_slot());
        }
        let mut waits = command.waits.iter();
        if !waits.all(|wait| known(wait.lane, self.lanes.len())) {
            return Err(self.damaged("a command waits for a lane that does not exist"));
        }
        Ok(())
    }

    fn unknown_slot(&self) -> Error {
        self.damaged("a command names a slot that does not exist")
    }

    /// The descriptor in a slot; -1 where there is none.
    pub fn descriptor(&self, slot: u32) -> i32 {
        let slot = self.slots.get(slot as usize);
        slot.map_or(-1, |slot| slot.load(Ordering::Acquire))
    }

    /// Puts a descriptor into a slot, and returns the former one.
    pub fn hold(&self, slot: u32, descriptor: i32) -> i32 {
        let slot = self.slots.get(slot as usize);
        slot.map_or(-1, |slot| slot.swap(descriptor, Ordering::AcqRel))
    }

    /// The path of a file, for reports.
    pub fn path(&self, target: &Target) -> String {
        let place = match target {
            Target::Place(place) => Some(place.clone()),
            Target::Slot(slot) => {
                let name = self.names.get(*slot as usize);
                name.and_then(|name| name.lock().clone())
            }
        };
        let Some(place) = place else {
            return "?".into();
        };
        let directory = self.stored.index.directories.get(place.directory as usize);
        let directory = directory.map(Vec::as_slice).unwrap_or_default();
        let name = escape(&place.name);
        match directory {
            b"" => name,
            directory => format!("{}/{name}", escape(directory)),
        }
    }
}

/// Whether another process traces this one.
fn is_watched() -> bool {
    let status = procfs::status(std::process::id().cast_signed());
    status.is_ok_and(|status| status.tracer != 0)
}

/// Pseudorandom bytes, which do not compress; the same in each run.
fn generated(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(length);
    while out.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(length);
    out
}
