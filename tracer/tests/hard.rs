//! Programs that could make a tracer lose calls: `programs/hard.c`. Each of their marks must be recorded once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::BTreeMap;
use std::path::PathBuf;

use capturing::{calls, capture, marks, of_command, once, program};
use goanna_tracer::Event;
use goanna_tracer::capture::ptrace::Recorded;
use goanna_tracer::capture::{CaptureEnd, Data};

fn hard() -> PathBuf {
    program("hard")
}

/// Runs the program with calls recorded inside it, with a filter only, and without one; the events of each.
fn run(args: &[&str]) -> [Vec<Event>; 3] {
    let program = hard();
    let command: Vec<&str> = std::iter::once(program.to_str().unwrap())
        .chain(args.iter().copied())
        .collect();
    let of_command = || of_command(&command);
    [
        of_command(),
        of_command().recorded(Recorded::Never),
        of_command().without_filter(),
    ]
    .map(|source| {
        let (ending, events) = capture(source, "", Data::None);
        assert_eq!(ending.unwrap(), CaptureEnd::Ended(0), "{args:?}");
        check_lives(&events);
        events
    })
}

/// Each thread begins once and ends once, and calls only between.
fn check_lives(events: &[Event]) {
    let mut living = BTreeMap::new();
    for event in events {
        match event {
            Event::Began { subject, .. } => {
                let before = living.insert(subject.tid, true);
                assert_ne!(before, Some(true), "{event:?}");
            }
            Event::Ended { subject, .. } => {
                let before = living.insert(subject.tid, false);
                assert_eq!(before, Some(true), "{event:?}");
            }
            Event::Call(call) => assert_eq!(living.get(&call.subject.tid), Some(&true), "{call:?}"),
            Event::Executed { subject, .. } => {
                assert_eq!(living.get(&subject.tid), Some(&true), "{event:?}")
            }
            _ => {}
        }
    }
    assert!(living.values().all(|lives| !lives), "{living:?}");
}

#[test]
fn a_thread_that_executes_takes_its_process_over() {
    for events in run(&["exec"]) {
        assert_eq!(marks(&events), once(&["thread", "executed"]));
    }
}

#[test]
fn all_threads_are_captured() {
    for events in run(&["threads"]) {
        let marks = marks(&events);
        assert_eq!(marks.len(), 400);
        assert!(marks.values().all(|&count| count == 1), "{marks:?}");
    }
}

#[test]
fn interrupted_calls_and_handlers_are_captured() {
    for events in run(&["signals"]) {
        let mut expected = once(&["after"]);
        expected.insert("handler".into(), 2);
        assert_eq!(marks(&events), expected);
        let reads = calls(&events).filter(|call| call.call.nr == libc::SYS_read as u32);
        let results: Vec<i64> = reads
            .filter_map(|call| call.outcome)
            .map(|outcome| outcome.result)
            .collect();
        assert_eq!(results[results.len() - 3..], [-512, -512, 1], "{results:?}");
    }
}

#[test]
fn stops_continue_and_kills_kill() {
    for events in run(&["stops"]) {
        let expected = ["before", "stopped", "continued", "victim", "killed"];
        assert_eq!(marks(&events), once(&expected));
        let killed = events.iter().filter(|event| {
            matches!(
                event,
                Event::Ended {
                    status: libc::SIGKILL,
                    ..
                }
            )
        });
        assert_eq!(killed.count(), 1);
    }
}

#[test]
fn calls_that_the_programs_own_filter_decides_are_captured() {
    for events in run(&["filters"]) {
        assert_eq!(
            marks(&events),
            once(&["unfiltered", "filtered", "other", "child"])
        );
    }
}

/// The marks of `storm(levels, name)`.
fn storm(levels: u32, name: &str, marks: &mut BTreeMap<String, usize>) {
    marks.insert(name.into(), 1);
    for child in 0..if levels > 0 { 3 } else { 0 } {
        let next = format!("{name}{child}");
        storm(if child == 1 { 0 } else { levels - 1 }, &next, marks);
    }
}

#[test]
fn no_event_of_a_fork_storm_is_lost_or_doubled() {
    let mut expected = BTreeMap::new();
    storm(4, "s", &mut expected);
    assert_eq!(expected.len(), 46);
    let runs = if std::env::var_os("GOANNA_LONG").is_some() {
        50
    } else {
        4
    };
    for _ in 0..runs {
        for events in run(&["storm", "4"]) {
            assert_eq!(marks(&events), expected);
            let count = |is: fn(&Event) -> bool| events.iter().filter(|event| is(event)).count();
            assert_eq!(count(|event| matches!(event, Event::Began { .. })), 46);
            assert_eq!(count(|event| matches!(event, Event::Ended { .. })), 46);
        }
    }
}
