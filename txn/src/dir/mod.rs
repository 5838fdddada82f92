//! The directory of a store: recognises, creates and locks it.
//!
//! The header `AMINO` makes a directory a store and is the last thing that creation writes. Until then `AMINO.new` marks the files
//! beside it as an incomplete store, so that an interrupted creation can be repeated. [`HeaderFile`] replaces the header of an open
//! store.

mod header;

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use amino_schema::header::{FORMAT, HEADER_LEN_MAX, Header, claimed_format};

pub(crate) use header::HeaderFile;

use crate::host::sync_dir;
use crate::{EngineKind, Error};

const HEADER: &str = "AMINO";
const NEW_HEADER: &str = "AMINO.new";
const NEXT_HEADER: &str = "AMINO.next";
const LOCK: &str = "lock";
/// Directory of the log's segments.
pub(crate) const LOG: &str = "log";
/// Directory of the engine's files.
pub(crate) const ENGINE: &str = "engine";

/// Maximum time that the holder of the lock takes to write its process id. On a full disk it cannot write it.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// The store's lock file. Dropping it releases the lock.
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

/// Reads the header of a store; `None` if `dir` does not exist, is empty, or holds an interrupted creation. The holder of the lock may
/// replace it at any time: read it again after taking the lock.
pub(crate) fn read_header(dir: &Path) -> Result<Option<Header>, Error> {
    let path = dir.join(HEADER);
    let raw = match header_bytes(&path) {
        Ok(raw) => raw,
        Err(error) if error.kind() == io::ErrorKind::NotFound => match check_unused(dir) {
            Ok(()) => return Ok(None),
            // Another process may just have finished making the store.
            Err(used) => header_bytes(&path).map_err(|_| used)?,
        },
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(Error::NotAStore {
                path: dir.to_owned(),
                why: "it is not a directory",
            });
        }
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    if let Some(found) = claimed_format(&raw).filter(|&found| found > FORMAT) {
        return Err(Error::NewerVersion {
            path: dir.to_owned(),
            found,
            supported: FORMAT,
        });
    }
    let header = Header::decode(&raw).map_err(|why| Error::Damaged {
        place: format!("{} at byte {}", path.display(), why.offset),
        why: why.why.to_owned(),
    })?;
    Ok(Some(header))
}

/// The header before the present one, or any other header that can be read; `None` if there is none.
pub(crate) fn former_header(dir: &Path) -> Option<Header> {
    let raw = header_bytes(&dir.join(NEXT_HEADER)).ok()?;
    Header::decode(&raw).ok()
}

fn header_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut raw = Vec::new();
    let file = File::open(path)?;
    file.take(HEADER_LEN_MAX as u64 + 1).read_to_end(&mut raw)?;
    Ok(raw)
}

/// Whether a store may be made in `dir`, or another process is making one there.
fn check_unused(dir: &Path) -> Result<(), Error> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io("list", dir)(error)),
    };
    let names = entries.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names
        .collect::<io::Result<_>>()
        .map_err(Error::io("list", dir))?;
    // Checked after the listing: if another process is making a store, its files came after its mark or header.
    let begun = fs::read(dir.join(NEW_HEADER)).is_ok_and(|raw| Header::decode(&raw).is_ok());
    let ours = |name: &OsString| {
        let part = name == LOG || name == ENGINE || name == NEXT_HEADER;
        name == LOCK || name == NEW_HEADER || begun && part
    };
    if names.iter().all(ours) {
        return Ok(());
    }
    Err(Error::NotAStore {
        path: dir.to_owned(),
        why: "it is not empty and has no file AMINO",
    })
}

/// Makes `dir`, accessible only to its owner, if it does not exist. Its parent must exist.
pub(crate) fn make(dir: &Path) -> Result<(), Error> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => sync_dir(
            dir.parent()
                .filter(|parent| !parent.as_os_str().is_empty())
                .unwrap_or(Path::new(".")),
        ),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Error::io("create", dir)(error)),
    }
}

/// Takes the lock of `dir`, or fails with the process that has it.
pub(crate) fn lock(dir: &Path) -> Result<Lock, Error> {
    let path = dir.join(LOCK);
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path);
    let file = options.map_err(Error::io("open", &path))?;
    let begun = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", &path)(error)),
        }
        match holder(&file) {
            // A process has the lock a moment before it has written its id to the file.
            None if begun.elapsed() < INTRODUCTION => sleep(Duration::from_millis(1)),
            holder => {
                let (pid, command) = holder.unwrap_or_else(|| (0, "unknown".to_owned()));
                return Err(Error::Held {
                    path: dir.to_owned(),
                    pid,
                    command,
                });
            }
        }
    }
    let command: Vec<String> = std::env::args_os()
        .map(|arg| arg.to_string_lossy().into_owned())
        .collect();
    let text = format!(
        "{}\n{}\n",
        std::process::id(),
        command.join(" ").replace('\n', " ")
    );
    // Written in place, because a full disk may have no block for a truncated file. It is only information for other processes.
    let written = file
        .write_all_at(text.as_bytes(), 0)
        .and_then(|()| file.set_len(text.len() as u64))
        .map_err(Error::io("write", &path));
    match written {
        Err(error) if !error.is_no_space() => Err(error),
        _ => Ok(Lock(file)),
    }
}

/// The process that the lock file names, and its command.
fn holder(file: &File) -> Option<(u32, String)> {
    let mut raw = [0; 4096];
    let len = file.read_at(&mut raw, 0).ok()?;
    let text = String::from_utf8_lossy(raw.get(..len)?);
    let mut lines = text.lines();
    let pid = lines.next()?.parse().ok()?;
    Some((pid, lines.next()?.to_owned()))
}

/// Begins to make a store in the locked and unused `dir`; removes the files of an interrupted attempt.
pub(crate) fn begin(dir: &Path, engine: EngineKind) -> Result<Header, Error> {
    check_unused(dir)?;
    for part in [LOG, ENGINE] {
        let path = dir.join(part);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &path)(error));
            }
            _ => {}
        }
    }
    let mut store_id = [0; 16];
    // The ID tells stores apart for good, also those that were made at the same moment.
    getrandom::fill(&mut store_id)
        .map_err(|error| Error::io("make an ID for", dir)(error.into()))?;
    let header = Header {
        engine: engine.name().to_owned(),
        store_id,
        checkpoint: None,
        segments: Vec::new(),
        keep_log: false,
        kept: Vec::new(),
    };
    header::write_synced(&dir.join(NEW_HEADER), &header.encode())?;
    sync_dir(dir)?;
    for part in [LOG, ENGINE] {
        let path = dir.join(part);
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .map_err(Error::io("create", &path))?;
    }
    sync_dir(dir)?;
    Ok(header)
}

/// Removes the mark of a store that is being made. The header is on disk: from now on the store is opened, and never created again.
pub(crate) fn finish(dir: &Path) {
    let _ = fs::remove_file(dir.join(NEW_HEADER));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_has_time_to_write_its_process_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        let file = File::create_new(path.join(LOCK)).unwrap();
        file.lock().unwrap();
        let late = file.try_clone().unwrap();
        let named = std::thread::spawn(move || {
            sleep(Duration::from_millis(100));
            late.write_all_at(b"1234\naminod /store\n", 0).unwrap();
        });
        match lock(path) {
            Err(Error::Held { pid, command, .. }) => {
                assert_eq!((pid, command.as_str()), (1234, "aminod /store"));
            }
            other => panic!("{:?}", other.err()),
        }
        named.join().unwrap();

        // Or to end.
        file.set_len(0).unwrap();
        let leaves = std::thread::spawn(move || {
            sleep(Duration::from_millis(100));
            drop(file);
        });
        lock(path).unwrap();
        leaves.join().unwrap();
    }

    #[test]
    fn a_holder_that_says_nothing_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create_new(dir.path().join(LOCK)).unwrap();
        file.lock().unwrap();
        let found = lock(dir.path()).err().unwrap();
        assert!(matches!(found, Error::Held { pid: 0, .. }), "{found}");
    }
}
