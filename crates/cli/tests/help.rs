//! The command line documents itself: help, completions, man pages.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::process::{Command, Stdio};

use clap::CommandFactory;
use goanna_cli::args::{Amino, Goanna};

/// All commands of both programs with their full names.
fn commands() -> Vec<(String, clap::Command)> {
    let mut all = Vec::new();
    for mut top in [Amino::command(), Goanna::command()] {
        top.build();
        let name = top.get_name().to_owned();
        collect(name, &top, &mut all);
    }
    all
}

fn collect(name: String, command: &clap::Command, all: &mut Vec<(String, clap::Command)>) {
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        collect(format!("{name} {}", sub.get_name()), sub, all);
    }
    all.push((name, command.clone()));
}

fn program(name: &str) -> Command {
    Command::new(match name {
        "amino" => env!("CARGO_BIN_EXE_amino"),
        _ => env!("CARGO_BIN_EXE_goanna"),
    })
}

fn installed(tool: &str) -> bool {
    Command::new(tool)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

#[test]
fn the_definitions_are_consistent() {
    Amino::command().debug_assert();
    Goanna::command().debug_assert();
}

#[test]
fn everything_is_documented() {
    for (name, command) in commands() {
        assert!(
            command.get_about().is_some(),
            "{name} says nothing about itself"
        );
        let help = command.clone().render_long_help().to_string();
        for arg in command.get_arguments() {
            let id = arg.get_id();
            assert!(arg.get_help().is_some(), "{name}: {id} has no help");
            assert!(!arg.is_hide_set(), "{name}: {id} is hidden");
            if let Some(long) = arg.get_long() {
                assert!(
                    help.contains(&format!("--{long}")),
                    "{name} --help leaves out --{long}"
                );
            }
            for value in arg.get_possible_values() {
                let flag = matches!(value.get_name(), "true" | "false");
                assert!(
                    flag || value.get_help().is_some(),
                    "{name}: {id}={} has no help",
                    value.get_name()
                );
            }
        }
        for line in command
            .get_after_help()
            .map(ToString::to_string)
            .unwrap_or_default()
            .lines()
        {
            assert!(
                line.chars().count() <= 80,
                "{name}: too long for a terminal: {line}"
            );
        }
    }
}

#[test]
fn the_documented_options_exist() {
    let promised = [
        (
            "amino run",
            "store at durability engine mount config stats verbose quiet intercept",
        ),
        ("amino txn status", "json"),
        ("amino txn run", "retry quiet"),
        ("amino ls", "store long all json salvage"),
        ("amino stat", "store json"),
        ("amino tree", "store level json"),
        ("amino info", "store json"),
        ("amino cat", "store salvage"),
        ("amino fsck", "store json salvage"),
        ("amino import", "store force json"),
        ("amino export", "store force json salvage"),
        ("amino compact", "store json"),
        ("amino dump", "store output json"),
        ("amino load", "store engine create json"),
        ("goanna run", "mount config stats intercept"),
        ("goanna check", "json"),
        ("goanna iso info", "json namespace session"),
        ("goanna iso ls", "long all recursive json namespace session"),
        ("goanna iso cat", "namespace session"),
        ("goanna iso extract", "to force json namespace session"),
        ("goanna syscalls", "json"),
    ];
    let commands = commands();
    for (name, options) in promised {
        let (_, command) = commands.iter().find(|(n, _)| n == name).expect(name);
        for option in options.split(' ') {
            assert!(
                command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(option)),
                "{name} has no --{option}"
            );
        }
    }
}

#[test]
fn run_help_names_statuses_defaults_and_examples() {
    for (name, must) in [
        (
            "amino",
            vec![
                "/amino",
                "$XDG_DATA_HOME",
                "[default: commit]",
                "125",
                "126",
                "127",
                "128+N",
            ],
        ),
        (
            "goanna",
            vec!["pass=/host/dir:/mnt", "125", "126", "127", "128+N"],
        ),
    ] {
        let output = program(name).args(["run", "--help"]).output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        for word in must
            .into_iter()
            .chain(["Examples:", "\\040", "TYPE=SOURCE:TARGET"])
        {
            assert!(
                text.contains(word),
                "{name} run --help leaves out {word}:\n{text}"
            );
        }
    }
}

/// Wrong command lines: the program, its arguments, and how its message begins.
const WRONG: &[(&str, &[&str], &str)] = &[
    ("amino", &["run"], "amino: the following required arguments"),
    (
        "amino",
        &["run", "--durability", "max", "true"],
        "amino: invalid value 'max'",
    ),
    (
        "amino",
        &["run", "--transaction", "true"],
        "amino: unexpected argument '--transaction'",
    ),
    ("amino", &["frobnicate"], "amino: unrecognized subcommand"),
    ("amino", &["txn"], "Begin and end transactions"),
    ("amino", &["txn", "end"], "amino: unrecognized subcommand"),
    ("amino", &["txn", "attach"], "amino: the following required"),
    (
        "amino",
        &["txn", "resume", "0123"],
        "amino: invalid value '0123' for '<ID>': a transaction's identifier has 32",
    ),
    (
        "amino",
        &["txn", "run", "--retry", "-1", "true"],
        "amino: unexpected argument '-1'",
    ),
    ("amino", &["txn", "run"], "amino: the following required"),
    (
        "amino",
        &["ls", "-q", "-v", "/"],
        "amino: the argument '--quiet'",
    ),
    ("goanna", &["run", "--", "true"], "goanna: no mounts"),
    (
        "goanna",
        &["run", "--mount", "aes=/nonexistent:/b", "true"],
        "goanna: /nonexistent: No such file",
    ),
    (
        "goanna",
        &["run", "--mount", "pass=/nonexistent:/b", "true"],
        "goanna: /nonexistent: No such file",
    ),
    (
        "goanna",
        &["run", "--config", "/nonexistent", "true"],
        "goanna: /nonexistent: No such file",
    ),
    (
        "amino",
        &["run", "--at", "here", "true"],
        "amino: --at here: not an absolute path\namino: hint: ",
    ),
    ("amino", &["run", "--at", "/", "true"], "amino: --at /: "),
    (
        "amino",
        &["run", "--store", "/tmp/s", "--at", "/tmp/s/x", "true"],
        "amino: --at /tmp/s/x: lies inside",
    ),
    (
        "amino",
        &["run", "--store", "/tmp/s", "--at", "/tmp", "true"],
        "amino: --at /tmp: would hide",
    ),
    (
        "amino",
        &["ls", "--store", "/nonexistent"],
        "amino: /nonexistent: there is no store here\namino: hint: ",
    ),
];

#[test]
fn wrong_command_lines_end_with_125() {
    for (name, args, message) in WRONG {
        let output = program(name).args(*args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{name} {args:?}: {text}");
        assert!(text.starts_with(message), "{name} {args:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn errors_in_mount_files_name_the_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "# ok\npass / /x ro\npass /\n").unwrap();
    let output = program("goanna")
        .args(["run", "--config"])
        .arg(file.path())
        .arg("true")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.starts_with(&format!("goanna: {}:3: 2 fields", file.path().display())),
        "{text}"
    );
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn completions_are_valid_shell() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["amino", "goanna"] {
        for shell in ["bash", "zsh", "fish"] {
            let output = program(name).args(["completions", shell]).output().unwrap();
            assert!(output.status.success());
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(
                text.contains(name) && text.contains("mount"),
                "{name} {shell}"
            );
            if installed(shell) {
                let script = dir.path().join(shell);
                fs::write(&script, text).unwrap();
                let checked = Command::new(shell).arg("-n").arg(&script).status().unwrap();
                assert!(
                    checked.success(),
                    "{shell} rejects the completions of {name}"
                );
            }
        }
    }
}

#[test]
fn man_pages_are_made_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["amino", "goanna"] {
        assert!(
            program(name)
                .arg("man")
                .arg(dir.path())
                .status()
                .unwrap()
                .success()
        );
    }
    for (name, command) in commands() {
        if command.is_hide_set() {
            continue;
        }
        let page = dir.path().join(format!("{}.1", name.replace(' ', "-")));
        let text = fs::read_to_string(&page).expect(&name);
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(text.contains(section), "{name} lacks {section}");
        }
        if name.ends_with(" run") {
            assert!(text.contains(".SH \"EXIT STATUS\""), "{text}");
        }
        if installed("groff") {
            let output = Command::new("groff")
                .args(["-man", "-Tutf8", "-ww"])
                .arg(&page)
                .output()
                .unwrap();
            assert!(
                output.stderr.is_empty(),
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
