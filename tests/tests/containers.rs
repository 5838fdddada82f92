//! Runs in containers, by imitations of what Docker and Podman forbid by default (`programs/container.c`): their seccomp
//! profiles and the capabilities of a container's root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use goanna_tests::{
    Backend, Engine, Intercept, Place, User, binary, differences, finish, finish_within, is_root,
    program,
};

/// Each call on a descriptor takes a dozen stops.
const LIMIT: Duration = Duration::from_secs(120);

/// The differences that docs/compatibility.md explains.
const KNOWN: &str = include_str!("../known.txt");

/// `inner` in a container of this kind.
fn contained(place: &Place, kind: &str, inner: &Command) -> Command {
    let mut command = place.native(program("container", &place.path("."), false));
    command.arg(kind).arg(inner.get_program());
    command.args(inner.get_args());
    command
}

/// As an ordinary user where the tests run as root: programs that change their user are not served in a container.
fn in_docker(backend: Backend, name: &str) {
    let user = if is_root() { User::Nobody } else { User::Own };
    let place = Place::new(backend, Intercept::Ptrace, user);
    let program = program(name, &place.path("."), false);
    let natively = |program: &Path| {
        let (top, host) = (place.make_dir("native"), place.make_dir("host"));
        let mut native = place.native(program);
        let ended = finish(&mut contained(&place, "docker", native.arg(top).arg(host)));
        ended.expect(0).text()
    };
    let expected = natively(&program);
    let host = place.make_dir("host");
    let mut run = place.run();
    run.arg(&program).arg(place.top()).arg(host);
    let ended = finish_within(&mut contained(&place, "docker", &run), LIMIT);
    let found = place.without_names(&differences(&expected, &ended.text()));
    let surprises = differences(&place.known(KNOWN, name), &found);
    assert!(
        surprises.is_empty() && ended.status == 0,
        "{name}, {}:\n{surprises}\n{}",
        ended.how(),
        ended.errors()
    );
}

macro_rules! programs {
    ($($name:ident)*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn pass() { in_docker(Backend::Pass, stringify!($name)); }
            #[test]
            fn amino() { in_docker(Backend::Amino(Engine::Fjall), stringify!($name)); }
        }
    )*};
}

programs! { open opath stat rw dirs names attr xattr acl mmap process fifos locks copy aio }

/// Without `--intercept`, calls are intercepted as the container permits it.
#[test]
fn a_command_runs_as_the_container_permits() {
    let script =
        |top: &str| format!("cd {top} && echo text >file && ls -l . && cat file && rm file");
    for backend in [Backend::Pass, Backend::Amino(Engine::Fjall)] {
        let place = Place::new(backend, Intercept::Ptrace, User::Own);
        let mut run = match backend {
            Backend::Pass => {
                let mut run = Command::new(binary("goanna"));
                let source = place.path("pass");
                run.args(["run", "--mount"]);
                run.arg(format!("pass={}:{}", source.display(), place.top()));
                run
            }
            _ => {
                let mut run = Command::new(binary("amino"));
                run.args(["run", "--at", place.top(), "--store"]);
                run.arg(place.path("store"));
                run
            }
        };
        run.args(["--", "/bin/sh", "-c", &script(place.top())]);
        let ended = finish_within(&mut contained(&place, "docker", &run), LIMIT);
        assert!(
            ended.status == 0 && ended.text().ends_with("text\n"),
            "{}:\n{}{}",
            ended.how(),
            ended.text(),
            ended.errors()
        );
    }
}

#[test]
fn check_says_what_a_container_is_to_allow() {
    let place = Place::pass();
    let mut check = Command::new(binary("goanna"));
    check.arg("check");
    let docker = finish(&mut contained(&place, "docker", &check));
    let text = docker.text();
    assert_eq!(docker.status, 0, "{text}");
    assert!(text.contains("interception: ptrace"), "{text}");
    assert!(
        text.contains("pidfd_getfd: start it with --cap-add SYS_PTRACE"),
        "{text}"
    );

    let podman = finish(&mut contained(&place, "podman", &check));
    let text = podman.text();
    assert_eq!(podman.status, 1, "{text}");
    let missing: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("MISSING"))
        .collect();
    assert_eq!(missing.len(), 1, "{text}");
    assert!(
        missing[0].contains("ptrace: start it with --cap-add SYS_PTRACE"),
        "{text}"
    );
}
