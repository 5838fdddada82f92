//! The project's own tasks, started as `cargo xtask TASK`.
//!
//! Plain Rust instead of a script, so that a step is spelled once for people and for CI, and works wherever cargo does.

#[cfg(test)]
mod architecture;
mod ci;
#[cfg(test)]
mod decisions;
mod failures;
mod fuzz;
mod install;
mod judge;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod modules;
mod mutants;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::ci::Step;

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

/// One task.
#[derive(Subcommand)]
enum Task {
    /// Run what CI runs: formatting, lints, documentation, tests, dependency policy
    ///
    /// Without STEP the steps fmt, clippy, doc, test and deny run in this order. The first that fails ends the run with
    /// its name and exit status 1. Progress goes to stderr, test results to stdout; the last line counts the tests.
    ///
    /// The step advisories needs the RustSec advisory database from the network, so it runs only when it is named.
    /// The steps deny and advisories need cargo-deny: cargo install cargo-deny --locked
    Ci {
        /// Run only these steps, in the order given
        #[arg(value_enum, value_name = "STEP")]
        steps: Vec<Step>,
    },
    /// Run fuzz targets under libFuzzer, with the stable compiler
    ///
    /// The targets are in tests/fuzz. The inputs that libFuzzer keeps are in target/fuzz/corpus/TARGET. An input that makes a target panic, or that takes
    /// too much time or memory, is written to target/fuzz/failures, and ends the run with exit status 1. Needs g++.
    Fuzz {
        /// The targets, one after the other; an unknown name prints all
        #[arg(value_name = "TARGET", required = true)]
        targets: Vec<String>,
        /// How long each of them runs
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        seconds: u32,
    },
    /// Build libamino and install it: header, static and shared library, pkg-config file, Python module
    ///
    /// Prints the files. They are used with PKG_CONFIG_PATH=DIR/lib/pkgconfig, and the module with
    /// PYTHONPATH=$(pkg-config --variable=pythondir amino).
    InstallClient {
        /// Where include and lib are or are made, such as /usr/local
        #[arg(long, value_name = "DIR")]
        prefix: PathBuf,
    },
    /// Break the isolation of transactions in a copy of the workspace, one way after the other, and see the tests fail
    ///
    /// Prints for each way which tests failed: with an anomaly that they have seen, or because no transaction waited. Fails when a
    /// test passes that should not. Takes some minutes, and about 1 GiB below target/isolation-mutants.
    IsolationMutants {
        /// Only the ways whose description contains this
        #[arg(default_value = "", value_name = "TEXT")]
        only: String,
    },
    /// Run suites of tests from outside natively and in every back end, and print the differences
    ///
    /// `cargo xtask judge --help` shows its arguments.
    #[command(disable_help_flag = true)]
    Judge {
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "ARGUMENT"
        )]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().task {
        Task::Ci { steps } => ci::run(&steps),
        Task::Fuzz { targets, seconds } => fuzz::run(&targets, seconds),
        Task::InstallClient { prefix } => install::run(&prefix),
        Task::IsolationMutants { only } => mutants::run(&only),
        Task::Judge { arguments } => judge::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}
