//! `amino txn`: transactions of the calling shell, and around a command.

use amino_client::{Open, Target};
use goanna_monitor::Status;

use crate::args::Loudness;
use crate::args::txn::{self, Command, Txn};
use crate::child::{self, Signals};
use crate::error::Error;
use crate::output::Output;
use crate::run::{ending, exit_status};

/// `amino txn`.
pub fn txn(args: Txn, loud: Loudness) -> Result<u8, Error> {
    match args.command {
        Command::Begin => print(of_shell("begin", Target::begin)?.as_str())?,
        Command::Commit => of_member("commit", Target::commit)?,
        Command::Abort => of_member("abort", Target::abort)?,
        Command::Status(args) => status(&args)?,
        Command::Suspend => print(of_member("suspend", Target::suspend)?.as_str())?,
        Command::Resume(args) => of_shell("resume", |shell| shell.resume(&args.id))?,
        Command::Attach(args) => of_shell("attach", |shell| shell.attach(&args.id))?,
        Command::Detach => of_member("detach", Target::detach)?,
        Command::Run(args) => return run(&args, loud),
    }
    Ok(0)
}

/// Calls for our parent, the shell.
fn of_shell<T>(
    command: &'static str,
    call: impl FnOnce(Target) -> Result<T, amino_client::Error>,
) -> Result<T, Error> {
    call(parent()).map_err(|why| Error::Txn { command, why })
}

fn parent() -> Target {
    Target::Process(nix::unistd::getppid().as_raw())
}

/// Calls for the shell, which takes part in a transaction: our parent, or ourselves where a shell executed us in its place,
/// as it does with the last command of a script. Then we have another transaction than our parent.
fn of_member<T>(
    command: &'static str,
    call: impl FnOnce(Target) -> Result<T, amino_client::Error>,
) -> Result<T, Error> {
    let current = |of: Target| Some(of.status().ok()?.current.pop()?.id);
    let own = current(Target::Me);
    let shell = if own.is_some() && own != current(parent()) {
        Target::Me
    } else {
        parent()
    };
    call(shell).map_err(|why| Error::Txn { command, why })
}

fn print(line: &str) -> Result<(), Error> {
    let mut out = Output::new();
    out.line(line)?;
    out.finish()
}

fn status(args: &txn::Status) -> Result<(), Error> {
    let status = of_member("status", Target::status)?;
    if args.json {
        return print(status.raw());
    }
    let mut out = Output::new();
    if status.current.is_empty() {
        out.line("no current transaction")?;
    }
    for open in &status.current {
        out.text(&description(open))?;
    }
    for id in &status.suspended {
        out.line(&format!("suspended {id}"))?;
    }
    out.finish()
}

fn description(open: &Open) -> String {
    let processes: Vec<String> = open.processes.iter().map(ToString::to_string).collect();
    format!(
        "transaction {}\n  depth      {}\n  changes    {} names, {} inodes, {} bytes\n  locks      {} shared, {} \
         exclusive\n  conflicts  {}\n  processes  {}\n",
        open.id,
        open.depth,
        open.names,
        open.inodes,
        open.bytes,
        open.shared_locks,
        open.exclusive_locks,
        open.conflicts,
        processes.join(" ")
    )
}

/// `amino txn run`.
fn run(args: &txn::Run, loud: Loudness) -> Result<u8, Error> {
    let mut signals = Signals::hold().map_err(|why| Error::Signals(why.into()))?;
    let note = |text: &str| {
        if !loud.quiet {
            eprintln!("note: {text}");
        }
    };
    let mut repetition = 0;
    let mut failed = None;
    let outcome = amino_client::transaction(args.retry, || {
        if repetition > 0 {
            let what = match failed {
                Some(status) if signals.any_arrived().map_err(Error::Child)? => {
                    return Err(Error::Command(status));
                }
                Some(status) => ending(status),
                None => "the commit failed".to_owned(),
            };
            let of = args.retry;
            note(&format!(
                "{what} after a conflict; trying again ({repetition} of {of})"
            ));
        }
        repetition += 1;
        failed = None;
        match child::run(&args.run.command, &mut signals)? {
            Status::Exited(0) => Ok(()),
            status => {
                failed = Some(status);
                Err(Error::Command(status))
            }
        }
    });
    match outcome {
        Ok(()) => Ok(0),
        Err(Error::Command(status)) => {
            note(&format!("{}; the transaction was aborted", ending(status)));
            Ok(exit_status(status))
        }
        Err(error) => Err(error),
    }
}
