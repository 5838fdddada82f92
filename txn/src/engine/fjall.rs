//! The engine fjall: log-structured merge trees.
//!
//! Its journal is written with every batch and never synced for a batch: the store's log has all changes that the journal may lose.
//! At a checkpoint everything is in tables, or, after few changes, in synced journals, of which the checkpoint records the length
//! and the sum. When the engine is opened, the rest of the journals is dropped: fjall refuses a journal with a damaged tail, and
//! the log is replayed anyway.

use std::fs::{self, OpenOptions};
use std::io;
use std::mem;
use std::ops::Bound;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use amino_schema::header::FileSum;
use amino_schema::holdings::Sum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use fjall::{
    AbstractTree, AnyTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode,
    Snapshot as DatabaseSnapshot,
};
use lsm_tree::{Guard, Table};
use nix::unistd::{Whence, lseek};
use parking_lot::{MappedRwLockReadGuard, RwLock, RwLockReadGuard};

use super::panics::open_files;
use super::{Engine, Entry, Files, Reclaim, Snapshot, archive, files, visible_from};
use crate::changes::is_empty_range;
use crate::space::Disk;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
const KEYSPACE: &str = "amino";
/// The directory of fjall's keyspaces, and the file of each that names its present version.
const KEYSPACES: &str = "keyspaces";
const CURRENT: &str = "current";
/// The directory of a keyspace's tables.
const TABLES: &str = "tables";

/// One thread flushes while another compacts.
const WORKERS: usize = 2;
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

/// The tree, without the database, which holds the lock on the directory: so [`FjallEngine::reopen`] does not wait for snapshots.
///
/// The tree that is opened again may delete a file that the snapshot has not opened yet. Then reading the snapshot fails.
struct FjallSnapshot {
    /// Keeps fjall from dropping the versions of entries that the snapshot shows.
    version: DatabaseSnapshot,
    /// `None` only while it is dropped.
    tree: Option<AnyTree>,
    reopened: Arc<RwLock<Reopened>>,
    /// [`Reopened::count`] at the time of the snapshot.
    count: u64,
}

/// Tells snapshots of databases that have been closed whether they may delete files.
///
/// A snapshot that is the last to use a removed table deletes its file by its name, which is a number. The database that was opened
/// after that may have given the number again. Held shared while a snapshot is dropped, and exclusively while the database is opened
/// again, which fails when a file disappears meanwhile.
#[derive(Default)]
struct Reopened {
    /// How often the database was opened again.
    count: u64,
    /// Snapshots from before this count must delete no file.
    numbers_given_again: u64,
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

/// The journals in `dir` with their numbers.
fn journals(dir: &Path) -> Vec<(u64, PathBuf)> {
    let journal = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let number = journal_number(path.file_name()?.to_str()?)?;
        Some((number, path))
    };
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(journal).collect()
}

fn journal_name(number: u64) -> String {
    format!("{number}.jnl")
}

fn journal_number(name: &str) -> Option<u64> {
    name.strip_suffix(".jnl")?.parse().ok()
}

/// Bytes of a journal before the zeros that fjall makes it with.
fn journal_end(path: &Path) -> Result<u64, Error> {
    let failed = |error| Error::io("read", path)(error);
    let file = fs::File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let hole = lseek(&file, 0, Whence::SeekHole).map_or(size, |hole| hole.unsigned_abs());
    let mut end = hole.min(size);
    let mut chunk = [0; 4096];
    while end > 0 {
        let from = end.saturating_sub(chunk.len() as u64);
        let part = chunk.get_mut(..(end - from) as usize).unwrap_or_default();
        file.read_exact_at(part, from).map_err(failed)?;
        // The last byte of a batch is not zero.
        if let Some(last) = part.iter().rposition(|&byte| byte != 0) {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

/// The files without which fjall takes a keyspace for one that was never finished, and deletes it.
fn keyspaces(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(KEYSPACES)).into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names = numbers.map(|number| format!("{KEYSPACES}/{number}/{CURRENT}"));
    names.filter(|name| dir.join(name).exists()).collect()
}

/// Drops the part of the journals in `dir` after the checkpoint, which relied on `relied_on`. That part must be unchanged.
///
/// A journal that is shorter or missing is not damage in itself: fjall removes one whose batches are all in tables. If they are not,
/// the engine opens with fewer entries than the checkpoint has, which is detected.
fn truncate_journals(dir: &Path, relied_on: &[FileSum]) -> Result<(), Error> {
    if !dir.is_dir() {
        return Err(Error::Damaged {
            place: dir.display().to_string(),
            why: "this directory is missing".to_owned(),
        });
    }
    for (number, path) in journals(dir) {
        if !relied_on
            .iter()
            .any(|file| file.name == journal_name(number))
        {
            fs::remove_file(&path).map_err(Error::io("remove", &path))?;
        }
    }
    for file in relied_on {
        if file.name.ends_with(CURRENT) {
            check_present(&dir.join(&file.name))?;
        } else {
            truncate_journal(&dir.join(&file.name), file)?;
        }
    }
    if journals(dir).is_empty() {
        // fjall must find a journal, or it would count from zero again. This one has a number that the checkpoint does not list:
        // after a crash before the next checkpoint, it is not taken for a journal that the checkpoint relies on.
        let numbers = relied_on
            .iter()
            .filter_map(|file| journal_number(&file.name));
        let number = numbers.max().map_or(0, |number| number + 1);
        let path = dir.join(journal_name(number));
        fs::File::create(&path).map_err(Error::io("create", &path))?;
    }
    Ok(())
}

fn check_present(path: &Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    Err(Error::Damaged {
        place: path.display().to_string(),
        why: "this file is missing".to_owned(),
    })
}

/// Truncates the journal at `path` to the length that the checkpoint has recorded; removes it if it is shorter.
fn truncate_journal(path: &Path, FileSum { len, sum, .. }: &FileSum) -> Result<(), Error> {
    let found = match files::sum(path, *len) {
        Err(error) if error.is_not_found() => return Ok(()),
        found => found?,
    };
    match found {
        None => return fs::remove_file(path).map_err(Error::io("remove", path)),
        Some(found) if found == *sum => {}
        Some(_) => {
            return Err(Error::Damaged {
                place: path.display().to_string(),
                why: format!("its first {len} bytes are not what was written"),
            });
        }
    }
    let cut = OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|journal| {
            if journal.metadata()?.len() > *len {
                journal.set_len(*len)?;
            }
            Ok(())
        });
    cut.map_err(Error::io("cut", path))
}

/// A batch in a journal: its start (tag, count, number), its items, its end (tag, XXH3 of the items, these bytes).
const BATCH_START: usize = 1 + 4 + 8;
const BATCH_END: usize = 1 + 8 + 4;
const BATCH_MAGIC: &[u8] = b"FJL\x03";
/// Maximum number of places that look like the end of a batch and are tried as its end.
const ENDS_TRIED: usize = 256;

/// Removes damaged batches from the journals in `dir`, which is a copy: because of them fjall would refuse all batches.
pub(crate) fn remove_damaged_batches(dir: &Path) -> Result<(), Error> {
    for (_, path) in journals(dir) {
        let raw = fs::read(&path).map_err(Error::io("read", &path))?;
        fs::write(&path, whole_batches(&raw)).map_err(Error::io("write", &path))?;
    }
    Ok(())
}

fn whole_batches(raw: &[u8]) -> Vec<u8> {
    let len = BATCH_MAGIC.len();
    let windows = raw.windows(len).enumerate();
    let ends: Vec<_> = windows
        .filter(|(_, bytes)| *bytes == BATCH_MAGIC)
        .map(|(at, _)| at + len)
        .collect();
    let (mut whole, mut from, mut next) = (Vec::new(), 0, 0);
    while let Some(rest) = ends.get(next..).filter(|rest| !rest.is_empty()) {
        // An item may hold the same bytes.
        let end = rest
            .iter()
            .take(ENDS_TRIED)
            .position(|&end| raw.get(from..end).is_some_and(is_batch));
        let passed = end.unwrap_or(0);
        let to = rest.get(passed).copied().unwrap_or(raw.len());
        if end.is_some() {
            whole.extend_from_slice(raw.get(from..to).unwrap_or_default());
        }
        from = to;
        next += passed + 1;
    }
    whole
}

fn is_batch(raw: &[u8]) -> bool {
    let Some(items_end) = raw.len().checked_sub(BATCH_END) else {
        return false;
    };
    let Some(items) = raw.get(BATCH_START..items_end) else {
        return false;
    };
    let sum = raw.get(items_end + 1..items_end + 9);
    raw.first() == Some(&1) && sum == Some(&Sum::of(items).to_le_bytes()[..])
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
        // To open it again would undo a compaction in progress.
        let tables = if opened.database.active_compactions() == 0 {
            Self::stale_bytes(&opened)
        } else {
            0
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

impl Drop for FjallSnapshot {
    fn drop(&mut self) {
        let reopened = self.reopened.read();
        let tree = self.tree.take();
        if self.count < reopened.numbers_given_again {
            // The database has deleted the files, as it knows no tables with these numbers.
            mem::forget(tree);
        }
    }
}

impl Snapshot for FjallSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self
            .tree
            .as_ref()
            .map(|tree| tree.get(key, self.version.seqno()));
        let found = found.transpose().map_err(|why| error("read")(why.into()))?;
        Ok(found.flatten().map(Bytes::from))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let from = visible_from(from);
        if is_empty_range(from, to) {
            return Box::new(std::iter::empty());
        }
        let tree = self.tree.as_ref();
        let range = |tree: &AnyTree| tree.range::<&[u8], _>((from, to), self.version.seqno(), None);
        let entries = tree.map(range).into_iter().flatten();
        Box::new(entries.map(|guard| {
            let entry = guard.into_inner();
            let (key, value) = entry.map_err(|why| error("read a range")(why.into()))?;
            Ok((key.into(), value.into()))
        }))
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
