//! Options and texts that several commands have.

use std::ffi::OsString;

use clap::{Args, Subcommand, ValueEnum};

/// Options that every command takes.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Verbosity {
    /// Print more on stderr: each file copied; with --stats every kind of call
    #[arg(short, long, global = true, action = clap::ArgAction::Count, display_order = 900)]
    pub verbose: u8,
    /// Print only errors on stderr; no progress bars
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        display_order = 901
    )]
    pub quiet: bool,
}

/// How directories are listed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Listing {
    /// Mode, links, owner, group, size in bytes, time of last change, name
    #[arg(short, long)]
    pub long: bool,
    /// Include names that begin with a dot
    #[arg(short, long)]
    pub all: bool,
    /// List subdirectories recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What is run.
#[derive(Debug, Args)]
pub struct CommandLine {
    /// The command and its arguments; options after COMMAND are the command's own
    #[arg(
        value_name = "COMMAND",
        required = true,
        trailing_var_arg = true,
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// How figures are printed on stderr at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StatsFormat {
    /// A table for people
    Human,
    /// One line of JSON
    Json,
}

/// The treatment of changes that a transaction does not cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Outside {
    /// Allow them
    Allow,
    /// Allow them, and name each path on stderr (at most 20)
    Warn,
    /// Fail with EROFS
    Deny,
}

impl From<Outside> for goanna_session::Outside {
    fn from(outside: Outside) -> Self {
        match outside {
            Outside::Allow => Self::Allow,
            Outside::Warn => Self::Warn,
            Outside::Deny => Self::Deny,
        }
    }
}

/// How the monitor intercepts calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Intercept {
    /// Seccomp user notification if available, else ptrace
    Auto,
    /// Seccomp user notification (5-7 us a call); an error if not available
    Notify,
    /// One ptrace stop a call (10-60 us); works on older kernels
    Ptrace,
}

impl From<Intercept> for goanna_monitor::Interception {
    fn from(intercept: Intercept) -> Self {
        match intercept {
            Intercept::Auto => Self::Auto,
            Intercept::Notify => Self::Notify,
            Intercept::Ptrace => Self::Ptrace,
        }
    }
}

/// The durability of an amino store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// Operations are atomic and isolated, and on the disk after about a second; fsync and O_SYNC wait
    Aci,
    /// As aci, and commits of transactions wait for the disk, too
    Commit,
    /// Every operation waits for the disk
    Acid,
}

impl From<Durability> for goanna_session::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Aci => Self::Aci,
            Durability::Commit => Self::Commit,
            Durability::Acid => Self::Acid,
        }
    }
}

/// Whether segments of the log are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// Keep the log, from now on
    On,
    /// Delete segments of the log that the store no longer needs; those kept so far stay
    Off,
}

/// Storage engines of an amino store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Engine {
    /// Log-structured merge tree (default)
    Fjall,
    /// B+-tree on a log
    Sled,
}

impl From<Engine> for goanna_session::Engine {
    fn from(engine: Engine) -> Self {
        match engine {
            Engine::Fjall => Self::Fjall,
            Engine::Sled => Self::Sled,
        }
    }
}

pub use goanna_manual::Shell;

/// Commands that both binaries have.
#[derive(Debug, Subcommand)]
pub enum Common {
    /// Print shell completions on stdout
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Write the man pages, one file a command, into a directory
    #[command(hide = true)]
    Man {
        /// The directory; created if necessary
        #[arg(value_name = "OUTDIR")]
        dir: std::path::PathBuf,
    },
}

const COMPLETIONS_HELP: &str = "\
Examples:
  bash: source <(amino completions bash)
  zsh:  amino completions zsh > \"${fpath[1]}/_amino\"
  fish: amino completions fish > ~/.config/fish/completions/amino.fish
  (goanna likewise)";

/// The help of every [`Listing`].
macro_rules! listing_help {
    () => {
        "\
Notes:
  Sorted by name, one per line. On a terminal, bytes that are not printable
  UTF-8 are shown as \\xNN; in a pipe names are written unchanged. Times are
  local.

JSON:
  An array of objects with name, path, ino, kind, mode (octal text), nlink,
  uid, gid, rdev ({major, minor}), size and blksize (bytes), blocks (units of
  512 bytes), atime, mtime, ctime, btime ({sec, nsec}), and target for
  symbolic links. kind is file, directory, symlink, fifo, socket, char_device
  or block_device.
  If a name is not UTF-8, invalid bytes are written \\xNN, and an additional
  field with the suffix _bytes (name_bytes, path_bytes, target_bytes) has the
  whole name in hexadecimal."
    };
}
pub(crate) use listing_help;

/// `Exit status` of the commands that run a program.
macro_rules! run_status {
    () => {
        "\
Exit status:
  That of COMMAND; 128+N when signal N killed it.
  125  the command line is wrong, a mount failed, or the monitor failed
  126  COMMAND was found but cannot be executed
  127  COMMAND was not found"
    };
}
pub(crate) use run_status;

/// `Mount specifications` of the commands that take them.
macro_rules! spec_help {
    () => {
        "\
Mount specifications (SPEC):
  TYPE=SOURCE:TARGET[,option[=value]...]
    pass=/host/dir:/mnt[,ro][,noexec]
        shows the host directory /host/dir at /mnt
    amino=/store:/db[,durability=LEVEL][,ro][,noexec]
        shows the amino store in the directory /store at /db;
        LEVEL is aci, commit (default) or acid
    iso=/image.iso:/cd[,rockridge|joliet|plain][,session=N][,noexec]
        shows the ISO 9660 image at /cd, always read-only; by default
        its last session, with Rock Ridge names, else Joliet, else plain
    aes=/cipher/dir:/plain[,passfile=FILE|extpass=COMMAND][,config=FILE]
        [,memory=SIZE][,ro]
        shows a directory in gocryptfs's format decrypted; `goanna aes init`
        makes such a directory. The password is the first line of FILE or of
        the output of the shell command COMMAND; without both options it is
        read from the terminal. /cipher/dir may lie in a mount that precedes
        this one. Open files take at most SIZE of memory (512M, 8G); the
        default is half of the machine's
  TARGET is an absolute path and need not exist on the host. A backslash
  before a colon, comma or backslash makes it part of the path. ro refuses
  changes (EROFS), noexec refuses to execute programs (EACCES).

Mount file:
  The file of --config has one mount per line, with fields separated by blanks
  as in fstab(5): TYPE SOURCE TARGET [OPTIONS]. OPTIONS are separated by
  commas; \"defaults\" means none. # begins a comment. In paths a blank
  is written \\040, a tab \\011, a newline \\012, a backslash \\134, # at the
  start \\043. Mounts of the file come before those of --mount."
    };
}
pub(crate) use spec_help;
