use std::fs::{self, File};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amino_schema::header::FileSum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard};

use super::{Engine, Entry, Snapshot, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const LOCK_RETRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Room at most for segments that sled has begun and for the ones it cleans.
const SEGMENTS: u64 = 64 << 20;

/// sled's default tree. It has no snapshots: one keeps batches out by holding `batches` shared.
pub(super) struct SledEngine {
    dir: PathBuf,
    database: sled::Db,
    batches: RwLock<()>,
}

struct SledSnapshot<'a> {
    database: &'a sled::Db,
    _no_batches: RwLockReadGuard<'a, ()>,
}

fn error(what: &'static str) -> impl Fn(sled::Error) -> Error {
    move |why| Error::Engine {
        engine: "sled",
        what,
        why: why.to_string(),
    }
}

fn owned(value: &sled::IVec) -> Bytes {
    Bytes::copy_from_slice(value)
}

impl SledEngine {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let opening = |why: sled::Error| match why {
            sled::Error::Io(source) => Error::Io {
                what: "open the engine in",
                path: dir.to_owned(),
                source,
            },
            why => Error::Damaged {
                place: dir.display().to_string(),
                why: format!("sled cannot open it: {why}"),
            },
        };
        // Its own periodic flush would be a second, pointless durability: the log has it all until a checkpoint.
        let config = sled::Config::new()
            .path(dir)
            .cache_capacity(CACHE_BYTES)
            .flush_every_ms(None);
        // A thread of a database that was just closed may still hold its lock; nobody else can, as the store is ours.
        let mut result = config.open();
        for _ in 0..LOCK_RETRIES {
            match &result {
                Err(sled::Error::Io(why)) if why.to_string().contains("acquire lock") => {
                    std::thread::sleep(LOCK_PAUSE);
                    result = config.open();
                }
                _ => break,
            }
        }
        let database = result.map_err(opening)?;
        Ok(Self {
            dir: dir.to_owned(),
            database,
            batches: RwLock::new(()),
        })
    }
}

/// Syncs every file below `dir` and every directory, `dir` included.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let synced = if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())
        } else {
            File::open(entry.path()).and_then(|file| file.sync_all())
        };
        match synced {
            // sled's threads remove snapshots and blobs that a newer one replaces.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    File::open(dir)?.sync_all()
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self
            .database
            .get(key)
            .map_err(error("read"))?
            .as_ref()
            .map(owned))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, Error> {
        // Recursive, because a visitor of one range may read another while a batch waits for both.
        let batches = self.batches.read_recursive();
        Ok(Box::new(SledSnapshot {
            database: &self.database,
            _no_batches: batches,
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let mut batch = sled::Batch::default();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.insert(&key[..], &value[..]),
                None => batch.remove(&key[..]),
            }
        }
        batch.insert(APPLIED, applied);
        let _alone = self.batches.write();
        self.database
            .apply_batch(batch)
            .map_err(error("apply a batch"))
    }

    fn checkpoint(
        &self,
        _last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.database.flush().map_err(error("flush"))?;
        // flush() ends in sync_file_range(2), which writes no metadata and no disk cache out.
        sync_tree(&self.dir).map_err(Error::io("sync", &self.dir))?;
        publish(Vec::new())
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
        // back from a write that fails for want of space.
        let written = self.database.size_on_disk().unwrap_or(0);
        pending
            .saturating_mul(8)
            .saturating_add(written.min(SEGMENTS))
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
        self.database.size_on_disk().map_err(error("tell its size"))
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

impl Snapshot for SledSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self
            .database
            .get(key)
            .map_err(error("read"))?
            .as_ref()
            .map(owned))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let entries = self.database.range::<&[u8], _>((from, to));
        Box::new(entries.map(|entry| {
            let (key, value) = entry.map_err(error("read a range"))?;
            Ok((owned(&key), owned(&value)))
        }))
    }
}
