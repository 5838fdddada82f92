//! `goanna`: run programs with further file systems.

use std::process::ExitCode;

fn main() -> ExitCode {
    goanna_cli::goanna()
}
