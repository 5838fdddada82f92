//! `amino`: run programs on a transactional store, and look after the store.

use std::process::ExitCode;

fn main() -> ExitCode {
    goanna_cli::amino()
}
