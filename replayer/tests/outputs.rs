//! The files that `compile` and `import` write get their names when they are complete, and messages are written whole.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod workload;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};

use workload::REPLAYER;

const LOG: &str =
    "fio version 3 iolog\n0 /d/a add\n1 /d/a open\n2 /d/a write 0 4096\n3 /d/a close\n";

fn replayer(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(REPLAYER);
    command.args(arguments).current_dir(directory);
    command.output().unwrap()
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn what_an_output_file_had_stays_after_a_failure() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    fs::write(directory.join("log"), LOG).unwrap();
    fs::write(directory.join("bad"), format!("{LOG}4 /d/a close\n")).unwrap();
    fs::write(directory.join("kept"), "kept").unwrap();
    fs::write(directory.join("no-trace"), "no trace").unwrap();
    for arguments in [
        ["import", "--format=fio", "bad", "-o", "kept"].as_slice(),
        &["compile", "no-trace", "-o", "kept"],
        &["compile", "missing", "-o", "kept"],
        &["compile", "kept", "-o", "kept"],
        &["import", "--format=fio", "kept", "-o", "kept"],
        &["import", "--format=fio", "log", "-o", "."],
    ] {
        let output = replayer(directory, arguments);
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        let kept = fs::read_to_string(directory.join("kept")).unwrap();
        assert_eq!(kept, "kept", "{arguments:?}");
        let expected = ["bad", "kept", "log", "no-trace"];
        assert_eq!(names(directory), expected, "{arguments:?}");
    }
}

#[test]
fn links_and_special_files_stay_what_they_are() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    fs::write(directory.join("log"), LOG).unwrap();
    fs::write(directory.join("trace"), "old").unwrap();
    symlink("trace", directory.join("link")).unwrap();
    let import = |output: &str| {
        let output = replayer(directory, &["import", "--format=fio", "log", "-o", output]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    };
    import("link");
    assert!(directory.join("link").is_symlink());
    assert_ne!(fs::read(directory.join("trace")).unwrap(), b"old");
    let before = fs::metadata("/dev/null").unwrap().rdev();
    import("/dev/null");
    assert_eq!(fs::metadata("/dev/null").unwrap().rdev(), before);
    assert_eq!(names(directory), ["link", "log", "trace"]);
}

#[test]
fn one_file_is_said_to_be_one() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path();
    let read = "fio version 3 iolog\n0 /d/a add\n1 /d/a open\n2 /d/a read 0 4096\n3 /d/a close\n";
    fs::write(directory.join("log"), read).unwrap();
    for arguments in [
        ["import", "--format=fio", "log", "-o", "trace"].as_slice(),
        &["compile", "trace", "-o", "compiled"],
    ] {
        let output = replayer(directory, arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
    }
    let output = replayer(directory, &["prepare", "compiled", "--root", "made"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("made 1 file with "), "{text}");
}

/// Each part of a line was a write(2) of its own, so lines of several processes mixed. A datagram holds what one write(2) wrote.
#[test]
fn a_message_is_written_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let mut command = Command::new(REPLAYER);
    command.args(["compile", "none", "-o", "out"]);
    command
        .current_dir(scratch.path())
        .stderr(OwnedFd::from(theirs));
    assert_eq!(command.status().unwrap().code(), Some(125));
    ours.set_nonblocking(true).unwrap();
    let mut bytes = [0; 1000];
    let length = ours.recv(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
    assert!(
        text.starts_with("replayer: ") && text.ends_with('\n'),
        "{text:?}"
    );
    assert!(ours.recv(&mut bytes).is_err(), "more after {text:?}");
}
