//! `--reads` selects the reads that a replay performs.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;

use goanna_tracer::assemble::DataMode;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use workload::{Workload, has};

/// Bytes of the file that is read, in reads of 4096 bytes.
const SIZE: usize = 64 << 10;
const READS: u64 = 16;

fn reading() -> Workload {
    let script = "dd if=in of=out bs=4096 status=none; exec 3<>both; dd bs=4 count=1 status=none <&3 >/dev/null; echo end >&3";
    let fill = |directory: &Path| {
        fs::write(directory.join("in"), vec![b'x'; SIZE]).unwrap();
        fs::write(directory.join("both"), "01234567").unwrap();
    };
    Workload::new(&["sh", "-c", script], DataMode::Full, fill)
}

/// The reads of the trace, and those of its replay.
fn reads(workload: &Workload) -> (u64, u64) {
    let comparison = workload.compare();
    comparison.counts.get("read").copied().unwrap_or_default()
}

#[test]
fn a_replay_without_reads_moves_offsets_as_reads_do() {
    let workload = reading();
    workload.replay_traced(&["--reads", "none"]);
    let (original, replayed) = reads(&workload);
    assert!(original > READS, "{original}");
    assert_eq!(replayed, 0);
    workload.assert_same_trees();
    let both = fs::read_to_string(workload.path("replayed/both")).unwrap();
    assert_eq!(both, "0123end\n");
}

/// Whether the page cache has all pages of the file.
fn is_cached(file: &File) -> bool {
    let mut page = [0; 4096];
    (0..SIZE as u64).step_by(4096).all(|offset| {
        let mut buffers = [IoSliceMut::new(&mut page)];
        preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT).is_ok()
    })
}

#[test]
fn cached_reads_are_left_out_and_others_are_made() {
    let workload = reading();
    workload.replay_traced(&["--reads", "cached"]);
    assert_eq!(reads(&workload).1, 0, "prepare has just written all of it");
    workload.assert_same_trees();
    let file = File::open(workload.path("replayed/in")).unwrap();
    file.sync_all().unwrap();
    posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    // A file system in memory keeps them.
    let kept = is_cached(&file);
    let output = workload.replay(&["--reads", "cached"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let left_out = text
        .lines()
        .find_map(|line| line.strip_suffix(" reads were left out"));
    let left_out: u64 = left_out.unwrap_or("0").parse().unwrap();
    let (original, _) = reads(&workload);
    let made = original - left_out;
    assert_eq!(made == 0, kept, "{made} of {original}: {text}");
}

/// Long reads without recorded content are performed without a copy: results, offsets and the end of the file are as with one.
#[test]
fn long_reads_without_a_copy_have_the_results_of_reads() {
    let script = "dd if=in of=out bs=40000 status=none; exec 3<in; dd bs=30000 count=1 status=none <&3 >/dev/null; dd bs=20000 status=none <&3 >rest; ! dd if=. bs=40000 status=none 2>/dev/null";
    let fill = |directory: &Path| fs::write(directory.join("in"), vec![b'x'; SIZE]).unwrap();
    let workload = Workload::new(&["sh", "-c", script], DataMode::None, fill);
    goanna_replayer::prepare::prepare(&workload.path("compiled"), &workload.path("replayed"), None)
        .unwrap();
    workload.assert_faithful_results();
    let rest = fs::metadata(workload.path("replayed/rest")).unwrap();
    assert_eq!(rest.len(), (SIZE - 30000) as u64);
}

/// A program that reads a file of so many MiB by one call, which asks for `asked` MiB.
fn reading_whole(mebibytes: usize, asked: usize, data: DataMode) -> Option<Workload> {
    if !has("python3") {
        return None;
    }
    let script = format!("import os; os.pread(os.open('in', os.O_RDONLY), {asked} << 20, 0)");
    let fill = |directory: &Path| {
        let pattern: Vec<u8> = (0..mebibytes << 17).flat_map(usize::to_le_bytes).collect();
        fs::write(directory.join("in"), pattern).unwrap();
    };
    Some(Workload::new(&["python3", "-S", "-c", &script], data, fill))
}

#[test]
fn the_content_of_long_reads_is_compared() {
    let Some(workload) = reading_whole(3, 16, DataMode::Full) else {
        return;
    };
    workload.assert_faithful();
    let path = workload.path("replayed/in");
    let mut bytes = fs::read(&path).unwrap();
    bytes[2 << 20] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = workload.replay(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("pread in: expected the content of the trace"),
        "{text}"
    );
}

#[test]
fn reads_that_are_too_long_to_compare_are_counted() {
    let Some(workload) = reading_whole(18, 64, DataMode::Hash) else {
        return;
    };
    goanna_replayer::prepare::prepare(&workload.path("compiled"), &workload.path("replayed"), None)
        .unwrap();
    let output = workload.replay(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let expected = "\n1 reads were too long to compare their content with the trace\n";
    assert!(text.contains(expected), "{text}");
}
