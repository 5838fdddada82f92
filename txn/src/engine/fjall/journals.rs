//! fjall's files that a checkpoint relies on: its journals, and the files that name the versions of its keyspaces.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use amino_schema::header::FileSum;
use amino_schema::holdings::Sum;
use nix::unistd::{Whence, lseek};

use super::{CURRENT, KEYSPACES};
use crate::Error;
use crate::engine::files;

/// The journals in `dir` with their numbers.
pub(super) fn journals(dir: &Path) -> Vec<(u64, PathBuf)> {
    let journal = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let number = journal_number(path.file_name()?.to_str()?)?;
        Some((number, path))
    };
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(journal).collect()
}

pub(super) fn journal_name(number: u64) -> String {
    format!("{number}.jnl")
}

fn journal_number(name: &str) -> Option<u64> {
    name.strip_suffix(".jnl")?.parse().ok()
}

/// Bytes of a journal before the zeros that fjall makes it with.
pub(super) fn journal_end(path: &Path) -> Result<u64, Error> {
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
pub(super) fn keyspaces(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(KEYSPACES)).into_iter().flatten();
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names = numbers.map(|number| format!("{KEYSPACES}/{number}/{CURRENT}"));
    names.filter(|name| dir.join(name).exists()).collect()
}

/// Drops the part of the journals in `dir` after the checkpoint, which relied on `relied_on`. That part must be unchanged.
///
/// A journal that is shorter or missing is not damage in itself: fjall removes one whose batches are all in tables. If they are not,
/// the engine opens with fewer entries than the checkpoint has, which is detected.
pub(super) fn truncate_journals(dir: &Path, relied_on: &[FileSum]) -> Result<(), Error> {
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
pub(in crate::engine) fn remove_damaged_batches(dir: &Path) -> Result<(), Error> {
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
