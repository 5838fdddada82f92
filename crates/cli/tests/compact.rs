//! `amino compact`, as users type it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Output, Stdio};

use common::Fixture;
use serde_json::Value;

mod common;

impl Fixture {
    fn amino(&self, args: &[&str]) -> Output {
        let mut command = self.program(env!("CARGO_BIN_EXE_amino"), args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {complaint}");
        output
    }

    /// Bytes on disk before and after.
    fn compact(&self) -> (u64, u64) {
        let output = self.amino(&["compact", "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        (
            told["before"].as_u64().unwrap(),
            told["after"].as_u64().unwrap(),
        )
    }

    /// 12 MiB that do not compress.
    fn fill(&self) {
        let mut random = 1u64;
        let bytes: Vec<u8> = (0..12 << 20)
            .map(|_| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            })
            .collect();
        fs::create_dir(self.path("source")).unwrap();
        fs::write(self.path("source/large"), bytes).unwrap();
        fs::write(self.path("source/small"), "kept").unwrap();
    }
}

fn gives_back(engine: &str) {
    let fixture = Fixture::new();
    fixture.fill();
    fixture.amino(&["import", "-q", "--engine", engine, "source", "/"]);
    let (_, full) = fixture.compact();
    assert!(full > 12 << 20, "{full}");
    fixture.amino(&["run", "-q", "rm", "/amino/large"]);
    let (_, after) = fixture.compact();
    assert!(after < full - (10 << 20), "{after} bytes after {full}");
    assert_eq!(fixture.amino(&["cat", "/small"]).stdout, b"kept");
    fixture.amino(&["fsck"]);
}

#[test]
fn space_of_deleted_files_is_given_back_by_fjall() {
    gives_back("fjall");
}

#[test]
fn space_of_deleted_files_is_given_back_by_sled() {
    gives_back("sled");
}

#[test]
fn a_store_in_use_is_compacted() {
    let fixture = Fixture::new();
    fixture.fill();
    fixture.amino(&["import", "-q", "source", "/"]);
    let script = "rm /amino/large; echo ready; read line; echo more >/amino/more; cat /amino/small";
    let mut run = fixture
        .program(
            env!("CARGO_BIN_EXE_amino"),
            &["run", "-q", "sh", "-c", script],
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let (before, after) = fixture.compact();
    assert!(after < before - (10 << 20), "{after} bytes after {before}");
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "kept");
    assert!(run.wait().unwrap().success());
    fixture.amino(&["fsck"]);
}
