//! Processes that the monitor may not know of.
//!
//! Processes that have made no call since they were forked hold files and directories, too. Their parent moves or reuses meanwhile what
//! stands behind these, and behind descriptors in sockets. The supervisor asked only the threads that had made a call.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::time::Duration;

use goanna_tests::held::until;
use goanna_tests::{Backend, Engine};
use goanna_tests::{Intercept, Place, User, differences, finish, finish_within, program};

/// Longer than any machine takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The part of `unseen.c` prints the same natively and in a store.
#[track_caller]
fn check(part: &str) {
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let tracee = program("unseen", &place.path("."), false);
        let (native, host) = (place.make_dir("native"), place.make_dir("host"));
        let natively = finish(place.native(&tracee).arg(&native).arg(&host).arg(part)).expect(0);
        let mut run = place.run();
        run.arg(&tracee).arg(place.top()).arg(&host).arg(part);
        let ended = finish_within(&mut run, LIMIT).expect(0);
        let expected = natively.text().replace(&*native.to_string_lossy(), "TOP");
        assert!(expected.contains('\n'), "nothing was done");
        let surprises = differences(&expected, &ended.text().replace(place.top(), "TOP"));
        assert!(surprises.is_empty(), "{intercept:?}:\n{surprises}");
        place.fsck();
    }
}

/// The child kept the file in memory, and what it wrote there vanished.
#[test]
fn a_child_without_a_call_writes_to_a_file_that_has_left_memory() {
    check("growing");
}

/// As above, for a mapping without a descriptor.
#[test]
fn a_mapping_sees_the_file_that_grows_beyond_memory() {
    check("mapped");
}

/// More than 1,024 directories are opened and closed. Their backing directories are removed, but not that of a working directory.
#[test]
fn a_child_without_a_call_keeps_its_working_directory_beyond_1024_others() {
    check("standing");
}

/// As above, for a directory whose only descriptor is in a socket: it was another directory when it arrived.
#[test]
fn a_directory_in_flight_in_a_socket_is_the_same_beyond_1024_others() {
    check("flying");
}

/// A program that gets around the check of the flags of clone3(2) is killed, and with it the process that no one traces.
#[test]
fn a_process_without_a_tracer_is_killed() {
    for intercept in [Intercept::Notify, Intercept::Ptrace] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
        let tracee = program("untraced", &place.path("."), false);
        let ended = finish_within(place.run().arg(&tracee), LIMIT).expect(128 + 9);
        let errors = ended.errors();
        assert!(errors.contains("without a tracer"), "{errors}");
        until("no process is left", || running(&tracee) == 0);
        place.fsck();
    }
}

/// The number of processes that execute `program`.
fn running(program: &Path) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let programs = processes.filter_map(|process| process.path().join("exe").read_link().ok());
    programs.filter(|executed| executed == program).count()
}
