//! `replayer run --only`: a part of a replay, with the commands on which it depends.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;

use goanna_tracer::assemble::DataMode;
use serde_json::Value;
use workload::{Workload, tree};

const SCRIPT: &str = "
    set -e
    mkdir a a/b other
    echo first > a/b/f; echo second >> a/b/f
    for i in 1 2 3 4 5; do echo $i > other/$i; done
    mv a c; cat c/b/f > copy; rm other/3
    exec 5> log; echo log >&5; (echo child >&5); exec 5>&-
    ln c/b/f hard; ln -s hard soft; chmod 600 other/1";

fn workload() -> Workload {
    Workload::new(&["sh", "-c", SCRIPT], DataMode::Full, |_| {})
}

/// Replays the commands that `filter` selects, and returns the names of the tree and the report.
fn only(workload: &Workload, filter: &str) -> (Vec<String>, Value) {
    let root = workload.path("replayed");
    fs::remove_dir_all(&root).unwrap();
    fs::create_dir(&root).unwrap();
    let report = workload.path("report");
    let options = ["--only", filter, "--report", report.to_str().unwrap()];
    let output = workload.replay(&options);
    let text = String::from_utf8(output.stdout).unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{filter}: {text}{why}");
    let names = tree(&root).into_keys();
    let names = names.map(|name| name.to_str().unwrap().to_owned());
    let report = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    (names.collect(), report)
}

#[test]
fn a_part_is_replayed_with_what_it_depends_on() {
    let workload = workload();
    let (names, report) = only(&workload, r#"path == "/other/2" && op == write"#);
    assert_eq!(names, ["other", "other/2"]);
    assert!(report["left_out"].as_u64().unwrap() > 10, "{report}");
    let (names, _) = only(&workload, r#"path == "/hard""#);
    // The link needs the file, which was made under another name, and the rename of its directory.
    assert_eq!(names, ["c", "c/b", "c/b/f", "hard"]);
    let content = fs::read_to_string(workload.path("replayed/hard")).unwrap();
    assert_eq!(content, "");
    // cat(1) reads it, or has the kernel copy it.
    let (mut names, _) = only(&workload, r#"path == "/c/b/f" && op in {read, copy}"#);
    names.retain(|name| name != "copy");
    assert_eq!(names, ["c", "c/b", "c/b/f"]);
    let content = fs::read_to_string(workload.path("replayed/c/b/f")).unwrap();
    assert_eq!(content, "first\nsecond\n");
    let (names, _) = only(&workload, r#"op == unlink && path ~ "/other/*""#);
    assert_eq!(names, ["other"]);
}

/// The child writes to a descriptor that it has from its parent, at the offset that the parent has left.
#[test]
fn inherited_descriptors_and_offsets_are_dependencies() {
    let workload = workload();
    let (names, _) = only(&workload, r#"op == write && size == 6 && path == "/log""#);
    assert_eq!(names, ["log"]);
    let content = fs::read_to_string(workload.path("replayed/log")).unwrap();
    assert_eq!(content, "log\nchild\n");
}

#[test]
fn a_filter_that_selects_everything_or_nothing_does_so() {
    let workload = workload();
    let (_, report) = only(&workload, "size >= 0 || not size >= 0");
    assert_eq!(report["left_out"], 0);
    workload.assert_same_trees();
    let (names, report) = only(&workload, r#"path == "/nothing""#);
    assert_eq!((names.len(), &report["commands"]), (0, &Value::from(0)));
}

#[test]
fn filters_that_ask_for_what_is_not_there_are_refused() {
    let workload = workload();
    for (filter, why) in [
        ("uid == 0", "does not have uid"),
        (r#"op == write || comm == "sh""#, "does not have uid"),
        ("op ==", "--only"),
    ] {
        let output = workload.replay(&["--only", filter]);
        assert_eq!(output.status.code(), Some(125));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(why), "{message}");
    }
}
