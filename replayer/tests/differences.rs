//! The replay reports results that differ from the trace, and missing commands.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::process::Command;

use goanna_tracer::Event;
use goanna_tracer::assemble::{DataMode, Groups};
use serde_json::Value;
use workload::{REPLAYER, Workload, compare_traces, has};

fn workload() -> Workload {
    let script = "set -e; mkdir d; echo content > d/f; cat d/f > d/g; rm d/f";
    Workload::new(&["sh", "-c", script], DataMode::Full, |_| {})
}

#[test]
fn a_result_that_differs_is_reported_with_call_and_file() {
    let workload = workload();
    // The trace makes this directory.
    fs::create_dir(workload.path("replayed/d")).unwrap();
    let report = workload.path("report.json");
    let output = workload.replay(&["--report", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("mkdir d: expected 0, got EEXIST"), "{text}");
    assert!(text.contains("1 result differs"), "{text}");
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert_eq!(report["different"], 1);
    assert_eq!(report["differences"][0]["file"], "d");
    assert_eq!(report["differences"][0]["got"], "EEXIST");
}

/// Whether the event is this call with this result.
fn is_call(event: &Event, name: &str, result: i64) -> bool {
    let Event::Call(call) = event else {
        return false;
    };
    let called = call.call.signature.map(|signature| signature.name);
    called == Some(name) && call.outcome.is_some_and(|it| it.result == result)
}

const RENAMING: &str = "import os\nos.mkdir('d')\nos.mkdir('d/e')\nos.chmod('d/e', 0o700)\nos.rename('d/e', 'd/f')\nos.mkdir('d/e')";

/// Records a program while `alter` changes its events, and returns the report of the replay on an empty directory.
fn replay_of_altered(alter: impl Fn(&mut Event) -> bool + Send + Sync) -> (i32, String) {
    let command = ["python3", "-S", "-c", RENAMING];
    let what = (DataMode::Full, Groups::default());
    let workload = Workload::altered(&command, what, |_| {}, alter);
    let output = workload.replay(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), text)
}

#[test]
fn a_result_that_was_altered_in_the_trace_is_reported() {
    if !has("python3") {
        return;
    }
    let (status, text) = replay_of_altered(|_| true);
    assert_eq!(status, 0, "{text}");
    let (status, text) = replay_of_altered(|event| {
        let is_chmod = is_call(event, "chmod", 0);
        if let (true, Event::Call(call)) = (is_chmod, event) {
            call.outcome.as_mut().unwrap().result = -i64::from(libc::EPERM);
        }
        true
    });
    assert_eq!(status, 1);
    let expected = "chmod d/e: expected EPERM, got 0";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("1 result differs"), "{text}");
}

/// Without the call that moves `d/e` away, a later call finds it.
#[test]
fn a_command_that_was_removed_from_the_trace_is_reported() {
    if !has("python3") {
        return;
    }
    let (status, text) = replay_of_altered(|event| !is_call(event, "rename", 0));
    assert_eq!(status, 1);
    let expected = "mkdir d/e: expected 0, got EEXIST";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("1 result differs"), "{text}");
}

#[test]
fn content_that_differs_is_reported() {
    let script = "set -e; head -c 100 old > copy";
    let workload = Workload::new(&["sh", "-c", script], DataMode::Hash, |directory| {
        fs::write(directory.join("old"), "as it was").unwrap();
    });
    fs::write(workload.path("replayed/old"), "as it is!").unwrap();
    let output = workload.replay(&[]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let expected = "read old: expected the content of the trace, got other content";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn stop_ends_the_replay_at_the_first_difference_and_off_reports_none() {
    let workload = workload();
    fs::create_dir(workload.path("replayed/d")).unwrap();
    let output = workload.replay(&["--verify", "stop"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!workload.path("replayed/d/g").exists());
    let output = workload.replay(&["--verify", "off"]);
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.ends_with("results were not compared with the trace\n"),
        "{text}"
    );
    assert!(workload.path("replayed/d/g").exists());
}

#[test]
fn a_replay_stops_at_the_given_command() {
    let workload = workload();
    // Before the number is reached, the replay makes only the directory.
    let until = (1..20).find(|number| {
        let output = workload.replay(&["--until", &number.to_string()]);
        assert_eq!(output.status.code(), Some(0));
        workload.path("replayed/d").exists()
    });
    assert!(until.is_some());
    assert!(!workload.path("replayed/d/f").exists());
    fs::remove_dir(workload.path("replayed/d")).unwrap();
    assert_eq!(workload.replay(&["--until", "0s"]).status.code(), Some(0));
    assert!(!workload.path("replayed/d").exists());
}

#[test]
fn an_operation_that_is_missing_in_one_trace_is_named() {
    if !has("python3") {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let mut traces = Vec::new();
    for (number, script) in ["mkdir a; mkdir b; mkdir c", "mkdir a; mkdir c"]
        .iter()
        .enumerate()
    {
        let directory = scratch.path().join(format!("d{number}"));
        fs::create_dir(&directory).unwrap();
        let trace = scratch.path().join(format!("t{number}"));
        let program = format!(
            "import os\nfor name in '{script}'.replace('mkdir ', '').split('; '): os.mkdir(name)"
        );
        workload::record(
            &trace,
            &directory,
            &["python3", "-S", "-c", &program],
            DataMode::None,
        );
        traces.push(trace);
    }
    let comparison = compare_traces(&traces[0], &traces[1]);
    assert_eq!(comparison.threads.len(), 1, "{comparison:#?}");
    let difference = &comparison.threads[0];
    assert_eq!(difference.first.texts, ["mkdir b 0x1e8 = 0"]);
    assert_eq!(difference.second.length, 0);
    assert!(compare_traces(&traces[0], &traces[0]).is_equal());
    let output = Command::new(REPLAYER)
        .arg("compare")
        .args(&traces)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("< mkdir b 0x1e8 = 0"), "{text}");
}

/// A replay at a speed takes as long as the trace did at that speed, at least, and reports how exactly it issued its
/// calls.
#[test]
fn a_replay_on_time_reports_its_accuracy_and_draws_it() {
    let script = "set -e; echo 1 > a; sleep 0.4; echo 2 > b";
    let workload = Workload::new(&["sh", "-c", script], DataMode::Full, |_| {});
    let (report, plot) = (workload.path("report"), workload.path("plot"));
    for (speed, least_ns) in [
        ("on-time", 400_000_000),
        ("2", 200_000_000),
        ("0.5", 800_000_000),
    ] {
        let output = workload.replay(&[
            "--speed",
            speed,
            "--report",
            report.to_str().unwrap(),
            "--plot",
            plot.to_str().unwrap(),
        ]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        assert!(
            report["elapsed_ns"].as_u64().unwrap() >= least_ns,
            "{report}"
        );
        assert_eq!(report["accuracy"]["total"]["calls"], report["commands"]);
        assert!(fs::read_to_string(&plot).unwrap().starts_with("<svg "));
    }
    let output = workload.replay(&["--plot", plot.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(125));
}
