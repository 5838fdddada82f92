use std::ops::Bound;
use std::path::Path;

use amino_schema::key::APPLIED;
use bytes::Bytes;
use fjall::{
    CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable,
    Snapshot as DatabaseSnapshot,
};

use super::{Engine, Entry, Snapshot, decode_applied, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const KEYSPACE: &str = "amino";

/// One fjall keyspace. Its journal is written but synced only at our checkpoints.
pub(super) struct FjallEngine {
    database: Database,
    entries: Keyspace,
}

struct FjallSnapshot<'a> {
    snapshot: DatabaseSnapshot,
    entries: &'a Keyspace,
}

fn error(what: &'static str) -> impl Fn(fjall::Error) -> Error {
    move |why| Error::Engine {
        engine: "fjall",
        what,
        why: format!("{why:?}"),
    }
}

/// Why the database in `dir` does not open. Damage in a journal is named by its file: the newest may have lost what was
/// never synced, and then the log has it.
fn cannot_open(dir: &Path, why: fjall::Error) -> Error {
    let journal = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let number: u64 = path
            .file_name()?
            .to_str()?
            .strip_suffix(".jnl")?
            .parse()
            .ok()?;
        Some((number, path))
    };
    match why {
        fjall::Error::Io(source) => Error::Io {
            what: "open the engine in",
            path: dir.to_owned(),
            source,
        },
        fjall::Error::JournalRecovery(why) => {
            let newest = std::fs::read_dir(dir)
                .ok()
                .and_then(|entries| entries.filter_map(journal).max());
            let place = newest.map_or_else(|| dir.to_owned(), |(_, path)| path);
            Error::Damaged {
                place: place.display().to_string(),
                why: format!("fjall cannot read this journal or an older one: {why:?}"),
            }
        }
        why => Error::Damaged {
            place: dir.display().to_string(),
            why: format!("fjall cannot open it: {why:?}"),
        },
    }
}

impl FjallEngine {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        let opening = |why| cannot_open(dir, why);
        // Our log already holds what the journal would lose, so it is compressed by nobody and synced by us.
        let builder = Database::builder(dir)
            .manual_journal_persist(true)
            .cache_size(CACHE_BYTES);
        let database = builder
            .journal_compression(CompressionType::None)
            .open()
            .map_err(opening)?;
        let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
        let entries = database.keyspace(KEYSPACE, options).map_err(opening)?;
        Ok(Self { database, entries })
    }
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self
            .entries
            .get(key)
            .map_err(error("read"))?
            .map(Bytes::from))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, Error> {
        Ok(Box::new(FjallSnapshot {
            snapshot: self.database.snapshot(),
            entries: &self.entries,
        }))
    }

    fn apply(&self, changes: &Changes, seq: u64) -> Result<(), Error> {
        let mut batch = self.database.batch();
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.insert(&self.entries, key.clone(), value.clone()),
                None => batch.remove(&self.entries, key.clone()),
            }
        }
        batch.insert(&self.entries, APPLIED, seq.to_le_bytes().as_slice());
        batch.commit().map_err(error("apply a batch"))
    }

    fn sync(&self) -> Result<(), Error> {
        self.database
            .persist(PersistMode::SyncAll)
            .map_err(error("sync its journal"))
    }

    fn applied_seq(&self) -> Result<Option<u64>, Error> {
        let raw = self.entries.get(APPLIED).map_err(error("read"))?;
        raw.map(|raw| decode_applied(&raw)).transpose()
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        self.database.disk_space().map_err(error("tell its size"))
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

impl Snapshot for FjallSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        Ok(self
            .snapshot
            .get(self.entries, key)
            .map_err(error("read"))?
            .map(Bytes::from))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let entries = self.snapshot.range::<&[u8], _>(self.entries, (from, to));
        Box::new(entries.map(|guard| {
            let (key, value) = guard.into_inner().map_err(error("read a range"))?;
            Ok((key.into(), value.into()))
        }))
    }
}
