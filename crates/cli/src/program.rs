//! The two programs: parse, dispatch, report.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::args::{Amino, Common, Goanna, amino, goanna};
use crate::error::Error;
use crate::{daemon, inspect, iso, manual, offline, run, txn};

/// The status when we ourselves failed.
const FAILED: u8 = 125;

/// `amino`.
pub fn amino() -> ExitCode {
    use amino::Command;
    let mut words = std::env::args_os();
    if daemon::is_meant(words.next().as_deref()) {
        return report(daemon::NAME, daemon::serve(words.next()));
    }
    start::<Amino>("amino", |args| {
        let loud = args.loudness;
        match args.command {
            Command::Run(run) => run::amino(run, loud),
            Command::Txn(args) => txn::txn(args, loud),
            Command::Ls(ls) => offline::ls(&ls),
            Command::Cat(cat) => offline::cat(&cat),
            Command::Stat(stat) => offline::stat(&stat),
            Command::Tree(tree) => offline::tree(&tree),
            Command::Import(import) => offline::import(&import, loud),
            Command::Export(export) => offline::export(&export, loud),
            Command::Fsck(fsck) => offline::fsck(&fsck, loud),
            Command::Info(info) => offline::info(&info),
            Command::Daemon(args) => daemon::daemon(&args),
            Command::Common(common) => print_common(&common, Amino::command()),
        }
    })
}

/// `goanna`.
pub fn goanna() -> ExitCode {
    use goanna::Command;
    start::<Goanna>("goanna", |args| match args.command {
        Command::Run(run) => run::goanna(run, args.loudness),
        Command::Check(check) => inspect::check(&check),
        Command::Iso(iso) => iso::iso(&iso, args.loudness),
        Command::Syscalls(syscalls) => inspect::syscalls(&syscalls),
        Command::Common(common) => print_common(&common, Goanna::command()),
    })
}

fn print_common(common: &Common, command: clap::Command) -> Result<u8, Error> {
    match common {
        Common::Completions { shell } => manual::completions(*shell, command)?,
        Common::Man { dir } => manual::man(dir, command)?,
    }
    Ok(0)
}

fn start<A: Parser>(name: &str, command: impl FnOnce(A) -> Result<u8, Error>) -> ExitCode {
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(error) => return ExitCode::from(report_usage(name, &error)),
    };
    report(name, command(args))
}

/// The exit status; an error is told.
fn report(name: &str, result: Result<u8, Error>) -> ExitCode {
    match result {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            if !error.is_quiet() {
                complain(name, &error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Help and versions go to stdout with status 0. Command lines that are wrong are told in the form of all our
/// errors, with clap's text, and end with 125: 2 could be the status of the command to run.
fn report_usage(name: &str, error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        return u8::from(error.print().is_err());
    }
    let text = error.render();
    let text = if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        text.ansi().to_string()
    } else {
        text.to_string()
    };
    let _ = match text.split_once("error:") {
        // Only an error begins so; what precedes is the colour.
        Some((colour, rest)) if !colour.contains('\n') && colour.len() < 16 => {
            write!(std::io::stderr(), "{colour}{name}:{rest}")
        }
        _ => write!(std::io::stderr(), "{text}"),
    };
    FAILED
}

fn complain(name: &str, error: &Error) {
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "{name}: {error}");
    if let Some(hint) = error.hint() {
        let _ = writeln!(stderr, "  hint: {hint}");
    }
}
