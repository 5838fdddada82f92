//! The engine fjall: log-structured merge trees.
//!
//! Its journal is written with every batch and never synced for a batch: the store's log has all changes that the journal may lose.
//! At a checkpoint everything is in tables, or, after few changes, in synced journals, of which the checkpoint records the length
//! and the sum. When the engine is opened, the rest of the journals is dropped: fjall refuses a journal with a damaged tail, and
//! the log is replayed anyway.

mod journals;
mod snapshot;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use amino_schema::header::FileSum;
use amino_schema::holdings::Sum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
};
use lsm_tree::Table;
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

pub(super) use self::journals::remove_damaged_batches;
use self::journals::{journal_end, journal_name, journals, keyspaces, truncate_journals};
use self::snapshot::{FjallSnapshot, Reopened};
use super::panics::open_files;
use super::{Engine, Files, Reclaim, Snapshot, archive, files};
use crate::space::Disk;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const KEYSPACE: &str = "amino";
/// The directory of fjall's keyspaces, and the file of each that names its present version.
const KEYSPACES: &str = "keyspaces";
const CURRENT: &str = "current";
/// The directory of a keyspace's tables.
const TABLES: &str = "tables";

/// Flushes and compactions take turns on one thread. Of several, the first leaves compactions to the others: while these are busy, it takes the message out of
/// the queue and puts it back all the time, which takes a CPU.
const WORKERS: usize = 1;
/// A compaction rewrites at most about this many bytes at a time: level 0, and the overlapping part of a level of that size.
const COMPACTION_MAX: u64 = 512 << 20;
/// A journal that the engine has to read at every start is emptied by the last checkpoint when it is longer than this.
const UNSETTLED_MAX: u64 = 512 << 10;
/// With this many tables in level 0, no more are made just to shorten the next start. (At 30 fjall stops writes.)
const L0_RUNS: usize = 12;
/// With less free space than this, besides that for the applied changes, a checkpoint relies on journals.
const FLUSH_SPACE: u64 = 8 << 20;
const FLUSH_POLL: Duration = Duration::from_micros(300);

struct Opened {
    database: Database,
    entries: Keyspace,
}

impl Opened {
    /// Whether removed tables had numbers above those of all others: when it is opened again, fjall goes on after the highest it finds.
    fn may_give_numbers_again(&self) -> bool {
        let tables = self.entries.tree.current_version();
        let highest = tables.iter_tables().map(Table::id).max().unwrap_or(0);
        highest + 1 < self.entries.tree.next_table_id()
    }
}

/// One fjall keyspace. Its journal is written with every batch but synced only at our checkpoints.
///
/// After an error of a full disk, fjall accepts no more batches. All applied batches are in its files then, and it can be opened
/// again.
pub(super) struct FjallEngine {
    dir: PathBuf,
    /// `None` while it cannot be opened again. Read recursively: a visitor of one range may read another.
    opened: RwLock<Option<Opened>>,
    /// Everything in the journal is also in synced tables, and the checkpoint relies on these alone.
    settled: AtomicBool,
    /// Whether the disk was nearly full at some batch since the engine was opened ([`FjallEngine::is_or_was_full`]).
    was_full: AtomicBool,
    /// Locked after `opened`.
    reopened: Arc<RwLock<Reopened>>,
}

fn error(what: &'static str) -> impl Fn(fjall::Error) -> Error {
    move |why| Error::Engine {
        engine: "fjall",
        what,
        why: format!("{why:?}"),
    }
}

/// The error with which the database in `dir` does not open. For damage in a journal it names the file.
fn cannot_open(dir: &Path, why: fjall::Error) -> Error {
    match why {
        fjall::Error::Io(source) => Error::io("open the engine in", dir)(source),
        fjall::Error::Storage(fjall::LsmError::Io(source)) if is_of_the_system(&source) => {
            Error::io("open the engine in", dir)(source)
        }
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

/// Whether the system call failed for a reason other than what is in the directory.
fn is_of_the_system(error: &io::Error) -> bool {
    error.raw_os_error().is_some() && error.kind() != io::ErrorKind::NotFound
}

/// Bytes of disk that the files in `dir` take.
fn disk_bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let blocks = entries.filter_map(|entry| Some(entry.ok()?.metadata().ok()?.blocks()));
    blocks.sum::<u64>() * 512
}

/// Checks the versions and tables of fjall, where fjall does not check them itself.
fn check_archives(dir: &Path) -> Result<(), Error> {
    let keyspaces = fs::read_dir(dir.join(KEYSPACES)).into_iter().flatten();
    for keyspace in keyspaces.filter_map(Result::ok) {
        archive::check_version(&keyspace.path(), CURRENT)?;
        archive::check_tables(&keyspace.path().join(TABLES))?;
    }
    Ok(())
}

fn open_database(dir: &Path) -> fjall::Result<Database> {
    // Our log already has all changes that the journal may lose, so the journal is not compressed, and the store syncs it.
    Database::builder(dir)
        .manual_journal_persist(true)
        .worker_threads(WORKERS)
        .cache_size(CACHE_BYTES)
        .journal_compression(CompressionType::None)
        .open()
}

fn open(dir: &Path) -> Result<Opened, Error> {
    check_archives(dir)?;
    let path = dir.to_owned();
    let opened = open_files("fjall", dir, move || {
        // fjall looks through its files and then deletes those that it does not know. It fails if one has disappeared meanwhile.
        let database = match open_database(&path) {
            Err(fjall::Error::Storage(fjall::LsmError::Io(why)))
                if why.kind() == io::ErrorKind::NotFound =>
            {
                open_database(&path)
            }
            result => result,
        }?;
        let options = || KeyspaceCreateOptions::default().manual_journal_persist(true);
        let entries = database.keyspace(KEYSPACE, options)?;
        Ok(Opened { database, entries })
    })?;
    opened.map_err(|why| cannot_open(dir, why))
}

impl FjallEngine {
    pub(super) fn open(dir: &Path, relied_on: Option<&[FileSum]>) -> Result<Self, Error> {
        if let Some(relied_on) = relied_on {
            truncate_journals(dir, relied_on)?;
        }
        Ok(Self {
            dir: dir.to_owned(),
            opened: RwLock::new(Some(open(dir)?)),
            settled: AtomicBool::new(false),
            was_full: AtomicBool::new(false),
            reopened: Arc::default(),
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        RwLockReadGuard::try_map(self.opened.read_recursive(), Option::as_ref)
            .map_err(|_| self.error("be used")(fjall::Error::Poisoned))
    }

    /// Whether the disk is nearly full, or was at some batch since the engine was opened.
    fn is_or_was_full(&self) -> bool {
        let full = Disk::of(&self.dir).is_ok_and(|disk| disk.available < disk.headroom());
        self.was_full.fetch_or(full, SeqCst) || full
    }

    /// Distinguishes a failed write from a full disk. When a background thread has failed, only the state of the disk shows the
    /// reason, and the disk may have free space again by now.
    fn error(&self, what: &'static str) -> impl Fn(fjall::Error) -> Error {
        move |why| match why {
            fjall::Error::Io(source) | fjall::Error::Storage(fjall::LsmError::Io(source)) => {
                Error::Io {
                    what: "write the engine in",
                    path: self.dir.clone(),
                    source,
                }
            }
            fjall::Error::Poisoned if self.is_or_was_full() => Error::NoSpace,
            why => error(what)(why),
        }
    }

    /// Closes the database, whose lock keeps others from opening it, and empties its journal if possible.
    fn close(&self, opened: &mut Option<Opened>) {
        *opened = None;
        if !self.settled.load(SeqCst) {
            return;
        }
        // All of the journal is in tables. At the next start fjall would read it entry by entry to find that out. It must find a
        // journal, though, or it would count from zero again.
        if let [(_, path)] = &journals(&self.dir)[..]
            && let Ok(journal) = OpenOptions::new().write(true).open(path)
        {
            let _ = journal.set_len(0);
        }
    }

    /// Writes the applied batches to tables, and waits for that.
    fn flush(&self, opened: &Opened) -> Result<(), Error> {
        let sealed = opened.entries.rotate_memtable();
        sealed.map_err(self.error("seal a memtable"))?;
        while opened.entries.tree.sealed_memtable_count() > 0 {
            // Fails when the flush has failed in its thread.
            let alive = opened.database.persist(PersistMode::Buffer);
            alive.map_err(self.error("flush a memtable"))?;
            std::thread::sleep(FLUSH_POLL);
        }
        Ok(())
    }

    /// Each journal, and how much of it the checkpoint needs. If all entries are in tables, that is 0, and only the newest journal must
    /// exist.
    fn relied_on(&self, flushed: bool) -> Result<Vec<FileSum>, Error> {
        let mut journals = journals(&self.dir);
        journals.sort_unstable();
        if flushed {
            journals.drain(..journals.len().saturating_sub(1));
        }
        let relied_on = journals.into_iter().map(|(number, path)| {
            let len = if flushed { 0 } else { journal_end(&path)? };
            Ok(FileSum {
                name: journal_name(number),
                len,
                sum: files::sum(&path, len)?.unwrap_or_default(),
            })
        });
        let mut relied_on: Vec<_> = relied_on.collect::<Result<_, Error>>()?;
        // It is enough that they exist.
        relied_on.extend(keyspaces(&self.dir).into_iter().map(|name| FileSum {
            name,
            len: 0,
            sum: Sum::of(b""),
        }));
        Ok(relied_on)
    }

    /// Bytes of files of tables that are replaced, but not yet deleted: fjall keeps them while an older version of its tables is in
    /// use. Files of a compaction in progress count, too.
    fn stale_bytes(opened: &Opened) -> u64 {
        let files = disk_bytes(&opened.entries.path().join(TABLES));
        files.saturating_sub(opened.entries.disk_space())
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

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let opened = self.opened()?;
        Ok(Box::new(FjallSnapshot {
            version: opened.database.snapshot(),
            tree: Some(opened.entries.tree.clone()),
            count: self.reopened.read().count,
            reopened: self.reopened.clone(),
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let opened = self.opened()?;
        self.settled.store(false, SeqCst);
        self.is_or_was_full();
        // Written to the kernel at once, so that a new open after a failure finds every applied batch.
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
        batch.insert(&opened.entries, APPLIED, applied);
        batch.commit().map_err(self.error("apply a batch"))
    }

    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let opened = self.opened()?;
        let mut flushed = self.settled.load(SeqCst);
        if !flushed {
            let little = self.journal_bytes() <= UNSETTLED_MAX
                || opened.entries.tree.l0_run_count() > L0_RUNS;
            let needed = opened.database.write_buffer_size().saturating_mul(2);
            let fits = Disk::of(&self.dir)?.available > needed.saturating_add(FLUSH_SPACE);
            flushed = fits && !(last && little);
            if flushed {
                self.flush(&opened)?;
            }
            let poisoned = opened.database.persist(PersistMode::Buffer);
            poisoned.map_err(self.error("write its journal"))?;
            let synced = opened.database.persist(PersistMode::SyncAll);
            synced.map_err(error("sync its journal"))?;
        }
        publish(self.relied_on(flushed)?)?;
        self.settled.store(flushed, SeqCst);
        Ok(())
    }

    fn applied(&self) -> Result<Option<Bytes>, Error> {
        self.get(APPLIED)
    }

    fn is_persistent(&self) -> bool {
        true
    }

    fn files(&self) -> Option<&dyn Files> {
        Some(self)
    }
}

/// Whether tables with only the present entries fit into `available` bytes. Reads at most about as many bytes of entries, and what
/// lies between them.
fn rewritten_fits(opened: &Opened, available: u64) -> Result<bool, Error> {
    let mut needed = opened.database.write_buffer_size().saturating_mul(2) + FLUSH_SPACE;
    for entry in opened.entries.iter() {
        let (key, value) = entry.into_inner().map_err(error("read a range"))?;
        let bytes = (key.len() + value.len()) as u64;
        // Tables have indexes and filters, too.
        needed += bytes + bytes / 8;
        if needed >= available {
            return Ok(false);
        }
    }
    Ok(needed < available)
}

impl Files for FjallEngine {
    fn reopen(&self) -> Result<(), Error> {
        let mut opened = self.opened.write();
        let mut reopened = self.reopened.write();
        reopened.count += 1;
        if opened.as_ref().is_some_and(Opened::may_give_numbers_again) {
            reopened.numbers_given_again = reopened.count;
        }
        self.close(&mut opened);
        *opened = Some(open(&self.dir)?);
        self.was_full.store(false, SeqCst);
        Ok(())
    }

    fn space_needed(&self, pending: u64) -> u64 {
        let Ok(opened) = self.opened() else { return 0 };
        let flushes = opened.database.write_buffer_size().saturating_add(pending);
        let tables = opened.entries.disk_space();
        let mut compaction = 0;
        if tables > 0 {
            // A compaction in progress has already taken the space for its output, and for files that are yet to be deleted.
            compaction = tables
                .saturating_add(flushes)
                .min(COMPACTION_MAX)
                .saturating_sub(Self::stale_bytes(&opened));
        }
        pending.saturating_add(flushes).saturating_add(compaction)
    }

    fn space_per_byte(&self) -> u64 {
        // A byte is written to the journal and to tables. The space for a compaction depends on the present tables.
        2
    }

    fn returnable(&self) -> u64 {
        let Ok(opened) = self.opened() else { return 0 };
        let journals = if self.settled.load(SeqCst) {
            self.journal_bytes()
        } else {
            0
        };
        // Snapshots may read the replaced tables, and a compaction in progress would be in vain.
        let in_use =
            Arc::strong_count(&self.reopened) > 1 || opened.database.active_compactions() > 0;
        let tables = if in_use {
            0
        } else {
            Self::stale_bytes(&opened)
        };
        journals.saturating_add(tables)
    }

    fn reclaim(&self, available: u64) -> Result<Reclaim, Error> {
        let opened = self.opened()?;
        if opened.entries.disk_space() >= available && !rewritten_fits(&opened, available)? {
            return Ok(Reclaim::NoSpace);
        }
        // A rewrite drops entries whose deletion is in tables, but not those whose deletion is only in memory.
        self.flush(&opened)?;
        let done = opened.entries.major_compact();
        done.map_err(self.error("compact its tables"))
            .map(|()| Reclaim::Done)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        // fjall counts a new journal with the size that it is made with, without blocks.
        Ok(self.opened()?.entries.disk_space() + self.journal_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots that are dropped delete the tables that only they use. The database that is opened meanwhile deletes them, too.
    #[test]
    fn snapshots_can_be_dropped_while_the_database_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let engine = FjallEngine::open(dir.path(), None).unwrap();
        for round in 0..8_u8 {
            let mut held = Vec::new();
            for applied in 0..8_u8 {
                let mut changes = Changes::new();
                changes.put(b"B".to_vec(), vec![round; 100]);
                engine.apply(&changes, &[round, applied]).unwrap();
                held.push(engine.snapshot().unwrap());
                assert_eq!(engine.reclaim(u64::MAX).unwrap(), Reclaim::Done);
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for snapshot in held {
                        std::thread::sleep(Duration::from_micros(300));
                        drop(snapshot);
                    }
                });
                engine.reopen().unwrap();
            });
            let found = engine.get(b"B").unwrap().unwrap();
            assert!(found == vec![round; 100]);
        }
    }
}
