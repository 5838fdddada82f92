//! The tracer keeps threads that stop often on its own CPU. Programs must not see that.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod capturing;

use std::fs;
use std::process::Command;

use capturing::{capture, compiled, of_command};
use goanna_tracer::capture::ptrace::Ptrace;
use goanna_tracer::capture::{CaptureEnd, Data};

#[test]
fn programs_have_their_own_cpus_whenever_they_ask() {
    let directory = tempfile::tempdir().unwrap();
    let program = compiled("../tests/programs/asks_for_cpus.c");
    let answers = |name: &str, run: &dyn Fn(&str)| {
        let file = directory.path().join(name);
        run(file.to_str().unwrap());
        fs::read_to_string(file).unwrap()
    };
    let native = answers("native", &|file| {
        assert!(Command::new(&program).arg(file).status().unwrap().success());
    });
    assert!(native.lines().count() > 50, "{native}");
    for (name, change) in [
        ("filtered", (|it| it) as fn(Ptrace) -> Ptrace),
        ("each call", Ptrace::without_filter),
    ] {
        for round in 0..3 {
            let traced = answers(&format!("{name} {round}"), &|file| {
                let command = of_command(&[program.to_str().unwrap(), file]);
                let (ending, _) = capture(change(command), "", Data::None);
                assert_eq!(ending.unwrap(), CaptureEnd::Ended(0));
            });
            assert_eq!(traced, native, "{name}");
        }
    }
}
