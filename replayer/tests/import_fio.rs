//! Traces that are made of fio's logs replay fio's calls.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use workload::{REPLAYER, compare_traces, has};

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn import(&self, log: &Path, trace: &str) -> Output {
        Command::new(REPLAYER)
            .args(["import", "--format", "fio"])
            .arg(log)
            .arg("-o")
            .arg(self.path(trace))
            .output()
            .unwrap()
    }

    /// Compiles, prepares and runs a trace below `root`, and returns the output of `run`.
    fn replay(&self, trace: &str, root: &Path) -> String {
        let compiled = self.path("compiled");
        let run = |arguments: &[&Path]| {
            let output = Command::new(REPLAYER).args(arguments).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(output.status.code(), Some(0), "{text} {output:?}");
            text
        };
        let (option, root_option) = (Path::new("-o"), Path::new("--root"));
        run(&["compile".as_ref(), &self.path(trace), option, &compiled]);
        run(&["prepare".as_ref(), &compiled, root_option, root]);
        run(&["run".as_ref(), &compiled, root_option, root])
    }
}

/// Sizes of the files in a directory, by name.
fn sizes(directory: &Path) -> Vec<(String, u64)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    let mut sizes: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, entry.metadata().unwrap().len())
        })
        .collect();
    sizes.sort();
    sizes
}

#[test]
fn a_log_of_fio_is_replayed() {
    if !has("fio") {
        return;
    }
    let scratch = Scratch::new();
    let (directory, root) = (scratch.path("files"), scratch.path("root"));
    fs::create_dir(&directory).unwrap();
    fs::create_dir(&root).unwrap();
    let log = scratch.path("log");
    let status = Command::new("fio")
        .args(["--name=job", "--ioengine=psync", "--rw=randrw", "--bs=4k"])
        .args(["--size=240k", "--nrfiles=3", "--fsync=5", "--minimal"])
        .arg(format!("--directory={}", directory.display()))
        .arg(format!("--write_iolog={}", log.display()))
        .current_dir(scratch.0.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let text = fs::read_to_string(&log).unwrap();
    let lines = text.lines().skip(1).filter(|it| !it.ends_with(" add"));
    let output = scratch.import(&log, "trace");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let calls = format!("{} calls in ", lines.count());
    assert!(said.starts_with(&calls), "{said}");
    scratch.replay("trace", &root);
    assert_eq!(sizes(&directory), sizes(&root));
}

#[test]
fn pauses_of_version_2_are_times_of_version_3() {
    let scratch = Scratch::new();
    let second = "fio version 2 iolog\n/d/a add\n/d/e/b add\n/d/a open\n/d/a wait 1500\n/d/a write 8192 4096\n/d/e/b open\n\
        /d/a trim 0 4096\n/d/a sync\n/d/a wait 2500 0\n/d/e/b read 100 20\n/d/a datasync 0 0\n/d/a close\n/d/e/b close\n";
    let third = "fio version 3 iolog\n0 /d/a add\n0 /d/e/b add\n0 /d/a open\n1500 /d/a write 8192 4096\n1500 /d/e/b open\n\
        1500 /d/a trim 0 4096\n1500 /d/a sync\n4000 /d/e/b read 100 20\n4000 /d/a datasync 0 0\n4000 /d/a close\n4000 /d/e/b close\n";
    for (name, text) in [("second", second), ("third", third)] {
        let log = scratch.path("log");
        fs::write(&log, text).unwrap();
        let output = scratch.import(&log, name);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(said.starts_with("9 calls in "), "{said}");
    }
    let bytes = |name: &str| fs::read(scratch.path(name)).unwrap().len();
    assert_eq!(bytes("second"), bytes("third"));
    let comparison = compare_traces(&scratch.path("second"), &scratch.path("third"));
    assert!(comparison.is_equal(), "{comparison:#?}");
    assert!(!comparison.counts.is_empty());
    let root = scratch.path("root");
    fs::create_dir(&root).unwrap();
    let said = scratch.replay("second", &root);
    assert!(said.contains('9'), "{said}");
    // The common directory of both files, /d, is the root.
    assert_eq!(fs::metadata(root.join("a")).unwrap().len(), 12288);
    assert_eq!(fs::metadata(root.join("e/b")).unwrap().len(), 120);
}

#[test]
fn lines_that_are_no_actions_are_named() {
    let scratch = Scratch::new();
    let log = scratch.path("log");
    let expect = |text: &str, place: &str, why: &str| {
        fs::write(&log, text).unwrap();
        let output = scratch.import(&log, "trace");
        assert_eq!(output.status.code(), Some(125), "{text}");
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(
            message.contains(place) && message.contains(why),
            "{text}: {message}"
        );
        assert!(!scratch.path("trace").exists());
    };
    for (line, column, why) in [
        ("x /d/a open", 1, "a time"),
        ("1 /d/a", 7, "one of add"),
        ("1 /d/a erase", 8, "one of add"),
        ("1 /d/a wait 100", 8, "one of add"),
        ("1 /d/a read", 12, "an offset"),
        ("1 /d/a read -1 5", 13, "an offset"),
        ("1 /d/a read 1", 14, "a length"),
        ("1 /d/a write 9223372036854775807 1", 33, "that long"),
        ("1 /d/a write 0 2147483648", 15, "that long"),
        ("1 /d/a read 0 1", 1, "not open"),
        ("1 /d/a close", 1, "not open"),
    ] {
        let text = format!("fio version 3 iolog\n0 /d/a add\n{line}\n");
        expect(&text, &format!("log:3:{column}: "), why);
    }
    let twice = "fio version 3 iolog\n0 /d/a open\n0 /d/a open\n";
    expect(twice, "log:3:1: ", "open already");
    expect("0 /d/a open\n", "log:1:1: ", "fio version 2 iolog");
    expect("", "log:1:1: ", "fio version 2 iolog");
    expect("fio version 2 iolog\n\n", "log: ", "names a file");
    expect(
        &format!("fio version 3 iolog\n{}", "x".repeat(1 << 17)),
        "log:2:",
        "too long",
    );
}

/// No log makes the importer panic, or leave an incomplete trace.
#[test]
fn damaged_logs_are_refused_or_imported() {
    let whole = "fio version 3 iolog\n0 /d/a add\n10 /d/a open\n20 /d/a read 0 4096\n30 /d/a sync 0 0\n40 /d/a close\n";
    let scratch = Scratch::new();
    let (log, trace) = (scratch.path("log"), scratch.path("trace"));
    let options = goanna_replayer::import::Options::default();
    let attempt = |bytes: &[u8]| {
        fs::write(&log, bytes).unwrap();
        let _ = fs::remove_file(&trace);
        let made = goanna_replayer::import::fio(&log, &trace, &options, &mut |_| {});
        assert_eq!(made.is_ok(), trace.exists());
    };
    for at in 0..whole.len() {
        attempt(&whole.as_bytes()[..at]);
        for byte in [b' ', b'9', b'\n', 0xff] {
            let mut changed = whole.as_bytes().to_vec();
            changed[at] = byte;
            attempt(&changed);
        }
    }
}
