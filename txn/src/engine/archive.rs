//! Checks fjall's files before fjall reads them: it does not detect some kinds of damage itself.
//!
//! A version file names the tables of a keyspace. fjall keeps its checksum and does not compare it: with a flipped bit in that file it
//! shows other entries than were written.
//!
//! Each table and each version is an archive, which ends in a table of contents and a trailer. fjall takes the number of entries in the table of contents for granted
//! before it checks the table's checksum. It allocates memory for that many, and an allocation that is too large aborts the process.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::Error;

const MAGIC: &[u8] = b"SFA!";
/// The trailer: magic (4 bytes), version, kind of checksum, checksum (16), position of the table of contents (8), its size (8).
const TRAILER: u64 = 4 + 1 + 1 + 16 + 8 + 8;
const POSITION_AT: u64 = 4 + 1 + 1 + 16;
/// The table of contents begins with its magic (4 bytes) and the number of entries (4).
const COUNT_AT: u64 = 4;
const ENTRIES_AT: u64 = 8;
/// An entry without a name: position and size of a section (8 bytes each), size of the name (2).
const ENTRY_MIN: u64 = 8 + 8 + 2;

/// The version of a keyspace that fjall reads (8 bytes), the checksum of its file (16), kind of checksum.
const CURRENT_LEN: usize = 8 + 16 + 1;
const SUM_AT: usize = 8;
const KIND_AT: usize = SUM_AT + 16;
/// The kind that is XXH3 of 128 bits.
const XXH3: u8 = 0;

/// Checks the version file that the file `current` of the keyspace in `dir` names, because fjall does not.
pub(super) fn check_version(dir: &Path, current: &str) -> Result<(), Error> {
    let path = dir.join(current);
    let raw = match fs::read(&path) {
        // fjall takes the keyspace for one that was never finished, or reports the missing file.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        raw => raw.map_err(Error::io("read", &path))?,
    };
    let part = |from: usize, len: usize| raw.get(from..from + len);
    let id = part(0, SUM_AT).and_then(|bytes| bytes.try_into().ok());
    let sum = part(SUM_AT, KIND_AT - SUM_AT).and_then(|bytes| bytes.try_into().ok());
    let (Some(id), Some(sum), CURRENT_LEN, Some(&XXH3)) = (id, sum, raw.len(), raw.get(KIND_AT))
    else {
        return Err(damaged(&path, "it does not name a version"));
    };
    let path = dir.join(format!("v{}", u64::from_le_bytes(id)));
    let content = fs::read(&path).map_err(Error::io("read", &path))?;
    if xxh3_128(&content) != u128::from_le_bytes(sum) {
        return Err(damaged(&path, "it is not what was written"));
    }
    Ok(())
}

/// Checks the table of contents of each table in the directory `dir`, where fjall does not.
pub(super) fn check_tables(dir: &Path) -> Result<(), Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io("list", dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(Error::io("list", dir))?;
        if entry.file_name().to_string_lossy().parse::<u64>().is_ok() {
            check(&entry.path())?;
        }
    }
    Ok(())
}

fn damaged(path: &Path, why: &str) -> Error {
    Error::Damaged {
        place: path.display().to_string(),
        why: why.to_owned(),
    }
}

fn check(path: &Path) -> Result<(), Error> {
    let file = match File::open(path) {
        // A thread of fjall has removed a table that no version names any more.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(Error::io("open", path))?,
    };
    let failed = Error::io("read", path);
    match has_space_for_entries(&file) {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged(path, "its table of contents does not fit into it")),
        Err(error) => Err(failed(error)),
    }
}

/// Whether the file is large enough for the entries that its table of contents claims. A file without a trailer passes: fjall refuses it if a version names the
/// table, and no version names a table that a full disk or a crash has left incomplete.
fn has_space_for_entries(file: &File) -> io::Result<bool> {
    let Some(end) = file.metadata()?.len().checked_sub(TRAILER) else {
        return Ok(true);
    };
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, end)?;
    if magic != MAGIC {
        return Ok(true);
    }
    let mut position = [0; 8];
    file.read_exact_at(&mut position, end + POSITION_AT)?;
    let position = u64::from_le_bytes(position);
    let Some(available) = end
        .checked_sub(position)
        .and_then(|size| size.checked_sub(ENTRIES_AT))
    else {
        return Ok(false);
    };
    let mut count = [0; 4];
    file.read_exact_at(&mut count, position + COUNT_AT)?;
    Ok(u64::from(u32::from_le_bytes(count)) <= available / ENTRY_MIN)
}
