//! Where stores are, and how they are opened.

use std::env;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_fs::{AminoFs, Durability, EngineKind, Options};
use goanna_vfs::Caller;

use crate::args::amino::StoreArg;
use crate::args::{Engine, Level};
use crate::error::Error;

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
    pub create: bool,
}

/// Opens the store in `dir` for `caller`, who owns the root directory of a store that is made now.
pub fn open(dir: &Path, opening: Opening, caller: &Caller) -> Result<Arc<AminoFs>, Error> {
    if opening.create {
        make_parents(dir)?;
    } else {
        must_exist(dir)?;
    }
    let options = Options {
        engine: opening.engine.map(|engine| match engine {
            Engine::Fjall => EngineKind::Fjall,
            Engine::Sled => EngineKind::Sled,
        }),
        durability: match opening.durability {
            Level::Aci => Durability::Aci,
            Level::Commit => Durability::Commit,
            Level::Acid => Durability::Acid,
        },
        create: opening.create,
        root_owner: (caller.uid, caller.gid),
        ..Options::default()
    };
    AminoFs::open(dir, options).map_err(|why| Error::store(dir, why))
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

/// Makes the directories above a store that is about to be made, for its owner alone.
fn make_parents(dir: &Path) -> Result<(), Error> {
    let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
        return Ok(());
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|why| match why.kind() {
            // What exists is no directory.
            ErrorKind::AlreadyExists => Error::host(parent, ErrorKind::NotADirectory),
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
