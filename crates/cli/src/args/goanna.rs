//! The command line of `goanna`.

use clap::{Args, Parser, Subcommand};
use goanna_manual::HELP_COLUMNS;

use super::aes::Aes;
use super::amino::RunOptions;
use super::common::{Common, Verbosity, run_status, spec_help};
use super::iso::Iso;

/// Run unmodified programs with file systems of your own, without root, FUSE or a mount
///
/// `goanna run --mount SPEC COMMAND` runs COMMAND with additional file systems, which only COMMAND and its
/// descendants see. `goanna check` reports whether this machine has what that needs; `goanna syscalls` lists how each
/// system call is treated.
#[derive(Debug, Parser)]
#[command(name = "goanna", version, max_term_width = HELP_COLUMNS, after_help = GOANNA_HELP)]
pub struct Goanna {
    /// How much to say.
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const GOANNA_HELP: &str = "\
Examples:
  goanna check
  goanna run --mount pass=/usr/include:/inc,ro -- ls -l /inc
  goanna run --mount amino=$HOME/db:/db --mount pass=/srv:/srv,ro -- sh
  goanna run --config mounts.tab -- make
  goanna iso ls -l cd.iso

Exit status:
  0    success
  1    check: a required facility is missing; iso: a file was not found or could
       not be read
  125  the command line is wrong, or goanna failed
  `goanna run` exits with the status of its command; see `goanna run --help`.";

/// The commands of `goanna`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command that sees the given mounts
    Run(Run),
    /// Report which kernel facilities are present and missing, and what needs them
    Check(Check),
    /// List every system call, how it is treated, and notes
    Syscalls(Syscalls),
    /// Make, check and describe encrypted directories
    Aes(Aes),
    /// List, check and extract an ISO 9660 image
    Iso(Iso),
    /// Commands every binary has.
    #[command(flatten)]
    Common(Common),
}

/// `goanna run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP, override_usage = "goanna run [OPTIONS] [--] COMMAND [ARG]...")]
pub struct Run {
    /// The mounts and the command.
    #[command(flatten)]
    pub options: RunOptions,
}

const RUN_HELP: &str = concat!(
    run_status!(),
    "\n\n",
    spec_help!(),
    "\n\n",
    "\
Notes:
  At least one mount is required, by --mount or --config. Programs run as you;
  set-uid bits have no effect. Inside of a run, COMMAND is executed in that
  run, with further mounts; options that concern a whole run are refused.

Examples:
  goanna run --mount pass=/usr/include:/inc,ro -- ls -l /inc
  goanna run --mount 'amino=/home/me/db:/db,durability=acid' --stats -- ./server
  goanna run --config mounts.tab -- make"
);

/// `goanna check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
pub struct Check {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const CHECK_HELP: &str = "\
JSON:
  An object with usable, interception (notify, ptrace or none), and
  facilities: an array of {name, present, required, purpose, detail}.

Exit status:
  0    programs can be run here
  1    a required facility is missing";

/// `goanna syscalls`.
#[derive(Debug, Args)]
#[command(after_help = SYSCALLS_HELP)]
pub struct Syscalls {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Only calls whose name contains TEXT
    #[arg(value_name = "TEXT")]
    pub filter: Option<String>,
}

const SYSCALLS_HELP: &str = "\
Treatments:
  allowed    runs in the kernel without the monitor
  answered   the monitor answers it or passes it on
  stopped    stopped by ptrace, where a notification does not suffice
  refused    fails with the given errno
  in part    only for the arguments that the note names; otherwise allowed

JSON:
  An array of objects with number, name, treatment, errno (null, or the
  errno's name) and note.

Examples:
  goanna syscalls rename
  goanna syscalls --json | jq -r '.[] | select(.errno) | .name'";
