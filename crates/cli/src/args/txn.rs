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
  All commands except run, list, and those with --name act on the process that
  calls amino: a shell inside `amino run`.
  From begin to commit or abort, all changes that the shell and the programs
  that it starts make in the store belong to the transaction. They become
  visible to others at the commit, all at once. begin inside a transaction
  nests: the inner transaction commits into the outer one.
  A shell that exits without a commit aborts its transaction; amino run reports
  it on stderr. A subshell is a shell, too: a transaction begun in
  (amino txn begin; make) or id=$(amino txn begin || :) is aborted when the
  subshell exits. A tool that starts a new shell for each step uses a named
  transaction: begin --name, run --in, commit --name.

Exit status:
  0    success
  1    there is no such transaction, another one prevents the command, or the
       commit failed and the transaction was aborted
  125  not running under amino, or the command line is wrong
  `amino txn run` exits with the status of its command.

Examples:
  amino txn begin
  if make install; then amino txn commit; else amino txn abort; fi

  id=$(amino txn suspend)          leave the transaction
  amino txn resume $id             return to it

  amino txn run --retry 5 -- ./move-money.sh

  amino txn begin --name update --expire 600      from any process of the run
  amino txn run --in update -- make install       from any other process
  amino txn commit --name update                  or: abort --name update";

/// The commands of `amino txn`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Begin a transaction in the calling shell and print its identifier
    Begin(Begin),
    /// Commit the shell's current transaction: a nested one into its parent, else to the disk
    Commit(End),
    /// Abort the shell's current transaction and those nested in it
    Abort(End),
    /// Print the shell's transactions: changes, locks, conflicts, processes
    Status(Status),
    /// Print your open transactions in this run; for root, those of all users
    List(List),
    /// Suspend the shell's current transaction and those that enclose it, and print its identifier
    Suspend,
    /// Make a suspended transaction the shell's current one again
    Resume(Named),
    /// Join the shell to a transaction of another process of the same user
    Attach(Named),
    /// Leave the shell's transactions without ending them; a transaction without participants is aborted
    Detach,
    /// Run a command in a transaction: commit if it exits with 0, abort otherwise
    Run(Run),
}

/// `amino txn begin`.
#[derive(Debug, Args)]
#[command(after_help = BEGIN_HELP)]
pub struct Begin {
    /// Begin a named transaction, which the run holds; the shell does not participate in it
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Abort the transaction if it is still open after this many seconds
    #[arg(long, value_name = "SECONDS", requires = "name", value_parser = clap::value_parser!(u32).range(1..))]
    pub expire: Option<u32>,
}

const BEGIN_HELP: &str = "\
Names:
  1 to 64 ASCII letters, digits, dots, underscores and hyphens, not beginning
  with a hyphen. A name belongs to your user in this run; begin with the name of
  an open transaction fails with status 1. Programs join by
  amino txn run --in NAME. The transaction ends by commit --name or
  abort --name. It is aborted after SECONDS, with its enclosing transaction, or
  at the end of the run; amino run reports it on stderr. Afterwards, calls on
  the store by its participants fail (ECANCELED).

Examples:
  amino txn begin --name update --expire 600";

/// `amino txn commit` and `amino txn abort`.
#[derive(Debug, Args)]
pub struct End {
    /// The named transaction, instead of the shell's
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
}

/// `amino txn list`.
#[derive(Debug, Args)]
#[command(after_help = LIST_HELP)]
pub struct List {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const LIST_HELP: &str = "\
Notes:
  One per line, outermost first: the name (- for none), the identifier, the
  depth, bytes changed, seconds until it is aborted (- for never), processes.

JSON:
  An object with transactions: an array of objects with name and parent (an
  identifier), null when there is none, expires_s (seconds left, null for
  never), and the fields of `amino txn status --json`.";

/// `amino txn status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_HELP)]
pub struct Status {
    /// The named transaction, instead of the shell's
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,
    /// Print JSON
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
    /// Run COMMAND in this named transaction, which COMMAND's end does not end
    #[arg(long, value_name = "NAME", conflicts_with = "retry")]
    pub r#in: Option<Name>,
    /// How often to repeat COMMAND when it, or its commit, failed because of locks of other transactions
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub retry: u32,
    /// What is run.
    #[command(flatten)]
    pub run: CommandLine,
}

const RUN_HELP: &str = "\
Notes:
  The transaction is nested if there is a current one. amino ignores SIGINT and
  SIGQUIT, which COMMAND gets from the terminal, and forwards SIGTERM and SIGHUP
  to COMMAND. After any of these signals it does not retry. Before each retry it
  waits for a short random time.
  With --in, COMMAND's changes stay in the named transaction whatever its exit
  status is. To discard them if COMMAND fails, nest:
  amino txn run --in NAME -- amino txn run -- COMMAND.

Exit status:
  That of COMMAND; 128+N when signal N killed it.
  125  not running under amino, the command line is wrong, or the commit
       failed after COMMAND exited with 0: its changes were discarded
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found

Examples:
  amino txn run -- sh -c 'cd /amino/etc && sed -i s/a/b/ passwd shadow'
  amino txn run --retry 5 -- ./transfer alice bob 10";
