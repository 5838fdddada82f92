//! `replayer`: compiles traces of `goanna-trace`, replays them on any directory, and compares traces. Each subcommand has a file of its own.

mod common;
mod compare;
mod compile;
mod import;
mod prepare;
mod run;

use std::process::ExitCode;

use clap::Parser;
use goanna_manual::HELP_COLUMNS;

use common::FAILED;

/// Replay traces of goanna-trace on any directory, and compare traces
#[derive(Debug, Parser)]
#[command(name = "replayer", version, max_term_width = HELP_COLUMNS, after_help = MAIN_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const MAIN_HELP: &str = "\
Exit status:
  0    success
  1    run: results differ from the trace; compare: the traces differ
  125  the command line is wrong, or replayer failed

Examples:
  goanna-trace --data full -o job.gtr -- ./job.sh
  replayer compile job.gtr -o job.grp
  replayer prepare job.grp --root copy
  replayer run job.grp --root copy";

#[derive(Debug, clap::Subcommand)]
enum Command {
    Import(import::Import),
    Compile(compile::Compile),
    Prepare(prepare::Prepare),
    Run(run::Run),
    Compare(compare::Compare),
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    let status = match arguments.command {
        Command::Import(import) => import.run(),
        Command::Compile(compile) => compile.run(),
        Command::Prepare(prepare) => prepare.run(),
        Command::Run(run) => run.run(),
        Command::Compare(compare) => compare.run(),
    };
    ExitCode::from(status.unwrap_or_else(|failure| failure.report()))
}

/// Shows help, versions and errors in the command line. Errors end with status 125, since 1 means that results differ.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return ExitCode::from(u8::from(error.print().is_err()));
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error:").unwrap_or(&text);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        common::message(line.trim_start());
    }
    ExitCode::from(FAILED)
}
