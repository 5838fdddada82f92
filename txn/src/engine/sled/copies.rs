//! The two copies: one of them is open, the other one rests; and the check of a checkpoint's sums against their files.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use amino_schema::header::FileSum;
use bytes::Bytes;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::database::{closed, error, open_database, owned};
use crate::Error;
use crate::engine::tree;

/// One of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    A,
    B,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::A, Self::B];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    pub(super) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The copy that is open.
pub(super) struct Opened {
    pub(super) side: Side,
    pub(super) database: sled::Db,
    /// Its files are new, so the other copy is made by copying them.
    pub(super) is_rewritten: bool,
}

impl Opened {
    pub(super) fn new(dir: &Path, side: Side) -> Result<Self, Error> {
        let database = open_database(&dir.join(side.name()))?;
        Ok(Self {
            side,
            database,
            is_rewritten: false,
        })
    }
}

impl Opened {
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.database.get(key).map_err(error("read"))?;
        Ok(found.as_ref().map(owned))
    }
}

/// The copies that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// Before the first checkpoint: no copy rests.
    None,
    /// This copy rests.
    One(Side),
    /// The last checkpoint was made: both copies rest.
    Both,
}

/// The copies, which snapshots share with the engine.
pub(super) struct Copies {
    /// `None` after the last checkpoint, and after a failed one until it can be opened again. Read recursively: a visitor
    /// of one range may read another.
    pub(super) opened: RwLock<Option<Opened>>,
    pub(super) rest: Mutex<Rest>,
}

impl Copies {
    /// The open copy. Fails after the last checkpoint, and while a full disk keeps the copy from being opened again.
    pub(super) fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        RwLockReadGuard::try_map(self.opened.read_recursive(), Option::as_ref).map_err(|_| {
            match *self.rest.lock() {
                Rest::Both => closed("be used"),
                _ => Error::NoSpace,
            }
        })
    }
}

/// Compares the files of `side` with the checkpoint's list. Returns the first difference as an error to report.
fn check_side(dir: &Path, side: Side, listed: &[FileSum]) -> Result<Option<Error>, Error> {
    let prefix = format!("{}/", side.name());
    let of_side = || listed.iter().filter(|file| file.name.starts_with(&prefix));
    let damaged = |name: &str, why: &str| {
        let place = dir.join(name).display().to_string();
        Ok(Some(Error::Damaged {
            place,
            why: why.to_owned(),
        }))
    };
    if of_side().next().is_none() {
        return damaged(side.name(), "no checkpoint relies on this copy");
    }
    for file in of_side() {
        let path = dir.join(&file.name);
        match tree::sum_of_all(&path) {
            Ok((len, sum)) if len == file.len && sum == file.sum => {}
            Ok(_) => return damaged(&file.name, "it is not what was written"),
            Err(error) if error.is_not_found() => return damaged(&file.name, "it is missing"),
            Err(error) => return Err(error),
        }
    }
    for name in tree::names(dir, side.name())? {
        if !of_side().any(|file| file.name == name) {
            return damaged(&name, "this file does not belong to the copy");
        }
    }
    Ok(None)
}

/// Removes a directory if it exists.
pub(super) fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", dir)(error)),
        _ => Ok(()),
    }
}

/// Moves the files of an older store, which had one copy, from the engine's directory itself to a copy.
pub(super) fn adopt(dir: &Path) -> Result<(), Error> {
    let copy = dir.join(Side::A.name());
    fs::create_dir_all(&copy).map_err(Error::io("create", &copy))?;
    for entry in fs::read_dir(dir).map_err(Error::io("list", dir))? {
        let entry = entry.map_err(Error::io("list", dir))?;
        let name = entry.file_name();
        if Side::BOTH.iter().all(|side| name != side.name()) {
            let path = entry.path();
            fs::rename(&path, copy.join(name)).map_err(Error::io("rename", &path))?;
        }
    }
    Ok(())
}

/// The copy to open. It is replaced with the other copy if only that one matches the checkpoint's list; fails if neither
/// does.
pub(super) fn choose(dir: &Path, listed: &[FileSum]) -> Result<Side, Error> {
    let (a, b) = (
        check_side(dir, Side::A, listed)?,
        check_side(dir, Side::B, listed)?,
    );
    match (a, b) {
        (None, None) => Ok(Side::A),
        (None, Some(_)) => replace(dir, Side::B),
        (Some(_), None) => replace(dir, Side::A),
        (Some(a), Some(b)) => {
            let listed_b = listed.iter().any(|file| file.name.starts_with("b/"));
            Err(if listed_b { b } else { a })
        }
    }
}

/// Makes `side` a copy of the other one.
pub(super) fn replace(dir: &Path, side: Side) -> Result<Side, Error> {
    tree::overwrite_tree(dir, side.other().name(), side.name())?;
    Ok(side)
}
