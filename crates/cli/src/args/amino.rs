//! The command line of `amino`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use super::common::{
    CommandLine, Common, Engine, Intercept, Level, Listing, Loudness, Outside, StatsFormat,
    listing_help, run_status, spec_help,
};
use super::txn::Txn;

/// Run unmodified programs on a transactional file system, without root, FUSE or a mount
///
/// `amino run COMMAND` shows COMMAND and everything it starts a directory (/amino) that no other program on this
/// machine sees. Each file operation there is atomic, isolated and checked; what was made is kept in a store, an
/// ordinary directory of yours. The other commands look at a store, fill it, empty it and check it.
#[derive(Debug, Parser)]
#[command(name = "amino", version, max_term_width = 110, after_help = AMINO_HELP)]
pub struct Amino {
    /// How much to say.
    #[command(flatten)]
    pub loudness: Loudness,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AMINO_HELP: &str = "\
Examples:
  amino run -- make install DESTDIR=/amino
  amino run bash                   a shell that sees /amino
  amino ls -l /                    what is in the store
  amino import ./photos /photos && amino fsck

Files:
  The store is the directory of --store DIR, else of $AMINO_STORE, else
  $XDG_DATA_HOME/amino, else ~/.local/share/amino. `amino run` and
  `amino import` make it on first use, for you alone (mode 0700), and say so:
  at the default place, in a directory that exists, or with --create anywhere.

Inside `amino run`:
  ls, cat, stat, tree, import and export on the run's own store act in the
  transaction of the program that calls them. fsck and info see what was
  committed.

Exit status:
  0    done
  1    something was not there or could not be done; fsck: errors found
  125  the command line is wrong, the store cannot be opened, or amino failed
  `amino run` and `amino txn run` end with the status of their command; see
  their --help.

Environment:
  AMINO_STORE    the store, when --store is not given
  XDG_DATA_HOME  where the default store is
  NO_COLOR       no colours, even on a terminal";

/// The commands of `amino`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command that sees the store
    Run(Run),
    /// Begin and end transactions, from a shell below `amino run`
    Txn(Txn),
    /// List a directory of the store
    Ls(Ls),
    /// Print files of the store
    Cat(Cat),
    /// Print all metadata of files of the store
    Stat(Stat),
    /// Print a directory of the store and all below it as a tree
    Tree(Tree),
    /// Copy a host directory into the store
    Import(Import),
    /// Copy a directory of the store to the host
    Export(Export),
    /// Check the store's integrity constraints and checksums
    Fsck(Fsck),
    /// Print the store's engine, size, counts and versions, and who has it open
    Info(Info),
    /// Look at, or stop, the process that owns a store while it is used
    Daemon(Daemon),
    /// Commands every binary has.
    #[command(flatten)]
    Common(Common),
}

/// Which store.
#[derive(Debug, Clone, Args)]
pub struct StoreArg {
    /// The store, a directory [default: $XDG_DATA_HOME/amino, else ~/.local/share/amino]
    #[arg(long, value_name = "DIR", env = "AMINO_STORE", hide_env_values = true)]
    pub store: Option<PathBuf>,
}

/// `amino run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP, override_usage = "amino run [OPTIONS] [--] COMMAND [ARG]...")]
pub struct Run {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Where the store's root appears to the command; an absolute path that need not exist on the host
    #[arg(long, value_name = "PATH", default_value = "/amino")]
    pub at: PathBuf,
    /// When a program waits for the disk
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "commit")]
    pub durability: Level,
    /// The storage engine of a store that is made now; kept in the store [default: fjall]
    #[arg(long, value_name = "NAME", value_enum)]
    pub engine: Option<Engine>,
    /// Make the whole command one transaction: commit when it exits with 0, keep nothing of it otherwise
    #[arg(long)]
    pub txn: bool,
    /// Insert transactions into programs: exec (each program is one), session (from its first open to its last close), or
    /// a profile file
    #[arg(long, value_name = "NAME|FILE", value_hint = clap::ValueHint::FilePath)]
    pub profile: Option<PathBuf>,
    /// What other mounts there are and how to run.
    #[command(flatten)]
    pub how: How,
}

/// What `amino run` and `goanna run` share.
#[derive(Debug, Args)]
pub struct How {
    /// A mount, TYPE=SOURCE:TARGET[,option[=value]...]; may be given several times
    #[arg(long, value_name = "SPEC")]
    pub mount: Vec<OsString>,
    /// Mounts from an fstab-like file: TYPE SOURCE TARGET OPTIONS, one a line
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Make a store where its parent directory does not exist, either
    #[arg(long)]
    pub create: bool,
    /// At the end print on stderr what was done: calls answered, passed on, time, bytes, commits
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "human"
    )]
    pub stats: Option<StatsFormat>,
    /// What becomes of changes to host files that programs make within transactions, which do not cover them
    #[arg(long, value_name = "WHAT", value_enum, default_value = "allow")]
    pub outside: Outside,
    /// How calls are intercepted; see `goanna check`
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        default_value = "auto",
        help_heading = "Advanced"
    )]
    pub intercept: Intercept,
    /// What is run.
    #[command(flatten)]
    pub run: CommandLine,
}

const RUN_HELP: &str = concat!(
    run_status!(),
    "\n\n",
    spec_help!(),
    "\n\n",
    "\
Transactions:
  With --txn nothing that the command and all it starts do in the store reaches
  the disk before the command has exited with 0; then all of it does, in one
  step. Any other end, kill -9 of amino and a power cut included, leaves the
  store as it was. Processes that the command leaves running are waited for; if
  one of them is killed, all is aborted. SIGINT and SIGTERM sent to amino reach
  the command; a second one aborts (status 137). fsync does not wait for the
  disk meanwhile. A transaction of more than 1 GiB gets ENOSPC. What is done
  outside the store stays done.
  `amino txn begin` inside begins one within it, which can be aborted alone.

Profiles:
  --profile inserts transactions into programs that know nothing of them.
  exec     each program that is executed is a transaction, inside that of who
           executed it: committed when it exits with 0, else aborted
  session  from the first file of the store that a process opens to the last
           that it closes; aborted when it exits before otherwise than with 0
  FILE     TOML: [[rule]] tables, the first that names a program counts, with
             programs = [\"tar\", \"/opt/*\"]   paths or last components
             begin = \"exec\"                 or \"open\", \"first-write\"
             end = \"exit\"                   or \"close\"
             aborts = [1, 75]               statuses; default: all but 0
             durability = \"commit\"          or \"aci\"; default: the store's
  Status 125 when a commit fails whose program had exited by then.

Notes:
  Programs run as you, and without the privilege of set-uid programs.
  Several amino run may use one store at the same time, and see what the others
  have done; see amino daemon --help. --engine counts for the first.
  `amino run` inside `amino run` is not supported yet.
  The store and the place where it appears must not contain one another.

Examples:
  amino run -- cp -a /etc /amino/etc
  amino run --store ./db --at /db -- ./load.sh
  amino run --txn -- ./deploy.sh
  amino run --profile exec -- make -C /amino/src
  amino run --durability acid --stats -- ./server
  amino run --mount pass=/usr/include:/inc,ro -- ls /inc"
);

/// `amino ls`.
#[derive(Debug, Args)]
#[command(after_help = LS_HELP)]
pub struct Ls {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// How.
    #[command(flatten)]
    pub listing: Listing,
    /// What is left of a damaged store, which stays as it is; what is missing is listed on stderr
    #[arg(long)]
    pub salvage: bool,
    /// Directories and files of the store; the store's root is /
    #[arg(value_name = "PATH", default_value = "/")]
    pub paths: Vec<OsString>,
}

const LS_HELP: &str = concat!(
    listing_help!(),
    "\n\n",
    "\
Examples:
  amino ls -la /etc
  amino ls --json / | jq -r '.[].name'"
);

/// `amino cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// What is left of a damaged store, which stays as it is; what is missing is listed on stderr
    #[arg(long)]
    pub salvage: bool,
    /// Files of the store; symbolic links are followed
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// `amino stat`.
#[derive(Debug, Args)]
#[command(after_help = STAT_HELP)]
pub struct Stat {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Of a symbolic link, the file it leads to
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// The metadata as JSON
    #[arg(long)]
    pub json: bool,
    /// Files of the store
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<OsString>,
}

const STAT_HELP: &str = "\
Notes:
  Sizes are in bytes, blocks in units of 512 bytes, times local with
  nanoseconds.

JSON:
  An array of objects as `amino ls --json` prints them, with xattrs: an array
  of {name, value}, the value in hexadecimal.";

/// `amino tree`.
#[derive(Debug, Args)]
#[command(after_help = TREE_HELP)]
pub struct Tree {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// How many levels to descend [default: all]
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub level: Option<u32>,
    /// Names that begin with a dot, too
    #[arg(short, long)]
    pub all: bool,
    /// The tree as JSON
    #[arg(long)]
    pub json: bool,
    /// A directory of the store
    #[arg(value_name = "PATH", default_value = "/")]
    pub path: OsString,
}

const TREE_HELP: &str = "\
JSON:
  A flat array, parents before children, of objects with depth (0 for PATH
  itself) and the fields of `amino ls --json`.";

/// `amino import`.
#[derive(Debug, Args)]
#[command(after_help = IMPORT_HELP)]
pub struct Import {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// The storage engine of a store that is made now [default: fjall]
    #[arg(long, value_name = "NAME", value_enum)]
    pub engine: Option<Engine>,
    /// Make the store where its parent directory does not exist, either
    #[arg(long)]
    pub create: bool,
    /// Replace files of the store that are in the way
    #[arg(short, long)]
    pub force: bool,
    /// What was copied, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// The directory to copy from
    #[arg(value_name = "HOSTDIR", value_hint = clap::ValueHint::DirPath)]
    pub host: PathBuf,
    /// The directory of the store to copy to; made with its parents when it does not exist
    #[arg(value_name = "PATH")]
    pub path: OsString,
}

const IMPORT_HELP: &str = "\
Notes:
  Copies what is in HOSTDIR (not HOSTDIR's own name) with modes, times to the
  nanosecond, symbolic and hard links, fifos, sockets' names, extended
  attributes and holes; as root also owners and device nodes. Directories
  that exist are merged. Everything is on disk when the command ends; inside
  a transaction of `amino run`, when that commits.

JSON:
  An object with files, directories, symlinks, hard_links, special, bytes (of
  data, without holes), and skipped: an array of {path, why}.

Exit status:
  0    everything was copied
  1    something could not be copied; each is named on stderr
  125  the command line is wrong, the store cannot be opened, or amino failed

Examples:
  amino import ~/src/linux /linux
  amino import --store ./db --engine sled data /";

/// `amino export`.
#[derive(Debug, Args)]
#[command(after_help = EXPORT_HELP)]
pub struct Export {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Write into HOSTDIR although it is not empty; replace files that are in the way
    #[arg(short, long)]
    pub force: bool,
    /// What was copied, as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// What is left of a damaged store, which stays as it is; what is missing is listed on stderr
    #[arg(long)]
    pub salvage: bool,
    /// The directory of the store to copy from
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// The directory to copy to; made when it does not exist
    #[arg(value_name = "HOSTDIR", value_hint = clap::ValueHint::DirPath)]
    pub host: PathBuf,
}

const EXPORT_HELP: &str = "\
Notes:
  Copies what is in PATH with modes, times to the nanosecond, symbolic and
  hard links, fifos, sockets' names and extended attributes; as root also
  owners and device nodes. Pages of zeros become holes. Nothing is written
  outside HOSTDIR: symbolic links found in it are never followed.

JSON:
  An object as `amino import --json` prints it.

Exit status:
  0    everything was copied
  1    something could not be copied, or is missing from what was salvaged;
       each is named on stderr
  125  the command line is wrong, HOSTDIR is not empty, the store cannot be
       opened, or amino failed

Examples:
  amino export / /backup/today";

/// `amino fsck`.
#[derive(Debug, Args)]
#[command(after_help = FSCK_HELP)]
pub struct Fsck {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// The findings as JSON
    #[arg(long)]
    pub json: bool,
    /// Check what is left of a damaged store, which stays as it is, and list what is missing
    #[arg(long)]
    pub salvage: bool,
}

const FSCK_HELP: &str = "\
Notes:
  Reads every record of the store, verifies its checksum and the seven
  integrity constraints, and prints what is wrong, by constraint. Repairs
  nothing. A store that is in use is checked as it is at one moment, while the
  commands that use it go on.

  With --salvage, what can be read of a store that is damaged goes into a new
  one, which lies in the store's directory until the command ends and takes as
  much space. It lists what could not be read, and checks the rest. So do
  `amino export`, `ls` and `cat` with --salvage: `amino export --salvage / DIR`
  copies everything that is left. Nobody may have the store open.

JSON:
  An object with store, clean, records, files (of any kind), directories,
  orphans, pages, bytes, and findings: an array of {constraint, path, ino,
  key, what}, where path and ino are null when not known. With --salvage also
  missing: an array of {place, what}.

Exit status:
  0    clean
  1    errors found, or something is missing
  125  the store cannot be opened";

/// `amino info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_HELP)]
pub struct Info {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// The same as JSON
    #[arg(long)]
    pub json: bool,
}

const INFO_HELP: &str = "\
Notes:
  While another user's process has the store open, or one that is no aminod,
  only the store, its engine, its size on disk and that process are told.

JSON:
  An object with store, id, engine, format, created ({sec, nsec}), disk_bytes,
  names, files, directories, symlinks, special, orphans, bytes (sum of file
  sizes), appended_seq, durable_seq, applied_seq, replayed (records of the
  log that this opening applied), and open_by: null, or {pid, command, runs},
  where runs is the number of commands that aminod runs, null for others.";

/// `amino daemon`.
#[derive(Debug, Args)]
#[command(after_help = DAEMON_HELP)]
pub struct Daemon {
    /// What to do.
    #[command(subcommand)]
    pub action: DaemonAction,
}

/// `amino daemon status` and `stop`.
#[derive(Debug, Subcommand)]
pub enum DaemonAction {
    /// Print the owner's process id, and the commands that use the store; status 1 when there is none
    Status {
        /// Which store.
        #[command(flatten)]
        store: StoreArg,
        /// The same as JSON
        #[arg(long)]
        json: bool,
    },
    /// Have it leave; status 1 when commands use the store
    Stop {
        /// Which store.
        #[command(flatten)]
        store: StoreArg,
        /// Kill the commands that use the store, and abort their transactions
        #[arg(long)]
        force: bool,
    },
}

const DAEMON_HELP: &str = "\
The owner:
  A store that amino run uses is open in one process, aminod, for all who use
  it at the same time. The first of them starts it; it closes the store and
  leaves with the last. The other commands (amino ls, import, fsck, ...) ask it
  while it is there, and open the store themselves otherwise. It has the rights
  of the user who started it, and serves that user only, through the socket
  aminod.sock in the store's directory.
  aminod traces the commands. With the Yama security module that works
  where /proc/sys/kernel/yama/ptrace_scope is 0 or 1; 2 lets only processes with
  CAP_SYS_PTRACE trace, 3 nobody.
  When a launcher (amino run) is killed, aminod kills its command. When aminod
  is killed, so are all commands; what was acknowledged is in the store.

JSON:
  {running: false}, or running, pid, seconds (since it started) and runs: an
  array of objects with launcher, pid, command (an array) and seconds.

Examples:
  amino daemon status
  amino daemon stop --store ./db --force";
