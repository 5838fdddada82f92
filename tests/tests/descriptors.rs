//! Limits of descriptors belong to each process of a run, whatever limit the monitor has.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Command;

use goanna_tests::{Backend, Ended, Engine, Intercept, Place, User, finish, is_root, program};

/// `count` processes keep `files` files open each, in a run that starts with `limit` as both limits.
fn run(place: &Place, limit: u32, count: u32, files: u32) -> Ended {
    let tracee = program("manyfiles", &place.path("."), false);
    let mut inner = place.run();
    inner.arg(&tracee).arg(place.top()).arg(place.path("host"));
    inner.args([count.to_string(), files.to_string()]);
    // The arguments of the run behind those of prlimit.
    let mut command: Command = place.native("prlimit");
    command
        .arg(format!("--nofile={limit}:{limit}"))
        .arg(inner.get_program())
        .args(inner.get_args());
    finish(&mut command)
}

/// Whose monitor cannot raise a hard limit.
fn ordinary() -> User {
    if is_root() { User::Nobody } else { User::Own }
}

#[test]
fn files_of_all_processes_together_exceed_the_limit_of_one() {
    for (limit, files, intercept) in [
        (1024, 1000, Intercept::Notify),
        (300, 250, Intercept::Notify),
        (300, 250, Intercept::Ptrace),
    ] {
        let place = Place::new(Backend::Amino(Engine::Fjall), intercept, ordinary());
        let ended = run(&place, limit, 6, files).expect(0);
        let expected = format!("limits {limit} {limit}\n{}end\n", "all\n".repeat(6));
        assert_eq!(ended.text(), expected, "{}", ended.errors());
        place.fsck();
    }
}

/// The monitor has a descriptor for each process. Some of these cannot even print what they met.
#[test]
fn the_end_of_the_monitors_own_descriptors_is_said() {
    let place = Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, ordinary());
    let ended = run(&place, 200, 300, 1).expect(0);
    let errors = ended.errors();
    assert_eq!(
        errors.matches("has no descriptors left").count(),
        1,
        "{errors}"
    );
    assert!(errors.contains("ulimit -Hn"), "{errors}");
    place.fsck();
}
