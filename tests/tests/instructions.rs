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
    Backend, Engine, Intercept, Place, User, differences, finish_within, may_become_another_user,
    program, uses_stubs,
};
use iced_x86::{Decoder, DecoderOptions};

const LIMIT: Duration = Duration::from_secs(100);

/// At fewer instructions than these of the code that all sites of a library have in common, something has gone wrong. The others are those of calls that
/// the program does not make, and of errors.
const COMMON_MIN: usize = 400;

/// The offset of each instruction, with commas between them.
fn instructions(code: &[u8]) -> String {
    let decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let offsets = decoder.into_iter().map(|found| found.ip().to_string());
    offsets.collect::<Vec<_>>().join(",")
}

fn check(backend: Backend, user: User) {
    let place = Place::new(backend, Intercept::Notify, user);
    let program = program("instructions", &place.path("."), false);
    let breakpoints = finish_within(place.native(&program).arg("-"), LIMIT);
    if breakpoints.status != 0 {
        return skip(Facility::Breakpoints, breakpoints.errors());
    }
    if !uses_stubs(&place) {
        return;
    }
    let common = &stub::common()[..stub::layout().data];
    let parts = [stub::site(), common, stub::map_code()].map(instructions);
    let (top, host) = (place.make_dir("native"), place.make_dir("native-host"));
    let mut native = place.native(&program);
    let native = finish_within(native.arg(top).arg(host).args(&parts), LIMIT).expect(0);
    let host = place.make_dir("host");
    let mut run = place.run();
    run.arg(&program).arg(place.top()).arg(host).args(&parts);
    let ended = finish_within(&mut run, LIMIT).expect(0);
    let found = differences(&native.text(), &ended.text());
    let errors = ended.errors();
    assert!(found.is_empty(), "{found}\n{errors}");
    let mut lines = errors.lines();
    let met = lines.find_map(|line| line.strip_prefix("common: ")?.split(' ').next());
    let met: usize = met.unwrap().parse().unwrap();
    assert!(met >= COMMON_MIN, "{errors}");
    println!("{errors}");
    place.fsck();
}

fn check_for_each_user(backend: Backend) {
    check(backend, User::Own);
    if may_become_another_user() {
        check(backend, User::Nobody);
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
