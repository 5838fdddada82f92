//! `cargo xtask judge`: builds the binaries, and starts `tests/examples/judge`, which does the work.

use crate::ci::{Error, cargo, typed};

const STEP: &str = "judge";

/// Runs the judge with these arguments.
///
/// # Errors
///
/// A build that fails, and differences that are not explained.
pub fn run(arguments: &[String]) -> Result<(), Error> {
    complete(&["build", "--quiet", "--package", "goanna-cli", "--bins"])?;
    let mut judge = vec![
        "run",
        "--quiet",
        "--package",
        "goanna-tests",
        "--example",
        "judge",
        "--",
    ];
    judge.extend(arguments.iter().map(String::as_str));
    complete(&judge)
}

fn complete(arguments: &[&str]) -> Result<(), Error> {
    let mut command = cargo(arguments);
    let status = command.status().map_err(|source| Error::Io {
        step: STEP.to_owned(),
        command: typed(&command),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        step: STEP.to_owned(),
        command: typed(&command),
        status,
    })
}
