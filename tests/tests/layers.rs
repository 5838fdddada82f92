//! A layer over a store shows its own names, also to programs that could read the store's attributes without the monitor.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// Makes calls until a store would have given the process its map of attributes, with entries for both names. `6162` is the store's name for `ab`.
const PROGRAM: &str = "
import os
for directory in '', '/names/':
    for _ in range(2000):
        assert os.stat(directory + 'ab').st_size == 5
        assert not os.access(directory + '6162', os.F_OK)
";

/// A layer forwarded the store's map of attributes with its content once, so programs got ENOENT for `ab`, which the store does not have.
#[test]
fn programs_do_not_see_the_names_of_the_layer_below() {
    let dir = tempfile::tempdir().unwrap();
    let script = "cd /names && echo text > ab && exec python3 -c \"$0\"";
    let output = Command::new(env!("CARGO_BIN_EXE_encoded"))
        .env("GOANNA_TEST_CALLS_BEFORE", "0")
        .arg(dir.path().join("store"))
        .args(["/names", "sh", "-c", script, PROGRAM])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
}
