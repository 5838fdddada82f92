//! The two programs: parse, dispatch, report.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use goanna_daemon::Program;
use goanna_sys::limits;

use crate::args::{Amino, Common, Goanna, amino, goanna};
use crate::commands::store::{compact, dump, fsck, info};
use crate::commands::tree::{copy, list};
use crate::commands::{aes, daemon, inspect, iso, run, txn};
use crate::error::{self, Error, FAILED};
use crate::mount_types::MOUNT_TYPES;
use crate::report::messages::{self, show_failure};
use crate::report::output::Output;

/// The parts of this program that `aminod` needs.
const PROGRAM: Program = Program {
    describe: error::report,
    types: MOUNT_TYPES,
};

/// `amino`.
pub fn amino() -> ExitCode {
    use amino::Command;
    let mut words = std::env::args_os();
    if goanna_daemon::started_as_daemon(words.next().as_deref()) {
        messages::set_program_name(goanna_daemon::NAME);
        let served = goanna_daemon::serve(words.next(), PROGRAM);
        return report(served.map(|()| 0).map_err(Error::from));
    }
    start::<Amino>("amino", |args| {
        let verbosity = args.verbosity;
        // The others start no program.
        if !matches!(args.command, Command::Run(_) | Command::Txn(_)) {
            limits::block_xfsz();
        }
        match args.command {
            Command::Run(run) => run::amino(run, verbosity),
            Command::Txn(args) => txn::txn(args, verbosity),
            Command::Ls(ls) => list::ls(&ls),
            Command::Cat(cat) => list::cat(&cat),
            Command::Stat(stat) => list::stat(&stat),
            Command::Tree(tree) => list::tree(&tree),
            Command::Import(import) => copy::import(&import, verbosity),
            Command::Export(export) => copy::export(&export, verbosity),
            Command::Dump(args) => dump::dump(&args, verbosity),
            Command::Load(args) => dump::load(&args, verbosity),
            Command::Compact(args) => compact::compact(&args, verbosity),
            Command::Fsck(fsck) => fsck::fsck(&fsck, verbosity),
            Command::Info(info) => info::info(&info),
            Command::Daemon(args) => daemon::daemon(&args),
            Command::Common(common) => print_common(&common, Amino::command()),
        }
    })
}

/// `goanna`.
pub fn goanna() -> ExitCode {
    use goanna::Command;
    start::<Goanna>("goanna", |args| match args.command {
        Command::Run(run) => run::goanna(run, args.verbosity),
        Command::Check(check) => inspect::check(&check),
        Command::Aes(args) => aes::aes(&args),
        Command::Iso(iso) => {
            limits::block_xfsz();
            iso::iso(&iso, args.verbosity)
        }
        Command::Syscalls(syscalls) => inspect::syscalls(&syscalls),
        Command::Common(common) => print_common(&common, Goanna::command()),
    })
}

fn print_common(common: &Common, command: clap::Command) -> Result<u8, Error> {
    match common {
        Common::Completions { shell } => {
            let mut out = Output::new();
            out.raw(&goanna_manual::completions(*shell, command))?;
            out.finish()?;
        }
        Common::Man { dir } => {
            let written = goanna_manual::write_man_pages(dir, command);
            written.map_err(|error| Error::host(&error.path, error.why))?;
        }
    }
    Ok(0)
}

fn start<A: Parser>(name: &'static str, command: impl FnOnce(A) -> Result<u8, Error>) -> ExitCode {
    messages::set_program_name(name);
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(error) => return ExitCode::from(report_usage(&error)),
    };
    report(command(args))
}

/// Shows the error, if there is one; returns the exit status.
fn report(result: Result<u8, Error>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            if !error.is_quiet() {
                messages::show_error(&error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Shows help, versions and errors in the command line. Help and versions go to stdout with status 0. Errors have clap's
/// text in the form of all errors, and status 125, since clap's 2 could be the status of the command to run.
fn report_usage(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        return u8::from(error.print().is_err());
    }
    let text = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        messages::show_report(&text);
        return FAILED;
    }
    let text = text.strip_prefix("error:").unwrap_or(&text);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        show_failure(line.trim_start());
    }
    if let Some(hint) = usage_hint(error) {
        messages::show_hint(hint);
    }
    FAILED
}

/// The hint for an empty name of a store, which clap refuses without naming its source.
fn usage_hint(error: &clap::Error) -> Option<&'static str> {
    let option = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(option)) => option,
        _ => return None,
    };
    let empty = std::env::var_os("AMINO_STORE").is_some_and(|value| value.is_empty());
    let is_store = option.starts_with("--store");
    (empty && is_store).then_some("$AMINO_STORE is empty: unset it, or let it name a directory")
}
