//! Finds, makes, opens and closes stores.

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{Caller, FileSystem, escape_path, wait_for_locks};

use crate::error::io_cause;
use crate::{Durability, Engine, Error, StoreError};

/// The directory of the store at the default place; `None` where no environment variable names one.
pub fn default_dir() -> Option<PathBuf> {
    xdg_dir(env::var_os("XDG_DATA_HOME"), env::var_os("HOME"))
}

/// The XDG base directory specification ignores relative paths.
fn xdg_dir(
    data_home: Option<std::ffi::OsString>,
    home: Option<std::ffi::OsString>,
) -> Option<PathBuf> {
    let absolute = |path: std::ffi::OsString| Some(PathBuf::from(path)).filter(|p| p.is_absolute());
    data_home
        .and_then(absolute)
        .or_else(|| Some(home.and_then(absolute)?.join(".local/share")))
        .map(|data| data.join("amino"))
}

/// The options for opening a store.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// The engine of a store that is made now.
    pub engine: Option<Engine>,
    /// The durability level.
    pub durability: Durability,
    /// Whether a store is made where there is none.
    pub create: Create,
}

/// The places at which a missing store may be made.
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
    /// Anywhere, or in a directory that exists.
    pub fn new(anywhere: bool) -> Self {
        if anywhere {
            Self::WithParents
        } else {
            Self::InParent
        }
    }
}

/// Checks that there is a store in `dir`, or that one may be made there.
pub fn prepare(dir: &Path, create: Create) -> Result<(), Error> {
    match create {
        Create::Never => must_exist(dir),
        Create::InParent => parent_must_exist(dir),
        Create::WithParents => make_parents(dir),
    }
}

/// Opens the store in `dir`. If it is made now, its root directory belongs to the user of `caller`.
pub fn open(dir: &Path, opening: Opening, caller: &Caller) -> Result<Arc<AminoFs>, Error> {
    prepare(dir, opening.create)?;
    let options = Options {
        engine: opening.engine.map(EngineKind::from),
        durability: opening.durability.into(),
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

/// Opens the store as [`open_when_free`] does; calls `note` when it has made a store.
pub fn open_or_make(
    dir: &Path,
    opening: Opening,
    caller: &Caller,
    note: impl Fn(&str),
) -> Result<Arc<AminoFs>, Error> {
    let is_new = matches!(amino_txn::Store::engine_of(dir), Ok(None));
    let fs = open_when_free(dir, opening, caller)?;
    if is_new {
        note(&format!("made a store in {}", escape_path(dir)));
    }
    Ok(fs)
}

fn is_refusal(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound
    )
}

/// Maximum time that a command waits for another one that has the store open.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(10);

/// Opens the store as [`open`] does; waits up to `OPEN_WAIT_MAX` for a command that has opened the store for its own work.
pub fn open_when_free(
    dir: &Path,
    opening: Opening,
    caller: &Caller,
) -> Result<Arc<AminoFs>, Error> {
    retry_while_held(|| open(dir, opening, caller))
}

/// Calls `open`, and waits as [`open_when_free`] does.
pub fn retry_while_held<T>(open: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if is_held_by(&error, "amino") && begun.elapsed() < OPEN_WAIT_MAX => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Whether a store could not be opened because the program `name` has it open.
pub fn is_held_by(error: &Error, name: &str) -> bool {
    let (Error::Store { why, .. } | Error::Unchecked { why, .. }) = error else {
        return false;
    };
    let StoreError::Held { command, .. } = why else {
        return false;
    };
    let program = command.split(' ').next().map(Path::new);
    program.and_then(Path::file_name) == Some(OsStr::new(name))
}

/// Whether a store could not be opened because the program `name` has it open, and was started for the store `dir`. If it was
/// started for another store, a run has mounted both: it accepts no clients for `dir`, and has `dir` open until the run ends.
pub fn is_owned_by(error: &Error, name: &str, dir: &Path) -> bool {
    if !is_held_by(error, name) {
        return false;
    }
    let (Error::Store { why, .. } | Error::Unchecked { why, .. }) = error else {
        return false;
    };
    let StoreError::Held { pid, .. } = why else {
        return false;
    };
    // The command line, whose parts end with a NUL each: the program, and the store.
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let own = line.split(|&byte| byte == 0).nth(1).unwrap_or_default();
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    // A process that has just ended counts as the owner: the next attempt corrects that.
    real(Path::new(OsStr::from_bytes(own))).is_none_or(|own| Some(own) == real(dir))
}

/// The name of the engine of the store in `dir`, if there is a store.
pub fn engine_name(dir: &Path) -> Option<&'static str> {
    let engine = amino_txn::Store::engine_of(dir).ok().flatten();
    engine.map(EngineKind::name)
}

/// Fails where an open store has another engine than `wanted`.
pub fn check_engine(dir: &Path, fs: &AminoFs, wanted: Option<Engine>) -> Result<(), Error> {
    let found = fs.store().info().engine;
    match wanted
        .map(EngineKind::from)
        .filter(|wanted| *wanted != found)
    {
        None => Ok(()),
        Some(wanted) => {
            let mismatch = StoreError::EngineMismatch {
                found: found.name().to_owned(),
                wanted: wanted.name(),
            };
            Err(Error::store(dir, mismatch))
        }
    }
}

/// Sets whether the store keeps segments of its log that it does not need any more.
pub fn keep_log(dir: &Path, fs: &AminoFs, keep: bool) -> Result<(), Error> {
    let kept = fs.store().keep_log(keep);
    kept.map_err(|why| Error::store(dir, amino_fs::Error::from(why)))
}

/// Fails if the directory does not exist.
pub fn must_exist(dir: &Path) -> Result<(), Error> {
    if dir.try_exists().map_err(|why| Error::host(dir, why))? {
        return Ok(());
    }
    Err(Error::NoStore(dir.to_owned()))
}

/// Frees the disk space of deleted data, as far as the store's engine can.
pub fn compact(dir: &Path, fs: &AminoFs) -> Result<(), Error> {
    let compacted = fs.store().compact();
    compacted.map_err(|why| Error::store(dir, amino_fs::Error::from(why)))
}

/// Syncs and closes the store. After a failure, changes may be lost even if earlier syncs succeeded.
pub fn close(dir: &Path, fs: &AminoFs) -> Result<(), Error> {
    fs.close().map_err(|why| Error::store(dir, why))
}

/// Syncs the store or other file system `fs`, which messages call `dir`, and leaves it open. A failure means the same as for [`close`].
pub fn flush(dir: &Path, fs: &dyn FileSystem) -> Result<(), Error> {
    let what = "bring its changes to the disk";
    let failed = |errno| Error::store(dir, StoreError::operation(what, errno));
    wait_for_locks(|| fs.sync(None)).map_err(failed)
}

/// The parent directory of a new store.
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

/// Makes the directories above a new store, accessible only to their owner.
fn make_parents(dir: &Path) -> Result<(), Error> {
    let Some(parent) = parent(dir) else {
        return Ok(());
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|why| match why.kind() {
            // The path exists and is not a directory.
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
                xdg_dir(data.map(Into::into), home.map(Into::into)),
                dir.map(PathBuf::from)
            );
        }
    }
}
