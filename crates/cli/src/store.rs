//! Where stores are, and how they are opened.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amino_fs::{AminoFs, Durability, EngineKind, Options};
use goanna_vfs::{Caller, FileSystem};

use crate::args::amino::StoreArg;
use crate::args::{Engine, Level};
use crate::error::Error;
use crate::report::names;

/// The store's directory: the option or $AMINO_STORE (clap has merged them), else the XDG default.
pub fn dir(arg: &StoreArg) -> Result<PathBuf, Error> {
    if let Some(dir) = arg.store.as_ref().filter(|dir| !dir.as_os_str().is_empty()) {
        return Ok(dir.clone());
    }
    default_dir(env::var_os("XDG_DATA_HOME"), env::var_os("HOME")).ok_or(Error::NoStoreDir)
}

/// The XDG base directory specification has relative paths ignored.
fn default_dir(
    data_home: Option<std::ffi::OsString>,
    home: Option<std::ffi::OsString>,
) -> Option<PathBuf> {
    let absolute = |path: std::ffi::OsString| Some(PathBuf::from(path)).filter(|p| p.is_absolute());
    data_home
        .and_then(absolute)
        .or_else(|| Some(home.and_then(absolute)?.join(".local/share")))
        .map(|data| data.join("amino"))
}

/// How a store is to be opened.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// The engine of a store that is made now.
    pub engine: Option<Engine>,
    /// When programs wait for the disk.
    pub durability: Level,
    /// Whether a store is made where there is none.
    pub create: Create,
}

/// Where a store is made that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    /// Nowhere.
    Never,
    /// In a directory that exists: a path that is mistyped is likely to have none.
    InParent,
    /// Anywhere; the directories above it are made, too.
    WithParents,
}

impl Create {
    /// Anywhere if that was asked for, or for the default place.
    pub fn at(arg: &StoreArg, anywhere: bool) -> Self {
        if anywhere || arg.store.is_none() {
            Self::WithParents
        } else {
            Self::InParent
        }
    }
}

/// Opens the store in `dir` for `caller`, who owns the root directory of a store that is made now.
pub fn open(dir: &Path, opening: Opening, caller: &Caller) -> Result<Arc<AminoFs>, Error> {
    match opening.create {
        Create::Never => must_exist(dir)?,
        Create::InParent => parent_must_exist(dir)?,
        Create::WithParents => make_parents(dir)?,
    }
    let options = Options {
        engine: opening.engine.map(kind),
        durability: durability(opening.durability),
        create: opening.create != Create::Never,
        root_owner: (caller.uid, caller.gid),
        ..Options::default()
    };
    let is_new = !dir.exists();
    AminoFs::open(dir, options).map_err(|why| match io_cause(&why) {
        Some(io) if is_new && is_refusal(io.kind()) => Error::NotMade {
            dir: dir.to_owned(),
            why: io
                .raw_os_error()
                .map_or_else(|| io.kind().into(), std::io::Error::from_raw_os_error),
        },
        _ => Error::store(dir, why),
    })
}

/// As [`open`]; `note` is told of a store that was made.
pub fn open_or_make(
    dir: &Path,
    opening: Opening,
    caller: &Caller,
    note: impl Fn(&str),
) -> Result<Arc<AminoFs>, Error> {
    let is_new = matches!(amino_txn::Store::engine_of(dir), Ok(None));
    let fs = open_patiently(dir, opening, caller)?;
    if is_new {
        note(&format!("made a store in {}", names::escape_path(dir)));
    }
    Ok(fs)
}

/// The system's error behind `error`.
fn io_cause<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.find_map(|error| error.downcast_ref())
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound
    )
}

/// As the file system calls it.
pub fn durability(level: Level) -> Durability {
    match level {
        Level::Aci => Durability::Aci,
        Level::Commit => Durability::Commit,
        Level::Acid => Durability::Acid,
    }
}

/// Longest time that a command waits for another one that has the store.
const PATIENCE: Duration = Duration::from_secs(10);

/// As [`open`]; waits a while for commands that work on the store without its owner, which takes them no longer than their work does.
pub fn open_patiently(
    dir: &Path,
    opening: Opening,
    caller: &Caller,
) -> Result<Arc<AminoFs>, Error> {
    patiently(|| open(dir, opening, caller))
}

/// Opens a store by `open`, and waits as [`open_patiently`] does.
pub fn patiently<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error)
                if holder(&error).is_some_and(|name| name == "amino")
                    && begun.elapsed() < PATIENCE =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// The name of the program that has the store, when that is why it could not be opened.
pub fn holder(error: &Error) -> Option<&OsStr> {
    let (Error::Store { why, .. } | Error::Unchecked { why, .. }) = error else {
        return None;
    };
    let amino_fs::Error::Store(amino_txn::Error::Held { command, .. }) = why else {
        return None;
    };
    Path::new(command.split(' ').next()?).file_name()
}

fn kind(engine: Engine) -> EngineKind {
    match engine {
        Engine::Fjall => EngineKind::Fjall,
        Engine::Sled => EngineKind::Sled,
    }
}

/// Fails where a store that is open has another engine than was asked for.
pub fn check_engine(dir: &Path, fs: &AminoFs, wanted: Option<Engine>) -> Result<(), Error> {
    let found = fs.store().info().engine;
    match wanted.map(kind).filter(|wanted| *wanted != found) {
        None => Ok(()),
        Some(wanted) => {
            let mismatch = amino_txn::Error::EngineMismatch {
                path: dir.to_owned(),
                found: found.name().to_owned(),
                wanted: wanted.name(),
            };
            Err(Error::store(dir, mismatch.into()))
        }
    }
}

/// Fails with a hint where there is no directory at all.
pub fn must_exist(dir: &Path) -> Result<(), Error> {
    if dir.try_exists().map_err(|why| Error::host(dir, why))? {
        return Ok(());
    }
    Err(Error::NoStore(dir.to_owned()))
}

/// Hands everything to the disk. A failure here means that changes may be lost, whatever was answered before.
pub fn close(dir: &Path, fs: &AminoFs) -> Result<(), Error> {
    fs.close().map_err(|why| Error::store(dir, why))
}

/// Brings everything to the disk of a store that stays open. A failure means what one of [`close`] does.
pub fn settle(dir: &Path, fs: &AminoFs) -> Result<(), Error> {
    let what = "bring its changes to the disk";
    let failed = |errno| Error::store(dir, amino_fs::Error::Operation { what, errno });
    fs.sync(None).map_err(failed)
}

/// The directory that a store is made in.
fn parent(dir: &Path) -> Option<&Path> {
    let parent = dir.parent();
    parent.filter(|parent| !parent.as_os_str().is_empty())
}

fn parent_must_exist(dir: &Path) -> Result<(), Error> {
    match parent(dir) {
        Some(parent)
            if parent
                .metadata()
                .is_err_and(|why| why.kind() == ErrorKind::NotFound) =>
        {
            Err(Error::NoParent {
                dir: dir.to_owned(),
                parent: parent.to_owned(),
            })
        }
        _ => Ok(()),
    }
}

/// Makes the directories above a store that is about to be made, for its owner alone.
fn make_parents(dir: &Path) -> Result<(), Error> {
    let Some(parent) = parent(dir) else {
        return Ok(());
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|why| match why.kind() {
            // What exists is no directory.
            ErrorKind::AlreadyExists => Error::host(parent, ErrorKind::NotADirectory),
            kind if is_refusal(kind) => Error::NotMade {
                dir: dir.to_owned(),
                why,
            },
            _ => Error::host(parent, why),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_follows_xdg() {
        let cases = [
            (Some("/data"), Some("/home/me"), Some("/data/amino")),
            (None, Some("/home/me"), Some("/home/me/.local/share/amino")),
            (
                Some(""),
                Some("/home/me"),
                Some("/home/me/.local/share/amino"),
            ),
            (
                Some("rel"),
                Some("/home/me"),
                Some("/home/me/.local/share/amino"),
            ),
            (None, Some("rel"), None),
            (None, None, None),
        ];
        for (data, home, dir) in cases {
            assert_eq!(
                default_dir(data.map(Into::into), home.map(Into::into)),
                dir.map(PathBuf::from)
            );
        }
    }
}
