//! `cargo xtask judge`: builds the binaries, and starts `tests/examples/judge`, which does the work.

use crate::ci::{Error, cargo, complete};

const STEP: &str = "judge";

/// Runs the judge with these arguments.
///
/// # Errors
///
/// A build that fails, and differences that are not explained.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    let mut build = cargo(&["build", "--quiet", "--package", "goanna-cli", "--bins"]);
    complete(STEP, &mut build)?;
    let mut judge = cargo(&[
        "run",
        "--quiet",
        "--package",
        "goanna-tests",
        "--example",
        "judge",
        "--",
    ]);
    complete(STEP, judge.args(arguments))
}
