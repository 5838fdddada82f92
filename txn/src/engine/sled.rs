//! The engine sled: a lock-free tree over a log of its own.
//!
//! sled rewrites its files in any order, so a synced state does not stay one: after a crash a file may be of no use. So there
//! are two copies, in the directories `a` and `b`. One rests: it is synced, closed and untouched, and the checkpoint has the
//! sums of all its files. The other one takes batches. At a checkpoint they change places, and the copy that rested gets the
//! batches that it missed. After a crash the one in use is thrown away and copied from the one that rests.

use std::fs::{self, File};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amino_schema::header::FileSum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::{Engine, Entry, Snapshot, files, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const CLOSE_RETRIES: u32 = 400;
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
/// Room at most for segments that sled has begun and for the ones it cleans.
const SEGMENTS: u64 = 64 << 20;
/// The file that sled holds locked while it is open.
const LOCKED: &str = "db";

/// One of the two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    A,
    B,
}

impl Side {
    const BOTH: [Self; 2] = [Self::A, Self::B];

    const fn name(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The copy in use.
struct Opened {
    side: Side,
    database: sled::Db,
}

/// What the copy that rests has missed since it does, and what the last batch has left.
#[derive(Default)]
struct Missed {
    changes: Changes,
    applied: Option<Vec<u8>>,
}

/// Two sled databases, of which one is open. sled has no snapshots: one keeps batches out by holding `batches` shared.
pub(super) struct SledEngine {
    dir: PathBuf,
    /// `None` after the last checkpoint. Read recursively: a visitor of one range may read another.
    opened: RwLock<Option<Opened>>,
    batches: RwLock<()>,
    /// `None` while no copy rests.
    missed: Mutex<Option<Missed>>,
}

struct SledSnapshot<'a> {
    opened: MappedRwLockReadGuard<'a, Opened>,
    _no_batches: RwLockReadGuard<'a, ()>,
}

fn error(what: &'static str) -> impl Fn(sled::Error) -> Error {
    move |why| match why {
        sled::Error::Io(source) if Error::is_full(&source) => Error::NoSpace,
        why => Error::Engine {
            engine: "sled",
            what,
            why: why.to_string(),
        },
    }
}

fn owned(value: &sled::IVec) -> Bytes {
    Bytes::copy_from_slice(value)
}

fn open_database(dir: &Path) -> Result<sled::Db, Error> {
    // Its own periodic flush would be a second, pointless durability: the log has it all until a checkpoint.
    let config = sled::Config::new()
        .path(dir)
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None);
    config.open().map_err(|why| match why {
        sled::Error::Io(source) => Error::Io {
            what: "open the engine in",
            path: dir.to_owned(),
            source,
        },
        why => Error::Damaged {
            place: dir.display().to_string(),
            why: format!("sled cannot open it: {why}"),
        },
    })
}

fn put(database: &sled::Db, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
    let mut batch = sled::Batch::default();
    for (key, value) in changes.iter() {
        match value {
            Some(value) => batch.insert(&key[..], &value[..]),
            None => batch.remove(&key[..]),
        }
    }
    batch.insert(APPLIED, applied);
    database.apply_batch(batch).map_err(error("apply a batch"))
}

/// Writes everything out and returns when no thread of sled has the files any more, and they are on disk.
fn close(dir: &Path, database: sled::Db) -> Result<(), Error> {
    database.flush().map_err(error("flush"))?;
    drop(database);
    wait_for_close(dir)?;
    // flush() ends in sync_file_range(2), which writes no metadata and no disk cache out.
    files::sync_tree(dir).map_err(Error::io("sync", dir))
}

fn wait_for_close(dir: &Path) -> Result<(), Error> {
    let path = dir.join(LOCKED);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    for _ in 0..CLOSE_RETRIES {
        if file.try_lock().is_ok() {
            return Ok(());
        }
        std::thread::sleep(CLOSE_PAUSE);
    }
    Err(Error::Engine {
        engine: "sled",
        what: "close its files",
        why: "a thread of it still has them".to_owned(),
    })
}

/// What was listed of `side`, and why it is not as it was then, if so.
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
        match files::sum_of_all(&path) {
            Ok((len, sum)) if len == file.len && sum == file.sum => {}
            Ok(_) => return damaged(&file.name, "it is not what was written"),
            Err(error) if error.is_not_found() => return damaged(&file.name, "it is missing"),
            Err(error) => return Err(error),
        }
    }
    for name in files::names(dir, side.name())? {
        if !of_side().any(|file| file.name == name) {
            return damaged(&name, "this file does not belong to the copy");
        }
    }
    Ok(None)
}

impl SledEngine {
    pub(super) fn open(dir: &Path, listed: Option<&[FileSum]>) -> Result<Self, Error> {
        let listed = listed.unwrap_or_default();
        let (side, rests) = if listed.is_empty() {
            adopt(dir)?;
            (Side::A, false)
        } else {
            (choose(dir, listed)?, true)
        };
        let database = open_database(&dir.join(side.name()))?;
        Ok(Self {
            dir: dir.to_owned(),
            opened: RwLock::new(Some(Opened { side, database })),
            batches: RwLock::new(()),
            missed: Mutex::new(rests.then(Missed::default)),
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        RwLockReadGuard::try_map(self.opened.read_recursive(), Option::as_ref).map_err(|_| {
            Error::Engine {
                engine: "sled",
                what: "be used",
                why: "it is closed".to_owned(),
            }
        })
    }

    fn copy(&self, side: Side) -> PathBuf {
        self.dir.join(side.name())
    }

    /// Opens the copy that does not rest any more, with everything that the one of `rested` has.
    fn catch_up(&self, rested: Side) -> Result<Opened, Error> {
        let side = rested.other();
        let path = self.copy(side);
        let database = match self.missed.lock().take() {
            Some(missed) => {
                let database = open_database(&path)?;
                if let Some(applied) = missed.applied {
                    put(&database, &missed.changes, &applied)?;
                }
                database
            }
            None => {
                files::copy_tree(&self.copy(rested), &path)?;
                open_database(&path)?
            }
        };
        *self.missed.lock() = Some(Missed::default());
        Ok(Opened { side, database })
    }
}

/// Takes over the files of a store that had one copy, in the engine's directory itself.
fn adopt(dir: &Path) -> Result<(), Error> {
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

/// The copy to use, beside one that rests and is as the checkpoint left it.
fn choose(dir: &Path, listed: &[FileSum]) -> Result<Side, Error> {
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
fn replace(dir: &Path, side: Side) -> Result<Side, Error> {
    files::copy_tree(&dir.join(side.other().name()), &dir.join(side.name()))?;
    Ok(side)
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.opened()?.database.get(key).map_err(error("read"))?;
        Ok(found.as_ref().map(owned))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, Error> {
        let opened = self.opened()?;
        // Recursive, because a visitor of one range may read another while a batch waits for both.
        let no_batches = self.batches.read_recursive();
        Ok(Box::new(SledSnapshot {
            opened,
            _no_batches: no_batches,
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let opened = self.opened()?;
        let _alone = self.batches.write();
        if let Some(missed) = self.missed.lock().as_mut() {
            missed.changes.merge(changes.clone());
            missed.applied = Some(applied.to_vec());
        }
        put(&opened.database, changes, applied)
    }

    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut opened = self.opened.write();
        let Some(Opened { side, database }) = opened.take() else {
            // The last checkpoint was made; nothing can have changed.
            return Ok(());
        };
        close(&self.copy(side), database)?;
        let mut relied_on = files::sums(&self.dir, side.name())?;
        if let Err(error) = publish(relied_on.clone()) {
            let database = open_database(&self.copy(side))?;
            *opened = Some(Opened { side, database });
            return Err(error);
        }
        let current = self.catch_up(side)?;
        if !last {
            *opened = Some(current);
            return Ok(());
        }
        let other = current.side;
        close(&self.copy(other), current.database)?;
        relied_on.extend(files::sums(&self.dir, other.name())?);
        publish(relied_on)
    }

    fn reopen(&self) -> Result<(), Error> {
        // What sled has not written yet would be lost; the log has it when the store is opened again.
        Err(Error::Engine {
            engine: "sled",
            what: "go on after a write failed on a full disk",
            why: "its changes in memory are incomplete".to_owned(),
        })
    }

    fn room(&self, pending: u64) -> u64 {
        // Each change appends to its node, which is written again as a whole from time to time; and sled never comes
        // back from a write that fails for want of space. Both copies take it.
        let written = self.opened().and_then(|opened| {
            let size = opened.database.size_on_disk();
            size.map_err(error("tell its size"))
        });
        let missed = self
            .missed
            .lock()
            .as_ref()
            .map_or(0, |missed| missed.changes.byte_size());
        pending
            .saturating_mul(16)
            .saturating_add((missed as u64).saturating_mul(8))
            .saturating_add(written.unwrap_or(0).min(SEGMENTS).saturating_mul(2))
    }

    fn returnable(&self) -> u64 {
        0
    }

    fn reclaim(&self, _available: u64) -> Result<bool, Error> {
        Ok(false)
    }

    fn applied(&self) -> Result<Option<Bytes>, Error> {
        self.get(APPLIED)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        for side in Side::BOTH {
            for name in files::names(&self.dir, side.name())? {
                let path = self.dir.join(&name);
                // sled's threads remove snapshots and blobs that a newer one replaces.
                bytes += fs::metadata(&path).map_or(0, |found| found.len());
            }
        }
        Ok(bytes)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn changes_by_itself(&self) -> bool {
        true
    }
}

impl Snapshot for SledSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.opened.database.get(key).map_err(error("read"))?;
        Ok(found.as_ref().map(owned))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let entries = self.opened.database.range::<&[u8], _>((from, to));
        Box::new(entries.map(|entry| {
            let (key, value) = entry.map_err(error("read a range"))?;
            Ok((owned(&key), owned(&value)))
        }))
    }
}
