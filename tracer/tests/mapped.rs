//! The pages that a program touches through mappings are recorded: each one, and no other.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use capturing::{Kept, of_command, program};
use goanna_tracer::Event;
use goanna_tracer::capture::ptrace::Ptrace;
use goanna_tracer::capture::{Data, Ending, Source, Wanted};
use goanna_tracer::select::Filter;

/// What was touched: for each process, the first of them first, the pages read and the pages written, each as often as reported.
type Touched = Vec<[Vec<u64>; 2]>;

fn capture(what: &str, change: fn(Ptrace) -> Ptrace) -> (Ending, Touched, Vec<Event>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("file");
    let program = program("mapped");
    let command = [program.to_str().unwrap(), what, file.to_str().unwrap()];
    let filter = Arc::new(Filter::parse("call == mount").unwrap());
    let wanted = Wanted::new(vec![filter], Data::None).with_pages();
    let kept = Kept::default();
    let ending = change(of_command(&command)).capture(&wanted, &kept);
    let events = kept.0.into_inner().unwrap();
    let inode = std::fs::metadata(&file).unwrap().ino();
    let mut processes: BTreeMap<i32, [Vec<u64>; 2]> = BTreeMap::new();
    for event in &events {
        let Event::Touched {
            subject,
            file: touched,
            offset,
            pages,
            written,
            ..
        } = event
        else {
            continue;
        };
        if touched.inode == inode {
            assert_eq!(touched.path.as_deref(), file.to_str().map(str::as_bytes));
            let process = processes.entry(subject.pid).or_default();
            let first = offset / 4096;
            process[usize::from(*written)].extend(first..first + pages);
        }
    }
    let lost = events
        .iter()
        .filter(|one| matches!(one, Event::Lost { .. }));
    assert_eq!(lost.count(), 0, "{events:?}");
    (ending.unwrap(), processes.into_values().collect(), events)
}

/// With a filter of the tracer, and without one.
fn touched(what: &str) -> [(Ending, Touched); 2] {
    [|source| source, Ptrace::without_filter].map(|change: fn(Ptrace) -> Ptrace| {
        let (ending, touched, _) = capture(what, change);
        (ending, touched)
    })
}

#[test]
fn pages_of_a_shared_mapping_are_recorded_one_by_one() {
    for (ending, touched) in touched("shared") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![3, 30, 40, 41], vec![7, 9, 20]]]);
    }
}

#[test]
fn a_part_that_is_unmapped_is_looked_at_before() {
    for (ending, touched) in touched("private") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![36], vec![33, 36]]]);
    }
}

#[test]
fn a_child_has_its_own_record_of_inherited_mappings() {
    for (ending, touched) in touched("forks") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![10], vec![13]], [vec![10], vec![12]]]);
    }
}

#[test]
fn a_mapping_that_moves_stays_recorded() {
    for (ending, touched) in touched("grows") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![], vec![1, 6]]]);
    }
}

#[test]
fn a_program_that_replaces_itself_is_looked_at_before() {
    for (ending, touched) in touched("executes") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![3], vec![2]]]);
    }
}

#[test]
fn a_program_that_a_signal_kills_is_looked_at_before() {
    for (ending, touched) in touched("dies") {
        assert_eq!(ending.exit_status(), 128 + libc::SIGABRT as u8);
        assert_eq!(touched, [[vec![], vec![5]]]);
    }
}

#[test]
fn signals_do_not_disturb_the_watch_nor_the_program() {
    for (ending, touched) in touched("signals") {
        assert_eq!(ending, Ending::Ended(0));
        assert_eq!(touched, [[vec![1; 100], vec![0; 100]]]);
    }
}
