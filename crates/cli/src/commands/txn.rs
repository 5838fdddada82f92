//! `amino txn`: transactions of the calling shell, and around a command.

use std::ffi::OsString;

use amino_client::{List, Name, Open, Target};
use goanna_monitor::Status;
use goanna_session::Error as SessionError;
use goanna_session::subprocess::{self, Signals};
use goanna_sys::plural::counted;

use crate::args::Verbosity;
use crate::args::txn::{self, Command, Txn};
use crate::error::Error;
use crate::report::messages::note;
use crate::report::output::Output;
use crate::report::status::command_end;

/// `amino txn`.
pub fn txn(args: Txn, verbosity: Verbosity) -> Result<u8, Error> {
    match args.command {
        Command::Begin(txn::Begin { name, expire }) => {
            let id = match &name {
                Some(name) => {
                    let failed = |why| of_named("begin", name, why);
                    let begun = Target::Me.begin_named(name, expire.unwrap_or(0));
                    begun.map_err(failed)?
                }
                None => of_shell("begin", Target::begin)?,
            };
            print(id.as_str())?;
        }
        Command::Commit(txn::End { name: Some(name) }) => {
            let failed = |why| of_named("commit", &name, why);
            name.commit().map_err(failed)?;
        }
        Command::Commit(_) => of_participant("commit", Target::commit)?,
        Command::Abort(txn::End { name: Some(name) }) => {
            let failed = |why| of_named("abort", &name, why);
            name.abort().map_err(failed)?;
        }
        Command::Abort(_) => of_participant("abort", Target::abort)?,
        Command::Status(args) => match &args.name {
            Some(name) => status_of(name, args.json)?,
            None => status(&args)?,
        },
        Command::List(args) => list(&args)?,
        Command::Suspend => print(of_participant("suspend", Target::suspend)?.as_str())?,
        Command::Resume(args) => of_shell("resume", |shell| shell.resume(&args.id))?,
        Command::Attach(args) => of_shell("attach", |shell| shell.attach(&args.id))?,
        Command::Detach => of_participant("detach", Target::detach)?,
        Command::Run(args) => {
            return match &args.r#in {
                Some(name) => run_in(name, &args),
                None => run(&args.run.command, args.retry, verbosity),
            };
        }
    }
    Ok(0)
}

/// The error of a call that concerns a named transaction.
fn of_named(command: &str, name: &Name, why: amino_client::Error) -> Error {
    let option = if command == "run" { "in" } else { "name" };
    Error::Txn {
        command: format!("{command} --{option} {name}").into(),
        why,
    }
}

/// Makes calls on behalf of the parent process, the shell.
fn of_shell<T>(
    command: &'static str,
    call: impl FnOnce(Target) -> Result<T, amino_client::Error>,
) -> Result<T, Error> {
    call(parent()).map_err(|why| Error::Txn {
        command: command.into(),
        why,
    })
}

fn parent() -> Target {
    Target::Process(nix::unistd::getppid().as_raw())
}

/// Makes calls for the shell, which participates in a transaction. It is our parent, or this process itself: a shell may execute
/// the last command of a script in its own place. Then this process has another transaction than its parent.
fn of_participant<T>(
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
    call(shell).map_err(|why| Error::Txn {
        command: command.into(),
        why,
    })
}

fn print(line: &str) -> Result<(), Error> {
    let mut out = Output::new();
    out.line(line)?;
    out.finish()
}

fn status(args: &txn::Status) -> Result<(), Error> {
    let status = of_participant("status", Target::status)?;
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

fn listed() -> Result<List, Error> {
    List::get().map_err(|why| Error::Txn {
        command: "list".into(),
        why,
    })
}

fn list(args: &txn::List) -> Result<(), Error> {
    let list = listed()?;
    if args.json {
        return print(list.raw());
    }
    let mut out = Output::new();
    for listed in &list.transactions {
        let name = listed.name.as_ref().map_or("-", Name::as_str);
        let open = &listed.open;
        let left = listed.expires_s.map(|seconds| format!("{seconds} s"));
        out.line(&format!(
            "{name}  {}  depth {}  {}  {}  {}",
            open.id,
            open.depth,
            counted(open.bytes, "byte"),
            left.as_deref().unwrap_or("-"),
            processes(open)
        ))?;
    }
    out.finish()
}

/// `amino txn status --name`.
fn status_of(name: &Name, json: bool) -> Result<(), Error> {
    let failed = |why| of_named("status", name, why);
    let list = List::get().map_err(failed)?;
    let is_it = |listed: &amino_client::Listed| listed.name.as_ref() == Some(name);
    let at = list.transactions.iter().position(is_it);
    let at = at.ok_or_else(|| failed(amino_client::Error::NotFound))?;
    if json {
        let raw: serde_json::Value = serde_json::from_str(list.raw())
            .map_err(|why| failed(amino_client::Error::BadAnswer(why.to_string())))?;
        return Output::new().json(&raw["transactions"][at]);
    }
    let listed = &list.transactions[at];
    let mut out = Output::new();
    out.text(&description(&listed.open))?;
    let left = listed.expires_s.map(|seconds| format!("in {seconds} s"));
    out.line(&format!("  name       {name}"))?;
    out.line(&format!(
        "  expires    {}",
        left.as_deref().unwrap_or("never")
    ))?;
    out.finish()
}

fn processes(open: &Open) -> String {
    let processes: Vec<String> = open.processes.iter().map(ToString::to_string).collect();
    processes.join(" ")
}

fn description(open: &Open) -> String {
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
        processes(open)
    )
}

/// `amino txn run --in`: this process joins the transaction, and the command inherits it.
fn run_in(name: &Name, args: &txn::Run) -> Result<u8, Error> {
    let mut signals = Signals::block().map_err(|why| Error::Signals(why.into()))?;
    let joined = Target::Me.attach_named(name);
    joined.map_err(|why| of_named("run", name, why))?;
    Ok(run_command(&args.run.command, &mut signals)?.exit_code())
}

/// Runs `command` in a transaction, at most `retry` times more after conflicts.
pub fn run(command: &[OsString], retry: u32, verbosity: Verbosity) -> Result<u8, Error> {
    let mut signals = Signals::block().map_err(|why| Error::Signals(why.into()))?;
    let note = |text: &str| note(text, verbosity);
    let mut repetition = 0;
    let mut failed = None;
    let outcome = amino_client::transaction(retry, || {
        if repetition > 0 {
            let what = match failed {
                Some(status) if any_arrived(&mut signals)? => {
                    return Err(Error::Command(status));
                }
                Some(status) => command_end(status),
                None => "the commit failed".to_owned(),
            };
            note(&format!(
                "{what} after a conflict; trying again ({repetition} of {retry})"
            ));
        }
        repetition += 1;
        failed = None;
        match run_command(command, &mut signals)? {
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
            note(&format!(
                "{}; the transaction was aborted",
                command_end(status)
            ));
            Ok(status.exit_code())
        }
        Err(error) => Err(error),
    }
}

fn run_command(command: &[OsString], signals: &mut Signals) -> Result<Status, Error> {
    subprocess::run(command, signals).map_err(Error::TxnCommand)
}

fn any_arrived(signals: &mut Signals) -> Result<bool, Error> {
    let failed = |errno| Error::TxnCommand(SessionError::Subprocess(errno));
    signals.any_arrived().map_err(failed)
}
