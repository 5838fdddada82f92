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
fn a_call_that_does_not_return_has_the_time_of_its_entry() {
    let directory = tempfile::tempdir().unwrap();
    let script = "sh -c 'kill -9 $$'; exit 3";
    let recorded = goanna_trace(directory.path(), &["-o", "t", "--", "sh", "-c", script]);
    assert_eq!(recorded.status.code(), Some(3));
    let json = ["export", "--format", "json", "-o", "-", "t"];
    let shown = String::from_utf8(goanna_trace(directory.path(), &json).stdout).unwrap();
    let unfinished: Vec<&str> = shown
        .lines()
        .filter(|line| line.contains("\"message\":\"exit_group\""))
        .collect();
    assert!(!unfinished.is_empty());
    for line in unfinished {
        assert!(line.contains("\"time\":"), "{line}");
        assert!(!line.contains("\"duration\":"), "{line}");
    }
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

/// The tracer is started as by a service manager or the first process of a container: getsid(2) then returns 0.
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

/// The messages and the context of a trace, as `cat --json` and `stat --json` print them.
fn calls_and_context(directory: &Path, words: &[&str]) -> (Vec<String>, serde_json::Value) {
    let run = |first: &[&str]| {
        let output = goanna_trace(directory, &[first, words].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&["cat", "--json"]);
    let message = |line: &str| {
        let line = serde_json::from_str::<serde_json::Value>(line).unwrap();
        line["message"].as_str().unwrap().to_owned()
    };
    let context = serde_json::from_str::<serde_json::Value>(&run(&["stat", "--json"])).unwrap();
    (
        text.lines().map(message).collect(),
        context["context"].clone(),
    )
}

fn of_context(context: &serde_json::Value, name: &str) -> String {
    let pairs = context.as_array().unwrap();
    let pair = pairs.iter().find(|pair| pair["name"] == name);
    pair.map_or(String::new(), |it| it["value"].as_str().unwrap().to_owned())
}

#[test]
fn output_filters_are_applied_in_the_order_of_the_command_line() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a"), [1; 32]).unwrap();
    std::fs::write(directory.path().join("b"), [2; 32]).unwrap();
    let filters = [
        (["--compress", "zstd"], "zstd"),
        (["--hmac-key", "a"], "hmac-sha-256"),
        (["--encrypt-key", "b"], "aes-256-gcm"),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let chosen = order.map(|at: usize| filters[at]);
        let words = chosen.iter().flat_map(|(words, _)| words).copied();
        let words = ["-o", "t"].into_iter().chain(words).chain(["--", "true"]);
        let output = goanna_trace(directory.path(), &words.collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(0));
        let read = ["t", "--hmac-key", "a", "--encrypt-key", "b"];
        let (calls, context) = calls_and_context(directory.path(), &read);
        assert!(calls.contains(&"execve".to_owned()));
        let names = chosen.map(|(_, name)| name).join(",");
        assert_eq!(
            of_context(&context, "outputs"),
            format!("asynchronous,{names}")
        );
    }
}

const CONFIG: &str = r#"# Two tracers, as an intrusion detection system has them.
[[tracer]]
filter = 'call == openat or uid == 987654'
[tracer.assembly]
fields = "time,process,arguments,results"
[tracer.outputs]
filters = ["hmac:key", "zstd:5"]
file = "some.gtr"

[[tracer]]
[tracer.assembly]
driver = "aggregate"
every = 10
[tracer.outputs]
file = "counters.gtr"
sync-writes = true

[[tracer]]
[tracer.outputs]
file = "all.gtr"
block = "4K"
"#;

#[test]
fn several_tracers_run_at_once_from_a_configuration_file() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("key"), [1; 32]).unwrap();
    std::fs::write(directory.join("tracers.toml"), CONFIG).unwrap();
    let run = [
        "--config",
        "tracers.toml",
        "--",
        "sh",
        "-c",
        "cat key >/dev/null; exit 5",
    ];
    let output = goanna_trace(directory, &run);
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let (all, _) = calls_and_context(directory, &["all.gtr"]);
    let (some, context) = calls_and_context(directory, &["some.gtr", "--hmac-key", "key"]);
    let (counters, _) = calls_and_context(directory, &["counters.gtr"]);
    let opens = |calls: &[String]| calls.iter().filter(|it| *it == "openat").count();
    assert!(opens(&all) > 2 && all.contains(&"read".to_owned()));
    assert_eq!(opens(&some), opens(&all));
    let others = ["began", "executed", "ended"];
    let calls = some.iter().filter(|it| !others.contains(&it.as_str()));
    assert!(calls.clone().all(|it| it == "openat"), "{some:?}");
    assert!(counters.iter().all(|it| it == "counter" || it == "bucket"));
    assert_eq!(
        of_context(&context, "outputs"),
        "asynchronous,hmac-sha-256,zstd"
    );
    assert_eq!(
        of_context(&context, "fields"),
        "time,process,arguments,results"
    );
    assert!(of_context(&context, "command").contains("sh"));
}

/// A tracer without a filter records the calls that concern files. A second tracer that selects getpid(2) made the first one record
/// those calls, too.
#[test]
fn a_tracer_without_a_filter_records_no_calls_that_another_one_asks_for() {
    const TRACERS: &str = "[[tracer]]\nfilter = 'call == getpid'\n[tracer.outputs]\nfile = \"pids\"\n\
        [[tracer]]\n[tracer.outputs]\nfile = \"files\"\n";
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("tracers.toml"), TRACERS).unwrap();
    // One process: the calls of several have no fixed order.
    let script = "exec cat /dev/null";
    for before in [&["--config", "tracers.toml"][..], &["-o", "alone"]] {
        let command = [before, &["--", "sh", "-c", script]].concat();
        assert_eq!(goanna_trace(directory, &command).status.code(), Some(0));
    }
    let calls = |file: &str| calls_and_context(directory, &[file]);
    let (pids, context) = calls("pids");
    assert!(pids.contains(&"getpid".to_owned()), "{pids:?}");
    assert!(!pids.contains(&"openat".to_owned()), "{pids:?}");
    assert_eq!(of_context(&context, "filter"), "call == getpid");
    let (files, context) = calls("files");
    assert!(!files.contains(&"getpid".to_owned()), "{files:?}");
    assert_eq!(files, calls("alone").0);
    assert_eq!(of_context(&context, "filter"), "");
}

#[test]
fn errors_of_a_configuration_file_name_the_line_and_what_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    for (from, to, line) in [
        (
            "zstd:5",
            "zip",
            "7: filters: \"zip\" is none of zstd, zstd:LEVEL, hmac:FILE, encrypt:FILE",
        ),
        (
            "every",
            "evry",
            "13: evry: there is no such key; known are driver, every, fields, data",
        ),
        ("every = 10", "every = 'x'", "13: every: invalid value 'x'"),
        (
            "aggregate",
            "agregate",
            "12: driver: invalid value 'agregate'",
        ),
        (
            "uid ==",
            "uidd ==",
            "3: filter: column 19: unknown field uidd; did you mean uid?",
        ),
        (
            "[tracer.assembly]\nfields",
            "[tracer.assemble]\nfields",
            "4: assemble: there is no such section",
        ),
        (
            "file = \"all.gtr\"",
            "",
            "18: outputs: file or to is missing",
        ),
        ("all.gtr", "some.gtr", "two tracers write to some.gtr"),
        (
            "block =",
            "keep = 3\nblock =",
            "18: the following required arguments were not provided: --rotate",
        ),
        (
            "# Two",
            "other = 1 # Two",
            "1: only tables [[tracer]] are known here",
        ),
        ("\"4K\"", "4K", "21: "),
    ] {
        let text = CONFIG.replacen(from, to, 1);
        assert_ne!(text, CONFIG, "{from}");
        std::fs::write(directory.join("c"), text).unwrap();
        let output = goanna_trace(directory, &["--config", "c", "--", "touch", "ran"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{from}: {errors}");
        assert!(
            errors.contains(line) && errors.starts_with("goanna-trace: c:"),
            "{line} in {errors}"
        );
    }
    std::fs::write(directory.join("c"), CONFIG).unwrap();
    let output = goanna_trace(
        directory,
        &["--config", "c", "-o", "t", "--", "touch", "ran"],
    );
    assert_eq!(output.status.code(), Some(125));
    let output = goanna_trace(directory, &["--config", "none", "--", "touch", "ran"]);
    assert_eq!(output.status.code(), Some(125));
    assert!(!directory.join("ran").exists());
}

#[test]
fn no_configuration_file_makes_its_reader_panic() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    std::fs::write(directory.join("key"), [1; 32]).unwrap();
    let words = [
        "[[tracer]]",
        "[tracer",
        "=",
        "\"",
        "'",
        "{",
        "[",
        "-",
        "99999999999999999999",
        "\u{0}",
        "\n",
        "é",
    ];
    let mut random = fastrand::Rng::with_seed(2);
    for _ in 0..120 {
        let mut text = CONFIG.to_owned();
        for _ in 0..random.usize(1..6) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let place = *random.choice(&places).unwrap();
            match random.u8(..3) {
                0 => text.insert_str(place, random.choice(words).unwrap()),
                1 => drop(text.remove(place)),
                _ => text.truncate(place.max(1)),
            }
        }
        std::fs::write(directory.join("c"), &text).unwrap();
        let output = goanna_trace(directory, &["--config", "c", "--", "no-such-command"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            matches!(output.status.code(), Some(125 | 127)) && !errors.contains("panicked"),
            "{text}: {errors}"
        );
    }
}

#[test]
fn verbose_reports_what_was_written_and_quiet_leaves_notes_out() {
    let directory = tempfile::tempdir().unwrap();
    let errors = |args: &[&str]| {
        let output = goanna_trace(directory.path(), args);
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (status, text) = errors(&["-v", "-o", "t", "--", "true"]);
    assert_eq!(status, Some(0));
    assert!(
        text.starts_with("goanna-trace: t: ") && text.contains(" records, "),
        "{text}"
    );
    let recover = ["recover", "t", "-o", "new"];
    assert!(errors(&recover).1.contains("records recovered"));
    assert_eq!(
        errors(&[&recover[..], &["-q"]].concat()),
        (Some(0), String::new())
    );
    // An error is shown all the same.
    assert!(errors(&["cat", "-q", "none"]).1.contains("No such file"));
    assert_eq!(errors(&["cat", "-q", "-v", "t"]).0, Some(125));
}
