//! Calls that are recorded inside the program: most calls of a traced command then need no stop.
//!
//! A process that makes many calls gets the recorder (`goanna_sys::recorder`). Its sites of libc and the loader jump to it one by one, as they are used. It records calls
//! in a ring, and the tracer's filter lets it make them. Everything else stops as before, and a stop is also the time at which records are taken: a full ring leaves its next
//! call to a stop. See docs/decisions/0136.
//!
//! * `shapes` says which calls are recorded, and `call` makes events from records.
//! * `process` has what is known of one process, and `start` gives processes recorders.
//! * `records` takes records from rings. `reporter` is a thread that makes events from them, and `order` sorts these and the events of stops by time.
//! * `ticker` makes the tracer look into the rings while no thread stops.
//! * `leave` takes a thread out of the recorder before a signal's handler runs.

mod call;
mod leave;
mod order;
mod process;
mod records;
pub mod reporter;
mod shapes;
mod start;
mod ticker;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use goanna_callsites::library::content;
use goanna_callsites::{Library, Placed};
use goanna_sys::mappings::{self, Mapping};
use goanna_sys::recorder::{self, CODE, SHAPES};

use super::Recorded;
use crate::capture::Wanted;
use process::{Process, Recorder};
use reporter::{Message, Reporter};
use ticker::Ticker;

/// Starts the thread that reports events.
pub type StartReporter<'a> = Box<dyn Fn() -> Option<Reporter<'a>> + 'a>;

/// Stopped calls of a process that could be recorded, before it gets a recorder: that takes as long as a few of them.
const CALLS_BEFORE: u32 = 16;
/// Such calls of all processes before a library is analysed, which takes 2 to 3 ms.
const CALLS_OF_RUN_BEFORE: u32 = 256;
/// Most files with code that are known.
const LIBRARIES_MAX: usize = 64;

/// The recorders of all processes.
pub struct Rings<'a> {
    /// The address of the recorder in each process.
    base: u64,
    shapes: [u16; SHAPES],
    /// The offset of clock_gettime in the vDSO.
    clock: Option<u64>,
    calls_before: u32,
    calls_of_run_before: u32,
    calls: u32,
    libraries: HashMap<(u64, u64), Option<Arc<Library>>>,
    processes: HashMap<i32, Process>,
    start_reporter: StartReporter<'a>,
    /// Once something is recorded. From then on, it reports all events.
    reporter: Option<Reporter<'a>>,
    ticker: Option<Ticker>,
    /// What was not sent to it yet, how many bytes of records that has, and when something was sent last.
    unsent: Vec<Message>,
    unsent_bytes: usize,
    sent_ns: u64,
}

impl<'a> Rings<'a> {
    /// For a command whose calls `wanted` selects. `None` if no call would be recorded.
    pub fn new(
        wanted: &Wanted,
        recorded: Recorded,
        start_reporter: StartReporter<'a>,
    ) -> Option<Self> {
        let (calls_before, calls_of_run_before) = match recorded {
            Recorded::Never => return None,
            Recorded::Often => (CALLS_BEFORE, CALLS_OF_RUN_BEFORE),
            Recorded::AtOnce => (1, 0),
        };
        let shapes = shapes::shapes(wanted);
        let is_useful = shapes.iter().any(|shape| *shape != 0) && !wanted.wants_pages();
        is_useful.then(|| Self {
            base: random_base(),
            shapes,
            clock: recorder::clock_in_vdso(),
            calls_before,
            calls_of_run_before,
            calls: 0,
            libraries: HashMap::new(),
            processes: HashMap::new(),
            start_reporter,
            reporter: None,
            ticker: None,
            unsent: Vec::new(),
            unsent_bytes: 0,
            sent_ns: 0,
        })
    }

    /// The addresses from which the recorder makes calls.
    pub fn code(&self) -> Range<u64> {
        self.base..self.base + CODE as u64
    }

    fn shape(&self, nr: u32) -> u16 {
        self.shapes.get(nr as usize).copied().unwrap_or(0)
    }

    fn is_recording(&self, pid: i32) -> bool {
        matches!(self.processes.get(&pid), Some(Process::Recording(_)))
    }

    fn recorder(&mut self, pid: i32) -> Option<&mut Recorder> {
        match self.processes.get_mut(&pid) {
            Some(Process::Recording(recorder)) => Some(recorder),
            _ => None,
        }
    }

    /// Whether the ticker interrupts the waits of the tracing thread.
    pub(super) fn is_ticking(&self) -> bool {
        self.ticker.is_some()
    }

    /// Whether the sink has refused an event.
    pub(super) fn has_failed(&self) -> bool {
        self.reporter.as_ref().is_some_and(Reporter::has_failed)
    }

    /// The library around the instruction before `ip` in the process of `tid`.
    fn library_around(&mut self, tid: i32, ip: u64) -> Option<&mut Placed> {
        let recorder = self.recorder(tid)?;
        let has = |placed: &Placed| placed.code().contains(&ip);
        let known = recorder.libraries.iter().position(has);
        if known.is_none() {
            if recorder.without_sites.iter().any(|code| code.contains(&ip)) {
                return None;
            }
            let mapping = mappings::of_range(tid, ip - 1, ip).ok()?;
            let mapping = mapping.into_iter().next()?;
            let library = self.library(tid, &mapping);
            let placed = library.and_then(|library| process::placed(library, &mapping));
            let recorder = self.recorder(tid)?;
            match placed {
                Some(placed) => recorder.libraries.push(placed),
                None => {
                    recorder.note_without_sites(mapping.start..mapping.end);
                    return None;
                }
            }
        }
        let libraries = &mut self.recorder(tid)?.libraries;
        let index = known.or(libraries.len().checked_sub(1))?;
        libraries.get_mut(index)
    }

    /// What is known of the library that `tid` maps there, if it has calls that can be recorded.
    fn library(&mut self, tid: i32, mapping: &Mapping) -> Option<Arc<Library>> {
        let key = (mapping.dev, mapping.ino);
        if let Some(known) = self.libraries.get(&key) {
            return known.clone();
        }
        if self.libraries.len() >= LIBRARIES_MAX {
            return None;
        }
        let path = mappings::path_at(tid, mapping.start).ok()?;
        let content = content(Path::new(OsStr::from_bytes(&path)), Some(key)).ok();
        let shapes = self.shapes;
        let wanted = move |nr: u32| shapes.get(nr as usize).is_some_and(|shape| *shape != 0);
        let library = content.and_then(|content| process::analyse(&content, &wanted));
        let library = library.map(Arc::new);
        self.libraries.insert(key, library.clone());
        library
    }
}

/// An address in the middle of the address space, where neither the kernel nor the allocators of usual run-time systems map anything.
fn random_base() -> u64 {
    let mut random = [0; 4];
    // Without randomness the address is known beforehand, which helps only a program that wants to hide its own calls.
    let _ = getrandom::fill(&mut random);
    let [high, rest @ ..] = random;
    let [a, b, c] = rest;
    let low = u64::from(u32::from_le_bytes([0, a, b, c]) & 0x7fff_f000);
    (0x2000_u64 + u64::from(high)) << 32 | low
}
