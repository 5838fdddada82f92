//! Replays a compiled trace below a directory.
//!
//! Each lane is a thread (`lane.rs`). It waits for other lanes (`progress.rs`) and for the time (`pace.rs`), performs its commands
//! (`perform.rs`, with `places.rs` for paths) and checks the results (`verify.rs`). `shared.rs` has the state that lanes share,
//! `only/` finds the part that a filter selects.

mod cached;
mod lane;
mod only;
mod options;
mod pace;
mod perform;
mod places;
mod progress;
mod report;
mod shared;
mod verify;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use amino_schema::replay::Call;
use goanna_sys::clock::monotonic_ns;
use goanna_sys::limits;
use goanna_sys::replay::View;

pub use options::{Options, Reads, Speed, Until, Verify};
pub use report::{Accuracy, Difference, Differences, Report, Second, svg};

use crate::Error;
use crate::prepare::missing;
use crate::stored::Stored;
use lane::Done;
use only::Only;
use shared::Shared;

/// Bytes of a lane's stack.
const STACK: usize = 512 << 10;
/// Maximum number of handles of directories that a lane keeps.
const HANDLES: u64 = 32;

/// Replays the compiled file at `path`.
pub fn run(path: &Path, options: Options) -> Result<Report, Error> {
    let stored = Stored::open(path)?;
    let root = File::open(&options.root).map_err(|why| Error::file(&options.root, why))?;
    let missing = missing(&stored.index, root.as_raw_fd())?;
    if !missing.is_empty() {
        return Err(Error::Missing { missing });
    }
    let limit = limits::raise_nofile().map_err(|why| Error::System {
        what: "the limit of descriptors",
        why,
    })?;
    limits::block_xfsz();
    let filter = options.only.as_deref();
    let only = filter.map(|filter| Only::of(&stored, filter)).transpose()?;
    let lanes = stored.index.lanes.len();
    let spare = limit.saturating_sub(stored.index.slots.into()) / (lanes as u64 + 1);
    let handles = spare.clamp(1, HANDLES) as usize;
    let length = usize::try_from(stored.end).unwrap_or(usize::MAX);
    let view = View::new(stored.file().as_fd(), length).map_err(|why| Error::System {
        what: "mapping the compiled replay",
        why,
    })?;
    let original_ns = stored.index.times.1.saturating_sub(stored.index.times.0);
    let shared = Shared::new(options, stored, view, root.as_raw_fd(), handles, only);
    let shared = Arc::new(shared);
    let mut report = Report {
        lanes,
        original_ns,
        is_verified: shared.options.verify != Verify::Off,
        selected: shared.only.as_ref().map(|only| only.selected),
        ..Report::default()
    };
    let done = perform(&shared)?;
    report.elapsed_ns = monotonic_ns().saturating_sub(shared.start_ns);
    let is_paced = matches!(shared.options.speed, Speed::Factor(_));
    let mut accuracy = Accuracy::default();
    for lane in done {
        report.commands += lane.commands;
        report.left_out += lane.left_out;
        report.skipped_reads += lane.skipped_reads;
        report.skipped_owners += lane.skipped_owners;
        report.uncompared += lane.uncompared;
        for (call, number) in Call::ALL.iter().zip(lane.by_call) {
            if number > 0 {
                *report.by_call.entry(call.name()).or_default() += number;
            }
        }
        accuracy.merge(&lane.accuracy);
    }
    report.accuracy = is_paced.then_some(accuracy);
    if let Some(error) = shared.failure() {
        return Err(error);
    }
    report.is_stopped = shared.is_stopped();
    report.differences = std::mem::take(&mut *shared.differences.lock());
    Ok(report)
}

/// Performs all lanes, each in a thread.
fn perform(shared: &Arc<Shared>) -> Result<Vec<Done>, Error> {
    let mut threads = Vec::new();
    for number in 0..shared.lanes.len() as u32 {
        let own = Arc::clone(shared);
        let builder = thread::Builder::new().stack_size(STACK);
        match builder.spawn(move || lane::run(&own, number)) {
            Ok(thread) => threads.push(thread),
            Err(_) => {
                shared.fail(Error::System {
                    what: "starting a thread for each lane",
                    why: goanna_sys::Errno::EAGAIN,
                });
                // Lanes that wait for lanes which were not started continue, and see that the replay has stopped.
                for lane in shared.lanes.iter().skip(number as usize) {
                    lane.advance(u64::MAX);
                }
                break;
            }
        }
    }
    let done = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or_default());
    Ok(done.collect())
}
