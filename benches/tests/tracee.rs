//! The tracee's side of the protocol, natively.

use std::path::Path;
use std::time::Duration;

use goanna_benches::{Binaries, Error, Kind, Lockstep, Operation, Setting};

fn native(scratch: &Path) -> Result<Setting, Error> {
    let binaries = Binaries::beside(Path::new(env!("CARGO_BIN_EXE_bench-tracee")));
    Setting::start(Kind::Native, &binaries, scratch)
}

#[test]
fn every_operation_runs_and_clears_what_it_made() {
    let scratch = tempfile::tempdir().unwrap();
    let mut setting = native(scratch.path()).unwrap();
    assert!(setting.check().unwrap().is_empty());
    for operation in Operation::ALL {
        // More than a chunk of names, and an odd number of renames.
        let iterations = if operation == Operation::Spawn {
            3
        } else {
            501
        };
        assert!(setting.measure(operation, iterations).unwrap() > Duration::ZERO);
        assert!(setting.measure(operation, 2).unwrap() > Duration::ZERO);
    }
    let files = scratch.path().join("native/files");
    let mut left: Vec<_> = std::fs::read_dir(&files)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["file", "large", "many", "name0"]);
    let file = std::fs::metadata(files.join("file")).unwrap();
    assert_eq!(file.len(), 65536);
}

#[test]
fn a_failure_is_reported_and_the_tracee_continues() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(scratch.path().join("native/files/many")).unwrap();
    let mut setting = native(scratch.path()).unwrap();
    let failures = setting.check().unwrap();
    assert_eq!(failures.len(), 1);
    assert!(
        failures[0]
            .to_string()
            .starts_with("native: readdir 1: error: ")
    );
    assert!(!setting.is_able(Operation::Readdir));
    assert!(setting.is_able(Operation::Stat));
    assert!(
        matches!(setting.shell("exit 3"), Err(Error::Refused { answer, .. }) if answer.contains('3'))
    );
    assert!(setting.shell("sleep 0.05").unwrap() >= Duration::from_millis(50));
}

#[test]
fn a_tracee_that_is_gone_is_reported_with_its_last_words() {
    let scratch = tempfile::tempdir().unwrap();
    let mut setting = native(scratch.path()).unwrap();
    let error = setting
        .shell("echo farewell >&2; kill -9 $PPID")
        .unwrap_err();
    assert!(matches!(error, Error::Ended { stderr, .. } if stderr == "farewell\n"));
    assert!(matches!(
        setting.measure(Operation::Stat, 1),
        Err(Error::Ended { .. })
    ));
}

#[test]
fn rounds_have_a_sample_of_each_setting_that_is_able() {
    let scratch = tempfile::tempdir().unwrap();
    let first = scratch.path().join("first");
    let second = scratch.path().join("second");
    std::fs::create_dir_all(second.join("native/files/many")).unwrap();
    let mut settings = [native(&first).unwrap(), native(&second).unwrap()];
    for setting in &mut settings {
        setting.check().unwrap();
    }
    let brief = Duration::from_millis(1);
    let mut rounds = Lockstep::new(Operation::Readdir, &mut settings, brief).unwrap();
    assert!(rounds.sample(&mut settings, 0, 2).unwrap().unwrap() > 0.0);
    assert_eq!(rounds.sample(&mut settings, 1, 0).unwrap(), None);
    let row = rounds.into_row();
    assert_eq!(row.rounds.len(), 3);
    assert!(
        row.rounds
            .iter()
            .all(|round| round[0].is_some() && round[1].is_none())
    );
}
