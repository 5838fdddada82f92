//! What goes wrong, as users read it: the path or option at fault, why, and what to do about it.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use goanna_monitor::Status;
use goanna_offline::Error as Offline;
use goanna_vfs::{Errno, MountError, io_error_text};
use thiserror::Error;

use crate::daemon::Told;
use crate::profile::ProfileError;
use crate::report::names::{escape, escape_path};
use crate::run::{ending, exit_status};
use crate::spec::SpecError;

/// An error that ends a command.
#[derive(Debug, Error)]
pub enum Error {
    /// A `--mount` that is wrong.
    #[error("--mount {}: {why}", escape(.spec))]
    Spec {
        /// As it was given.
        spec: Vec<u8>,
        /// What is wrong.
        why: SpecError,
    },
    /// Signals could not be held.
    #[error("cannot hold signals: {0}")]
    Signals(#[source] io::Error),
    /// A line of a mount file that is wrong.
    #[error("{}:{line}: {why}", escape_path(.file))]
    Tab {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is wrong.
        why: SpecError,
    },
    /// A profile file that cannot be read.
    #[error("--profile {}: {}", escape_path(.file), io_error_text(.why))]
    ProfileFile {
        /// As it was given.
        file: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A profile file that is wrong.
    #[error("profile {}:{why}", escape_path(.file))]
    Profile {
        /// The file.
        file: PathBuf,
        /// Line, key, and what is wrong.
        why: ProfileError,
    },
    /// Transactions of a profile were lost; each has been told.
    #[error("{0} transactions of the profile could not be committed")]
    Lost(usize),
    /// A mount that could not be made.
    #[error("mount at {}: {why}", escape(.target))]
    Mount {
        /// The mount point.
        target: Vec<u8>,
        /// Why.
        why: MountError,
    },
    /// `--at` and the store contain one another.
    #[error("--at {}: {why}", escape(.at))]
    At {
        /// As it was given.
        at: Vec<u8>,
        /// What is wrong.
        why: AtError,
    },
    /// No mount was given.
    #[error("no mounts: --mount or --config is needed")]
    NoMounts,
    /// Neither option nor environment says where the store is.
    #[error("--store: no default, because neither $XDG_DATA_HOME nor $HOME is an absolute path")]
    NoStoreDir,
    /// A store is to be looked at that does not exist.
    #[error("{}: there is no store here", escape_path(.0))]
    NoStore(PathBuf),
    /// A store is to be made below a directory that does not exist.
    #[error("{}: there is no store here, and no directory {} to make one in", escape_path(.dir), escape_path(.parent))]
    NoParent {
        /// The store.
        dir: PathBuf,
        /// The missing directory.
        parent: PathBuf,
    },
    /// No store can be made at a place.
    #[error("{}: no store can be made here: {}", escape_path(.dir), io_error_text(.why))]
    NotMade {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A store could not be opened.
    #[error("{}: {}", escape_path(.dir), store_why(.why))]
    Store {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: amino_fs::Error,
    },
    /// A store could not be checked, because it cannot even be opened.
    #[error("{}: {}", escape_path(.dir), store_why(.why))]
    Unchecked {
        /// The store.
        dir: PathBuf,
        /// Why.
        why: amino_fs::Error,
    },
    /// Two mounts of one store.
    #[error("{}: the store is mounted twice", escape_path(.0))]
    Twice(PathBuf),
    /// A transaction over two stores.
    #[error("--txn: a transaction cannot span the store mounted at {}, too", escape(.0))]
    SeveralStores(Vec<u8>),
    /// An operation on a host path failed.
    #[error("{}: {}", escape_path(.path), io_error_text(.why))]
    Host {
        /// The path.
        path: PathBuf,
        /// Why.
        why: io::Error,
    },
    /// A directory cannot be passed through.
    #[error(transparent)]
    Pass(goanna_passfs::Error),
    /// An image cannot be read.
    #[error("{}: {why}", escape_path(.image))]
    Iso {
        /// The image.
        image: PathBuf,
        /// What is wrong, and where in it.
        why: goanna_isofs::Error,
    },
    /// A listing or a copy failed.
    #[error(transparent)]
    Offline(#[from] goanna_offline::Error),
    /// `export` would write into the store's own directory.
    #[error("{}: lies inside the store's own directory", escape_path(.0))]
    InsideStore(PathBuf),
    /// A monitor runs this process already.
    #[error("run: this shell runs under amino or goanna already, and nesting is not supported yet")]
    Nested,
    /// No process could be started that owns the store.
    #[error("cannot start aminod, which owns the store: {}", io_error_text(.0))]
    OwnerNotStarted(#[source] io::Error),
    /// `aminod` was started by somebody else than `amino`.
    #[error("aminod is started by amino when it is needed")]
    OwnerByHand,
    /// The store's owner is another user's process.
    #[error("{}: in use by a process of user {}", escape_path(.0), .1)]
    OwnerForeign(PathBuf, u32),
    /// The store's owner is of another version.
    #[error("{}: in use by process {}, aminod of another version", escape_path(.0), .1)]
    OwnerVersion(PathBuf, i32),
    /// The store's owner sees other files.
    #[error(
        "the store is in use by process {0} (aminod), which has other mounts, processes or users in sight"
    )]
    OwnerElsewhere(i32),
    /// The store's owner has vanished.
    #[error("process {0} (aminod), which owned the store, has ended; what it ran was killed")]
    OwnerGone(i32),
    /// Commands use the store.
    #[error("{}: in use by {}", escape_path(.0), commands(*.1))]
    OwnerBusy(PathBuf, usize),
    /// An error of the store's owner.
    #[error("{}", .0.text)]
    Told(Told),
    /// `amino txn` could not do what it was told to.
    #[error("txn {command}: {why}")]
    Txn {
        /// The command of `amino txn`, with what it is about.
        command: Cow<'static, str>,
        /// Why.
        why: amino_client::Error,
    },
    /// The transaction of `amino txn run` could not be begun or committed.
    #[error("txn run: {0}")]
    TxnRun(#[from] amino_client::Error),
    /// The command of `amino txn run` could not be started or waited for.
    #[error("txn run: cannot run the command: {}", .0.desc())]
    Child(Errno),
    /// The command of `amino txn run` failed, and its transaction with it.
    #[error("{}", ending(*.0))]
    Command(Status),
    /// The monitor failed.
    #[error("{}", chain(.0))]
    Monitor(#[from] goanna_monitor::Error),
    /// Standard output cannot be written.
    #[error("standard output: {}", io_error_text(.0))]
    Output(io::Error),
}

/// What is wrong with `--at`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AtError {
    /// Not absolute.
    #[error("not an absolute path")]
    Relative,
    /// The root.
    #[error("the store cannot appear at /, which the host keeps")]
    Root,
    /// Inside the store's directory.
    #[error("lies inside the store's own directory {0}")]
    InsideStore(String),
    /// Around the store's directory.
    #[error("would hide the store's own directory {0}")]
    HidesStore(String),
}

impl Error {
    /// An error of an operation on a host path.
    pub fn host(path: &Path, why: impl Into<io::Error>) -> Self {
        Self::Host {
            path: path.to_owned(),
            why: why.into(),
        }
    }

    /// An error of the pass-through back end.
    pub fn from_pass(error: goanna_passfs::Error) -> Self {
        match error {
            goanna_passfs::Error::Directory { dir, errno } => Self::host(&dir, errno),
            error => Self::Pass(error),
        }
    }

    /// An error of an image.
    pub fn iso(image: &Path, why: goanna_isofs::Error) -> Self {
        match why {
            goanna_isofs::Error::Read { offset: 0, source } => Self::host(image, source),
            why => Self::Iso {
                image: image.to_owned(),
                why,
            },
        }
    }

    /// An error of a store.
    pub fn store(dir: &Path, why: amino_fs::Error) -> Self {
        Self::Store {
            dir: dir.to_owned(),
            why,
        }
    }

    /// Whether it concerns one path of a store or an image only.
    pub fn is_in_tree(&self) -> bool {
        matches!(self, Self::Offline(error) if error.is_in_tree())
    }

    /// The exit status it means: 1 when what was asked for is not there or cannot be done, 126 and 127 as a
    /// shell's, else 125. A reader of our output that went away means what it means for any program: death
    /// by SIGPIPE.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::OwnerBusy(..) => 1,
            Self::Offline(error) if error.is_in_tree() => 1,
            Self::Told(told) => told.code,
            Self::Txn { why, .. } => txn_exit_code(why),
            Self::Command(status) => exit_status(*status),
            Self::Monitor(error) => u8::try_from(error.exit_code()).unwrap_or(125),
            Self::Output(_) if self.is_quiet() => 128 + SIGPIPE,
            _ => 125,
        }
    }

    /// Nothing is to be said: nobody listens any more.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// What the user could do.
    pub fn hint(&self) -> Option<String> {
        let missing = (self.exit_code() == 125).then(missing_place).flatten();
        missing.map(Into::into).or_else(|| self.own_hint())
    }

    fn own_hint(&self) -> Option<String> {
        let hint = match self {
            Self::NoParent { .. } => {
                "give --create to make it with the directories above, or check the path for a mistake"
            }
            Self::NotMade { .. } => "name another place with --store DIR or $AMINO_STORE",
            Self::Offline(Offline::InTree { path, errno, .. }) => {
                return in_tree_hint(path, *errno);
            }
            Self::NoStore(_) => {
                "amino run and amino import make one; another store is named by --store DIR or $AMINO_STORE"
            }
            Self::At {
                why: AtError::Relative | AtError::Root,
                ..
            } => "give an absolute path below /, as in --at /amino",
            Self::At { .. } => "choose another --at or another --store",
            Self::NoStoreDir => "name the store with --store DIR or $AMINO_STORE",
            Self::Offline(Offline::NotEmpty(_)) => {
                "give an empty or new directory, or --force to write into this one"
            }
            Self::Told(told) => return told.hint.clone(),
            Self::OwnerVersion(..) => {
                "wait for the commands that use it, or end them with amino daemon stop --force"
            }
            Self::OwnerElsewhere(_) => {
                "run the command where the others that use this store run, as in one container"
            }
            Self::OwnerGone(_) => {
                "what was acknowledged is in the store; aminod.log in it tells of a defect, if it was one"
            }
            Self::OwnerBusy(..) => "wait for them, or kill them with --force",
            Self::Nested => {
                "leave the outer one first, or give it all the mounts you need with --mount"
            }
            Self::Spec {
                why: SpecError::SecondColon | SpecError::Escape,
                ..
            } => r"quote the specification for the shell, as in --mount 'pass=/a\:b:/mnt'",
            Self::Tab {
                why: SpecError::Fields(_),
                ..
            } => r"a blank inside a path is written \040",
            Self::ProfileFile { .. } => {
                "give exec, session, or the path of a profile file; ./exec is a file"
            }
            Self::Mount {
                why: MountError::Root,
                ..
            } => "choose a mount point below /",
            Self::Store { why, .. } => return store_hint(why).map(Into::into),
            Self::Unchecked { why, .. } if is_damage(why) => {
                "restore the store from a copy, or see what is left: amino fsck --salvage, amino export --salvage"
            }
            Self::Unchecked { why, .. } => return store_hint(why).map(Into::into),
            Self::Txn { why, .. } | Self::TxnRun(why) => return txn_hint(why).map(Into::into),
            Self::Monitor(error) => return error.hint().map(Into::into),
            Self::Iso {
                why: goanna_isofs::Error::NoNamespace(_) | goanna_isofs::Error::NoSession { .. },
                ..
            } => "goanna iso info lists the name spaces and sessions of an image",
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

/// A place that every command needs, if it is missing.
fn missing_place() -> Option<&'static str> {
    let missing = |path| !Path::new(path).exists();
    if missing("/proc/self") {
        Some("/proc is not mounted here; amino finds itself, processes and descriptors there")
    } else if missing("/dev/null") {
        Some("/dev/null is missing here; amino needs it for the process that owns the store")
    } else {
        None
    }
}

/// For a path that has the usual mount point before it.
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

/// So many commands, in words.
fn commands(count: usize) -> String {
    match count {
        1 => "one command".to_owned(),
        count => format!("{count} commands"),
    }
}

const SIGPIPE: u8 = nix::libc::SIGPIPE as u8;

/// Why a store could not be used, without its directory, which is named before.
fn store_why(error: &amino_fs::Error) -> String {
    match error {
        amino_fs::Error::Store(amino_txn::Error::NotAStore { why, .. }) => {
            format!("not an amino store: {why}")
        }
        amino_fs::Error::Store(amino_txn::Error::Held { pid, command, .. }) => {
            format!("in use by process {pid} ({})", escape(command.as_bytes()))
        }
        amino_fs::Error::Store(amino_txn::Error::EngineMismatch { found, wanted, .. }) => {
            format!("made with the engine {found}, not {wanted}")
        }
        error => chain(error),
    }
}

/// An error with what caused it, as far as its own words leave that out.
fn chain(error: &dyn std::error::Error) -> String {
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

fn store_hint(error: &amino_fs::Error) -> Option<&'static str> {
    Some(match error {
        amino_fs::Error::Store(amino_txn::Error::NotAStore { .. }) => {
            "give an empty or new directory, or that of a store"
        }
        amino_fs::Error::Store(amino_txn::Error::Held { .. }) => {
            "amino commands share a store, other processes do not; wait for that one, or choose another --store"
        }
        amino_fs::Error::Store(amino_txn::Error::EngineMismatch { .. }) => {
            "leave --engine out; it is for new stores only"
        }
        amino_fs::Error::Store(amino_txn::Error::NewerVersion { .. }) => {
            "use the amino that wrote it, or a newer one"
        }
        error if is_damage(error) => "amino fsck says what is damaged",
        _ => return None,
    })
}

/// 1 when the transaction, or what it is about, is not as the command needs it, else 125.
fn txn_exit_code(error: &amino_client::Error) -> u8 {
    use amino_client::Error::{
        Deadlock, HasCurrent, InUse, Io, LockTimeout, NameTaken, NestedOpen, NoSpace,
        NoTransaction, NotFound, NotPermitted, TooDeep,
    };
    match error {
        NoTransaction | NestedOpen | HasCurrent | NotFound | NotPermitted | TooDeep | NoSpace
        | Io | Deadlock | LockTimeout | NameTaken | InUse => 1,
        _ => 125,
    }
}

fn txn_hint(error: &amino_client::Error) -> Option<&'static str> {
    use amino_client::Error;
    Some(match error {
        Error::NotUnderAmino => "start the shell with: amino run bash",
        Error::NoStore => "transactions need a store: amino run mounts one",
        Error::NoProcess => "amino txn acts on its parent, a shell that was started by amino run",
        Error::NoTransaction => "amino txn begin begins one",
        Error::NestedOpen => "amino txn list names it and its processes; wait for them, or abort",
        Error::InUse => "amino txn list names the processes; wait for them, or abort",
        Error::NameTaken => "end that one first, or choose another name; amino txn list names all",
        Error::HasCurrent => "end it, or set it aside with amino txn suspend",
        Error::NotFound => "it may have ended; amino txn list names those that are open",
        Error::Deadlock | Error::LockTimeout => "try again; amino txn run --retry N does so itself",
        _ => return None,
    })
}

fn is_damage(error: &amino_fs::Error) -> bool {
    matches!(
        error,
        amino_fs::Error::Store(amino_txn::Error::Damaged { .. }) | amino_fs::Error::Damaged(_)
    )
}
