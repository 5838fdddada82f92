//! Programs whose calls are recorded inside them behave as without a tracer, and none of their calls is lost or doubled.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use capturing::{calls, capture, marks, of_command, program};
use goanna_syscalls::Value;
use goanna_tracer::Event;
use goanna_tracer::capture::ptrace::Recorded;
use goanna_tracer::capture::{CaptureEnd, Data};
use goanna_tracer::event::{Call, File};

/// How often access(2) of each name in `/nowhere` was recorded, of each process.
fn accesses(events: &[Event]) -> BTreeMap<(String, i32), usize> {
    let mut counts = BTreeMap::new();
    for call in calls(events).filter(|call| call.call.nr == libc::SYS_access as u32) {
        if let Some(Value::Path { given, .. }) = call.call.args.first()
            && let Some(name) = given.strip_prefix(b"/nowhere/")
        {
            let name = String::from_utf8_lossy(name).into_owned();
            *counts.entry((name, call.subject.pid)).or_default() += 1;
        }
    }
    counts
}

/// The numbers of one name, of each process that has accessed it.
fn of(counts: &BTreeMap<(String, i32), usize>, name: &str) -> Vec<usize> {
    let own = counts.iter().filter(|((other, _), _)| other == name);
    own.map(|(_, count)| *count).collect()
}

/// Runs the program natively, and traced in each way. The program says how many calls it makes.
fn run(what: &str) -> Vec<Vec<Event>> {
    let program = program("recorded");
    let program = program.to_str().unwrap();
    let native = Command::new(program).arg(what).status().unwrap();
    assert!(native.success(), "{what}: {native}");
    let ways = [Recorded::AtOnce, Recorded::Often, Recorded::Never];
    ways.map(|recorded| {
        let source = of_command(&[program, what]).recorded(recorded);
        let (ending, events) = capture(source, "", Data::None);
        assert_eq!(
            ending.unwrap(),
            CaptureEnd::Ended(0),
            "{what}: {recorded:?}"
        );
        let counts = accesses(&events);
        for mark in marks(&events).keys() {
            let (name, number) = mark.rsplit_once('-').unwrap();
            if name != "jumped" {
                let recorded_calls: usize = of(&counts, name).iter().sum();
                assert_eq!(recorded_calls.to_string(), number, "{name}: {recorded:?}");
            }
        }
        assert!(!marks(&events).is_empty());
        let lost = |event: &&Event| matches!(event, Event::Lost { .. });
        assert_eq!(
            events.iter().find(lost).map(|lost| format!("{lost:?}")),
            None
        );
        events
    })
    .into()
}

#[test]
fn a_handler_runs_at_any_moment() {
    run("timer");
}

#[test]
fn a_handler_need_not_return() {
    run("jumps");
}

#[test]
fn a_call_that_waits_is_interrupted_or_restarted() {
    for events in run("interrupted") {
        let writes = calls(&events).filter(|call| call.call.nr == libc::SYS_write as u32);
        let results: Vec<i64> = writes.map(|call| call.outcome.unwrap().result).collect();
        let count = |result: i64| results.iter().filter(|own| **own == result).count();
        // ERESTARTSYS: both were interrupted.
        assert_eq!((count(1), count(-512)), (2, 2), "{results:?}");
    }
}

#[test]
fn children_and_threads_record_their_own_calls() {
    for events in run("children") {
        let counts = accesses(&events);
        let of = |name: &str| of(&counts, name);
        assert_eq!(of("parent"), [2400]);
        assert_eq!(of("forked"), [200; 5]);
        assert_eq!(of("spawned"), [300; 10]);
        assert_eq!(of("vforked"), [1; 5]);
        assert_eq!(of("thread"), [900]);
    }
}

#[test]
fn bad_addresses_and_full_tables_answer_as_ever() {
    run("limits");
}

#[test]
fn calls_on_small_stacks_are_recorded() {
    run("stacks");
}

#[test]
fn a_filter_of_the_program_is_obeyed() {
    for events in run("filters") {
        let links = calls(&events).filter(|call| call.call.nr == libc::SYS_readlink as u32);
        let exdev = -i64::from(libc::EXDEV);
        let refused = links.filter(|call| call.outcome.unwrap().result == exdev);
        assert_eq!(refused.count(), 100);
    }
}

#[test]
fn the_programs_own_traps_are_its_own() {
    run("traps");
}

#[test]
fn a_child_that_asks_not_to_be_traced_is_traced() {
    run("untraced");
}

#[test]
fn a_call_in_which_a_process_is_killed_is_recorded() {
    for events in run("killed") {
        let writes = calls(&events).filter(|call| call.call.nr == libc::SYS_write as u32);
        let ended: Vec<_> = writes.filter(|call| call.outcome.is_none()).collect();
        assert_eq!(ended.len(), 1);
        assert_eq!(ended[0].call.raw[2], 11);
    }
}

/// A call with everything that is recorded of it. What a program makes has another inode in each run.
fn whole(call: &Call) -> String {
    let files = call.files.iter().map(|(index, file)| {
        let is_new = file.path.as_deref().is_some_and(|path| {
            path.ends_with(b"/removed") || path.ends_with(b"/none") || path.starts_with(b"/proc/")
        });
        let inode = if is_new { 0 } else { file.inode };
        let path = file.path.as_deref().map(String::from_utf8_lossy);
        let File {
            device,
            mode,
            links,
            size,
            ..
        } = file;
        format!("{index}: {device} {inode} {mode:o} {links} {size} {path:?}")
    });
    let files: Vec<String> = files.collect();
    let args = call.call.args.iter().map(|value| match value {
        // Of a stat, the inode and times differ.
        Value::Bytes { len, data } => format!("{len} {}", data.len()),
        Value::Path { given, resolved } => {
            let resolved = resolved.as_deref().map(String::from_utf8_lossy);
            format!("{:?} {resolved:?}", String::from_utf8_lossy(given))
        }
        Value::Descriptor { number, file } => {
            format!(
                "{number} {:?}",
                file.as_deref().map(String::from_utf8_lossy)
            )
        }
        value => format!("{value:?}"),
    });
    let args: Vec<String> = args.collect();
    let name = call.call.signature.unwrap().name;
    let result = call.outcome.map(|outcome| outcome.result);
    format!("{name}({}) = {result:?} {files:#?}", args.join(", "))
}

#[test]
fn records_say_of_files_what_stopped_threads_show() {
    // Its parent is also looked at, and must not change.
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("work");
    fs::create_dir_all(directory.join("directory")).unwrap();
    for file in ["file", "directory/inner"] {
        fs::write(directory.join(file), "content").unwrap();
    }
    for (target, link) in [
        ("file", "link"),
        ("nowhere", "dangling"),
        ("directory", "to_directory"),
        ("loop", "loop"),
    ] {
        symlink(target, directory.join(link)).unwrap();
    }
    let program = program("recorded");
    let script = format!(
        "cd '{}' && exec '{}' names",
        directory.display(),
        program.display()
    );
    // The first run changes modes and sizes.
    let first = Command::new("/bin/sh").args(["-c", &script]).status();
    assert!(first.unwrap().success());
    let all = [Recorded::Never, Recorded::AtOnce].map(|recorded| {
        let command = ["setarch", "-R", "/bin/sh", "-c", &script];
        let (ending, events) = capture(of_command(&command).recorded(recorded), "", Data::None);
        assert_eq!(ending.unwrap(), CaptureEnd::Ended(0));
        let names = Path::new(&program).file_name().unwrap().to_str().unwrap();
        let of_program = calls(&events).filter(|call| names.starts_with(&*call.subject.comm));
        let own = std::process::id().to_string();
        let all = of_program.map(|call| {
            let pid = call.subject.pid.to_string();
            assert_ne!(pid, own);
            whole(call).replace(&format!("/proc/{pid}"), "/proc/PID")
        });
        all.collect::<Vec<String>>()
    });
    assert!(all[0].len() > 1000);
    for (index, (stopped, recorded)) in all[0].iter().zip(&all[1]).enumerate() {
        assert_eq!(recorded, stopped, "call {index}");
    }
    assert_eq!(all[0].len(), all[1].len());
}
