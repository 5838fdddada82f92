//! The pages that a program touches through mappings are recorded: each one, and no other.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use capturing::{Kept, of_command, program};
use goanna_skip::{Facility, skip};
use goanna_tracer::Event;
use goanna_tracer::capture::ptrace::{Ptrace, Target};
use goanna_tracer::capture::{CaptureEnd, Data, Source, Wanted};
use goanna_tracer::select::Filter;

/// The touched pages: for each process, in the order of their first reports, the pages read and the pages written, each as often
/// as reported.
type Touched = Vec<[Vec<u64>; 2]>;

/// Captures pages only.
fn pages() -> Wanted {
    let filter = Arc::new(Filter::parse("call == mount").unwrap());
    Wanted::new(vec![filter], Data::None).with_pages()
}

fn capture(what: &str, change: fn(Ptrace) -> Ptrace) -> (CaptureEnd, Touched, Vec<Event>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("file");
    capture_on(&file, what, change)
}

fn capture_on(
    file: &Path,
    what: &str,
    change: fn(Ptrace) -> Ptrace,
) -> (CaptureEnd, Touched, Vec<Event>) {
    let program = program("mapped");
    let command = [program.to_str().unwrap(), what, file.to_str().unwrap()];
    let kept = Kept::default();
    let ending = change(of_command(&command)).capture(&pages(), &kept);
    let events = kept.0.into_inner().unwrap();
    (ending.unwrap(), of_file(&events, file), events)
}

/// The touched pages of a file.
fn of_file(events: &[Event], file: &Path) -> Touched {
    let inode = std::fs::metadata(file).unwrap().ino();
    let mut processes: BTreeMap<i32, [Vec<u64>; 2]> = BTreeMap::new();
    for event in events {
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
    processes.into_values().collect()
}

/// The losses that the capture reports.
fn lost(events: &[Event]) -> Vec<String> {
    let reasons = events.iter().filter_map(|event| match event {
        Event::Lost { reason, .. } => Some(reason.to_string()),
        _ => None,
    });
    reasons.collect()
}

/// With a filter of the tracer, and without one.
fn touched(what: &str) -> [(CaptureEnd, Touched); 2] {
    [|source| source, Ptrace::without_filter].map(|change: fn(Ptrace) -> Ptrace| {
        let (ending, touched, events) = capture(what, change);
        assert_eq!(lost(&events), [""; 0]);
        (ending, touched)
    })
}

#[test]
fn pages_of_a_shared_mapping_are_recorded_one_by_one() {
    for (ending, touched) in touched("shared") {
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![3, 30, 40, 41], vec![7, 9, 20]]]);
    }
}

#[test]
fn a_part_that_is_unmapped_is_looked_at_before() {
    for (ending, touched) in touched("private") {
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![36], vec![33, 36]]]);
    }
}

#[test]
fn a_child_has_its_own_record_of_inherited_mappings() {
    for (ending, touched) in touched("forks") {
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![10], vec![13]], [vec![10], vec![12]]]);
    }
}

#[test]
fn a_mapping_that_moves_stays_recorded() {
    for (ending, touched) in touched("grows") {
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![], vec![1, 6]]]);
    }
}

#[test]
fn a_program_that_replaces_itself_is_looked_at_before() {
    for (ending, touched) in touched("executes") {
        assert_eq!(ending, CaptureEnd::Ended(0));
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
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![1; 100], vec![0; 100]]]);
    }
}

#[test]
fn a_program_that_is_killed_is_looked_at_before() {
    for (ending, touched) in touched("killed") {
        assert_eq!(ending.exit_status(), 128 + libc::SIGKILL as u8);
        assert_eq!(touched, [[vec![6], vec![5]]]);
    }
}

#[test]
fn a_program_that_is_watched_already_when_it_gets_a_filter_of_its_own_stays_so() {
    for (ending, touched) in touched("filtered") {
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, [[vec![3], vec![7]]]);
    }
}

/// An inherited filter might kill the program for the call that makes a watch. The trace reports that pages are missing.
#[test]
fn a_program_with_an_inherited_filter_runs_and_the_trace_says_what_is_missing() {
    for change in [|source| source, Ptrace::without_filter] as [fn(Ptrace) -> Ptrace; 2] {
        let (ending, touched, events) = capture("inherits", change);
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(touched, Touched::new());
        let lost = lost(&events);
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert!(
            lost[0].starts_with("pages that process ") && lost[0].contains("are not recorded"),
            "{lost:?}"
        );
    }
}

/// Killed when the test fails. Otherwise it has ended, and the tracer, which is in the same process here, has reaped it.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

#[test]
fn pages_of_a_process_that_was_attached_to_are_recorded_from_its_next_mapping_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().canonicalize().unwrap().join("file");
    let server = Command::new(program("mapped"))
        .args(["serves".as_ref(), file.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut server = Server(server.unwrap());
    let pid = server.0.id().cast_signed();
    let (input, output) = (server.0.stdin.take(), server.0.stdout.take());
    let (mut input, mut output) = (input.unwrap(), output.unwrap());
    let mut answer = [0];
    output.read_exact(&mut answer).unwrap();
    let kept = Kept::default();
    std::thread::scope(|scope| {
        let capturing = scope.spawn(|| {
            let mut source = Ptrace::new(Target::Processes(vec![pid]));
            source.capture(&pages(), &kept)
        });
        let is_attached = || {
            let events = kept.0.lock().unwrap();
            let mut events = events.iter();
            events.any(|event| matches!(event, Event::Mapping { .. }))
        };
        while !is_attached() {
            assert!(!capturing.is_finished());
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        for _ in 0..2 {
            input.write_all(b"x").unwrap();
            output.read_exact(&mut answer).unwrap();
        }
        // The server ends with its input.
        drop(input);
        assert_eq!(capturing.join().unwrap().unwrap(), CaptureEnd::Detached);
    });
    let events = kept.0.into_inner().unwrap();
    assert_eq!(lost(&events), [""; 0]);
    assert_eq!(of_file(&events, &file), [[vec![9, 9], vec![7, 7]]]);
}

/// Unmounts at the end.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .args(["-l".as_ref(), self.0])
            .status();
    }
}

/// Where a file lies in pages of 2 MiB, a read may be reported for the page of 2 MiB around it, a write for its own page.
#[test]
fn pages_of_two_mebibytes_are_recorded_as_one_or_by_their_parts() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().canonicalize().unwrap();
    let options = ["-t", "tmpfs", "-o", "huge=always", "none"];
    let mounted = Command::new("mount").args(options).arg(&place).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        return skip(Facility::Mounts, "no tmpfs with huge pages can be mounted");
    }
    let _mounted = Mounted(&place);
    for change in [|source| source, Ptrace::without_filter] as [fn(Ptrace) -> Ptrace; 2] {
        let (ending, touched, events) = capture_on(&place.join("file"), "huge", change);
        assert_eq!(ending, CaptureEnd::Ended(0));
        assert_eq!(lost(&events), [""; 0]);
        let [[read, written]] = &touched[..] else {
            panic!("{touched:?}");
        };
        println!("{} {}", read.len(), written.len());
        // First the whole file is written, then read and written in parts.
        let [first, second] = [&written[..1024], &written[1024..]];
        assert!(first.iter().copied().eq(0..1024), "{written:?}");
        assert!(second.contains(&100), "{written:?}");
        assert!(second.iter().all(|page| *page < 512), "{written:?}");
        assert!(read.contains(&600), "{read:?}");
    }
}
