//! The errors before, during and after a run. The messages name the path or option at fault. `crates/cli/src/error.rs` adds hints
//! and chooses the exit status.

use std::io;
use std::path::{Path, PathBuf};

use goanna_vfs::{Errno, MountError, OpenError, escape, escape_path, io_error_text};
use serde::{Deserialize, Serialize};
use thiserror::Error as ThisError;

use crate::mounts::SpecError;
use crate::profile::ProfileError;

/// An error, in the form that is shown to the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The failed operation, and the reason.
    pub text: String,
    /// The user's remedy.
    pub hint: Option<String>,
    /// The exit status of the command.
    pub code: u8,
}

/// An error of a run, or of a store that is opened for one.
#[derive(Debug, ThisError)]
pub enum Error {
    /// A trace of the run cannot be written.
    #[error("--trace: {0}")]
    Trace(#[source] goanna_tracer::Error),
    /// A mount specification is wrong.
    #[error("--mount {}: {why}", escape(.spec))]
    Spec {
        /// As it was given.
        spec: Vec<u8>,
        /// The error in it.
        why: SpecError,
    },
    /// A line of a mount file is wrong.
    #[error("{}:{line}: {why}", escape_path(.file))]
    MountFile {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// The error in it.
        why: SpecError,
    },
    /// A profile file cannot be read.
    #[error("--profile {}: {}", escape_path(.file), io_error_text(.why))]
    ProfileFile {
        /// As it was given.
        file: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A profile file is wrong.
    #[error("profile {}:{why}", escape_path(.file))]
    Profile {
        /// The file.
        file: PathBuf,
        /// Line, key, and the error.
        why: ProfileError,
    },
    /// A mount failed.
    #[error("mount at {}: {why}", escape(.target))]
    Mount {
        /// The mount point.
        target: Vec<u8>,
        /// Why.
        why: MountError,
    },
    /// The mount point of a store is unusable.
    #[error("--at {}: {why}", escape(.at))]
    MountPoint {
        /// As it was given.
        at: Vec<u8>,
        /// The error in it.
        why: MountPointError,
    },
    /// The store does not exist.
    #[error("{}: there is no store here", escape_path(.0))]
    NoStore(PathBuf),
    /// The parent directory of a new store does not exist.
    #[error("{}: there is no store here, and no directory {} to make one in", escape_path(.dir), escape_path(.parent))]
    NoParent {
        /// The store.
        dir: PathBuf,
        /// The missing directory.
        parent: PathBuf,
    },
    /// The host refuses to make a store at this place.
    #[error("{}: cannot make a store here: {}", escape_path(.dir), io_error_text(.why))]
    NotMade {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A store cannot be used.
    #[error("{}: {why}", escape_path(.dir))]
    Store {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: StoreError,
    },
    /// A store cannot be checked, because it cannot even be opened.
    #[error("{}: {why}", escape_path(.dir))]
    Unchecked {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: StoreError,
    },
    /// Two mounts of one store.
    #[error("{}: the store is mounted twice", escape_path(.0))]
    MountedTwice(PathBuf),
    /// A store that the run, or another run inside of it, has mounted already.
    #[error("{}: the store is mounted at another place of this run, or was when the run began", escape_path(.0))]
    MountedElsewhere(PathBuf),
    /// A nested run asks for mounts in a way that this version does not know.
    #[error("the run around this process has another version of amino")]
    OtherVersion,
    /// A transaction over two stores.
    #[error("--txn: a transaction cannot span a second store, which is mounted at {}", escape(.0))]
    SeveralStores(Vec<u8>),
    /// An operation on a host path failed.
    #[error("{}: {}", escape_path(.path), io_error_text(.why))]
    Host {
        /// The path.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// The host's own files cannot be reached.
    #[error(transparent)]
    Pass(goanna_passfs::Error),
    /// A back end cannot read its source.
    #[error("{}: {why}", escape_path(.path))]
    Source {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        why: String,
        /// The user's remedy.
        hint: Option<&'static str>,
    },
    /// A plan has a mount of a type that this program does not have.
    #[error("mounts of type {0} are not in this build")]
    UnknownType(String),
    /// A command without a monitor could not be started or waited for.
    #[error("cannot run the command: {}", .0.desc())]
    Subprocess(Errno),
    /// The monitor failed.
    #[error("{}", error_chain(.0))]
    Monitor(#[from] goanna_monitor::Error),
}

/// Why a store cannot be mounted at a place.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum MountPointError {
    /// Not absolute.
    #[error("not an absolute path")]
    Relative,
    /// The root.
    #[error("the store cannot be mounted at /")]
    Root,
    /// Inside the store's directory.
    #[error("lies inside the store's own directory {0}")]
    InsideStore(String),
    /// Around the store's directory.
    #[error("would hide the store's own directory {0}")]
    HidesStore(String),
}

/// Why a store cannot be used. The message leaves out the store's directory, which [`Error`] names.
#[derive(Debug, ThisError)]
pub enum StoreError {
    /// The directory exists and is not a store.
    #[error("not an amino store: {0}")]
    NotAStore(&'static str),
    /// Another process has it open.
    #[error("in use by process {pid} ({})", escape(.command.as_bytes()))]
    Held {
        /// The process, 0 when its id could not be read.
        pid: u32,
        /// Its command line.
        command: String,
    },
    /// It uses another engine than the one asked for.
    #[error("made with the engine {found}, not {wanted}")]
    EngineMismatch {
        /// Its engine.
        found: String,
        /// The engine asked for.
        wanted: &'static str,
    },
    /// A newer program wrote it.
    #[error("{0}")]
    NewerVersion(String),
    /// It is damaged.
    #[error("{0}")]
    Damaged(String),
    /// Its files would be larger than this process may make them (RLIMIT_FSIZE, `ulimit -f`).
    #[error("{0}")]
    FileSizeLimit(String),
    /// Any other failure.
    #[error("{0}")]
    Other(String),
}

impl From<amino_fs::Error> for StoreError {
    fn from(error: amino_fs::Error) -> Self {
        use amino_fs::Error::{Damaged, Store};
        use amino_txn::Error;
        match error {
            Store(Error::NotAStore { why, .. }) => Self::NotAStore(why),
            Store(Error::Held { pid, command, .. }) => Self::Held { pid, command },
            Store(Error::EngineMismatch { found, wanted, .. }) => {
                Self::EngineMismatch { found, wanted }
            }
            Store(Error::NewerVersion { .. }) => Self::NewerVersion(error_chain(&error)),
            Store(Error::Damaged { .. }) | Damaged(_) => Self::Damaged(error_chain(&error)),
            error => match io_cause(&error).map(io::Error::kind) {
                Some(io::ErrorKind::FileTooLarge) => Self::FileSizeLimit(error_chain(&error)),
                _ => Self::Other(error_chain(&error)),
            },
        }
    }
}

impl StoreError {
    /// A file-system operation on the whole store failed.
    pub(crate) fn operation(what: &'static str, errno: Errno) -> Self {
        amino_fs::Error::Operation { what, errno }.into()
    }
}

impl Error {
    /// An error of an operation on a host path.
    pub fn host(path: &Path, why: impl Into<io::Error>) -> Self {
        Self::Host {
            path: path.to_owned(),
            why: why.into(),
        }
    }

    /// An error of a store.
    pub fn store(dir: &Path, why: impl Into<StoreError>) -> Self {
        Self::Store {
            dir: dir.to_owned(),
            why: why.into(),
        }
    }

    /// An error of opening a store for a check.
    pub fn unchecked(dir: &Path, why: impl Into<StoreError>) -> Self {
        Self::Unchecked {
            dir: dir.to_owned(),
            why: why.into(),
        }
    }

    /// An error of the host's root directory.
    pub(crate) fn pass(error: goanna_passfs::Error) -> Self {
        match error {
            goanna_passfs::Error::Directory { dir, errno } => Self::host(&dir, errno),
            error => Self::Pass(error),
        }
    }

    /// An error of a back end.
    pub(crate) fn source(path: &Path, error: OpenError) -> Self {
        match error {
            OpenError::Host(why) => Self::host(path, why),
            OpenError::Source { why, hint } => Self::Source {
                path: path.to_owned(),
                why,
                hint,
            },
        }
    }
}

/// The system's error that caused `error`.
pub(crate) fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| error.downcast_ref())
}

/// An error followed by its causes, as far as its own text leaves them out.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let io = error.downcast_ref::<io::Error>();
        let more = io.map_or_else(|| error.to_string(), io_error_text);
        // thiserror's transparent errors, and those that name their source themselves.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
