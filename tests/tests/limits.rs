//! Resource limits (getrlimit(2)): of the processes of a run, and of those that work for them.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::process::Command;

use goanna_tests::{
    Backend, Ended, Engine, Intercept, Place, User, binary, finish, is_root, program,
};

/// `count` processes keep `files` files open each, in a run that starts with `limit` as both limits.
fn run(place: &Place, limit: u32, count: u32, files: u32) -> Ended {
    let tracee = program("manyfiles", &place.path("."), false);
    let mut inner = place.run();
    inner.arg(&tracee).arg(place.top()).arg(place.path("host"));
    inner.args([count.to_string(), files.to_string()]);
    finish(&mut limited(
        place,
        &format!("--nofile={limit}:{limit}"),
        &inner,
    ))
}

/// `inner` with a limit, an option of prlimit(1).
fn limited(place: &Place, limit: &str, inner: &Command) -> Command {
    let mut command = place.native("prlimit");
    command
        .arg(limit)
        .arg(inner.get_program())
        .args(inner.get_args());
    command
}

/// A script that makes, lists and reads files.
const WORK: &str = "for i in 1 2 3 4 5; do mkdir d$i && echo text >d$i/f && cat d$i/f || exit; done
    find . -type f | wc -l; tar cf - . | tar tf - | wc -l";

/// The owner of a store has the limits of the command that started it. It died where malloc(3), which reserves addresses for each thread, had used up those of the limit.
#[test]
fn stores_work_within_limits() {
    for engine in [Engine::Fjall, Engine::Sled] {
        for limit in ["--as=256000000", "--data=100000000", "--fsize=1024:"] {
            let place = Place::new(Backend::Amino(engine), Intercept::Notify, ordinary());
            let ended = finish(&mut limited(&place, limit, &place.shell(WORK))).expect(0);
            let expected = format!("{}5\n11\n", "text\n".repeat(5));
            assert_eq!(ended.text(), expected, "{limit}: {}", ended.errors());
            place.fsck();
        }
    }
}

/// SIGXFSZ killed the owner.
#[test]
fn a_limit_on_file_sizes_that_is_too_low_for_a_store_is_said() {
    let place = Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, ordinary());
    let ended = finish(&mut limited(&place, "--fsize=1024", &place.shell(WORK)));
    let errors = ended.expect(125).errors();
    assert!(errors.contains("File too large"), "{errors}");
    assert!(errors.contains("ulimit -f"), "{errors}");
}

/// A user without CAP_SYS_RESOURCE: the monitor cannot raise a hard limit.
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

/// SIGXFSZ killed these, too.
#[test]
fn commands_that_write_beyond_the_limit_on_file_sizes_say_so() {
    let place = Place::new(Backend::Amino(Engine::Fjall), Intercept::Notify, ordinary());
    finish(&mut place.shell("head -c 100000 /dev/urandom >random")).expect(0);
    let to = place.make_dir("to");
    let mut export = place.amino_command("export");
    export.arg("/").arg(to.join("tree"));
    let mut dump = place.amino_command("dump");
    dump.arg("-o").arg(to.join("dump"));
    let mut trace = place.native(binary("goanna-trace"));
    trace.arg("-o").arg(to.join("trace"));
    trace.args(["--", "find", "/usr", "-maxdepth", "2"]);
    for (command, status) in [(export, 1), (dump, 125), (trace, 125)] {
        let ended = finish(&mut limited(&place, "--fsize=1024", &command));
        let errors = ended.expect(status).errors();
        assert!(errors.contains("File too large"), "{errors}");
    }
    place.fsck();
}
