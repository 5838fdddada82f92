//! `amino run` and `goanna run` as commands: exit statuses, bad input, signals, what is left behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use goanna_tests::{
    Backend, Ended, Place, binary, finish, finish::wait, held::until, in_every_place,
};
use rustix::process::{Pid, Signal};

in_every_place! {
    statuses => exit_statuses;
    not_found => missing_and_unusable_commands;
    children => background_jobs_end_with_the_run;
    interrupt => control_c_ends_the_whole_group;
    killed => killing_the_monitor_kills_the_command;
    streams => standard_streams_pass_through;
    defect => a_panic_fails_the_call_and_not_the_run;
}

fn in_shell(place: &Place, script: &str) -> Ended {
    finish(&mut place.shell(script))
}

fn exit_statuses(place: Place) {
    for status in [0, 1, 42, 255] {
        in_shell(&place, &format!("exit {status}")).expect(status);
    }
    // Not SIGQUIT, which bash ignores.
    for signal in [1, 2, 6, 9, 15, 31] {
        in_shell(&place, &format!("kill -{signal} $$; sleep 5")).expect(128 + signal);
    }
    // The command's own status counts, not that of what it started.
    in_shell(&place, "(exit 3); (kill -9 $BASHPID); exit 4").expect(4);
    in_shell(&place, "exec false").expect(1);
    in_shell(&place, "exec sh -c 'kill -TERM $$'").expect(143);
}

fn missing_and_unusable_commands(place: Place) {
    let says = |ended: &Ended, what: &str| {
        let errors = ended.errors();
        assert!(errors.contains(what), "{what:?} is not in: {errors}");
        assert!(!errors.contains("panicked"), "{errors}");
    };
    let ended = finish(place.run().arg("no-such-command-anywhere")).expect(127);
    says(&ended, "no-such-command-anywhere");
    let ended = finish(place.run().arg("/no/such/path")).expect(127);
    says(&ended, "/no/such/path");
    let in_mount = format!("{}/none", place.top());
    let ended = finish(place.run().arg(&in_mount)).expect(127);
    says(&ended, &in_mount);
    let ended = finish(place.run().arg("/usr")).expect(126);
    says(&ended, "/usr");
    let file = place.path("host").join("plain");
    fs::write(&file, "no program\n").unwrap();
    let ended = finish(place.run().arg(&file)).expect(126);
    says(&ended, "plain");
    // Executable, and yet no program: what exec says, not what a shell makes of it.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    finish(place.run().arg(&file)).expect(126);
    // A command in the mount, with and without permission.
    in_shell(
        &place,
        "printf '#!/bin/sh\\nexit 9\\n' > prog; chmod 755 prog; printf x > plain",
    )
    .expect(0);
    finish(place.run().arg(format!("{}/prog", place.top()))).expect(9);
    finish(place.run().arg(format!("{}/plain", place.top()))).expect(126);
}

/// At a ptrace stop, and in a thread that answers notifications. Only debug builds of the monitor panic when they are asked to.
fn a_panic_fails_the_call_and_not_the_run(place: Place) {
    in_shell(&place, "mkdir dir; echo data > file").expect(0);
    let top = place.top();
    for (call, command) in [
        ("chdir", "cd dir"),
        ("mkdir", "mkdir new"),
        ("rmdir", "rmdir dir"),
    ] {
        let script = format!(
            "cd {top}; {command}; cat {top}/file; (cat {top}/file); ls -d {top}/dir; sh -c 'exit 3'"
        );
        let mut run = place.run();
        run.args(["/bin/bash", "-c", &script]);
        let ended = finish(run.env("GOANNA_TEST_PANIC", call)).expect(3);
        assert_eq!(ended.text(), format!("data\ndata\n{top}/dir\n"), "{call}");
        let errors = ended.errors();
        let found = format!("a defect in the monitor, at {call} of thread");
        assert!(
            errors.contains(&found) && errors.contains("Input/output error"),
            "{call}: {errors}"
        );
    }
}

fn background_jobs_end_with_the_run(place: Place) {
    // What is still running when the command ends continues with the monitor, or is ended by it; it must not hang, and
    // it must not continue without the mount.
    let marker = place.path("host").join("marker");
    let started = Instant::now();
    let script = format!(
        "(sleep 1; echo late > late; echo seen > {}) & exit 7",
        marker.display()
    );
    in_shell(&place, &script).expect(7);
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "it waited for too long"
    );
    std::thread::sleep(Duration::from_millis(1500));
    let went_on = marker.exists();
    let ended = in_shell(&place, "cat late 2>/dev/null; true").expect(0);
    // It may be at work only now.
    if ended.text() == "late\n" {
        until("the other half of a background job's work", || {
            marker.exists()
        });
    } else {
        assert!(!went_on, "a background job did half of its work");
    }
    // And those that are waited for do all of theirs.
    let script = "for i in 1 2 3 4 5; do (echo $i > job$i) & done; wait; cat job*";
    assert_eq!(in_shell(&place, script).expect(0).text(), "1\n2\n3\n4\n5\n");
}

/// Starts a script in the mount, in a process group of its own, and waits until it has made `host/ready`.
fn start(place: &Place, script: &str) -> Child {
    let ready = place.path("host").join("ready");
    let _ = fs::remove_file(&ready);
    let script = script.replace(
        "READY",
        // No other program: a shell that waits for one leaves it to it what an interrupt means.
        &format!("echo $$ > {}", ready.display()),
    );
    let mut child = place
        .shell(&script)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    while !fs::read_to_string(&ready).is_ok_and(|text| text.ends_with('\n')) {
        let status = child.try_wait().unwrap();
        assert!(status.is_none(), "it ended before it was ready: {status:?}");
        assert!(Instant::now() < end, "it was not ready in time");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// The pid that the script wrote to `host/ready`.
fn ready_pid(place: &Place) -> i32 {
    let text = fs::read_to_string(place.path("host").join("ready")).unwrap();
    text.trim().parse().unwrap()
}

fn is_alive(pid: i32) -> bool {
    // A zombie is not alive.
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with(['Z', 'X'])
    })
}

fn gone_soon(pid: i32) -> bool {
    let end = Instant::now() + Duration::from_secs(10);
    while is_alive(pid) {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).unwrap()
}

fn control_c_ends_the_whole_group(place: Place) {
    let mut child = start(&place, "READY; sleep 60");
    let pid = ready_pid(&place);
    rustix::process::kill_process_group(pid_of(&child), Signal::INT).unwrap();
    assert_eq!(wait(&mut child, Duration::from_secs(20)), Some(130));
    assert!(gone_soon(pid), "the command goes on");
    // A command that handles the signal decides for itself, and the monitor stays for it.
    let mut child = start(
        &place,
        "trap 'echo trapped > trapped; kill $!; exit 5' INT; READY; sleep 60 & wait",
    );
    rustix::process::kill_process_group(pid_of(&child), Signal::INT).unwrap();
    assert_eq!(wait(&mut child, Duration::from_secs(20)), Some(5));
    assert_eq!(
        in_shell(&place, "cat trapped").expect(0).text(),
        "trapped\n"
    );
    // SIGTERM to the monitor alone reaches the command.
    let mut child = start(&place, "READY; exec sleep 60");
    let pid = ready_pid(&place);
    rustix::process::kill_process(pid_of(&child), Signal::TERM).unwrap();
    let status = wait(&mut child, Duration::from_secs(20));
    assert_eq!(status, Some(143));
    assert!(gone_soon(pid), "the command goes on");
    place.fsck();
}

fn killing_the_monitor_kills_the_command(place: Place) {
    let mut child = start(
        &place,
        "(sleep 61 & echo $! > pid2; exec sleep 62) & READY; sleep 60",
    );
    let pid = ready_pid(&place);
    assert!(is_alive(pid));
    rustix::process::kill_process(pid_of(&child), Signal::KILL).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    assert!(gone_soon(pid), "the command outlives its monitor");
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let left = Command::new("/bin/sh")
            .args([
                "-c",
                "ps -e -o pgid=,stat=,args= | awk -v g=$0 '$1 == g && $2 !~ /Z/'",
            ])
            .arg(child.id().to_string())
            .output()
            .unwrap();
        if left.stdout.is_empty() {
            break;
        }
        let text = String::from_utf8_lossy(&left.stdout).into_owned();
        assert!(Instant::now() < end, "processes are left:\n{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    // And the store is usable at once.
    in_shell(&place, "echo again > again; cat again").expect(0);
    place.fsck();
}

fn standard_streams_pass_through(place: Place) {
    let file = place.path("host").join("input");
    fs::write(&file, "from stdin\n").unwrap();
    // The first run says that it has made the store.
    finish(&mut place.shell("true")).expect(0);
    let output = place
        .shell("cat; echo to stderr >&2; echo to stdout")
        .stdin(fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "from stdin\nto stdout\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "to stderr\n");
    // The environment and arguments, byte for byte.
    let mut command = place.run();
    command
        .args(["/usr/bin/printenv", "STRANGE"])
        .env("STRANGE", " a\nb\\ ");
    assert_eq!(finish(&mut command).expect(0).stdout, b" a\nb\\ \n");
    let mut command = place.run();
    command.args(["/usr/bin/printf", "%s|", "", "-q", "--", "--store", "a b"]);
    assert_eq!(finish(&mut command).expect(0).text(), "|-q|--|--store|a b|");
}

/// Runs `amino` with `arguments` and expects our own failure, with a message that names `what`.
#[track_caller]
fn refused(place: &Place, arguments: &[&str], what: &[&str]) {
    let ended = finish(place.native(binary("amino")).args(arguments)).expect(125);
    let errors = ended.errors();
    assert!(errors.starts_with("amino: "), "{errors}");
    for word in what {
        assert!(errors.contains(word), "{word:?} is not in: {errors}");
    }
    assert!(!errors.contains("panicked"), "{errors}");
    assert_eq!(ended.text(), "", "nothing may have run");
}

#[test]
fn bad_stores_are_refused() {
    let place = Place::amino();
    let not_a_store = place.path("host").join("other");
    fs::create_dir(&not_a_store).unwrap();
    fs::write(not_a_store.join("precious"), "data").unwrap();
    let file = not_a_store.join("precious");
    let echo = ["--", "echo", "ran"];
    let run = |store: &Path, what: &[&str]| {
        let store = store.to_str().unwrap();
        let mut arguments = vec!["run", "--store", store];
        arguments.extend(echo);
        refused(&place, &arguments, what);
    };
    run(&not_a_store, &["other"]);
    assert_eq!(fs::read(&file).unwrap(), b"data", "what was there stays");
    assert_eq!(
        fs::read_dir(&not_a_store).unwrap().count(),
        1,
        "nothing is added"
    );
    run(&file, &["precious"]);
    run(Path::new("/proc/no-store-here"), &["/proc/no-store-here"]);
    run(Path::new("/dev/null/store"), &["/dev/null"]);
    let store = place.path("store");
    for command in ["ls", "fsck", "info"] {
        refused(
            &place,
            &[command, "--store", store.to_str().unwrap()],
            &["store"],
        );
        assert!(!store.exists(), "{command} must not make a store");
    }
}

#[test]
fn an_unwritable_store_is_refused() {
    let place = Place::new(
        goanna_tests::Backend::Amino(goanna_tests::Engine::Fjall),
        goanna_tests::Intercept::Notify,
        if goanna_tests::is_root() {
            goanna_tests::User::Nobody
        } else {
            goanna_tests::User::Own
        },
    );
    let closed = place.make_dir("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    let store = closed.join("store");
    refused(
        &place,
        &[
            "run",
            "--store",
            store.to_str().unwrap(),
            "--",
            "echo",
            "ran",
        ],
        &["closed/store", "ermission"],
    );
    // A store of another user: perhaps readable, but not writable.
    finish(&mut place.shell("echo x > x")).expect(0);
    let mode = |mode| {
        let chmod = Command::new("chmod")
            .args(["-R", mode])
            .arg(place.path("store"))
            .status();
        assert!(chmod.unwrap().success());
    };
    mode("a-w");
    refused(
        &place,
        &[
            "run",
            "--store",
            place.path("store").to_str().unwrap(),
            "--",
            "echo",
            "ran",
        ],
        &["store"],
    );
    mode("u+w");
    assert_eq!(finish(&mut place.shell("cat x")).expect(0).text(), "x\n");
}

/// A parent that ignores SIGCHLD hands that on, and wait(2) then reports no child: the status was lost.
#[test]
fn the_status_comes_through_where_sigchld_is_ignored() {
    let place = Place::amino();
    let amino = binary("amino");
    let amino = amino.display();
    let inner = format!("{amino} txn run -- sh -c 'exit 3'; test $? = 3 && exit 4");
    let mut trace = place.native(binary("goanna-trace"));
    trace.arg("-o").arg(place.path("trace"));
    trace.args(["--", "sh", "-c", "exit 4"]);
    let of_pass = Place::pass();
    let mut pass = of_pass.run();
    pass.args(["sh", "-c", "exit 4"]);
    for command in [place.shell(&inner), trace, pass] {
        let mut ignoring = place.native("/bin/bash");
        ignoring
            .args(["-c", "trap '' CHLD; exec \"$0\" \"$@\""])
            .arg(command.get_program())
            .args(command.get_args());
        finish(&mut ignoring).expect(4);
    }
}

#[test]
fn a_bad_mount_point_is_refused() {
    let place = Place::amino();
    let store = place.path("store");
    let store = store.to_str().unwrap();
    let run = |at: &str, what: &str| {
        refused(
            &place,
            &["run", "--store", store, "--at", at, "--", "echo", "ran"],
            &["--at", what],
        )
    };
    run("relative/path", "relative/path");
    run("", "--at");
    run("/", "/");
    run(store, "store");
    run(&format!("{store}/inside"), "store");
    run(place.path(".").parent().unwrap().to_str().unwrap(), "store");
    refused(&place, &["run", "--store", store, "--"], &[]);
    refused(&place, &["run", "--no-such-option"], &["--no-such-option"]);
    refused(&place, &["no-such-command"], &["no-such-command"]);
}

#[test]
fn a_store_in_use_is_refused_by_name() {
    let place = Place::amino();
    let mut child = start(&place, "echo first > first; READY; sleep 60");
    let (owner, _) = place.owner().unwrap();
    let mut other = place.native(binary("goanna"));
    let mount = format!("amino={}:/other", place.path("store").display());
    let ended = finish(other.args(["run", "--mount", &mount, "--", "echo", "ran"])).expect(125);
    let held = format!("in use by process {owner} (aminod ");
    assert!(ended.errors().contains(&held), "{}", ended.errors());
    assert_eq!(ended.text(), "");
    rustix::process::kill_process_group(pid_of(&child), Signal::TERM).unwrap();
    wait(&mut child, Duration::from_secs(20)).unwrap();
    assert_eq!(
        finish(&mut place.shell("cat first")).expect(0).text(),
        "first\n"
    );
}

#[test]
fn a_store_is_mounted_inside_of_a_run_that_has_one() {
    for place in [Place::amino(), Place::pass()] {
        let amino = binary("amino");
        let store = place.path("inner");
        let script = format!(
            "{} run --store {} -- echo inner ran",
            amino.display(),
            store.display()
        );
        let ended = in_shell(&place, &script);
        if place.backend() == Backend::Pass {
            // Its filter lets calls pass that a store must see.
            let ended = ended.expect(125);
            assert!(
                ended.errors().contains("which refuses further mounts"),
                "{}",
                ended.errors()
            );
        } else {
            assert_eq!(ended.expect(0).text(), "inner ran\n");
        }
        // Commands that need no interception work inside.
        let other = Place::amino();
        finish(&mut other.shell("echo inside > file")).expect(0);
        let script = format!(
            "{} cat --store {} /file",
            amino.display(),
            other.path("store").display()
        );
        assert_eq!(in_shell(&place, &script).expect(0).text(), "inside\n");
    }
}

#[test]
fn goanna_check_and_syscalls_agree_with_the_machine() {
    let place = Place::pass();
    let goanna = || place.native(binary("goanna"));
    let check = finish(goanna().args(["check", "--json"])).expect(0);
    let report: serde_json::Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(report["usable"], true, "{report}");
    assert!(!report["facilities"].as_array().unwrap().is_empty());
    let calls = finish(goanna().args(["syscalls", "--json"])).expect(0);
    let calls: serde_json::Value = serde_json::from_slice(&calls.stdout).unwrap();
    let calls = calls.as_array().unwrap();
    assert!(calls.len() > 360, "{} calls", calls.len());
    // Calls that must not exist under us do not.
    let refused: Vec<&str> = calls
        .iter()
        .filter(|call| call["errno"] == "ENOSYS")
        .filter_map(|call| call["name"].as_str())
        .collect();
    assert!(refused.contains(&"io_uring_setup"), "{refused:?}");
}
