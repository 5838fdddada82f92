//! How often a back end is asked for the names that programs open.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::process::Command;

/// The lines about `name` that `script` causes in a mount of a directory with the file `old` and the link `link`.
fn asked_for(name: &str, script: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("below");
    fs::create_dir(&below).unwrap();
    fs::write(below.join("old"), "old").unwrap();
    std::os::unix::fs::symlink("nowhere", below.join("link")).unwrap();
    let seen = dir.path().join("seen");
    let output = Command::new(env!("CARGO_BIN_EXE_lookups"))
        .arg(&seen)
        .arg(&below)
        .args(["/counted", "sh", "-c", script])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    let seen = fs::read_to_string(seen).unwrap();
    let lines = seen.lines().filter(|line| line.ends_with(name));
    lines.map(str::to_owned).collect()
}

#[test]
fn a_new_file_is_looked_up_where_it_is_created_only() {
    let create = "dd if=/dev/null of=/counted/new conv=excl 2>/dev/null";
    assert_eq!(asked_for("new", create), ["create new"]);
}

#[test]
fn a_name_that_is_taken_is_not_created() {
    for name in ["old", "link"] {
        let script = format!(
            "dd if=/dev/null of=/counted/{name} conv=excl 2>&1 | grep -q 'File exists' && test \"$(cat /counted/old)\" = old"
        );
        let asked = asked_for(name, &script);
        assert_eq!(asked[0], format!("create {name}"));
    }
}

#[test]
fn an_open_that_may_create_looks_up_once() {
    let create = "dd if=/dev/null of=/counted/new conv=notrunc 2>/dev/null";
    assert_eq!(asked_for("new", create), ["lookup new", "create new"]);
    let open = "dd if=/dev/null of=/counted/old conv=notrunc 2>/dev/null";
    assert_eq!(asked_for("old", open), ["lookup old"]);
}
