//! `goanna-trace record` as a user runs it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;
use std::process::{Command, Output};

use goanna_skip::{Facility, skip};

fn goanna_trace(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_goanna-trace"))
        .current_dir(directory)
        .args(args)
        .output()
        .unwrap()
}

#[test]
fn the_exit_status_is_the_commands_or_says_why_there_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let status = |args: &[&str]| {
        let output = goanna_trace(directory.path(), args);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(
        status(&["-o", "t", "--", "sh", "-c", "exit 7"]),
        (Some(7), String::new())
    );
    assert_eq!(
        status(&["record", "-o", "t", "--", "sh", "-c", "kill -9 $$"]).0,
        Some(137)
    );
    assert_eq!(status(&["-o", "t", "--", "no-such-command"]).0, Some(127));
    assert_eq!(status(&["-o", "t", "--", "/etc/passwd"]).0, Some(126));
    std::fs::write(directory.path().join("elf32"), b"\x7fELF\x01\x01\x01").unwrap();
    let (code, why) = status(&["-o", "t", "--", "./elf32"]);
    assert_eq!(code, Some(126));
    assert!(why.contains("32-bit programs cannot be traced"), "{why}");
    let (code, why) = status(&[
        "-o",
        "t",
        "--filter",
        "uid == 0 and nmae == x",
        "--",
        "true",
    ]);
    assert_eq!(code, Some(125));
    assert!(
        why.contains("did you mean name?") && why.contains("             ^^^^"),
        "{why}"
    );
    let (code, why) = status(&["-p", "999999999", "-o", "t"]);
    assert_eq!(code, Some(125));
    assert!(why.contains("no such process"), "{why}");
}

#[test]
fn a_filter_selects_what_is_in_the_trace() {
    let directory = tempfile::tempdir().unwrap();
    let filter = "op == create and name == made";
    let script = "echo x > made; cat made; echo y > other";
    let recorded = goanna_trace(
        directory.path(),
        &["-o", "t", "--filter", filter, "--", "sh", "-c", script],
    );
    assert!(recorded.status.success());
    let shown = goanna_trace(directory.path(), &["cat", "t"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    let calls: Vec<&str> = text.lines().filter(|line| !line.contains("+++")).collect();
    assert_eq!(calls.len(), 1, "{text}");
    assert!(
        calls[0].contains("openat(") && calls[0].contains("\"made\""),
        "{text}"
    );
}

/// As a service manager's or a container's first process starts one: getsid(2) then answers 0.
#[test]
fn a_command_whose_session_began_in_an_outer_pid_namespace_is_recorded() {
    const UNSHARE: [&str; 5] = [
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
    ];
    let directory = tempfile::tempdir().unwrap();
    let inside = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.current_dir(directory.path()).args(UNSHARE);
        command.args(args).output().unwrap()
    };
    if !inside(&["true"]).status.success() {
        return skip(Facility::UserNamespaces, "unshare --pid --mount-proc fails");
    }
    let program = env!("CARGO_BIN_EXE_goanna-trace");
    let recorded = inside(&[program, "-o", "t", "--", "cat", "/dev/null"]);
    assert_eq!(String::from_utf8_lossy(&recorded.stderr), "");
    assert!(recorded.status.success());
    let shown = goanna_trace(directory.path(), &["cat", "--json", "t"]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(text.contains("\"sid\":0"), "{text}");
}
