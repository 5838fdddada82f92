//! The memory of a replay does not depend on the size of the trace.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::process::Command;

use goanna_tracer::assemble::DataMode;
use nix::sys::resource::{UsageWho, getrusage};
use workload::{REPLAYER, Workload, has};

/// Maximum memory of a replay, in KiB.
const MEMORY_MAX: i64 = 64 << 10;

#[test]
fn a_replay_of_much_data_takes_little_memory() {
    if !has("python3") {
        return;
    }
    // The kernel maps the pages around each of the buffers that are compared.
    let script = "
import os, random
out = os.open('out', os.O_RDWR | os.O_CREAT)
pages = list(range(26000))
for page in pages:
    os.pwrite(out, os.urandom(4096), page * 4096)
random.Random(1).shuffle(pages)
for page in pages:
    os.pread(out, 4096, page * 4096)";
    let workload = Workload::new(&["python3", "-S", "-c", script], DataMode::Full, |_| {});
    let compiled = workload.path("compiled");
    let bytes = compiled.metadata().unwrap().len();
    assert!(bytes > 100 << 20, "{bytes}");
    // The kernel keeps the largest figure of all children. Before the replayer, that is the recorded command's.
    let before = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    let status = Command::new(REPLAYER)
        .args(["run", "--root"])
        .arg(workload.path("replayed"))
        .arg(&compiled)
        .status();
    assert!(status.unwrap().success());
    let after = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss();
    assert!(
        after <= MEMORY_MAX.max(before),
        "{before} KiB, then {after} KiB"
    );
    assert!(
        before <= MEMORY_MAX,
        "the recorded command hides the figure"
    );
}
