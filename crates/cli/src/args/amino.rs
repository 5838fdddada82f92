//! The command line of `amino`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use goanna_manual::HELP_COLUMNS;

use super::common::{
    CommandLine, Common, Durability, Engine, Intercept, Keep, Listing, Outside, StatsFormat,
    Verbosity, listing_help, run_status, spec_help,
};
use super::txn::Txn;

/// Run unmodified programs on a transactional file system, without root, FUSE or a mount
///
/// `amino run COMMAND` runs COMMAND with a directory (/amino) that only COMMAND and its descendants see. Each file
/// operation in it is atomic, isolated and checksummed. The files are kept in a store, an ordinary directory of
/// yours. The other commands list, fill, export and check a store.
#[derive(Debug, Parser)]
#[command(name = "amino", version, max_term_width = HELP_COLUMNS, after_help = AMINO_HELP)]
pub struct Amino {
    /// How much to say.
    #[command(flatten)]
    pub verbosity: Verbosity,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AMINO_HELP: &str = "\
Examples:
  amino run -- make install DESTDIR=/amino
  amino run bash                   a shell that sees /amino
  amino ls -l /                    list the store
  amino import ./photos /photos && amino fsck

Files:
  The store is the directory of --store DIR, else of $AMINO_STORE, else
  $XDG_DATA_HOME/amino, else ~/.local/share/amino. `amino run` and
  `amino import` create it on first use (mode 0700) and report it: at the
  default place, in a directory that exists, or with --create anywhere.

Inside `amino run`:
  ls, cat, stat, tree, import and export on the run's own store act in the
  transaction of the program that calls them. dump, fsck and info see the
  committed state.

Exit status:
  0    success
  1    an operand was not found or failed; fsck: errors found
  125  the command line is wrong, the store cannot be opened, or amino failed
  `amino run` and `amino txn run` exit with the status of their command; see
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
    /// Begin and end transactions, from a shell inside `amino run`
    Txn(Txn),
    /// List a directory of the store
    Ls(Ls),
    /// Print files of the store
    Cat(Cat),
    /// Print all metadata of files of the store
    Stat(Stat),
    /// Print a directory tree of the store
    Tree(Tree),
    /// Copy a host directory into the store
    Import(Import),
    /// Copy a directory of the store to the host
    Export(Export),
    /// Write the whole store as a portable stream with checksums
    Dump(Dump),
    /// Make a store of the stream that dump has written
    Load(Load),
    /// Free the disk space of deleted data
    Compact(Compact),
    /// Check the store's integrity constraints and checksums
    Fsck(Fsck),
    /// Print the store's engine, size, counts and versions, and the process that has it open
    Info(Info),
    /// Show or stop the process that has the store open
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
    /// Which operations wait for the disk
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "commit")]
    pub durability: Durability,
    /// Storage engine, if the store is created; recorded in the store [default: fjall]
    #[arg(long, value_name = "NAME", value_enum)]
    pub engine: Option<Engine>,
    /// Keep the log of all transactions from now on, or stop keeping it; recorded in the store, shown by `amino info`
    #[arg(
        long,
        value_name = "on|off",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub keep_log: Option<Keep>,
    /// Run the whole command as one transaction: commit if it exits with 0, otherwise abort
    #[arg(long)]
    pub txn: bool,
    /// Insert transactions into programs: exec (each executed program), session (from a process's first open to its last
    /// close), or a profile file
    #[arg(long, value_name = "NAME|FILE", value_hint = clap::ValueHint::FilePath)]
    pub profile: Option<PathBuf>,
    /// The other mounts, and the options of the run.
    #[command(flatten)]
    pub options: RunOptions,
}

/// The options that `amino run` and `goanna run` share.
#[derive(Debug, Args)]
pub struct RunOptions {
    /// A mount, TYPE=SOURCE:TARGET[,option[=value]...]; may be given several times
    #[arg(long, value_name = "SPEC")]
    pub mount: Vec<OsString>,
    /// Mounts from an fstab-like file: TYPE SOURCE TARGET OPTIONS, one a line
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Create a store even if its parent directory does not exist
    #[arg(long)]
    pub create: bool,
    /// Write a trace of the file operations of the command and its descendants; read it with goanna-trace cat
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Print statistics on stderr at the end: calls answered and passed on, time, bytes, commits
    #[arg(
        long,
        value_name = "FORMAT",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "human"
    )]
    pub stats: Option<StatsFormat>,
    /// Treatment of changes to host files within transactions (an abort does not undo them)
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
    /// Send all intercepted calls to the monitor, also those that concern no mount; see `goanna check`
    #[arg(long, help_heading = "Advanced")]
    pub no_fast_path: bool,
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
  With --txn, the changes that the command and its descendants make in the
  store are written in one step, when the command has exited with 0. Any other
  end, including kill -9 of amino and a power failure, leaves the store
  unchanged. amino waits for processes that the command leaves running; if one
  of them is killed, the transaction aborts. SIGINT and SIGTERM sent to amino
  are forwarded to the command; a second one aborts (status 137). fsync does
  not wait for the disk. A transaction of more than 1 GiB gets ENOSPC.
  Changes outside the store are not undone.
  `amino txn begin` inside begins a nested transaction.

Runs inside runs:
  Inside of a run, amino run executes COMMAND in that run. If the store is not
  mounted at --at already, it is mounted there for COMMAND and its descendants,
  as are the mounts of --mount. Without --store, the store is the one that is
  mounted at --at. With --txn amino run does what amino txn run does: COMMAND is
  a nested transaction if one is current; only on the store of the outermost
  run. The options that concern a whole run are refused.

Profiles:
  --profile inserts transactions into programs that do not use them.
  exec     each executed program is a transaction, nested in that of its
           parent: it commits if the program exits with 0, else it aborts
  session  begins when a process opens its first file of the store, commits
           when it closes the last; aborts if it exits before with another
           status than 0
  FILE     TOML: [[rule]] tables, of which the first that matches applies:
             programs = [\"tar\", \"/opt/*\"]   paths or last components
             begin = \"exec\"                 or \"open\", \"first-write\"
             end = \"exit\"                   or \"close\"
             aborts = [1, 75]               statuses; default: all but 0
             durability = \"commit\"          or \"aci\"; default: the store's
  Status 125 if a commit fails after its program has exited.

Notes:
  Programs run as you; set-uid bits have no effect.
  Several amino run can use one store at the same time and see each other's
  committed changes; see amino daemon --help. --engine has an effect only when
  the store is created.
  --keep-log keeps the changes of each transaction, with time, user and
  program. It takes as much disk space as everything that is ever written.
  The store's directory and the --at path must not contain each other.

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
    /// Read what is left of a damaged store, without changing it; list what is missing on stderr
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
    /// Read what is left of a damaged store, without changing it; list what is missing on stderr
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
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    pub dereference: bool,
    /// Print JSON
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
    /// Maximum depth [default: unlimited]
    #[arg(short = 'L', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub level: Option<u32>,
    /// Include names that begin with a dot
    #[arg(short, long)]
    pub all: bool,
    /// Print JSON
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
    /// Storage engine, if the store is created [default: fjall]
    #[arg(long, value_name = "NAME", value_enum)]
    pub engine: Option<Engine>,
    /// Create the store even if its parent directory does not exist
    #[arg(long)]
    pub create: bool,
    /// Replace existing files of the store
    #[arg(short, long)]
    pub force: bool,
    /// Print what was copied as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// The directory to copy from
    #[arg(value_name = "HOSTDIR", value_hint = clap::ValueHint::DirPath)]
    pub host: PathBuf,
    /// The directory of the store to copy to; created with its parents if necessary
    #[arg(value_name = "PATH")]
    pub path: OsString,
}

const IMPORT_HELP: &str = "\
Notes:
  Copies the contents of HOSTDIR with modes, times to the
  nanosecond, symbolic and hard links, fifos, sockets' names, extended
  attributes and holes; as root also owners and device nodes. Existing
  directories are merged. When the command ends, everything is on the disk;
  inside a transaction of `amino run`, when the transaction commits.

JSON:
  An object with files, directories, symlinks, hard_links, special, bytes (of
  data, without holes), and skipped: an array of {path, why}.

Exit status:
  0    everything was copied
  1    some files could not be copied; stderr names each
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
    /// Write into HOSTDIR even if it is not empty; replace existing files
    #[arg(short, long)]
    pub force: bool,
    /// Print what was copied as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// Read what is left of a damaged store, without changing it; list what is missing on stderr
    #[arg(long)]
    pub salvage: bool,
    /// The directory of the store to copy from
    #[arg(value_name = "PATH")]
    pub path: OsString,
    /// The directory to copy to; created if necessary
    #[arg(value_name = "HOSTDIR", value_hint = clap::ValueHint::DirPath)]
    pub host: PathBuf,
}

const EXPORT_HELP: &str = "\
Notes:
  Copies the contents of PATH with modes, times to the nanosecond, symbolic and
  hard links, fifos, sockets' names and extended attributes; as root also
  owners and device nodes. Pages of zeros become holes. Nothing is written
  outside HOSTDIR: symbolic links found in it are never followed. All of the
  copy is of the moment when the command begins, whatever is written meanwhile.

JSON:
  An object as `amino import --json` prints it.

Exit status:
  0    everything was copied
  1    some files could not be copied, or are missing from a salvaged store;
       stderr names each
  125  the command line is wrong, HOSTDIR is not empty, the store cannot be
       opened, or amino failed

Examples:
  amino export / /backup/today";

/// `amino dump`.
#[derive(Debug, Args)]
#[command(after_help = DUMP_HELP)]
pub struct Dump {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// The file to write, with mode 0600; - is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-", value_hint = clap::ValueHint::FilePath)]
    pub output: PathBuf,
    /// Print what was written as JSON on stdout; needs --output
    #[arg(long)]
    pub json: bool,
}

const DUMP_HELP: &str = "\
Notes:
  Writes the store as it is at one moment: files of all kinds with all
  metadata, inode numbers and times included. If the store is in use, other
  commands continue meanwhile; changes of open transactions are not in the
  dump. The kept log (amino run --keep-log) is not in it, either. FILE
  appears when it is complete; a file of that name is replaced.
  The stream is compressed (zstd) and has a checksum for each MiB; its layout
  is described in schema/src/dump.rs. It does not depend on the engine.

JSON:
  An object with store, records, and bytes (of keys and values).

Examples:
  amino dump -o monday.dump
  amino dump | ssh backup 'cat >monday.dump'
  amino dump | amino load --store copy --engine sled

Exit status:
  0    everything was written
  125  the store cannot be opened or read, or the dump cannot be written";

/// `amino load`.
#[derive(Debug, Args)]
#[command(after_help = LOAD_HELP)]
pub struct Load {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Storage engine of the new store [default: fjall]
    #[arg(long, value_name = "NAME", value_enum)]
    pub engine: Option<Engine>,
    /// Create the store even if its parent directory does not exist
    #[arg(long)]
    pub create: bool,
    /// Print what was loaded as JSON on stdout
    #[arg(long)]
    pub json: bool,
    /// The dump; - is standard input
    #[arg(value_name = "FILE", default_value = "-", value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
}

const LOAD_HELP: &str = "\
Notes:
  The store must not exist yet. It appears when the whole dump was read, its
  checksums were verified, and everything is on the disk; if the dump is
  damaged or ends early, no store is made. The new store has an id of its own.
  A dump of a damaged store gives a damaged store: see amino fsck.

JSON:
  An object with store, records, and bytes (of keys and values).

Exit status:
  0    the store was made
  125  the dump is damaged, the store exists, or it cannot be made";

/// `amino compact`.
#[derive(Debug, Args)]
#[command(after_help = COMPACT_HELP)]
pub struct Compact {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const COMPACT_HELP: &str = "\
Notes:
  A store gives back the space of deleted files by itself, when much was
  deleted or the disk becomes full. This command does it now: it brings
  the log into the engine's files and rewrites those without what was
  deleted, which needs as much free space as the rewritten files take. If
  the store is in use, programs that change it wait until it is done. Files
  that are open, snapshots and the kept log (amino run --keep-log) keep
  their space.

JSON:
  An object with store, before and after: bytes on disk.

Exit status:
  0    done
  125  the store cannot be opened or written";

/// `amino fsck`.
#[derive(Debug, Args)]
#[command(after_help = FSCK_HELP)]
pub struct Fsck {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Check what is left of a damaged store, without changing it, and list what is missing
    #[arg(long)]
    pub salvage: bool,
}

const FSCK_HELP: &str = "\
Notes:
  Reads every record of the store, verifies its checksum and the seven integrity
  constraints, and prints the errors by constraint. Repairs nothing. If the
  store is in use, checks a snapshot of it, while other commands continue.
  With --salvage, copies all readable records of a damaged store into a
  temporary store, which takes as much space, in the store's directory until
  the command ends. Lists what could not be read, and checks the rest.
  `amino export`, `ls` and `cat` with --salvage do the same:
  `amino export --salvage / DIR` copies everything that is left. No other
  process may have the store open.

JSON:
  An object with store, clean, records, files (of any kind), directories,
  orphans, pages, bytes, and findings: an array of {constraint, path, ino,
  key, what}, where path and ino are null when not known. With --salvage also
  missing: an array of {place, what}.

Exit status:
  0    clean
  1    errors found, or records missing
  125  the store cannot be opened";

/// `amino info`.
#[derive(Debug, Args)]
#[command(after_help = INFO_HELP)]
pub struct Info {
    /// Which store.
    #[command(flatten)]
    pub store: StoreArg,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const INFO_HELP: &str = "\
Notes:
  If a process of another user, or one that is not aminod, has the store
  open, prints only the store, its engine, its size on disk and that process.

JSON:
  An object with store, id, engine, format, created ({sec, nsec}), disk_bytes,
  names, files, directories, symlinks, special, orphans, bytes (sum of file
  sizes), appended_seq, durable_seq, applied_seq, replayed (frames of the log
  that were applied when the store was opened), kept_log ({on, segments,
  bytes, transactions, gaps, first, last}), and open_by: null, or
  {pid, command, runs}, where runs is the number of commands that aminod runs,
  null for others.";

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
    /// Print the process id of aminod, and the commands that use the store; status 1 if it does not run
    Status {
        /// Which store.
        #[command(flatten)]
        store: StoreArg,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop aminod; status 1 if commands use the store
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
  One process, aminod, has the store open for all amino run that use it at the
  same time. The first amino run starts it. When the last one ends, aminod
  closes the store and exits. Other commands (amino ls, import, fsck, ...) work
  through aminod if it runs, and otherwise open the store themselves. aminod
  has the rights of the user that started it, and serves only that user, by
  the socket aminod.sock in the store's directory.
  aminod traces the commands. With the Yama security module this requires 0 or
  1 in /proc/sys/kernel/yama/ptrace_scope; 2 requires CAP_SYS_PTRACE, 3 forbids
  it.
  When a launcher (amino run) is killed, aminod kills its command. When aminod
  is killed, all commands are killed; the store has all acknowledged changes.

JSON:
  {running: false}, or running, pid, seconds (since it started) and runs: an
  array of objects with launcher, pid, command (an array) and seconds.

Examples:
  amino daemon status
  amino daemon stop --store ./db --force";
