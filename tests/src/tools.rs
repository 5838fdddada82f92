//! Programs of the machine that tests use.

use std::process::{Command, Stdio};

/// Whether `name` can be run here; says so on stderr when it cannot.
///
/// `.ci/run` installs all that tests ask for; elsewhere a test without its program is left out rather than failed.
pub fn has(name: &str) -> bool {
    let found = Command::new("/bin/sh")
        .args(["-c", "command -v \"$1\"", "sh", name])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !found {
        eprintln!("not run: {name} is not installed");
    }
    found
}
