//! `amino dump` and `amino load`, as users type them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use common::Fixture;
use serde_json::Value;

mod common;

impl Fixture {
    fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_amino"), args)
    }

    fn amino(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    fn good(&self, args: &[&str]) -> String {
        let output = self.amino(args);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {complaint}");
        complaint
    }

    /// Runs a command that must fail with status 125, and returns its stderr.
    fn bad(&self, args: &[&str]) -> String {
        let output = self.amino(args);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{args:?}: {complaint}");
        complaint
    }

    /// Fields of `amino info` that describe the content of a store.
    fn held(&self, store: &str) -> Vec<Value> {
        let output = self.amino(&["info", "--json", "--store", store]);
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        [
            "names",
            "files",
            "directories",
            "symlinks",
            "special",
            "bytes",
        ]
        .map(|field| info[field].clone())
        .to_vec()
    }
}

#[test]
fn a_store_travels_from_engine_to_engine() {
    let fixture = Fixture::new();
    common::build(&fixture.path("source"));
    fixture.good(&[
        "import", "--store", "one", "--engine", "fjall", "source", "/",
    ]);
    fixture.good(&["dump", "--store", "one", "-o", "first.dump"]);
    let told = fixture.good(&["load", "--store", "two", "--engine", "sled", "first.dump"]);
    assert!(told.starts_with("amino: two: loaded "), "{told}");
    fixture.good(&["dump", "--store", "two", "-o", "second.dump"]);
    fixture.good(&["load", "--store", "three", "second.dump"]);
    assert_eq!(fixture.held("one"), fixture.held("three"));
    let stat = |store: &str| {
        let output = fixture.amino(&["stat", "--json", "--store", store, "/", "/file", "/dir"]);
        output.stdout
    };
    assert_eq!(stat("one"), stat("three"));
    for store in ["two", "three"] {
        fixture.good(&["fsck", "--store", store]);
        let back = format!("{store}.back");
        fixture.good(&["export", "--store", store, "/", &back]);
        common::assert_same(&fixture.path("source"), &fixture.path(&back));
    }
}

/// A program rewrites two files in one transaction each; a dump never has the one without the other.
#[test]
fn a_dump_of_a_store_in_use_is_of_one_moment() {
    let fixture = Fixture::new();
    let script = "echo ready; n=0; while [ ! -e stop ]; do n=$((n+1)); \
        amino txn begin >/dev/null; echo $n >/amino/a; echo $n >/amino/b; amino txn commit; done";
    let directory = std::path::Path::new(env!("CARGO_BIN_EXE_amino"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut run = fixture
        .command(&["run", "-q", "--store", "s", "--", "sh", "-c", script])
        .env("PATH", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    for round in 0..5 {
        let file = format!("{round}.dump");
        let copy = format!("copy{round}");
        fixture.good(&["dump", "-q", "--store", "s", "-o", &file]);
        fixture.good(&["load", "-q", "--store", &copy, &file]);
        let cat = |name| fixture.amino(&["cat", "--store", &copy, name]).stdout;
        assert_eq!(cat("/a"), cat("/b"));
    }
    fs::write(fixture.path("stop"), "").unwrap();
    assert!(run.wait().unwrap().success());
}

#[test]
fn dump_and_load_work_in_a_pipe() {
    let fixture = Fixture::new();
    common::build(&fixture.path("source"));
    fixture.good(&["import", "--store", "s", "source", "/"]);
    let dumped = fixture.amino(&["dump", "--store", "s"]);
    assert!(dumped.status.success() && dumped.stderr.is_empty());
    let mut load = fixture
        .command(&["load", "--json", "--store", "t"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    load.stdin
        .take()
        .unwrap()
        .write_all(&dumped.stdout)
        .unwrap();
    let output = load.wait_with_output().unwrap();
    assert!(output.status.success());
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["records"].as_u64().unwrap() > 10, "{told}");
    assert_eq!(fixture.held("s"), fixture.held("t"));
}

#[test]
fn a_damaged_dump_makes_no_store_and_leaves_nothing() {
    let fixture = Fixture::new();
    common::build(&fixture.path("source"));
    fixture.good(&["import", "--store", "s", "source", "/"]);
    fixture.good(&["dump", "--store", "s", "-o", "good"]);
    let dump = fs::read(fixture.path("good")).unwrap();
    let mut flipped = dump.clone();
    flipped[100] ^= 1;
    let changed = [
        (
            "flipped",
            &flipped[..],
            "block 0, at byte 64 of the dump, is damaged",
        ),
        (
            "cut",
            &dump[..dump.len() - 3],
            "the dump ends early, in block ",
        ),
        ("empty", b"", "not a dump of a store"),
        ("text", &[b'x'; 100], "not a dump of a store"),
    ];
    for (name, bytes, why) in changed {
        fs::write(fixture.path(name), bytes).unwrap();
        let complaint = fixture.bad(&["load", "--store", "t", name]);
        assert!(
            complaint.starts_with(&format!("amino: {name}: {why}")),
            "{complaint}"
        );
    }
    let left = fs::read_dir(fixture.path("")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name == "t" || name.as_encoded_bytes().starts_with(b".")),
        "{left:?}"
    );
}

#[test]
fn a_dump_is_loaded_into_a_new_store_only() {
    let fixture = Fixture::new();
    common::build(&fixture.path("source"));
    fixture.good(&["import", "--store", "s", "source", "/"]);
    fixture.good(&["dump", "--store", "s", "-o", "dump"]);
    let before = fixture.held("s");
    let complaint = fixture.bad(&["load", "--store", "s", "dump"]);
    assert!(
        complaint.contains("amino: s: exists and is not empty"),
        "{complaint}"
    );
    assert!(complaint.contains("amino: hint: "), "{complaint}");
    assert_eq!(fixture.held("s"), before);
    let complaint = fixture.bad(&["load", "--store", "no/where", "dump"]);
    assert!(complaint.contains("--create"), "{complaint}");
    fixture.good(&["load", "--create", "--store", "no/where", "dump"]);
    let complaint = fixture.bad(&["dump", "--json", "--store", "s"]);
    assert!(complaint.contains("--output"), "{complaint}");
    let complaint = fixture.bad(&["dump", "--store", "s", "-o", "no-such-directory/dump"]);
    assert!(complaint.contains("no-such-directory"), "{complaint}");
}
