//! Programs of the machine that tests use.

use std::process::{Command, Stdio};

use goanna_skip::{Facility, skip};

/// Whether `name` can be run here. If not, the calling test is recorded as skipped.
pub fn has(name: &str) -> bool {
    let found = Command::new("/bin/sh")
        .args(["-c", "command -v \"$1\"", "sh", name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        skip(Facility::Program, format!("{name} is not installed"));
    }
    found
}
