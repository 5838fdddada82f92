//! Much at once: processes, entries, depth; and names of every kind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use goanna_tests::{
    Backend, Engine, Intercept, Place, User, differences, finish_within, is_long, program,
};

/// Runs `programs/NAME.c` natively and in a place; both must print the same.
fn check(backend: Backend, name: &str, arguments: &[&str]) {
    let place = Place::new(backend, Intercept::Notify, User::Own);
    let program = program(name, &place.path("."), false);
    let limit = Duration::from_secs(if is_long() { 3600 } else { 150 });
    let (top, host) = (place.make_dir("native"), place.make_dir("host"));
    let native = finish_within(
        place.native(&program).arg(&top).arg(&host).args(arguments),
        limit,
    )
    .expect(0);
    assert!(native.text().ends_with("end\n"), "{}", native.text());
    let host = place.make_dir("host");
    let ended = finish_within(
        place
            .run()
            .arg(&program)
            .arg(place.top())
            .arg(&host)
            .args(arguments),
        limit,
    );
    let wrong = differences(&native.text(), &ended.text());
    assert!(
        wrong.is_empty() && ended.status == 0,
        "{} (- natively, + here):\n{wrong}{}",
        ended.how(),
        ended.errors()
    );
    place.fsck();
}

fn everywhere(name: &str, arguments: &[&str]) {
    for backend in [
        Backend::Pass,
        Backend::Amino(Engine::Fjall),
        Backend::Amino(Engine::Sled),
    ] {
        check(backend, name, arguments);
    }
}

#[test]
fn two_hundred_processes() {
    everywhere("crowd", &["200"]);
}

#[test]
fn a_directory_of_many_entries() {
    let count = if is_long() { "100000" } else { "20000" };
    check(Backend::Pass, "entries", &[count]);
    check(Backend::Amino(Engine::Fjall), "entries", &[count]);
    // The slower engine stands for itself with less.
    check(
        Backend::Amino(Engine::Sled),
        "entries",
        &[if is_long() { count } else { "4000" }],
    );
}

#[test]
fn deep_paths_and_strange_names() {
    everywhere("strange", &[]);
}

/// The monitor once took maps of a process with a file name that is not UTF-8 for empty: it moved a file that the process had mapped, and
/// lost what was written through the mapping. A large file whose name ends like that of the vDSO made it run out of memory.
#[test]
fn mapped_files_with_names_of_any_kind() {
    // More than a store keeps in memory of one file.
    everywhere("mapped_names", &["72"]);
}

#[test]
fn a_large_file_with_random_access() {
    let mebibytes = if is_long() { "3072" } else { "96" };
    check(Backend::Amino(Engine::Fjall), "large", &[mebibytes]);
    check(Backend::Pass, "large", &[mebibytes]);
    check(
        Backend::Amino(Engine::Sled),
        "large",
        &[if is_long() { "512" } else { "24" }],
    );
}
