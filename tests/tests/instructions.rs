//! Signals at each instruction of the code that answers calls in the process.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::time::Duration;

use goanna_skip::{Facility, skip};
use goanna_sys::stub;
use goanna_tests::{
    Backend, Engine, Intercept, Place, User, differences, fill_padding, finish_within,
    may_become_another_user, program, uses_stubs,
};
use iced_x86::{Decoder, DecoderOptions};

const LIMIT: Duration = Duration::from_secs(100);

/// Signals come to at least this many instructions of the code that all sites of a library have in common. The others are those of calls that the program does not make, and
/// of errors.
const COMMON_MIN: usize = 400;

/// The offset of each instruction, with commas between them.
fn instructions(code: &[u8]) -> String {
    let decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let offsets = decoder.into_iter().map(|found| found.ip().to_string());
    offsets.collect::<Vec<_>>().join(",")
}

/// Those of the code that sites have in common, and of the dispatch behind it.
fn common() -> String {
    let (common, dispatch) = (stub::layout(), stub::dispatch_layout());
    let code = stub::common_and_dispatch();
    let of_dispatch = Decoder::new(
        64,
        &code[dispatch.start..dispatch.kinds],
        DecoderOptions::NONE,
    );
    let further = of_dispatch
        .into_iter()
        .map(|found| (found.ip() + dispatch.start as u64).to_string());
    let all = [instructions(&code[..common.data])].into_iter();
    all.chain(further).collect::<Vec<_>>().join(",")
}

/// Runs the program natively and under the monitor, checks that it prints the same, and returns what else it says there. `None` where it cannot be tested.
fn interrupted(name: &str, backend: Backend, user: User, has_padding: bool) -> Option<String> {
    let place = Place::new(backend, Intercept::Notify, user);
    let program = program(name, &place.path("."), false);
    let breakpoints = finish_within(place.native(&program).arg("-"), LIMIT);
    if breakpoints.status != 0 {
        skip(Facility::Breakpoints, breakpoints.errors());
        return None;
    }
    if !uses_stubs(&place) {
        return None;
    }
    let parts = [
        instructions(stub::site()),
        instructions(stub::shared_site()),
        common(),
        instructions(stub::map_code()),
    ];
    let (top, host) = (place.make_dir("native"), place.make_dir("native-host"));
    let mut native = place.native(&program);
    let native = finish_within(native.arg(top).arg(host).args(&parts), LIMIT).expect(0);
    let host = place.make_dir("host");
    let mut run = place.run();
    run.arg(&program).arg(place.top()).arg(host).args(&parts);
    if !has_padding {
        let dir = place.make_dir("lib");
        let library = dir.join("libc.so.6");
        std::fs::copy("/lib/x86_64-linux-gnu/libc.so.6", &library).unwrap();
        fill_padding(&library);
        run.env("LD_LIBRARY_PATH", dir);
    }
    let ended = finish_within(&mut run, LIMIT).expect(0);
    let found = differences(&native.text(), &ended.text());
    let errors = ended.errors();
    assert!(found.is_empty(), "{found}\n{errors}");
    println!("{errors}");
    place.fsck();
    Some(errors)
}

/// The number behind `label` in a line of its own.
fn figure(text: &str, label: &str) -> usize {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(label));
    let number = rest.and_then(|rest| rest.split_whitespace().next());
    number.unwrap().parse().unwrap()
}

fn check(backend: Backend, user: User) {
    if let Some(errors) = interrupted("instructions", backend, user, true) {
        let met = figure(&errors, "common:");
        assert!(met >= COMMON_MIN, "{errors}");
    }
}

fn users() -> impl Iterator<Item = User> {
    let other = may_become_another_user().then_some(User::Nobody);
    [User::Own].into_iter().chain(other)
}

fn check_for_each_user(backend: Backend) {
    for user in users() {
        check(backend, user);
    }
}

#[test]
fn signals_in_the_process_with_a_pass_mount() {
    check_for_each_user(Backend::Pass);
}

#[test]
fn signals_in_the_process_with_a_store() {
    check_for_each_user(Backend::Amino(Engine::Fjall));
}

#[test]
fn signals_in_the_process_with_encryption() {
    check_for_each_user(Backend::Aes);
}

/// Stubs in memory of their own, with sites that several calls have in common.
#[test]
fn signals_in_the_process_with_memory_for_stubs() {
    for backend in [Backend::Amino(Engine::Fjall), Backend::Pass] {
        if let Some(errors) = interrupted("instructions", backend, User::Own, false) {
            let (met, of_shared) = (figure(&errors, "common:"), figure(&errors, "shared:"));
            assert!(met >= COMMON_MIN && of_shared >= 5, "{errors}");
        }
    }
}

/// A process that was killed behind a write, before it had recorded that in its area for grants: its parent read what was then taken away.
#[test]
fn processes_that_are_killed_in_a_write_leave_all_of_it_or_nothing() {
    for user in users() {
        let backend = Backend::Amino(Engine::Fjall);
        if let Some(errors) = interrupted("killed_writes", backend, user, true) {
            for write in ["append, killed:", "write within a page, killed:"] {
                assert!(figure(&errors, write) >= 100, "{errors}");
            }
        }
    }
}
