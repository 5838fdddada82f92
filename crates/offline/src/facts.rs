//! The facts about a store that `amino info` prints: id, format, counts, sequence numbers.

use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use amino_schema::{DataRecord, DecodeError, FileKind, Meta, PathRecord, Super, key};
use amino_txn::{Records, Store};
use serde::{Deserialize, Serialize};

/// Counts of the files in a store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Names, hard links included; the root has none.
    pub names: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Fifos, sockets and device nodes.
    pub special: u64,
    /// Files without names, kept because a program has them open.
    pub orphans: u64,
    /// Sum of the sizes of regular files.
    pub bytes: u64,
}

impl Counts {
    fn add(&mut self, meta: &Meta) {
        match meta.kind() {
            Some(FileKind::Regular) => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(meta.size);
            }
            Some(FileKind::Directory) => self.directories += 1,
            Some(FileKind::Symlink) => self.symlinks += 1,
            _ => self.special += 1,
        }
    }

    fn of(records: &dyn Records) -> Result<Self, amino_fs::Error> {
        let mut counts = Self::default();
        scan(records, key::PATH_TAG, |value| {
            let record = PathRecord::decode(value)?;
            counts.names += 1;
            if let Some(meta) = &record.meta {
                counts.add(meta);
            }
            Ok(())
        })?;
        scan(records, key::DATA_TAG, |value| {
            counts.add(&DataRecord::decode(value)?.meta);
            Ok(())
        })?;
        scan(records, key::ORPHAN_TAG, |_| {
            counts.orphans += 1;
            Ok(())
        })?;
        counts.names = counts.names.saturating_sub(1);
        Ok(counts)
    }
}

fn scan(
    records: &dyn Records,
    tag: &[u8],
    mut visit: impl FnMut(&bytes::Bytes) -> Result<(), DecodeError>,
) -> Result<(), amino_fs::Error> {
    let mut failure = None;
    records.scan(
        Bound::Included(tag),
        tag,
        &mut |_, value| match visit(value) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// The facts about a store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Its id.
    pub id: [u8; 16],
    /// Its engine's name.
    pub engine: String,
    /// Format, and when it was made: nanoseconds since 1970.
    pub made: Option<(u32, u64)>,
    /// Its counts.
    pub counts: Counts,
    /// Sequence number of the last commit.
    pub appended_seq: u64,
    /// Sequence number of the last commit that is on disk.
    pub durable_seq: u64,
    /// Sequence number of the last commit that the engine has.
    pub applied_seq: u64,
    /// Transactions of the log that were replayed when the store was opened.
    pub replayed: u64,
    /// The segments of the log that are kept.
    pub kept: Kept,
}

/// The segments of the log that a store keeps although it does not need them any more.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Whether the store continues to keep them.
    pub on: bool,
    /// Their number.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Number of their transactions.
    pub transactions: u64,
    /// The times of the first and the last one, nanoseconds since 1970.
    pub times: Option<(u64, u64)>,
    /// Number of gaps: places where transactions cannot be read.
    pub gaps: u64,
}

impl Kept {
    fn of(store: &Store) -> Result<Self, amino_txn::Error> {
        let log = store.kept_log(false)?;
        Ok(Self {
            on: log.keeps,
            segments: log.segments,
            bytes: log.bytes,
            transactions: log.transactions,
            times: log.times,
            gaps: log.losses.len() as u64,
        })
    }
}

impl Facts {
    /// The present facts of an open store.
    pub fn of(store: &Store) -> Result<Self, amino_fs::Error> {
        let info = store.info();
        let snapshot = store.snapshot()?;
        let raw = snapshot.get(&key::super_key())?;
        let superblock = raw.map(|raw| Super::decode(&raw)).transpose()?;
        Ok(Self {
            id: info.store_id,
            engine: info.engine.name().to_owned(),
            made: superblock.map(|it| (it.format, it.created_ns)),
            counts: Counts::of(&snapshot)?,
            appended_seq: info.appended_seq,
            durable_seq: info.durable_seq,
            applied_seq: info.applied_seq,
            replayed: store.stats().replayed,
            kept: Kept::of(store)?,
        })
    }
}

/// The disk space of a directory and all below it, bytes. Files that vanish meanwhile are not counted.
pub fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut bytes = 0;
    let mut stack: Vec<PathBuf> = vec![dir.to_owned()];
    while let Some(dir) = stack.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            bytes += meta.blocks() * 512;
            if meta.is_dir() {
                stack.push(entry.path());
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_serialisation() {
        let facts = Facts {
            id: [0xfe; 16],
            engine: "sled".to_owned(),
            made: Some((1, u64::MAX)),
            counts: Counts {
                names: 1,
                bytes: u64::MAX,
                ..Counts::default()
            },
            appended_seq: 5,
            durable_seq: 4,
            applied_seq: 3,
            replayed: 2,
            kept: Kept {
                on: true,
                times: Some((1, u64::MAX)),
                ..Kept::default()
            },
        };
        let bytes = postcard::to_allocvec(&facts).unwrap();
        assert_eq!(postcard::from_bytes::<Facts>(&bytes).unwrap(), facts);
    }
}
