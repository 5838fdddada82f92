//! `amino run` and `goanna run`: what users see of a run. The end-to-end tests of the monitor are in `tests/`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::process::Output;

use common::Fixture;
use goanna_skip::{Facility, skip};
use serde_json::Value;

mod common;

impl Fixture {
    fn run(&self, program: &str, args: &[&str]) -> Output {
        self.program(program, args)
            // If a directory of PATH may not be searched, the status is 126 instead of 127, as with execvp(3).
            .env("PATH", "/usr/bin:/bin")
            .output()
            .unwrap()
    }

    fn amino(&self, args: &[&str]) -> Output {
        self.run(env!("CARGO_BIN_EXE_amino"), args)
    }

    fn goanna(&self, args: &[&str]) -> Output {
        self.run(env!("CARGO_BIN_EXE_goanna"), args)
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn statuses_are_the_commands_own() {
    let fixture = Fixture::new();
    for (args, status) in [
        (&["run", "true"][..], 0),
        (&["run", "--", "sh", "-c", "exit 7"], 7),
        (&["run", "sh", "-c", "exit 125"], 125),
        (&["run", "sh", "-c", "kill -KILL $$"], 137),
        (&["run", "sh", "-c", "kill -TERM $$"], 143),
        (&["run", "no-such-command"], 127),
        (&["run", "/no/such/command"], 127),
        (&["run", "/etc/passwd"], 126),
    ] {
        let output = fixture.amino(args);
        assert_eq!(
            output.status.code(),
            Some(status),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

/// The thread that moves core files has no call of its own that could be restarted.
#[test]
fn a_core_file_waits_for_the_lock_of_a_transaction() {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if !pattern.starts_with("core") {
        skip(Facility::Mounts, "core_pattern is no relative path");
        return;
    }
    let fixture = Fixture::new();
    let script = r#"
        mkdir /amino/d; mkfifo /amino/listed
        "$0" txn run -- sh -c 'ls /amino/d; echo >/amino/listed; sleep 1' &
        read line </amino/listed
        (ulimit -c unlimited; cd /amino/d; sh -c 'kill -SEGV $$')
        wait; ls /amino/d
    "#;
    let amino = env!("CARGO_BIN_EXE_amino");
    let output = fixture.amino(&["run", "--", "sh", "-c", script, amino]);
    assert!(output.stdout.starts_with(b"core"), "{}", stderr(&output));
}

#[test]
fn what_a_command_writes_is_in_the_store() {
    let fixture = Fixture::new();
    let script = "echo one >/amino/f; mkdir /amino/d; cat /amino/f; test ! -e /nonexistent";
    let output = fixture.amino(&["run", "sh", "-c", script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(output.stdout, b"one\n");
    assert_eq!(fixture.amino(&["ls", "/"]).stdout, b"d\nf\n");
    assert_eq!(fixture.amino(&["cat", "/f"]).stdout, b"one\n");
    let elsewhere = fixture.amino(&["run", "--at", "/some/where", "--", "cat", "/some/where/f"]);
    assert_eq!(elsewhere.stdout, b"one\n", "{}", stderr(&elsewhere));
    assert_eq!(fixture.amino(&["fsck"]).status.code(), Some(0));
}

#[test]
fn a_run_inside_a_run_joins_it() {
    let fixture = Fixture::new();
    let amino = env!("CARGO_BIN_EXE_amino");
    let script = format!(
        "{amino} run -- sh -c 'echo one > /amino/f; exit 3'; echo $?
         {amino} run --store $AMINO_STORE/../$(basename $AMINO_STORE) cat /amino/f
         env -u AMINO_STORE {amino} run cat /amino/f
         {amino} run --txn -- sh -c 'echo two > /amino/f; false'; cat /amino/f
         {amino} run --txn -- sh -c 'echo two > /amino/f'; cat /amino/f
         {amino} run -- {amino} run --txn -- sh -c '
             echo three > /amino/f; {amino} run --txn rm /amino/f; exit 1'; cat /amino/f
         {amino} run /nonexistent; echo $?; {amino} run /; echo $?"
    );
    let output = fixture.amino(&["run", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<_> = stdout.lines().collect();
    let expected = ["3", "one", "one", "one", "two", "two", "127", "126"];
    assert_eq!(lines, expected, "{}", stderr(&output));
    assert_eq!(fixture.amino(&["cat", "/f"]).stdout, b"two\n");
}

#[test]
fn a_run_inside_a_run_has_no_options_of_a_whole_run() {
    let fixture = Fixture::new();
    let amino = env!("CARGO_BIN_EXE_amino");
    let refused = |args: &str, why: &str| {
        let script = format!("{amino} run {args} touch /amino/f; echo $?");
        let output = fixture.amino(&["run", "sh", "-c", &script]);
        assert_eq!(output.stdout, b"125\n", "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    refused("--store /tmp", "/tmp: not an amino store: ");
    refused("--at /elsewhere", "mounted at another place of this run");
    refused("--durability acid", "run: --durability: ");
    refused("--stats", "run: --stats: ");
    refused("--profile exec", "run: --profile: ");
    refused("--trace t", "run: --trace: ");
    assert_eq!(fixture.amino(&["ls", "/"]).stdout, b"");
}

#[test]
fn a_store_can_be_looked_at_from_inside_of_a_run() {
    let fixture = Fixture::new();
    let amino = env!("CARGO_BIN_EXE_amino");
    let script = format!("echo x > /amino/f; {amino} ls /; {amino} cat /f; {amino} info --json");
    let output = fixture.amino(&["run", "sh", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    let info = output.stdout.strip_prefix(b"f\nx\n").unwrap();
    let info: Value = serde_json::from_slice(info).unwrap();
    assert!(
        info["open_by"]["pid"].as_u64().is_some_and(|pid| pid > 1),
        "{info}"
    );
    assert_eq!(info["open_by"]["runs"], 1);
    assert_eq!(info["engine"], "fjall");
}

#[test]
fn a_store_is_mounted_once() {
    let fixture = Fixture::new();
    let output = fixture.amino(&["run", "--mount", "amino=./store:/again", "true"]);
    assert_eq!(output.status.code(), Some(125));
    let why = "/store: the store is mounted twice\n";
    assert!(stderr(&output).ends_with(why), "{}", stderr(&output));
}

#[test]
fn engines_are_kept_in_the_store() {
    let fixture = Fixture::new();
    assert!(
        fixture
            .amino(&["run", "--engine", "sled", "true"])
            .status
            .success()
    );
    assert!(
        fixture
            .amino(&["run", "--engine", "sled", "true"])
            .status
            .success()
    );
    assert!(fixture.amino(&["run", "true"]).status.success());
    let wrong = fixture.amino(&["run", "--engine", "fjall", "true"]);
    assert_eq!(wrong.status.code(), Some(125));
    assert!(
        stderr(&wrong).contains("made with the engine sled, not fjall\namino: hint: "),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn mounts_of_options_and_files_are_there() {
    let fixture = Fixture::new();
    for (dir, content) in [("a", "from a"), ("b c", "from b")] {
        fs::create_dir(fixture.path(dir)).unwrap();
        fs::write(fixture.path(dir).join("file"), content).unwrap();
    }
    let tab = fixture.path("tab");
    fs::write(&tab, "# mounts\npass b\\040c /mnt/b\\040c ro\n").unwrap();
    let script = "cat /mnt/a/file '/mnt/b c/file'; echo new >/mnt/a/new; echo x >'/mnt/b c/new'";
    let output = fixture.goanna(&[
        "run",
        "--config",
        "tab",
        "--mount",
        "pass=a:/mnt/a",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(output.stdout, b"from afrom b", "{}", stderr(&output));
    assert!(
        stderr(&output).contains("Read-only file system"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read(fixture.path("a/new")).unwrap(), b"new\n");
    assert!(!fixture.path("b c/new").exists());
}

#[test]
fn stats_come_last_and_for_machines_too() {
    let fixture = Fixture::new();
    let output = fixture.amino(&[
        "run",
        "--stats=json",
        "sh",
        "-c",
        "echo x >/amino/f; echo said >&2",
    ]);
    let text = stderr(&output);
    let last = text.lines().last().unwrap();
    let stats: Value = serde_json::from_str(last).expect(last);
    assert!(text.contains("\nsaid\n"));
    assert!(stats["answered"].as_u64().unwrap() > 0, "{stats}");
    assert!(
        stats["stores"][0]["commits"].as_u64().unwrap() > 0,
        "{stats}"
    );
    let output = fixture.amino(&["run", "--stats", "true"]);
    assert!(
        stderr(&output).contains("calls answered"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn facilities_and_calls_are_listed() {
    let fixture = Fixture::new();
    let check = fixture.goanna(&["check", "--json"]);
    let check: Value = serde_json::from_slice(&check.stdout).unwrap();
    assert_eq!(check["usable"], true, "{check}");
    let calls = fixture.goanna(&["syscalls", "--json"]);
    let calls: Value = serde_json::from_slice(&calls.stdout).unwrap();
    let calls = calls.as_array().unwrap();
    assert!(calls.len() > 300);
    let uring = calls
        .iter()
        .find(|call| call["name"] == "io_uring_setup")
        .unwrap();
    assert_eq!(uring["errno"], "ENOSYS");
    let text = fixture.goanna(&["syscalls", "openat"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains("answered"));
}

/// The segments that a store has kept of its log.
fn kept_segments(fixture: &Fixture) -> Vec<std::path::PathBuf> {
    let log = fixture.path("store/log");
    let entries = fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut kept: Vec<_> = entries
        .filter(|path| path.extension().is_some_and(|end| end == "kept"))
        .collect();
    kept.sort();
    kept
}

#[test]
fn a_kept_log_is_shown_and_checked() {
    let fixture = Fixture::new();
    let run = |option: &[&str], script: &str| {
        let args = [&["run"], option, &["--", "sh", "-c", script]].concat();
        let output = fixture.amino(&args);
        assert!(output.status.success(), "{}", stderr(&output));
        // The store's owner has ended, and has closed the store.
        let stopped = fixture.amino(&["daemon", "stop"]);
        assert!(stopped.status.code().is_some(), "{}", stderr(&stopped));
    };
    let kept = || -> Value {
        let output = fixture.amino(&["info", "--json"]);
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        info["kept_log"].clone()
    };
    run(&[], "echo a >/amino/a");
    assert_eq!(
        (kept()["on"].clone(), kept_segments(&fixture).len()),
        (false.into(), 0)
    );
    run(&["--keep-log"], "echo b >/amino/b");
    run(&["--txn"], "echo c >/amino/c");
    let found = kept();
    assert_eq!(
        (&found["on"], &found["gaps"]),
        (&true.into(), &0.into()),
        "{found}"
    );
    let segments = kept_segments(&fixture);
    assert_eq!(found["segments"], segments.len(), "{found}");
    assert!(found["transactions"].as_u64() >= Some(2), "{found}");
    let seconds = |key: &str| found[key]["sec"].as_u64().unwrap();
    assert!(seconds("first") > 1_700_000_000 && seconds("first") <= seconds("last"));
    let text = String::from_utf8(fixture.amino(&["info"]).stdout).unwrap();
    assert!(
        text.contains("kept log") && text.contains(" transactions in "),
        "{text}"
    );
    let checked = fixture.amino(&["fsck", "--json"]);
    let report: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(
        report["kept_transactions"], found["transactions"],
        "{report}"
    );

    // The store does not need them, but reports that they are missing.
    let last = segments.last().unwrap();
    let raw = fs::read(last).unwrap();
    fs::remove_file(last).unwrap();
    let checked = fixture.amino(&["fsck"]);
    let text = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(1), "{text}");
    assert!(
        text.contains("KEPTLOG:\n") && text.contains("which were kept, are not"),
        "{text}"
    );
    assert_eq!(kept()["gaps"], 1);
    fs::write(last, raw).unwrap();
    run(&["--keep-log=off"], "echo d >/amino/d");
    let after = kept();
    assert_eq!(
        (&after["on"], &after["transactions"]),
        (&false.into(), &found["transactions"])
    );
    assert_eq!(fixture.amino(&["fsck"]).status.code(), Some(0));
}
