//! `amino info`.

use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use amino_schema::{DataRecord, DecodeError, FileKind, Meta, PathRecord, Super, key};
use amino_txn::{Snapshot, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::{Level, amino};
use crate::error::Error;
use crate::lines::Lines;
use crate::store::{self, Create, Opening};
use crate::{caller, daemon, names};

/// What is in a store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Counts {
    /// Names, hard links included; the root has none.
    names: u64,
    files: u64,
    directories: u64,
    symlinks: u64,
    special: u64,
    /// Files without names, kept because a program has them open.
    orphans: u64,
    /// Sum of the sizes of regular files.
    bytes: u64,
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

    fn of(store: &Snapshot<'_>) -> Result<Self, amino_fs::Error> {
        let mut counts = Self::default();
        scan(store, key::PATH_TAG, |value| {
            let record = PathRecord::decode(value)?;
            counts.names += 1;
            if let Some(meta) = &record.meta {
                counts.add(meta);
            }
            Ok(())
        })?;
        scan(store, key::DATA_TAG, |value| {
            counts.add(&DataRecord::decode(value)?.meta);
            Ok(())
        })?;
        scan(store, key::ORPHAN_TAG, |_| {
            counts.orphans += 1;
            Ok(())
        })?;
        counts.names = counts.names.saturating_sub(1);
        Ok(counts)
    }
}

fn scan(
    store: &Snapshot<'_>,
    tag: &[u8],
    mut visit: impl FnMut(&bytes::Bytes) -> Result<(), DecodeError>,
) -> Result<(), amino_fs::Error> {
    let mut failure = None;
    store.scan(
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

/// What a store is and holds, whoever has it open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    id: [u8; 16],
    engine: String,
    /// Format, and when it was made: nanoseconds since 1970.
    made: Option<(u32, u64)>,
    counts: Counts,
    appended_seq: u64,
    durable_seq: u64,
    applied_seq: u64,
    replayed: u64,
}

impl Facts {
    /// The facts of an open store as it is now.
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
        })
    }
}

/// `amino info`. A store that a process has open which cannot be asked is told from outside.
pub fn info(args: &amino::Info) -> Result<u8, Error> {
    let dir = store::dir(&args.store)?;
    let opening = Opening {
        engine: None,
        durability: Level::Aci,
        create: Create::Never,
    };
    let reached = daemon::reach(
        &dir,
        |owner| Ok(daemon::facts(owner)?.map(|(facts, pid, runs)| (facts, Some((pid, runs))))),
        || {
            let fs = store::open(&dir, opening, &caller::current())?;
            let facts = Facts::of(fs.store()).map_err(|why| Error::store(&dir, why));
            store::close(&dir, &fs)?;
            Ok((facts?, None))
        },
    );
    match reached {
        Ok((facts, owner)) => print(inside(&dir, &facts, owner), args.json),
        Err(error) => print(outside(&dir, error)?, args.json),
    }
}

/// What can be said of a store that another process has open, which is why there was `error`.
fn outside(dir: &Path, error: Error) -> Result<Lines, Error> {
    // Another user's owner, or one of another version, is told by who holds the lock.
    let error = match error {
        Error::OwnerForeign(..) | Error::OwnerVersion(..) => {
            let opening = Opening {
                engine: None,
                durability: Level::Aci,
                create: Create::Never,
            };
            match store::open(dir, opening, &caller::current()) {
                Ok(_) => error,
                Err(held) => held,
            }
        }
        error => error,
    };
    let Error::Store {
        why: amino_fs::Error::Store(amino_txn::Error::Held { pid, command, .. }),
        ..
    } = error
    else {
        return Err(error);
    };
    let mut lines = Lines::default();
    lines.put_path("store", "store", dir);
    if let Ok(Some(engine)) = Store::engine_of(dir) {
        lines.put("engine", "engine", engine.name(), engine.name());
    }
    put_size(&mut lines, dir);
    let shown = format!("process {pid} ({})", names::escape(command.as_bytes()));
    let holder = json!({"pid": pid, "command": command, "runs": null});
    lines.put("open by", "open_by", shown, holder);
    Ok(lines)
}

/// What a store is and holds, and its owner's process id and number of commands.
fn inside(dir: &Path, facts: &Facts, owner: Option<(i32, usize)>) -> Lines {
    let mut lines = Lines::default();
    lines.put_path("store", "store", dir);
    let id = names::hex(&facts.id);
    lines.put("id", "id", &id, id.as_str());
    let engine = facts.engine.as_str();
    lines.put("engine", "engine", engine, engine);
    if let Some((format, created_ns)) = facts.made {
        lines.put("format", "format", format, format);
        let sec = i64::try_from(created_ns / 1_000_000_000).unwrap_or(i64::MAX);
        let nsec = (created_ns % 1_000_000_000) as u32;
        let stamp = goanna_vfs::Stamp { sec, nsec };
        let text = super::record::time_text(stamp, "%Y-%m-%d %H:%M:%S %z");
        lines.put("made", "created", text, json!({"sec": sec, "nsec": nsec}));
    }
    put_size(&mut lines, dir);
    let counts = &facts.counts;
    for (label, count) in [
        ("names", counts.names),
        ("files", counts.files),
        ("directories", counts.directories),
        ("symlinks", counts.symlinks),
        ("special", counts.special),
        ("orphans", counts.orphans),
        ("bytes", counts.bytes),
    ] {
        lines.put(label, label, count, count);
    }
    for (label, key, figure) in [
        ("sequence", "appended_seq", facts.appended_seq),
        ("durable", "durable_seq", facts.durable_seq),
        ("applied", "applied_seq", facts.applied_seq),
        ("replayed", "replayed", facts.replayed),
    ] {
        lines.put(label, key, figure, figure);
    }
    match owner {
        None => lines.put("open by", "open_by", "nobody else", Value::Null),
        Some((pid, runs)) => {
            let commands = if runs == 1 { "command" } else { "commands" };
            let shown = format!("process {pid} ({}), for {runs} {commands}", daemon::NAME);
            let owner = json!({"pid": pid, "command": daemon::NAME, "runs": runs});
            lines.put("open by", "open_by", shown, owner);
        }
    }
    lines
}

fn put_size(lines: &mut Lines, dir: &Path) {
    let bytes = disk_bytes(dir);
    lines.put("on disk", "disk_bytes", format!("{bytes} bytes"), bytes);
}

fn print(lines: Lines, json: bool) -> Result<u8, Error> {
    lines.print(json)?;
    Ok(0)
}

/// What a directory and all below it take on the disk. Files that vanish meanwhile count as nothing.
fn disk_bytes(dir: &Path) -> u64 {
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
    fn facts_arrive_as_they_were_said() {
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
        };
        let said = postcard::to_allocvec(&facts).unwrap();
        assert_eq!(postcard::from_bytes::<Facts>(&said).unwrap(), facts);
    }
}
