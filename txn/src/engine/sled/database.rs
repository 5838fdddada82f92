//! Opens, writes and closes one sled database, also when the disk is full.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use amino_schema::key::APPLIED;
use bytes::Bytes;
use goanna_sys::withdraw::withdraw_writing;

use super::recent::Recent;
use crate::Error;
use crate::engine::panics::{inside, open_files};
use crate::engine::tree;
use crate::space::Disk;

const CACHE_BYTES: u64 = 64 << 20;
/// Maximum number of attempts to make sled write where it cannot, and the time limit of the first one; it doubles with each further attempt.
const FAIL_ATTEMPTS: u8 = 14;
const FAIL_PAUSE: Duration = Duration::from_millis(1);
/// The unit in bytes by which sled's log grows in new stores. sled makes a file of its own for each node that is larger than
/// a quarter of it; a node has up to 17 values, most of them pages of 16 KiB.
const SEGMENT: usize = 2 << 20;
/// Bytes by which a copy grows for each byte of a batch, at most. Measured: 2.2 to 2.9 on average, 4.0 for a single batch.
pub(super) const GROWTH: u64 = 3;
/// Segments that sled has begun, or is about to clean, in bytes.
const BEGUN_SEGMENTS: u64 = 2 * SEGMENT as u64;
/// How long sled may write before the store checks whether a write has failed.
const WRITE_PAUSE: Duration = Duration::from_millis(500);
/// How long a write may take on a full disk before the store ends it. Writes that end by themselves take less.
const STALL: Duration = Duration::from_secs(5);
/// How long a database that was closed may stay locked, and how often an open looks.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
/// A key that no entry has.
const ABSENT: &[u8] = b"\0absent";
/// sled's log, which it holds locked while it is open.
pub(super) const DB: &str = "db";
/// The file in which sled records the layout of its files, and the key of its line with the size of a segment.
const LAYOUT: &str = "conf";
const SEGMENT_LINE: &str = "segment_size: ";

pub(super) fn error(what: &'static str) -> impl Fn(sled::Error) -> Error {
    move |why| match why {
        sled::Error::Io(source) if Error::is_full(&source) => Error::NoSpace,
        why => Error::Engine {
            engine: "sled",
            what,
            why: why.to_string(),
        },
    }
}

pub(super) fn closed(what: &'static str) -> Error {
    Error::Engine {
        engine: "sled",
        what,
        why: "it is closed".to_owned(),
    }
}

pub(super) fn owned(value: &sled::IVec) -> Bytes {
    Bytes::copy_from_slice(value)
}

/// The size of the segments of the copy in `dir`, which cannot be changed later.
fn segment_size(dir: &Path) -> usize {
    let layout = fs::read_to_string(dir.join(LAYOUT)).unwrap_or_default();
    let size = layout
        .lines()
        .find_map(|line| line.strip_prefix(SEGMENT_LINE)?.trim().parse().ok());
    size.unwrap_or(SEGMENT)
}

/// Whether the database is open: the store's own lock shows that it is in this process, where a thread of sled's has not dropped it yet.
fn is_locked(why: &sled::Error) -> bool {
    matches!(why, sled::Error::Io(source) if source.to_string().contains("could not acquire lock"))
}

pub(super) fn open_database(dir: &Path) -> Result<sled::Db, Error> {
    // sled's periodic flush is not needed: the log has all changes until a checkpoint.
    let config = sled::Config::new()
        .path(dir)
        .segment_size(segment_size(dir))
        .cache_capacity(CACHE_BYTES)
        .flush_every_ms(None);
    let until = Instant::now() + CLOSE_LIMIT;
    let open = move || {
        loop {
            match config.open() {
                Err(why) if is_locked(&why) && Instant::now() < until => thread::sleep(CLOSE_PAUSE),
                result => return result,
            }
        }
    };
    open_files("sled", dir, open)?.map_err(|why| match why {
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
pub(super) fn write(database: &sled::Db, recent: &Recent) -> Result<Result<(), Error>, Error> {
    let Some(applied) = &recent.applied else {
        return Ok(Ok(()));
    };
    write_by(database, || {
        // sled's batches block all other operations, and are not needed: no reader sees a part of the change, and no crash leaves one.
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
/// do so; the inner result is that of the change.
fn write_by(
    database: &sled::Db,
    put: impl FnOnce() -> sled::Result<()> + Send,
) -> Result<Result<(), Error>, Error> {
    let dir = database.context.get_path();
    let is_full = || Disk::of(&dir).is_ok_and(|disk| disk.available < BEGUN_SEGMENTS);
    write_or_end(database, put, is_full)
}

/// The same; `is_full` returns whether the disk is full.
///
/// sled also makes files for large nodes when it moves old ones on threads of its own, which drop the error. The log's buffer that refers to such
/// a file stays incomplete, and flush() waits for it forever (see [`abandon`]). So a write that takes long is ended if the disk was full meanwhile.
fn write_or_end(
    database: &sled::Db,
    put: impl FnOnce() -> sled::Result<()> + Send,
    is_full: impl Fn() -> bool,
) -> Result<Result<(), Error>, Error> {
    let (done, ended) = mpsc::channel();
    let change = move || done.send(inside(|| put().and_then(|()| database.flush())));
    thread::scope(|scope| {
        let writer = thread::Builder::new().name("sled-write".to_owned());
        let spawned = writer.spawn_scoped(scope, change);
        spawned.map_err(Error::io("start a thread for", Path::new(DB)))?;
        let begun = Instant::now();
        let (mut was_full, mut is_ended) = (false, false);
        loop {
            match ended.recv_timeout(WRITE_PAUSE) {
                Err(RecvTimeoutError::Timeout) => {
                    // sled does not always wake a thread that waits for a write which fails. A change by another thread does.
                    drop(database.remove(ABSENT));
                    was_full |= is_full();
                    if was_full && !is_ended && begun.elapsed() >= STALL {
                        is_ended = withdraw(&database.context.get_path(), database)
                            .and_then(|()| fail(database))
                            .is_ok();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(Err(closed("write a batch"))),
                Ok(Ok(Err(_))) if is_ended => return Ok(Err(Error::NoSpace)),
                Ok(Ok(written)) => return Ok(written.map(drop).map_err(error("write a batch"))),
                Ok(Err(panic)) => resume_unwind(panic),
            }
        }
    })
}

/// Makes the directory `to` a database of `live` bytes with the entries of `from`.
pub(super) fn rewrite(from: &sled::Db, to: &Path, live: u64) -> Result<(), Error> {
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
pub(super) fn grown(bytes: u64) -> u64 {
    bytes.saturating_mul(GROWTH).saturating_add(BEGUN_SEGMENTS)
}

/// Returns when no thread of sled has the files open any more, and they are on disk. They can be opened on a full disk then.
pub(super) fn close(dir: &Path, database: sled::Db) -> Result<(), Error> {
    if let Err(error) = write_by(&database, || Ok(()))? {
        abandon(dir, database)?;
        return Err(error);
    }
    drop(database);
    wait_for_close(dir)?;
    // When sled opens a log that has grown, it writes a file with the places of all nodes, and overwrites the rest of the last segment. After
    // that, an open writes nothing that takes space.
    drop(open_database(dir)?);
    wait_for_close(dir)?;
    tree::trim(&dir.join(DB))?;
    // flush() ends in sync_file_range(2), which neither writes metadata nor flushes the disk's cache.
    tree::sync_tree(dir).map_err(Error::io("sync", dir))
}

/// Closes a database that could not write, and whose files are therefore unusable.
///
/// sled flushes when it is closed. It waits forever then if a file that it makes for a large node could not be written: the
/// buffer of its log that refers to this file stays incomplete, and sled records no error. It records one when a write of its log fails, and
/// from then on nothing in it waits. Therefore the log is made read-only first, and then sled is made to write to it.
pub(super) fn abandon(dir: &Path, database: sled::Db) -> Result<(), Error> {
    withdraw(dir, &database)?;
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

/// Makes the log of `database` read-only, unless it is already.
fn withdraw(dir: &Path, database: &sled::Db) -> Result<(), Error> {
    let path = dir.join(DB);
    let log = File::open(&path).map_err(Error::io("open", &path))?;
    let withdrawn = withdraw_writing(&log).and_then(|descriptors| match descriptors {
        0 if database.context.global_error().is_err() => Ok(()),
        0 => Err(ErrorKind::NotFound.into()),
        // sled's descriptor shares the lock.
        _ => log.lock(),
    });
    withdrawn.map_err(Error::io("withdraw", &path))
}

/// Makes sled try to write to its read-only log until it has recorded the error.
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

/// Returns when sled has closed its files, which it does after its threads' current calls.
fn wait_for_close(dir: &Path) -> Result<(), Error> {
    let path = dir.join(DB);
    let file = File::open(&path).map_err(Error::io("open", &path))?;
    file.lock().map_err(Error::io("lock", &path))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// The write waited forever.
    #[test]
    fn a_write_behind_a_lost_file_of_a_large_node_ends() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        let database = open_database(&copy).unwrap();
        database.insert("small", "value").unwrap();
        // No file can be made there.
        let files = copy.join("blobs");
        fs::remove_dir_all(&files).unwrap();
        fs::write(&files, "").unwrap();
        let large = vec![1; SEGMENT];
        assert!(database.insert("large", large).is_err());
        let begun = Instant::now();
        let written = write_or_end(&database, || Ok(()), || true).unwrap();
        assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
        assert!(begun.elapsed() >= STALL);
        abandon(&copy, database).unwrap();
    }

    /// The disk can be full when a copy is opened.
    #[test]
    fn an_open_of_a_closed_copy_takes_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let sums = || tree::sums(dir.path(), "copy").unwrap();
        let copy = dir.path().join("copy");
        let mut rng = fastrand::Rng::with_seed(1);
        // The log ends in the first segment, and in later ones, at different places.
        for count in [1, 100, 41, 350, 7] {
            let database = open_database(&copy).unwrap();
            for number in 0..count {
                let value: Vec<u8> = std::iter::repeat_with(|| rng.u8(..))
                    .take(16 << 10)
                    .collect();
                database
                    .insert([count, number].map(u32::to_be_bytes).concat(), value)
                    .unwrap();
            }
            close(&copy, database).unwrap();
            let closed = sums();
            drop(open_database(&copy).unwrap());
            wait_for_close(&copy).unwrap();
            assert!(sums() == closed, "{count}");
        }
    }
}
