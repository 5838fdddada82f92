use std::fs::{self, OpenOptions};
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use amino_schema::key::APPLIED;
use bytes::Bytes;
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
    Readable, Snapshot as DatabaseSnapshot,
};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use super::{Engine, Entry, Snapshot, decode_applied, visible_from};
use crate::changes::is_empty_range;
use crate::room::Disk;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const KEYSPACE: &str = "amino";
/// Where a keyspace keeps its tables.
const TABLES: &str = "tables";

/// One thread flushes while another compacts.
const WORKERS: usize = 2;
/// A compaction rewrites at most about so much at a time: level 0 and what it overlaps of a level of that size.
const COMPACTION_MAX: u64 = 512 << 20;
/// Tables in level 0 from which on no more are made for the sake of a short start. (At 30 fjall stops.)
const L0_RUNS: usize = 12;
const FLUSH_POLL: Duration = Duration::from_micros(300);

struct Opened {
    database: Database,
    entries: Keyspace,
}

/// One fjall keyspace. Its journal is written with every batch but synced only at our checkpoints.
///
/// fjall takes no more batches once it has met a full disk; all that was applied is in its files then, and it can be
/// opened again.
pub(super) struct FjallEngine {
    dir: PathBuf,
    /// `None` while it cannot be opened again. Read recursively: a visitor of one range may read another.
    opened: RwLock<Option<Opened>>,
    /// Everything in the journal is in tables that are synced, too.
    settled: AtomicBool,
}

struct FjallSnapshot<'a> {
    snapshot: DatabaseSnapshot,
    opened: MappedRwLockReadGuard<'a, Opened>,
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
    match why {
        fjall::Error::Io(source) => Error::Io {
            what: "open the engine in",
            path: dir.to_owned(),
            source,
        },
        fjall::Error::JournalRecovery(why) => {
            let newest = journals(dir).into_iter().max();
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

/// The journals in `dir` with their numbers.
fn journals(dir: &Path) -> Vec<(u64, PathBuf)> {
    let journal = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let name = path.file_name()?.to_str()?;
        let number = name.strip_suffix(".jnl")?.parse().ok()?;
        Some((number, path))
    };
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(journal).collect()
}

/// Bytes of disk that the files in `dir` take.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * 512
}

fn open(dir: &Path) -> Result<Opened, Error> {
    let opening = |why| cannot_open(dir, why);
    // Our log already holds what the journal would lose, so it is compressed by nobody and synced by us.
    let builder = Database::builder(dir)
        .manual_journal_persist(true)
        .worker_threads(WORKERS)
        .cache_size(CACHE_BYTES);
    let database = builder
        .journal_compression(CompressionType::None)
        .open()
        .map_err(opening)?;
    let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
    let entries = database.keyspace(KEYSPACE, options).map_err(opening)?;
    Ok(Opened { database, entries })
}

impl FjallEngine {
    pub(super) fn open(dir: &Path) -> Result<Self, Error> {
        Ok(Self {
            dir: dir.to_owned(),
            opened: RwLock::new(Some(open(dir)?)),
            settled: AtomicBool::new(false),
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        RwLockReadGuard::try_map(self.opened.read_recursive(), Option::as_ref)
            .map_err(|_| self.error("be used")(fjall::Error::Poisoned))
    }

    /// A failed write, told from a full disk. A background thread that fails leaves no reason behind but the disk.
    fn error(&self, what: &'static str) -> impl Fn(fjall::Error) -> Error {
        move |why| {
            let full = || Disk::of(&self.dir).is_ok_and(|disk| disk.available < disk.headroom());
            match why {
                fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
                    Error::Io {
                        what: "write the engine in",
                        path: self.dir.clone(),
                        source,
                    }
                }
                fjall::Error::Poisoned if full() => Error::NoSpace,
                why => error(what)(why),
            }
        }
    }

    /// Closes the database, whose lock keeps others from opening it, and empties its journal if that can be.
    fn close(&self, opened: &mut Option<Opened>) {
        *opened = None;
        if !self.settled.load(SeqCst) {
            return;
        }
        // All of it is in tables. fjall would read it, entry by entry, at the next start to find that out; it must find
        // a journal, though, or it would count from zero again.
        if let [(_, path)] = &journals(&self.dir)[..]
            && let Ok(journal) = OpenOptions::new().write(true).open(path)
        {
            let _ = journal.set_len(0);
        }
    }

    /// Bytes of disk that the journals take.
    fn journal_bytes(&self) -> u64 {
        let journals = journals(&self.dir).into_iter();
        let blocks = journals.filter_map(|(_, path)| Some(fs::metadata(path).ok()?.blocks()));
        blocks.sum::<u64>() * 512
    }
}

impl Drop for FjallEngine {
    fn drop(&mut self) {
        let mut opened = self.opened.get_mut().take();
        self.close(&mut opened);
    }
}

impl Engine for FjallEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.opened()?.entries.get(key).map_err(error("read"))?;
        Ok(found.map(Bytes::from))
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot + '_>, Error> {
        let opened = self.opened()?;
        Ok(Box::new(FjallSnapshot {
            snapshot: opened.database.snapshot(),
            opened,
        }))
    }

    fn apply(&self, changes: &Changes, seq: u64) -> Result<(), Error> {
        let opened = self.opened()?;
        self.settled.store(false, SeqCst);
        // Written through, so that opening again after a failure finds every batch that was applied.
        let mut batch = opened
            .database
            .batch()
            .durability(Some(PersistMode::Buffer));
        for (key, value) in changes.iter() {
            match value {
                Some(value) => batch.insert(&opened.entries, key.clone(), value.clone()),
                None => batch.remove(&opened.entries, key.clone()),
            }
        }
        batch.insert(&opened.entries, APPLIED, seq.to_le_bytes().as_slice());
        batch.commit().map_err(self.error("apply a batch"))
    }

    fn sync(&self) -> Result<(), Error> {
        if self.settled.load(SeqCst) {
            return Ok(());
        }
        let opened = self.opened()?;
        let poisoned = opened.database.persist(PersistMode::Buffer);
        poisoned.map_err(self.error("write its journal"))?;
        let synced = opened.database.persist(PersistMode::SyncAll);
        synced.map_err(error("sync its journal"))
    }

    fn reopen(&self) -> Result<(), Error> {
        let mut opened = self.opened.write();
        self.close(&mut opened);
        *opened = Some(open(&self.dir)?);
        Ok(())
    }

    fn room(&self, pending: u64) -> u64 {
        let Ok(opened) = self.opened() else { return 0 };
        let flushes = opened.database.write_buffer_size().saturating_add(pending);
        let tables = opened.entries.disk_space();
        let mut compaction = 0;
        if tables > 0 {
            // What a compaction under way has written, or left to be deleted, is taken from the disk already.
            let files = disk_bytes(&opened.entries.path().join(TABLES));
            let taken = files.saturating_sub(tables);
            compaction = tables
                .saturating_add(flushes)
                .min(COMPACTION_MAX)
                .saturating_sub(taken);
        }
        pending.saturating_add(flushes).saturating_add(compaction)
    }

    fn settle(&self, unsettled: u64) -> Result<bool, Error> {
        let opened = self.opened()?;
        let tree = &opened.entries.tree;
        if self.settled.load(SeqCst)
            || self.journal_bytes() <= unsettled
            || tree.l0_run_count() > L0_RUNS
        {
            return Ok(false);
        }
        opened
            .entries
            .rotate_memtable()
            .map_err(self.error("seal a memtable"))?;
        while tree.sealed_memtable_count() > 0 {
            // Fails when the thread that should flush it has.
            let alive = opened.database.persist(PersistMode::Buffer);
            alive.map_err(self.error("flush a memtable"))?;
            std::thread::sleep(FLUSH_POLL);
        }
        self.settled.store(true, SeqCst);
        Ok(true)
    }

    fn reclaim(&self, available: u64) -> Result<bool, Error> {
        let opened = self.opened()?;
        if opened.entries.disk_space() >= available {
            return Ok(false);
        }
        let done = opened.entries.major_compact();
        done.map_err(self.error("compact its tables"))
            .map(|()| true)
    }

    fn applied_seq(&self) -> Result<Option<u64>, Error> {
        let raw = self.opened()?.entries.get(APPLIED).map_err(error("read"))?;
        raw.map(|raw| decode_applied(&raw)).transpose()
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        // fjall counts a new journal with the size that it is made with, without blocks.
        Ok(self.opened()?.entries.disk_space() + self.journal_bytes())
    }

    fn is_persistent(&self) -> bool {
        true
    }
}

impl Snapshot for FjallSnapshot<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.snapshot.get(&self.opened.entries, key);
        Ok(found.map_err(error("read"))?.map(Bytes::from))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let entries = self
            .snapshot
            .range::<&[u8], _>(&self.opened.entries, (from, to));
        Box::new(entries.map(|guard| {
            let (key, value) = guard.into_inner().map_err(error("read a range"))?;
            Ok((key.into(), value.into()))
        }))
    }
}
