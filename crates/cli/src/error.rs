//! The errors of the commands: their texts, hints for the user, and exit statuses. The errors of the crates below describe the
//! failure; only this file maps them to exit statuses. A hint about a crate's own subject is given by its `Error::hint`, any other
//! one here.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use amino_client::Error as ClientError;
use goanna_aesfs::Error as AesError;
use goanna_daemon::Error as DaemonError;
use goanna_monitor::Status;
use goanna_offline::Error as OfflineError;
use goanna_offline::dump::DumpError;
use goanna_session::mounts::SpecError;
use goanna_session::{Error as SessionError, MountPointError, Report, StoreError};
use goanna_vfs::{Errno, MountError, escape, escape_path, io_error_text};
use thiserror::Error;

use crate::report::status::command_end;

/// An error that ends a command.
#[derive(Debug, Error)]
pub enum Error {
    /// The run or the store failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The store's owner failed.
    #[error(transparent)]
    Daemon(DaemonError),
    /// A listing or a copy failed.
    #[error(transparent)]
    Offline(#[from] OfflineError),
    /// An image cannot be read.
    #[error("{}: {why}", escape_path(.image))]
    Image {
        /// The image.
        image: PathBuf,
        /// What is wrong, and where in it.
        why: goanna_isofs::Error,
    },
    /// An operation on an encrypted directory failed.
    #[error("{}: {why}", escape_path(.dir))]
    Volume {
        /// The directory.
        dir: PathBuf,
        /// The error.
        why: AesError,
    },
    /// A dump could not be written or loaded.
    #[error("{}: {why}", escape_path(.place))]
    Dump {
        /// The store, or the dump.
        place: PathBuf,
        /// What is wrong, and where in it.
        why: DumpError,
    },
    /// A dump would be loaded into a directory that is not empty.
    #[error("{}: exists and is not empty, and a dump is loaded into a new store", escape_path(.0))]
    StoreExists(PathBuf),
    /// A dump would go to a terminal.
    #[error("standard output is a terminal: a dump is binary, so redirect it to a file")]
    DumpToTerminal,
    /// Two results would go to standard output.
    #[error("--json: a dump goes to standard output")]
    DumpAndJson,
    /// Signals could not be blocked.
    #[error("cannot block signals: {0}")]
    Signals(#[source] io::Error),
    /// Transactions of a profile were lost. Each has been reported.
    #[error("{0} transactions of the profile could not be committed")]
    Lost(usize),
    /// No mount was given.
    #[error("no mounts: --mount or --config is needed")]
    NoMounts,
    /// Neither an option nor the environment names the store.
    #[error("--store: no default, because neither $XDG_DATA_HOME nor $HOME is an absolute path")]
    NoStoreDir,
    /// `export` would write into the store's own directory.
    #[error("{}: lies inside the store's own directory", escape_path(.0))]
    InsideStore(PathBuf),
    /// The run around this process does not let it have mounts of its own.
    #[error("run: this process is in a run already, which refuses further mounts: {}", .0.desc())]
    NestedRefused(Errno),
    /// `amino run --txn` inside of a run on another store.
    #[error(
        "run: --txn: this process is in a run already, whose transactions are those of its own store"
    )]
    OtherTransactions,
    /// An option of `amino run` inside of a run.
    #[error(
        "run: {0}: this process is in a run already, and the option is for the outermost run only"
    )]
    OutermostOnly(&'static str),
    /// A command of `amino txn` failed.
    #[error("txn {command}: {why}")]
    Txn {
        /// The command, with the name of its transaction, if it has one.
        command: Cow<'static, str>,
        /// Why.
        why: ClientError,
    },
    /// The transaction of `amino txn run` could not be begun or committed.
    #[error("txn run: {0}")]
    TxnRun(#[from] ClientError),
    /// The command of `amino txn run` could not be started or waited for.
    #[error("{}", txn_command(.0))]
    TxnCommand(SessionError),
    /// The command of `amino txn run` failed, and its transaction was aborted.
    #[error("{}", command_end(*.0))]
    Command(Status),
    /// Standard output cannot be written.
    #[error("standard output: {}", io_error_text(.0))]
    Output(io::Error),
}

impl From<DaemonError> for Error {
    fn from(error: DaemonError) -> Self {
        match error {
            DaemonError::Session(error) => Self::Session(error),
            error => Self::Daemon(error),
        }
    }
}

fn txn_command(error: &SessionError) -> String {
    match error {
        SessionError::Subprocess(_) => format!("txn run: {error}"),
        error => error.to_string(),
    }
}

/// Converts an error of `aminod` to the report for the user of a client.
pub fn report(error: &DaemonError) -> Report {
    Report {
        text: error.to_string(),
        hint: hint(daemon_exit_code(error), daemon_hint(error)),
        code: daemon_exit_code(error),
    }
}

impl Error {
    /// An error of an operation on a host path.
    pub fn host(path: &Path, why: impl Into<io::Error>) -> Self {
        SessionError::host(path, why).into()
    }

    /// An error of an encrypted directory.
    pub fn volume(dir: &Path, why: AesError) -> Self {
        Self::Volume {
            dir: dir.to_owned(),
            why,
        }
    }

    /// An error of an image.
    pub fn image(image: &Path, why: goanna_isofs::Error) -> Self {
        match why {
            goanna_isofs::Error::Read { offset: 0, source } => Self::host(image, source),
            why => Self::Image {
                image: image.to_owned(),
                why,
            },
        }
    }

    /// Whether it concerns one path of a store or an image only.
    pub fn is_in_tree(&self) -> bool {
        matches!(self, Self::Offline(error) if error.is_in_tree())
    }

    /// Whether nothing is printed: the reader of the output has left.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit status: 1 when an operand does not exist or an operation on it failed, 126 and 127 as a shell's, else 125. When the
    /// reader of the output has left, it is that of a program killed by SIGPIPE.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Session(error) | Self::TxnCommand(error) => session_exit_code(error),
            Self::Daemon(error) => daemon_exit_code(error),
            Self::Offline(error) if error.is_in_tree() => 1,
            Self::Txn { why, .. } => txn_exit_code(why),
            Self::Command(status) => status.exit_code(),
            Self::Volume { why, .. } => volume_exit_code(why),
            Self::Output(_) if self.is_quiet() => 128 + SIGPIPE,
            _ => FAILED,
        }
    }

    /// The hint for the user.
    pub fn hint(&self) -> Option<String> {
        hint(self.exit_code(), self.own_hint())
    }

    fn own_hint(&self) -> Option<String> {
        let hint = match self {
            Self::Session(error) | Self::TxnCommand(error) => return session_hint(error),
            Self::Daemon(error) => return daemon_hint(error),
            Self::Offline(OfflineError::InTree { path, errno, .. }) => {
                return in_tree_hint(path, *errno);
            }
            Self::Offline(OfflineError::NotEmpty(_)) => {
                "give an empty or new directory, or --force to write into this one"
            }
            Self::Image { why, .. } => return why.hint().map(Into::into),
            Self::Volume { why, .. } => return volume_hint(why).map(Into::into),
            Self::StoreExists(_) => {
                "name a store that does not exist with --store DIR or $AMINO_STORE"
            }
            Self::DumpToTerminal | Self::DumpAndJson => "name a file with --output FILE",
            Self::NoStoreDir => "name the store with --store DIR or $AMINO_STORE",
            Self::OtherTransactions => {
                "leave out --txn, or give the outermost run this store with --store"
            }
            Self::NestedRefused(errno) => nested_hint(*errno),
            Self::Txn { why, .. } | Self::TxnRun(why) => return txn_hint(why).map(Into::into),
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

fn nested_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::EPERM => {
            "only a process with the credentials of the outermost run can get mounts, in a run without --outside"
        }
        Errno::EOPNOTSUPP => {
            "in a run of pass-through mounts only, in another mount namespace, and after chroot(2), there can be no others"
        }
        _ => "give the outermost run all the mounts you need, with --mount",
    }
}

/// The status when the program itself failed.
pub const FAILED: u8 = 125;

const SIGPIPE: u8 = nix::libc::SIGPIPE as u8;

/// The hint of an error with this exit status, whose own hint is `own`. A missing directory explains any failure of the program.
fn hint(exit_code: u8, own: Option<String>) -> Option<String> {
    let missing = (exit_code == FAILED).then(missing_place).flatten();
    missing.map(Into::into).or(own)
}

/// The statuses of gocryptfs.
fn volume_exit_code(error: &AesError) -> u8 {
    match error {
        AesError::NoDirectory(_) | AesError::NotEmpty => 6,
        AesError::Config(_) => 8,
        AesError::ReadPassword(_) => 9,
        AesError::Password => 12,
        AesError::MasterKey => 14,
        AesError::EmptyPassword => 22,
        AesError::ReadConfig(_) => 23,
        AesError::WriteConfig(_) => 24,
        AesError::Version(_) | AesError::Feature(_) => 27,
        AesError::Host(_) | AesError::Memory(_) | AesError::NoMemory(_) | AesError::Random(_) => {
            FAILED
        }
    }
}

fn volume_hint(error: &AesError) -> Option<&'static str> {
    Some(match error {
        AesError::ReadConfig(_) => {
            "goanna aes init makes a volume; --config names a config file elsewhere"
        }
        AesError::NotEmpty => "make a new directory for the volume",
        AesError::Memory(_) => "raise the limit on locked memory: ulimit -l",
        _ => return None,
    })
}

fn session_exit_code(error: &SessionError) -> u8 {
    match error {
        SessionError::Monitor(error) => u8::try_from(error.exit_code()).unwrap_or(FAILED),
        _ => FAILED,
    }
}

fn session_hint(error: &SessionError) -> Option<String> {
    let hint = match error {
        SessionError::NoParent { .. } => {
            "give --create to make it with the directories above, or check the path for a mistake"
        }
        SessionError::NotMade { .. } => "name another place with --store DIR or $AMINO_STORE",
        SessionError::NoStore(_) => {
            "amino run and amino import make one; another store is named by --store DIR or $AMINO_STORE"
        }
        SessionError::MountPoint {
            why: MountPointError::Relative | MountPointError::Root,
            ..
        } => "give an absolute path below /, as in --at /amino",
        SessionError::MountPoint { .. } => "choose another --at or another --store",
        SessionError::Spec {
            why: SpecError::SecondColon | SpecError::Escape,
            ..
        } => r"quote the specification for the shell, as in --mount 'pass=/a\:b:/mnt'",
        SessionError::MountFile {
            why: SpecError::Fields(_),
            ..
        } => r"a blank inside a path is written \040",
        SessionError::ProfileFile { .. } => {
            "give exec, session, or the path of a profile file; ./exec is a file"
        }
        SessionError::Mount {
            why: MountError::Root,
            ..
        } => "choose a mount point below /",
        SessionError::Unchecked {
            why: StoreError::Damaged(_),
            ..
        } => {
            "restore the store from a copy, or see what is left: amino fsck --salvage, amino export --salvage"
        }
        SessionError::Store { why, .. } | SessionError::Unchecked { why, .. } => {
            return store_hint(why).map(Into::into);
        }
        SessionError::Monitor(error) => return error.hint().map(Into::into),
        SessionError::Source { hint, .. } => return hint.map(Into::into),
        _ => return None,
    };
    Some(hint.to_owned())
}

fn store_hint(error: &StoreError) -> Option<&'static str> {
    Some(match error {
        StoreError::NotAStore(_) => "give an empty or new directory, or that of a store",
        StoreError::Held { command, .. } if command.starts_with(goanna_daemon::NAME) => {
            "a run on the store named above has mounted this store, too: wait until it ends"
        }
        StoreError::Held { .. } => {
            "amino commands share a store, other processes do not; wait for that one, or choose another --store"
        }
        StoreError::EngineMismatch { .. } => "leave --engine out; it is for new stores only",
        StoreError::NewerVersion(_) => "use the amino that wrote it, or a newer one",
        StoreError::Damaged(_) => "amino fsck says what is damaged",
        StoreError::FileSizeLimit(_) => {
            "a store has files of 64 MiB; raise the limit on file sizes (ulimit -f)"
        }
        StoreError::Other(_) => return None,
    })
}

fn daemon_exit_code(error: &DaemonError) -> u8 {
    match error {
        DaemonError::Session(error) => session_exit_code(error),
        DaemonError::Reported(report) => report.code,
        DaemonError::Busy(..) => 1,
        _ => FAILED,
    }
}

fn daemon_hint(error: &DaemonError) -> Option<String> {
    let hint = match error {
        DaemonError::Session(error) => return session_hint(error),
        DaemonError::Reported(report) => return report.hint.clone(),
        DaemonError::OtherVersion(..) => {
            "wait for the commands that use it, or end them with amino daemon stop --force"
        }
        DaemonError::OtherNamespaces(_) => {
            "run the command in the same container as the other processes that use this store"
        }
        DaemonError::OwnerEnded(_) => return Some(owner_ended_hint()),
        DaemonError::Busy(..) => "wait for them, or kill them with --force",
        _ => return None,
    };
    Some(hint.to_owned())
}

fn owner_ended_hint() -> String {
    let limits = goanna_sys::limits::hard_others();
    let cause = if limits.is_empty() {
        "if it was a defect, aminod.log in the store describes it".to_owned()
    } else {
        let limits = limits.join(" and ");
        format!("it may have reached the limits that it has from the shell (ulimit {limits})")
    };
    format!("acknowledged changes are in the store; {cause}")
}

/// The hint for a directory that every command needs and that is missing.
fn missing_place() -> Option<&'static str> {
    let missing = |path| !Path::new(path).exists();
    if missing("/proc/self") {
        Some(
            "/proc is not mounted here; amino needs it to find its own executable, processes and descriptors",
        )
    } else if missing("/dev/null") {
        Some("/dev/null is missing here; amino needs it for the process that owns the store")
    } else {
        None
    }
}

/// The hint for a path that begins with the usual mount point.
fn in_tree_hint(path: &[u8], errno: Errno) -> Option<String> {
    let inside = path.strip_prefix(b"/amino")?;
    let inside = match inside {
        b"" => b"/",
        [b'/', ..] => inside,
        _ => return None,
    };
    (errno == Errno::ENOENT).then(|| {
        let inside = escape(inside);
        format!("a path begins at the store's root, without the mount point: {inside}")
    })
}

/// 1 when the transaction is missing or in a state that prevents the command, else 125.
fn txn_exit_code(error: &ClientError) -> u8 {
    use ClientError::{
        Deadlock, HasCurrent, InUse, Io, LockTimeout, NameTaken, NestedOpen, NoSpace,
        NoTransaction, NotFound, NotPermitted, TooDeep,
    };
    match error {
        NoTransaction | NestedOpen | HasCurrent | NotFound | NotPermitted | TooDeep | NoSpace
        | Io | Deadlock | LockTimeout | NameTaken | InUse => 1,
        _ => 125,
    }
}

fn txn_hint(error: &ClientError) -> Option<&'static str> {
    Some(match error {
        ClientError::NotUnderAmino => "start the shell with: amino run bash",
        ClientError::NoStore => "transactions need a store that the outermost amino run mounts",
        ClientError::NoProcess => {
            "amino txn acts on its parent, a shell that was started by amino run"
        }
        ClientError::NoTransaction => "amino txn begin begins one",
        ClientError::NestedOpen => {
            "amino txn list names it and its processes; wait for them, or abort"
        }
        ClientError::InUse => "amino txn list names the processes; wait for them, or abort",
        ClientError::NameTaken => {
            "end that one first, or choose another name; amino txn list names all"
        }
        ClientError::HasCurrent => "end it, or set it aside with amino txn suspend",
        ClientError::NotFound => "it may have ended; amino txn list names those that are open",
        ClientError::Deadlock | ClientError::LockTimeout => {
            "try again; amino txn run --retry N does so itself"
        }
        _ => return None,
    })
}
