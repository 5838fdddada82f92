//! The engine sled: a lock-free tree over a log of its own.
//!
//! sled rewrites its files in any order, so a synced state does not stay one: after a crash a file may be of no use. So there
//! are two copies, in the directories `a` and `b`. One rests: it is synced, closed and untouched, and the checkpoint has the
//! sums of all its files. The other one is open for readers.
//!
//! Batches stay in memory, where readers look first, until a checkpoint puts them into the open copy. That copy then rests,
//! and the other one gets the batches, too, and is opened. So sled writes during a checkpoint only; when the disk is full
//! then, the batches are still in memory, and what has become of the open copy is overwritten with the one that rests.
//! After a crash the copy that was open is overwritten in the same way.
//!
//! sled has no snapshots. A snapshot here shares the batches in memory, and reads the open copy. Before a checkpoint
//! overwrites entries there, it keeps what they were for the snapshots that are left ([`Former`]).

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Bound;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use amino_schema::header::FileSum;
use amino_schema::key::APPLIED;
use bytes::Bytes;
use goanna_sys::withdraw::withdraw_writing;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::guard::{inside, open_files};
use super::overlaid::Overlaid;
use super::{Engine, Entry, Files, Snapshot, tree, visible_from};
use crate::changes::is_empty_range;
use crate::{Changes, Error};

const CACHE_BYTES: u64 = 64 << 20;
/// How often sled is made to write where it cannot, and how long the first time takes at most; each further time it is twice as long.
const FAIL_ATTEMPTS: u8 = 14;
const FAIL_PAUSE: Duration = Duration::from_millis(1);
/// The unit in bytes by which sled's log grows in new stores. sled makes a file of its own for each node that is larger than
/// a quarter of it; a node has up to 17 values, most of them pages of 16 KiB.
const SEGMENT: usize = 2 << 20;
/// Bytes by which a copy grows for each byte of a batch, at most. Measured: 2.2 to 2.9 on average, 4.0 for a single batch.
const GROWTH: u64 = 3;
/// Segments that sled has begun, or is about to clean, in bytes.
const BEGUN_SEGMENTS: u64 = 2 * SEGMENT as u64;
/// How long sled may write before the store checks whether a write has failed.
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// Where a new copy is made before it replaces the old one.
const REWRITTEN: &str = "new";
/// A key that no entry has.
const ABSENT: &[u8] = b"\0absent";
/// sled's log, which it holds locked while it is open.
const DB: &str = "db";
/// The file where sled says how its files are laid out, and the line there that has the size of a segment.
const LAYOUT: &str = "conf";
const SEGMENT_LINE: &str = "segment_size: ";

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

/// The copy that is open.
struct Opened {
    side: Side,
    database: sled::Db,
    /// Its files are new, so the other copy is made by copying them.
    is_rewritten: bool,
}

impl Opened {
    fn new(dir: &Path, side: Side) -> Result<Self, Error> {
        let database = open_database(&dir.join(side.name()))?;
        Ok(Self {
            side,
            database,
            is_rewritten: false,
        })
    }
}

/// What was applied since the last checkpoint, and what the last batch has left.
#[derive(Clone, Default)]
struct Recent {
    changes: Changes,
    applied: Option<Vec<u8>>,
}

/// Which copies there are to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// No copy rests before the first checkpoint.
    None,
    /// This one does.
    One(Side),
    /// The last checkpoint was made: both do.
    Both,
}

/// The copies, which snapshots share with the engine.
struct Copies {
    /// `None` after the last checkpoint, and after a failed one until it can be opened again. Read recursively: a visitor
    /// of one range may read another.
    opened: RwLock<Option<Opened>>,
    rest: Mutex<Rest>,
}

/// What a checkpoint overwrote in the files, for the snapshots that are older than it. A chain, oldest first: each snapshot
/// holds the link that was the last one when it was taken, so what no snapshot needs is freed.
#[derive(Default)]
struct Former(OnceLock<(Changes, Arc<Former>)>);

impl Former {
    /// What this link and those behind it have, oldest first.
    fn chain(&self) -> impl Iterator<Item = &Changes> {
        let link = std::iter::successors(self.0.get(), |(_, next)| next.0.get());
        link.map(|(changes, _)| changes)
    }
}

impl Drop for Former {
    fn drop(&mut self) {
        // A chain can be long: not by recursion.
        let mut next = self.0.take();
        while let Some(mut link) = next.and_then(|(_, link)| Arc::into_inner(link)) {
            next = link.0.take();
        }
    }
}

/// Two sled databases; one of them is open.
///
/// Lock order: `recent`, `former`, `copies.opened`, `copies.rest`.
pub(super) struct SledEngine {
    dir: PathBuf,
    recent: RwLock<Arc<Recent>>,
    /// The last link, which has nothing yet.
    former: Mutex<Arc<Former>>,
    copies: Arc<Copies>,
}

struct SledSnapshot {
    recent: Arc<Recent>,
    /// What checkpoints have overwritten since. To be looked at after the copy was read: it is there before the copy changes.
    former: Arc<Former>,
    copies: Arc<Copies>,
}

/// Entries that a snapshot's range takes from the open copy at a time.
const RANGE_CHUNK: usize = 256;

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

fn closed(what: &'static str) -> Error {
    Error::Engine {
        engine: "sled",
        what,
        why: "it is closed".to_owned(),
    }
}

fn owned(value: &sled::IVec) -> Bytes {
    Bytes::copy_from_slice(value)
}

/// The size of the segments of the copy in `dir`: that cannot be changed later.
fn segment_size(dir: &Path) -> usize {
    let layout = fs::read_to_string(dir.join(LAYOUT)).unwrap_or_default();
    let size = layout
        .lines()
        .find_map(|line| line.strip_prefix(SEGMENT_LINE)?.trim().parse().ok());
    size.unwrap_or(SEGMENT)
}

fn open_database(dir: &Path) -> Result<sled::Db, Error> {
    // Its own periodic flush would be a second, pointless durability: the log has it all until a checkpoint.
    let config = sled::Config::new()
        .path(dir)
        .segment_size(segment_size(dir))
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None);
    open_files("sled", dir, move || config.open())?.map_err(|why| match why {
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

/// Writes `recent` to the files of `database`, as [`write_by`] does.
fn write(database: &sled::Db, recent: &Recent) -> Result<Result<(), Error>, Error> {
    let Some(applied) = &recent.applied else {
        return Ok(Ok(()));
    };
    write_by(database, || {
        // Not as sled's batch, which blocks all other operations: no reader sees a part of it, and no crash leaves one.
        for (key, value) in recent.changes.iter() {
            match value {
                Some(value) => database.insert(&key[..], &value[..])?,
                None => database.remove(&key[..])?,
            };
        }
        database.insert(APPLIED, &applied[..]).map(drop)
    })
}

/// Makes `put` change `database`, and returns when the changes are in its files. Fails without a change when there is no thread to
/// do so; the inner result tells whether the change was made.
fn write_by(
    database: &sled::Db,
    put: impl FnOnce() -> sled::Result<()> + Send,
) -> Result<Result<(), Error>, Error> {
    let (done, ended) = mpsc::channel();
    let change = move || done.send(inside(|| put().and_then(|()| database.flush())));
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("sled-write".to_owned());
        let spawned = writer.spawn_scoped(scope, change);
        spawned.map_err(Error::io("start a thread for", Path::new(DB)))?;
        loop {
            match ended.recv_timeout(WRITE_PAUSE) {
                // sled does not always wake a thread that waits for a write which fails. A change by another thread does.
                Err(RecvTimeoutError::Timeout) => drop(database.remove(ABSENT)),
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(closed("write a batch"))),
                Ok(Ok(written)) => return Ok(written.map(drop).map_err(error("write a batch"))),
                Ok(Err(panic)) => resume_unwind(panic),
            }
        }
    })
}

/// Makes the directory `to` a database of `live` bytes with the entries of `from`.
fn rewrite(from: &sled::Db, to: &Path, live: u64) -> Result<(), Error> {
    let database = open_database(to)?;
    let written = tree::allocate_behind(&to.join(DB), grown(live)).and_then(|()| {
        write_by(&database, || {
            for entry in from.iter() {
                let (key, value) = entry?;
                database.insert(key, value)?;
            }
            Ok(())
        })
        .flatten()
    });
    match written {
        Ok(()) => close(to, database),
        Err(error) => abandon(to, database).and(Err(error)),
    }
}

/// Bytes by which a copy grows with `bytes` of batches.
fn grown(bytes: u64) -> u64 {
    bytes.saturating_mul(GROWTH).saturating_add(BEGUN_SEGMENTS)
}

/// Returns when no thread of sled has the files any more, and they are on disk.
fn close(dir: &Path, database: sled::Db) -> Result<(), Error> {
    if let Err(error) = write_by(&database, || Ok(()))? {
        abandon(dir, database)?;
        return Err(error);
    }
    drop(database);
    wait_for_close(dir)?;
    tree::trim(&dir.join(DB))?;
    // flush() ends in sync_file_range(2), which writes no metadata and no disk cache out.
    tree::sync_tree(dir).map_err(Error::io("sync", dir))
}

/// Closes a database that could not write, whose files are of no use any more.
///
/// sled flushes when it is closed. It waits forever then if a file that it makes for a large node could not be written: the
/// buffer of its log that refers to this file stays incomplete, and sled records no error. It records one when a write of its log fails, and
/// from then on nothing in it waits. So the log is made read-only first, and sled to write there.
fn abandon(dir: &Path, database: sled::Db) -> Result<(), Error> {
    let path = dir.join(DB);
    let log = File::open(&path).map_err(Error::io("open", &path))?;
    let withdrawn = withdraw_writing(&log).and_then(|descriptors| match descriptors {
        0 => Err(ErrorKind::NotFound.into()),
        _ => log.lock(),
    });
    withdrawn.map_err(Error::io("withdraw", &path))?;
    // sled's descriptor shares the lock.
    drop(log);
    if fail(&database).is_ok() {
        drop(database);
        return wait_for_close(dir);
    }
    std::mem::forget(database);
    Err(Error::Engine {
        engine: "sled",
        what: "close its files",
        why: "it does not notice that it cannot write".to_owned(),
    })
}

/// Has sled write to its log, where it cannot, until it has recorded the error.
fn fail(database: &sled::Db) -> Result<(), Error> {
    let mut pause = FAIL_PAUSE;
    for number in 0..FAIL_ATTEMPTS {
        if database.context.global_error().is_err() {
            // Wakes the threads that wait for a write.
            let _ = database.open_tree(ABSENT);
            return Ok(());
        }
        let database = database.clone();
        // A new tree is small, so it goes to the log. The first buffer of the log may be the incomplete one, for which flush() waits
        // until there is an error.
        let attempt = move || {
            let _ = database.open_tree([ABSENT, &[number]].concat());
            let _ = database.flush();
        };
        let spawned = thread::Builder::new()
            .name("sled-end".to_owned())
            .spawn(attempt);
        spawned.map_err(|source| Error::io("start a thread for", Path::new(DB))(source))?;
        thread::sleep(pause);
        pause *= 2;
    }
    Err(Error::NoSpace)
}

/// Returns when sled has closed its files. It does so when the calls have ended that its threads are in.
fn wait_for_close(dir: &Path) -> Result<(), Error> {
    let path = dir.join(DB);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    file.lock().map_err(Error::io("lock", &path))
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

impl Copies {
    /// The open copy. Fails after the last checkpoint, and while a full disk keeps the copy from being opened again.
    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        RwLockReadGuard::try_map(self.opened.read_recursive(), Option::as_ref).map_err(|_| {
            match *self.rest.lock() {
                Rest::Both => closed("be used"),
                _ => Error::NoSpace,
            }
        })
    }
}

impl SledEngine {
    pub(super) fn open(dir: &Path, listed: Option<&[FileSum]>) -> Result<Self, Error> {
        let listed = listed.unwrap_or_default();
        remove(&dir.join(REWRITTEN))?;
        let (side, rest) = if listed.is_empty() {
            adopt(dir)?;
            (Side::A, Rest::None)
        } else {
            let side = choose(dir, listed)?;
            (side, Rest::One(side.other()))
        };
        Ok(Self {
            dir: dir.to_owned(),
            recent: RwLock::default(),
            former: Mutex::default(),
            copies: Arc::new(Copies {
                opened: RwLock::new(Some(Opened::new(dir, side)?)),
                rest: Mutex::new(rest),
            }),
        })
    }

    fn opened(&self) -> Result<MappedRwLockReadGuard<'_, Opened>, Error> {
        self.copies.opened()
    }

    /// Keeps what `recent` will overwrite in `opened` for the snapshots that are left, if any are.
    fn keep_former(&self, recent: &Recent, opened: &Opened) -> Result<(), Error> {
        let mut last = self.former.lock();
        if Arc::strong_count(&last) == 1 {
            return Ok(());
        }
        let mut former = Changes::new();
        former.set(APPLIED.into(), opened.get(APPLIED)?);
        for (key, _) in recent.changes.iter() {
            former.set(key.clone(), opened.get(key)?);
        }
        let next = Arc::<Former>::default();
        // The last link is empty.
        let _ = last.0.set((former, Arc::clone(&next)));
        *last = next;
        Ok(())
    }

    fn copy(&self, side: Side) -> PathBuf {
        self.dir.join(side.name())
    }

    /// Bytes by which each copy grows at the next checkpoint, with `pending` bytes of batches to come.
    fn growth(&self, pending: u64) -> u64 {
        let recent = self.recent.read_recursive().changes.byte_size() as u64;
        grown(recent.saturating_add(pending))
    }

    /// Allocates what a checkpoint needs behind the end of both copies, which does not change what is in them: sled must not
    /// meet a full disk.
    fn allocate(&self) -> Result<(), Error> {
        let growth = self.growth(0);
        let log = |side| self.copy(side).join(DB);
        let end = Side::BOTH.map(|side| tree::len(&log(side)));
        let end = end.into_iter().max().unwrap_or(0).saturating_add(growth);
        let allocated = Side::BOTH
            .into_iter()
            .try_for_each(|side| tree::allocate_behind(&log(side), end));
        // The open copy, which sled may change, keeps what it has got for the next time.
        if allocated.is_err()
            && let Rest::One(side) = *self.copies.rest.lock()
        {
            tree::trim(&log(side))?;
        }
        allocated
    }

    /// Writes recent changes to the open copy. Readers continue: they find the recent changes or the old state.
    fn settle(&self) -> Result<(), Error> {
        let recent = self.recent.read_recursive();
        if recent.applied.is_none() {
            return Ok(());
        }
        self.allocate()?;
        let opened = self.opened()?;
        self.keep_former(&recent, &opened)?;
        let written = write(&opened.database, &recent)?;
        drop((opened, recent));
        if written.is_err() {
            self.lose()?;
        }
        written
    }

    /// Closes the open copy, which is of no use any more.
    fn lose(&self) -> Result<(), Error> {
        match self.copies.opened.write().take() {
            Some(Opened { side, database, .. }) => abandon(&self.copy(side), database),
            None => Ok(()),
        }
    }

    /// Opens the copy beside the one of `rested`, which has everything recent, with everything that one has.
    fn catch_up(&self, rested: Side, recent: &Recent, by_copying: bool) -> Result<Opened, Error> {
        let side = rested.other();
        if by_copying {
            tree::overwrite_tree(&self.dir, rested.name(), side.name())?;
        }
        let opened = Opened::new(&self.dir, side)?;
        if !by_copying && let Err(error) = write(&opened.database, recent)? {
            abandon(&self.copy(side), opened.database)?;
            return Err(error);
        }
        Ok(opened)
    }

    /// Whether the open copy has much that was deleted, and how many bytes were not.
    fn is_worth_rewriting(&self, available: u64) -> Result<Option<u64>, Error> {
        let opened = self.opened()?;
        let mut live = 0_u64;
        for entry in opened.database.iter() {
            let (key, value) = entry.map_err(error("read a range"))?;
            live += (key.len() + value.len()) as u64;
        }
        let size = tree::len(&self.copy(opened.side).join(DB));
        let worth = size / 2 > grown(live) && available > grown(live);
        Ok(worth.then_some(live))
    }
}

/// Removes a directory if there is one.
fn remove(dir: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("remove", dir)(error)),
        _ => Ok(()),
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
    tree::overwrite_tree(dir, side.other().name(), side.name())?;
    Ok(side)
}

impl Engine for SledEngine {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let recent = self.recent.read_recursive();
        let opened = self.opened()?;
        recent.change(key).map_or_else(|| opened.get(key), Ok)
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, Error> {
        let recent = self.recent.read_recursive();
        drop(self.opened()?);
        Ok(Box::new(SledSnapshot {
            recent: Arc::clone(&recent),
            former: Arc::clone(&self.former.lock()),
            copies: Arc::clone(&self.copies),
        }))
    }

    fn apply(&self, changes: &Changes, applied: &[u8]) -> Result<(), Error> {
        let mut recent = self.recent.write();
        drop(self.opened()?);
        let recent = Arc::make_mut(&mut recent);
        recent.changes.merge(changes.clone());
        recent.applied = Some(applied.to_vec());
        Ok(())
    }

    fn checkpoint(
        &self,
        last: bool,
        publish: &mut dyn FnMut(Vec<FileSum>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Copies { opened, rest } = &*self.copies;
        if *rest.lock() == Rest::Both {
            // The last checkpoint was made; nothing can have changed.
            return Ok(());
        }
        self.settle()?;
        let mut recent = self.recent.write();
        let mut opened = opened.write();
        let Opened {
            side,
            database,
            is_rewritten,
        } = opened.take().ok_or(Error::NoSpace)?;
        close(&self.copy(side), database)?;
        let mut relied_on = tree::sums(&self.dir, side.name())?;
        if let Err(error) = publish(relied_on.clone()) {
            *opened = Some(Opened {
                is_rewritten,
                ..Opened::new(&self.dir, side)?
            });
            return Err(error);
        }
        let former = std::mem::replace(&mut *rest.lock(), Rest::One(side));
        let recent = std::mem::take(&mut *recent);
        let by_copying = is_rewritten || former == Rest::None;
        let current = self.catch_up(side, &recent, by_copying)?;
        if !last {
            *opened = Some(current);
            return Ok(());
        }
        let other = current.side;
        close(&self.copy(other), current.database)?;
        relied_on.extend(tree::sums(&self.dir, other.name())?);
        *rest.lock() = Rest::Both;
        publish(relied_on)
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

impl Files for SledEngine {
    fn reopen(&self) -> Result<(), Error> {
        let mut opened = self.copies.opened.write();
        let Rest::One(side) = *self.copies.rest.lock() else {
            return Ok(());
        };
        if opened.is_none() {
            let side = replace(&self.dir, side.other())?;
            *opened = Some(Opened::new(&self.dir, side)?);
        }
        Ok(())
    }

    fn space_needed(&self, pending: u64) -> u64 {
        let growth = self.growth(pending);
        let missing = |side| growth.saturating_sub(tree::spare(&self.copy(side).join(DB)));
        Side::BOTH.into_iter().map(missing).sum()
    }

    fn space_per_byte(&self) -> u64 {
        2 * GROWTH
    }

    fn reclaim(&self, available: u64) -> Result<bool, Error> {
        let is_settled = self.recent.read_recursive().applied.is_none();
        if !is_settled || !matches!(*self.copies.rest.lock(), Rest::One(_)) {
            return Ok(false);
        }
        let Some(live) = self.is_worth_rewriting(available)? else {
            return Ok(false);
        };
        let path = self.dir.join(REWRITTEN);
        let rewritten = rewrite(&self.opened()?.database, &path, live);
        if rewritten.is_err() {
            remove(&path)?;
            return rewritten.map(|()| false);
        }
        let mut opened = self.copies.opened.write();
        let Opened { side, database, .. } = opened.take().ok_or(Error::NoSpace)?;
        close(&self.copy(side), database)?;
        remove(&self.copy(side))?;
        fs::rename(&path, self.copy(side)).map_err(Error::io("rename", &path))?;
        *opened = Some(Opened {
            is_rewritten: true,
            ..Opened::new(&self.dir, side)?
        });
        Ok(true)
    }

    fn size_on_disk(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        for side in Side::BOTH {
            for name in tree::names(&self.dir, side.name())? {
                let path = self.dir.join(&name);
                // sled's threads remove snapshots and blobs that a newer one replaces.
                bytes += fs::metadata(&path).map_or(0, |found| found.len());
            }
        }
        Ok(bytes)
    }

    fn changes_by_itself(&self) -> bool {
        true
    }
}

impl Recent {
    /// What the batches in memory say about `key`: nothing, its deletion, or its value.
    fn change(&self, key: &[u8]) -> Option<Option<Bytes>> {
        match &self.applied {
            Some(applied) if key == APPLIED => Some(Some(Bytes::copy_from_slice(applied))),
            _ => self.changes.get(key).map(Option::<&Bytes>::cloned),
        }
    }
}

impl Opened {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        let found = self.database.get(key).map_err(error("read"))?;
        Ok(found.as_ref().map(owned))
    }
}

impl SledSnapshot {
    /// The first entries within the bounds, and the key up to which they are complete, if not to the end.
    fn chunk(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<(Vec<Entry>, Option<Bytes>), Error> {
        let entries = self
            .copies
            .opened()?
            .database
            .range::<&[u8], _>((from, to))
            .take(RANGE_CHUNK)
            .map(|entry| entry.map(|(key, value)| (owned(&key), owned(&value))))
            .collect::<Result<Vec<_>, _>>()
            .map_err(error("read a range"))?;
        let last = entries.last().filter(|_| entries.len() == RANGE_CHUNK);
        let complete_to = last.map(|(key, _)| key.clone());
        let to = complete_to.as_deref().map_or(to, Bound::Included);
        let former: Vec<_> = self.former.chain().collect();
        // What comes later counts: the oldest of what was overwritten, and above it what was in memory.
        let above = former.into_iter().rev().chain([&self.recent.changes]);
        let changes: Changes = above
            .flat_map(|changes| changes.range(from, to))
            .map(|(key, value)| (key.clone(), value.cloned()))
            .collect();
        let entries = Overlaid::new(entries.into_iter().map(Ok), changes.iter());
        Ok((entries.collect(), complete_to))
    }
}

impl Snapshot for SledSnapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Error> {
        if let Some(value) = self.recent.change(key) {
            return Ok(value);
        }
        let current = self.copies.opened()?.get(key)?;
        let former = self.former.chain().find_map(|changes| changes.get(key));
        Ok(former.map_or(current, Option::<&Bytes>::cloned))
    }

    fn range(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Box<dyn Iterator<Item = Entry> + '_> {
        let to = to.map(<[u8]>::to_vec);
        let mut next = Some(visible_from(from).map(<[u8]>::to_vec));
        let chunks = std::iter::from_fn(move || {
            let from = next.take()?;
            let (from, to) = (
                from.as_ref().map(Vec::as_slice),
                to.as_ref().map(Vec::as_slice),
            );
            if is_empty_range(from, to) {
                return None;
            }
            match self.chunk(from, to) {
                Ok((entries, complete_to)) => {
                    next = complete_to.map(|key| Bound::Excluded(key.to_vec()));
                    Some(entries)
                }
                Err(error) => Some(vec![Err(error)]),
            }
        });
        Box::new(chunks.flatten())
    }
}
