//! The command line of `amino txn`.

use amino_client::{Id, Name};
use clap::{Args, Subcommand};

use super::common::CommandLine;

/// `amino txn`.
#[derive(Debug, Args)]
#[command(after_help = TXN_HELP)]
pub struct Txn {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const TXN_HELP: &str = "\
Notes:
  All but run, list, and those with --name act on the process that calls amino:
  a shell below `amino run`.
  From begin to commit or abort, what the shell does in the store belongs to
  the transaction, and so does what the programs do that it starts. Others see
  nothing of it before the commit, and all of it after. begin inside of a
  transaction nests: the inner one commits into the outer one.
  A shell that exits without a commit aborts, which amino run says on stderr.
  A subshell is a shell: what (amino txn begin; make) begins, or
  id=$(amino txn begin || :), is aborted at the subshell's end. A tool that
  starts a new shell for each step gives the transaction a name: begin --name,
  run --in, commit --name.

Exit status:
  0    done
  1    there is no such transaction, one is in the way, or it could not be
       committed, and was aborted
  125  not running under amino, or the command line is wrong
  `amino txn run` ends with the status of its command.

Examples:
  amino txn begin
  if make install; then amino txn commit; else amino txn abort; fi

  id=$(amino txn suspend)          step outside
  amino txn resume $id             and back

  amino txn run --retry 5 -- ./move-money.sh

  amino txn begin --name update --expire 600      from any process of the run
  amino txn run --in update -- make install       from any other one
  amino txn commit --name update                  or: abort --name update";

/// The commands of `amino txn`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Begin a transaction in the calling shell and print its identifier
    Begin(Begin),
    /// Commit the shell's current transaction: a nested one into the one around it, else to the disk
    Commit(Ending),
    /// Abort the shell's current transaction, with those nested in it
    Abort(Ending),
    /// Print the shell's transactions: changes, locks, conflicts, processes
    Status(Status),
    /// Print all open transactions of the run that are yours; root sees those of all users
    List(List),
    /// Set the shell's current transaction, with those around it, aside and print its identifier
    Suspend,
    /// Make a transaction that this shell suspended its current one again
    Resume(Named),
    /// Let the shell join a transaction of another process of the same user
    Attach(Named),
    /// Let the shell leave its transactions without ending them; one that its last process leaves is aborted
    Detach,
    /// Run a command in a transaction: commit when it exits with 0, abort otherwise
    Run(Run),
}

/// `amino txn begin`.
#[derive(Debug, Args)]
#[command(after_help = BEGIN_HELP)]
pub struct Begin {
    /// Have the run hold the transaction under this name, rather than the shell, which does not take part in it
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Abort the transaction when it is still open after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "name", value_parser = clap::value_parser!(u32).range(1..))]
    pub expire: Option<u32>,
}

const BEGIN_HELP: &str = "\
Names:
  1 to 64 ASCII letters, digits, dots, underscores and hyphens, no hyphen first.
  A name belongs to your user in this run; a second begin of a name that is open
  fails with status 1. Programs join by amino txn run --in NAME. The transaction
  ends with commit --name or abort --name, when SECONDS have passed, with the
  transaction around it, or with the run: then, too, it is aborted, which amino
  run says on stderr. What programs that are still in it do on the store
  afterwards fails (ECANCELED).

Examples:
  amino txn begin --name update --expire 600";

/// `amino txn commit` and `amino txn abort`.
#[derive(Debug, Args)]
pub struct Ending {
    /// Not the shell's transaction but the one that the run holds under this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
}

/// `amino txn list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_HELP)]
pub struct List {
    /// The same as JSON
    #[arg(long)]
    pub json: bool,
}

const LIST_HELP: &str = "\
Notes:
  One a line, outermost first: the name (- for none), the identifier, the depth,
  bytes changed, seconds until it is aborted (- for never), processes.

JSON:
  An object with transactions: an array of objects with name and parent (an
  identifier), null when there is none, expires_s (seconds left, null for
  never), and the fields of `amino txn status --json`.";

/// `amino txn status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_HELP)]
pub struct Status {
    /// Not the shell's transactions but the one that the run holds under this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// The same as JSON
    #[arg(long)]
    pub json: bool,
}

const STATUS_HELP: &str = "\
Notes:
  The stack of transactions, the current one last, then those suspended.

JSON:
  An object with current, an array of objects with id, depth (1 for an
  outermost one), names, inodes and bytes (changed so far), shared_locks,
  exclusive_locks, conflicts (operations that failed because of others'
  locks), processes (their ids), outermost first; and suspended, an array of
  identifiers. With --name, the object of that transaction as `amino txn list
  --json` has it.";

/// `amino txn resume` and `amino txn attach`.
#[derive(Debug, Args)]
pub struct Named {
    /// The transaction's identifier, as begin, suspend and status print it
    #[arg(value_name = "ID")]
    pub id: Id,
}

/// `amino txn run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP, override_usage = "amino txn run [OPTIONS] [--] COMMAND [ARG]...")]
pub struct Run {
    /// Run COMMAND in the transaction that the run holds under this name; COMMAND's end does not end it
    #[arg(long, value_name = "NAME", conflicts_with = "retry")]
    pub r#in: Option<Name>,
    /// How often to run COMMAND again when it, or the commit, failed after it met locks of others
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retry: u32,
    /// What is run.
    #[command(flatten)]
    pub run: CommandLine,
}

const RUN_HELP: &str = "\
Notes:
  Nested when there is a current transaction. SIGINT and SIGQUIT are left to
  COMMAND, SIGTERM and SIGHUP are sent on to it. After any of them nothing is
  tried again. Before each repetition there is a short random pause.
  With --in COMMAND takes part in that transaction, whatever it exits with: what
  it did stays in the transaction until that is committed or aborted. To have
  COMMAND's own changes dropped when it fails, nest:
  amino txn run --in NAME -- amino txn run -- COMMAND.

Exit status:
  That of COMMAND; 128+N when signal N killed it.
  125  not running under amino, the command line is wrong, or COMMAND exited
       with 0 and could not be committed: nothing of it is in the store
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found

Examples:
  amino txn run -- sh -c 'cd /amino/etc && sed -i s/a/b/ passwd shadow'
  amino txn run --retry 5 -- ./transfer alice bob 10";
