//! Every family of calls, as programs use them: the same program natively and in every place, and no difference.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use goanna_tests::{
    Backend, Engine, Intercept, OnceEach, Place, User, binary, differences, fill_padding, finish,
    finish_within, in_every_place, program, uses_stubs,
};

/// A program takes two seconds natively at most; more than this is a hang.
const LIMIT: Duration = Duration::from_secs(30);

/// The differences that docs/compatibility.md explains.
const KNOWN: &str = include_str!("../known.txt");

/// What the program `name`, which is there as `program`, prints natively. Each user runs it twice, for all places.
fn expected(place: &Place, name: &str, is_static: bool, program: &Path) -> Arc<String> {
    static NATIVE: OnceEach<(String, bool, User), String> = OnceEach::new();
    NATIVE.get((name.to_owned(), is_static, place.user()), || {
        let expected = natively(place, program);
        let again = differences(&expected, &natively(place, program));
        assert!(
            again.is_empty(),
            "the program is no good: two native runs differ:\n{again}"
        );
        without_places(place, &expected)
    })
}

/// `text` without names that differ from one place to the next.
fn without_places(place: &Place, text: &str) -> String {
    let dir = place.path("");
    let dir = dir.to_string_lossy();
    place
        .without_names(text)
        .replace(dir.trim_end_matches('/'), "PLACE")
}

/// What `program` prints natively, in a fresh directory.
fn natively(place: &Place, program: &Path) -> String {
    let (top, host) = (place.make_dir("native"), place.make_dir("host"));
    let ended = finish(place.native(program).arg(top).arg(host));
    let text = ended.expect(0).text();
    assert!(
        text.ends_with("end\n"),
        "stopped half way natively:\n{text}"
    );
    text
}

fn check(place: &Place, name: &str, is_static: bool) {
    check_with(place, name, is_static, &[]);
}

/// Under ptrace interception a host file is opened twice, as docs/compatibility.md says, and the second close comes at any time.
fn check_watches(place: &Place) {
    if !place.is_any("pass,ptrace") {
        check(place, "inotify", false);
    }
}

/// The same under options of the run.
fn check_with(place: &Place, name: &str, is_static: bool, options: &[&str]) {
    let program = program(name, &place.path("."), is_static);
    let expected = expected(place, name, is_static, &program);
    let host = place.make_dir("host");
    let mut run = place.run_with(options);
    let ended = finish_within(run.arg(&program).arg(place.top()).arg(host), LIMIT);
    let found = differences(&expected, &without_places(place, &ended.text()));
    let surprises = differences(&place.known(KNOWN, name), &found);
    assert!(
        surprises.is_empty() && ended.status == 0,
        "{name}, {}: differences that docs/compatibility.md does not explain (+), or explains though there are none (-); \
         in each, - is natively and + here:\n{surprises}\n{}",
        ended.how(),
        ended.errors()
    );
    place.fsck();
}

in_every_place! {
    open => |place| check(&place, "open", false);
    o_path => |place| check(&place, "opath", false);
    stat => |place| check(&place, "stat", false);
    statx => |place| check(&place, "statx", false);
    rules_of_paths => |place| check(&place, "pathrules", false);
    roots => |place| check(&place, "roots", false);
    chroots => |place| check(&place, "chroots", false);
    root_directories_in_mount_namespaces => |place| check(&place, "pivots", false);
    bind_mounts_in_mount_namespaces => |place| check(&place, "binds", false);
    mounts_by_descriptor_in_mount_namespaces => |place| check(&place, "attaches", false);
    rw => |place| check(&place, "rw", false);
    dirs => |place| check(&place, "dirs", false);
    the_directory_above_a_mount => |place| check(&place, "above", false);
    names => |place| check(&place, "names", false);
    mounting => |place| check(&place, "mounting", false);
    mount_options => |place| check(&place, "mount_options", false);
    attr => |place| check(&place, "attr", false);
    flags => |place| check(&place, "flags", false);
    file_flags => |place| check(&place, "chattr", false);
    file_attributes => |place| check(&place, "fileattr", false);
    ioctls => |place| check(&place, "ioctls", false);
    dropped => |place| check(&place, "dropped", false);
    capabilities => |place| check(&place, "capabilities", false);
    xattr => |place| check(&place, "xattr", false);
    xattr_at => |place| check(&place, "xattrat", false);
    access_control_lists => |place| check(&place, "acl", false);
    file_capabilities => |place| check(&place, "filecaps", false);
    ranges_and_controls => |place| check(&place, "ranges", false);
    mmap => |place| check(&place, "mmap", false);
    msync => |place| check(&place, "msync", false);
    cwd => |place| check(&place, "cwd", false);
    cwd_in_common_with_another_process => |place| check(&place, "sharedcwd", false);
    getcwd_beyond_path_max => |place| check(&place, "deepcwd", false);
    what_a_process_inherits => |place| check(&place, "inherited", false);
    process => |place| check(&place, "process", false);
    killed => |place| check(&place, "killed", false);
    turns => |place| check(&place, "turns", false);
    linux_aio => |place| check(&place, "aio", false);
    landlock => |place| check(&place, "landlock", false);
    writes_in_rows => |place| check(&place, "granted", false);
    opens_in_rows => |place| check(&place, "opens", false);
    opens_again => |place| check(&place, "reopens", false);
    opens_one_after_the_other => |place| check(&place, "readahead", false);
    directories_again => |place| check(&place, "opendirs", false);
    cpus_of_threads_that_open_files => |place| check(&place, "cpus", false);
    eintr => |place| check(&place, "eintr", false);
    process_static => |place| check(&place, "process", true);
    descendants => |place| check(&place, "descend", false);
    exec_name => |place| check(&place, "execname", false);
    execs_while_others_open => |place| check(&place, "execs", false);
    elf_interpreters => |place| check(&place, "interp", false);
    fifos => |place| check(&place, "fifos", false);
    fifo_interrupted => |place| check(&place, "interrupt", false);
    signals_during_opens => |place| check(&place, "requeued", false);
    calls_restarted => |place| check(&place, "restarted", false);
    calls_of_the_killed => |place| check(&place, "abandoned", false);
    sockets => |place| check(&place, "sockets", false);
    socket_names => |place| check(&place, "socknames", false);
    leases => |place| check(&place, "leases", false);
    waits_for_leases => |place| check(&place, "lease_waits", false);
    rules_of_leases => |place| check(&place, "lease_rules", false);
    extents => |place| check(&place, "extents", false);
    children_by_clone3 => |place| check(&place, "clone3", false);
    ptrace_of_children => |place| check(&place, "debuggers", false);
    ptrace_of_programs => |place| check(&place, "tracers", false);
    directory_notifications => |place| check(&place, "dnotify", false);
    watches => |place| check_watches(&place);
    sockets_of_sandboxed_programs => |place| check(&place, "sandboxed", false);
    locks => |place| check(&place, "locks", false);
    copy => |place| check(&place, "copy", false);
    large_copies => |place| check(&place, "copies", false);
    ignored_signals => |place| check(&place, "ignored", false);
    core_files => |place| check(&place, "cores", false);
    deadlines_of_waits => |place| check(&place, "deadlines", false);
    connects_that_wait => |place| check(&place, "connects", false);
    edges => |place| check(&place, "edges", false);
    waiting_copies => |place| check(&place, "waits", false);
    programs_that_make_stubs_hard => |place| check(&place, "stubs", false);
    programs_with_threads => |place| check(&place, "threads", false);
    copies_and_lists_in_the_process => |place| check(&place, "stublists", false);
    programs_that_are_patched_in_between => |place| check(&place, "patches", false);
    random_paths => |place| check(&place, "path_fuzz", false);
    attributes_that_change => |place| check(&place, "attributes", false);
}

/// Programs get the same answers where no call is answered in the process: with `GOANNA_TEST_FAST_PATH=0` all tests run so.
#[test]
fn calls_that_all_notify() {
    for place in [Place::amino, Place::pass] {
        for name in [
            "stubs",
            "threads",
            "stublists",
            "patches",
            "path_fuzz",
            "attributes",
        ] {
            check_with(&place(), name, false, &["--no-fast-path"]);
        }
    }
}

/// A C library without symbols and debug information has the same sites. Where something is behind its code, its stubs are in memory of their own.
#[test]
fn other_c_libraries() {
    for kind in ["stripped", "modified"] {
        let place = Place::amino();
        let dir = place.make_dir("lib");
        let library = dir.join("libc.so.6");
        finish(place.native("sh").args([
            "-c",
            r#"libc=$(ldd /bin/sh | sed -n 's/.*libc.so.6 => \([^ ]*\) .*/\1/p'); strip -s -o "$0" "$libc""#,
            library.to_str().unwrap(),
        ]))
        .expect(0);
        if kind == "modified" {
            fill_padding(&library);
        }
        for name in ["patches", "stubs", "stublists", "attributes", "threads"] {
            let program = program(name, &place.path("."), false);
            let expected = natively(&place, &program);
            let host = place.make_dir(&format!("host-{name}"));
            let mut run = place.run_with(&["--stats=json"]);
            let run = run.arg(&program).arg(place.top()).arg(host);
            let ended = finish_within(run.env("LD_LIBRARY_PATH", &dir), LIMIT);
            assert_eq!(ended.text(), expected, "{kind} {name}");
            let is_used = !ended.errors().contains("\"in_process\":0,");
            assert_eq!(is_used, uses_stubs(&place), "{kind}: {}", ended.errors());
            finish(&mut place.shell("chmod -R u+rwX w; rm -r w")).expect(0);
        }
    }
}

/// `--stats` counts calls that stubs answer, which do not come to the monitor then.
#[test]
fn calls_in_the_process_are_counted() {
    let place = Place::pass();
    let script = "for i in {1..500}; do test -e /etc/passwd; done";
    let counted = |mut run: std::process::Command| {
        let ended = finish(&mut run);
        let figure = |name: &str| -> u64 {
            let errors = ended.errors();
            let (_, rest) = errors.split_once(&format!("\"{name}\":")).unwrap();
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
            digits.unwrap().parse().unwrap()
        };
        (figure("in_process"), figure("passed_on"))
    };
    let run = |options: &[&str], command: &[&str]| {
        let mut run = place.run_with(&[&["--stats=json"], options].concat());
        run.args(command);
        run
    };
    let command = ["/bin/bash", "-c", script];
    let (without, all) = counted(run(&["--no-fast-path"], &command));
    assert_eq!(without, 0);
    assert!(all >= 500, "{all}");
    // A run that makes few calls does not pay for patches.
    let mut few = run(&[], &command);
    few.env_remove("GOANNA_TEST_CALLS_BEFORE");
    assert_eq!(counted(few).0, 0);
    if uses_stubs(&place) {
        let (within, rest) = counted(run(&[], &command));
        assert!(within >= 400 && rest < 500, "{within} {rest}");
    }
}

/// A process that makes few calls has stubs all the same, if its run has made many.
#[test]
fn processes_of_a_busy_run_have_stubs_early() {
    let place = Place::pass();
    if !uses_stubs(&place) {
        return;
    }
    let program = program("repeated", &place.path("."), false);
    let script = "\"$0\" access 20000 /etc/passwd; sleep 0.1
        for i in {1..20}; do \"$0\" stat 60 /etc/passwd; done";
    let mut run = place.run_with(&["--stats=json"]);
    run.env_remove("GOANNA_TEST_CALLS_BEFORE");
    let ended = finish(run.args(["bash", "-c", script]).arg(&program)).expect(0);
    let errors = ended.errors();
    let figures: serde_json::Value = serde_json::from_str(errors.lines().last().unwrap()).unwrap();
    let notified = figures["calls"]["newfstatat"].as_u64().unwrap_or(0);
    assert!(notified < 20 * 60 / 2, "{errors}");
}

/// The loader makes the same few calls in each process, before the first call of libc.
#[test]
fn the_loader_of_a_process_has_stubs_when_it_begins() {
    const PROCESSES: u64 = 100;
    let place = Place::pass();
    if !uses_stubs(&place) {
        return;
    }
    let script = format!("for i in {{1..{PROCESSES}}}; do /bin/true; done");
    let ended = finish(
        place
            .run_with(&["--stats=json"])
            .args(["bash", "-c", &script]),
    )
    .expect(0);
    let errors = ended.errors();
    let stats: serde_json::Value = serde_json::from_str(errors.lines().last().unwrap()).unwrap();
    for call in ["access", "openat", "newfstatat"] {
        let notified = stats["calls"][call].as_u64().unwrap_or(0);
        assert!(notified < PROCESSES, "{call}: {errors}");
    }
}

/// How often [`figures_of`] makes the call.
const CALLS: u64 = 20_000;

/// The statistics of `repeated CALL` on `path`, where `options` has further arguments.
fn figures_of(place: &Place, call: &str, path: &str, options: &[&str]) -> serde_json::Value {
    let program = program("repeated", &place.path("."), false);
    let mut run = place.run_with(&["--stats=json"]);
    run.arg(&program).args([call, &CALLS.to_string(), path]);
    run.args(options);
    let ended = finish(&mut run).expect(0);
    serde_json::from_str(ended.errors().trim()).unwrap()
}

/// Runs `repeated CALL` on `path`, and checks that most calls are answered in the process: all but the first ones, and those of the time before mount
/// points are watched for.
fn check_in_process(place: &Place, call: &str, path: &str) {
    check_figures(call, path, &figures_of(place, call, path, &[]));
}

fn check_figures(call: &str, path: &str, figures: &serde_json::Value) {
    let within = figures["in_process"].as_u64().unwrap_or(0);
    assert!(within >= CALLS / 2, "{call} {path}: {figures}");
}

/// A thread that the process starts before its first calls makes them in the process, too.
#[test]
fn calls_of_threads_are_answered_in_the_process() {
    for place in [Place::amino(), Place::pass()] {
        if !uses_stubs(&place) {
            return;
        }
        finish(&mut place.shell("mkdir -p d; echo text > d/file")).expect(0);
        let file = format!("{}/d/file", place.top());
        for call in ["access", "open", "stat", "statx"] {
            for path in [file.as_str(), "/etc/passwd"] {
                check_figures(call, path, &figures_of(&place, call, path, &["thread"]));
            }
        }
    }
}

/// Where no mount point exists on the host, links of the host are followed in the process, also by access(2), readlink(2) and statx(2).
#[test]
fn links_of_the_host_are_followed_in_the_process() {
    let place = Place::amino();
    if !uses_stubs(&place) {
        return;
    }
    let host = place.make_dir("host");
    std::fs::write(host.join("file"), "").unwrap();
    std::os::unix::fs::symlink(".", host.join("link")).unwrap();
    std::os::unix::fs::symlink("file", host.join("other")).unwrap();
    let path = host.join("link/other");
    for call in [
        "access", "readlink", "open", "stat", "statx", "fstat", "fstatx",
    ] {
        check_in_process(&place, call, path.to_str().unwrap());
    }
}

/// Attributes of files in a store come from the map. Files and directories are opened there, and the ends of directories are known.
#[test]
fn attributes_in_a_store_are_answered_in_the_process() {
    let place = Place::amino();
    if !uses_stubs(&place) {
        return;
    }
    finish(&mut place.shell("mkdir -p d; echo text > d/file")).expect(0);
    for call in ["access", "open", "stat", "statx", "fstat", "fstatx"] {
        check_in_process(&place, call, &format!("{}/d/file", place.top()));
        check_in_process(&place, call, &format!("{}/d", place.top()));
    }
    // Each list is two calls.
    let figures = figures_of(&place, "list", &format!("{}/d", place.top()), &[]);
    let notified = figures["calls"]["getdents64"].as_u64().unwrap_or(0);
    assert!(notified < CALLS * 3 / 2, "{figures}");
}

/// Attributes of files of the host in a mount come from the map, when the host has confirmed them. A file is opened there, too.
#[test]
fn calls_on_the_hosts_files_are_answered_in_the_process() {
    let place = Place::pass();
    if !uses_stubs(&place) {
        return;
    }
    finish(&mut place.shell("mkdir -p d; echo text > d/file")).expect(0);
    for call in ["access", "stat", "statx"] {
        check_in_process(&place, call, &format!("{}/d/file", place.top()));
        check_in_process(&place, call, &format!("{}/d", place.top()));
    }
    check_in_process(&place, "open", &format!("{}/d/file", place.top()));
    check_in_process(&place, "missing", &format!("{}/d/missing", place.top()));
    let mut users = vec![User::Own];
    if goanna_tests::may_become_another_user() {
        users.push(User::Nobody);
    }
    for user in users {
        let place = Place::new(Backend::Aes, Intercept::Notify, user);
        finish(&mut place.shell("echo text > file")).expect(0);
        for call in ["access", "open", "stat", "statx", "fstat", "fstatx"] {
            check_in_process(&place, call, &format!("{}/file", place.top()));
        }
    }
}

/// Two runs that open the same file again and again use the same map, and each knows its own descriptors.
#[test]
fn runs_open_the_same_file_in_the_process() {
    let place = Place::amino();
    if !uses_stubs(&place) {
        return;
    }
    finish(&mut place.shell("echo text > file")).expect(0);
    let script = "for i in {1..3000}; do
            exec 3<\"$0\" && read -r line <&3 && [[ /proc/self/fd/3 -ef $0 && $line = text ]] || echo \"wrong: $i\"
        done";
    let path = format!("{}/file", place.top());
    let runs = [(); 2].map(|()| {
        let mut run = place.run_with(&[]);
        run.args(["bash", "-c", script, &path]);
        std::thread::spawn(move || finish(&mut run).expect(0))
    });
    for run in runs {
        let ended = run.join().unwrap();
        assert_eq!(ended.text(), "");
    }
}

/// Of the files of a directory that a program looks at one after the other, few come to the monitor: the next ones are in the map already.
#[test]
fn attributes_are_read_ahead() {
    const FILES: u64 = 400;
    let place = Place::amino();
    if !uses_stubs(&place) {
        return;
    }
    let script = format!("mkdir d; for i in $(seq {FILES}); do head -c $i /dev/zero > d/$i; done");
    finish(&mut place.shell(&script)).expect(0);
    let dir = format!("{}/d", place.top());
    let by_descriptor = ["find", &dir, "-type", "f", "-printf", "%f %s\\n"];
    let by_path = ["stat", "-c", "%n %s"].map(str::to_owned).into_iter();
    let by_path = by_path.chain((1..=FILES).map(|file| format!("{dir}/{file}")));
    let commands = [
        by_descriptor.map(str::to_owned).to_vec(),
        by_path.collect::<Vec<_>>(),
    ];
    for command in commands {
        let mut run = place.run_with(&["--stats=json"]);
        let ended = finish(
            run.args(["sh", "-c", "ls \"$0\" >&2 && exec \"$@\"", &dir])
                .args(command),
        )
        .expect(0);
        let output = ended.text();
        let sizes = output.lines().filter(|line| {
            let (name, size) = line.split_once(' ').unwrap();
            name.rsplit('/').next() == Some(size)
        });
        assert_eq!(sizes.count() as u64, FILES, "{output}");
        let errors = ended.errors();
        let figures: serde_json::Value =
            serde_json::from_str(errors.lines().last().unwrap()).unwrap();
        let calls = &figures["calls"];
        let notified = ["newfstatat", "statx"].map(|call| calls[call].as_u64().unwrap_or(0));
        assert!(notified.iter().sum::<u64>() < FILES / 2, "{errors}");
    }
}

/// A process writes to a file in a store itself, and the file is what it has written.
#[test]
fn writes_to_a_store_are_made_in_the_process() {
    let place = Place::amino();
    if !uses_stubs(&place) {
        return;
    }
    finish(&mut place.shell(": > file")).expect(0);
    let path = format!("{}/file", place.top());
    check_in_process(&place, "write", &path);
    check_in_process(&place, "pwrite", &path);
    check_in_process(&place, "rewrite", &format!("{}/other", place.top()));
    let cat = finish(place.amino_command("cat").arg("/file")).expect(0);
    assert_eq!(cat.stdout, vec![0; 50 * 20_000]);
    place.fsck();
}

/// cp -a makes eight calls that concern a new file in a store. The refused clone, the copy of nothing at the end, and fchmod(2), which
/// follows only where an access control list cannot be set, once came to the monitor, too.
#[test]
fn a_copied_file_takes_five_notifications() {
    const FILES: u64 = 300;
    let place = Place::amino();
    let source = place.make_dir("source");
    for index in 0..FILES {
        std::fs::write(source.join(format!("f{index}")), format!("file {index}")).unwrap();
    }
    let mut run = place.run_with(&["--stats=json"]);
    run.args(["cp", "-a"]).arg(&source);
    let ended = finish(run.arg(format!("{}/copy", place.top()))).expect(0);
    let errors = ended.errors();
    let figures: serde_json::Value = serde_json::from_str(errors.trim()).unwrap();
    let figure = |name: &str| figures[name].as_u64().unwrap_or(0);
    let per_file = if uses_stubs(&place) { 5 } else { 14 };
    let calls = figure("answered") + figure("passed_on");
    assert!(calls < FILES * per_file + 200, "{errors}");
    assert_eq!(
        figures["calls"]["fchmod"],
        serde_json::Value::Null,
        "{errors}"
    );
}

/// The same programs in an encrypted directory, as root and as an ordinary user.
mod aes {
    use super::*;

    macro_rules! programs {
        ($($program:ident)*) => { $(mod $program {
            use super::*;

            #[test]
            fn own() {
                check(&Place::new(Backend::Aes, Intercept::Notify, User::Own), stringify!($program), false);
            }

            #[test]
            fn nobody() {
                if goanna_tests::may_become_another_user() {
                    check(&Place::new(Backend::Aes, Intercept::Notify, User::Nobody), stringify!($program), false);
                }
            }
        })* };
    }

    programs! {
        open opath stat statx rw dirs above names attr flags chattr fileattr xattrat ioctls dropped capabilities xattr acl ranges mmap msync cwd process
        killed eintr descend execname execs fifos interrupt restarted abandoned sockets socknames leases lease_waits lease_rules extents dnotify clone3 sandboxed locks copy copies
        ignored cores deadlines edges waits mount_options mounting requeued
    }
}

/// The same, each program in a transaction.
#[track_caller]
fn check_in_transaction(
    name: &str,
    place: &Place,
    explained: &str,
    run: &mut std::process::Command,
) {
    let program = program(name, &place.path("."), false);
    let expected = natively(place, &program);
    let host = place.make_dir("host");
    let ended = finish_within(run.arg(&program).arg(place.top()).arg(host), LIMIT);
    let found = place.without_names(&differences(&expected, &ended.text()));
    let mut explained_all = place.known(KNOWN, name);
    explained_all.push_str(explained);
    let surprises = differences(&explained_all, &found);
    assert!(
        surprises.is_empty() && ended.status == 0,
        "{name}, {}: differences that docs/transactions.md does not explain (+), or explains though there are none (-); \
         in each, - is natively and + in a transaction:\n{surprises}\n{}",
        ended.how(),
        ended.errors()
    );
    place.fsck();
}

/// As [`known`], for what is different only in transactions of a `kind`.
fn known_inside(name: &str, kind: &str) -> String {
    let mut lines = String::new();
    for line in include_str!("../known.txt").lines() {
        if let Some(difference) = line.strip_prefix(&format!("{name} {kind} ")) {
            lines.push_str(difference);
            lines.push('\n');
        }
    }
    lines
}

macro_rules! programs {
    ($check:ident: $($name:ident)*) => { $(#[test] fn $name() { $check(stringify!($name)); })* };
}

/// In a transaction of its own, whose reads are answered by the monitor.
mod inside {
    use super::*;

    fn check(name: &str) {
        let place = Place::amino();
        let mut command = place.run();
        command.arg(binary("amino")).args(["txn", "run", "--"]);
        let explained = known_inside(name, "transaction");
        check_in_transaction(name, &place, &explained, &mut command);
    }

    programs! { check:
        open opath stat statx rw dirs names attr flags ioctls dropped xattr acl ranges mmap cwd process eintr fifos interrupt sockets socknames locks copy
        copies waits edges ignored
    }
}

/// As a run that is one transaction, which reads natively.
mod whole {
    use super::*;

    fn check(name: &str) {
        for intercept in [Intercept::Notify, Intercept::Ptrace] {
            let place = Place::new(Backend::Amino(Engine::Fjall), intercept, User::Own);
            let explained = known_inside(name, "whole");
            check_in_transaction(name, &place, &explained, &mut place.run_with(&["--txn"]));
        }
    }

    programs! { check:
        open opath stat statx rw dirs names attr flags ioctls dropped xattr acl ranges mmap cwd process killed eintr execname fifos interrupt sockets locks copy copies waits edges ignored
    }
}

/// The comparison itself: a difference must be seen, and the order of lines must not be one.
#[test]
fn differences_are_found() {
    assert_eq!(differences("1 a: 0\n2 b: 0\n", "2 b: 0\n1 a: 0\n"), "");
    assert_eq!(
        differences("1 a: 0\n2 b: 0\n3 c: 0\n", "1 a: 0\n2 b: ENOENT\n3 c: 0\n"),
        "- 2 b: 0\n+ 2 b: ENOENT\n"
    );
    assert_eq!(differences("x\nx\n", "x\n"), "- x\n");
    assert_eq!(differences("x\n", "x\nx\n"), "+ x\n");
}
