//! `amino info`.

use std::fmt::Display;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

use amino_schema::{DataRecord, DecodeError, FileKind, Meta, PathRecord, Super, key};
use amino_txn::Store;
use serde_json::{Map, Value, json};

use super::StoreHandle;
use crate::args::amino;
use crate::error::Error;
use crate::names;
use crate::output::Output;

/// What is in a store.
#[derive(Debug, Default, serde::Serialize)]
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

    fn of(store: &Store) -> Result<Self, amino_fs::Error> {
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
    store: &Store,
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

/// `amino info`. A store that another process has open is told from outside.
pub fn info(args: &amino::Info) -> Result<u8, Error> {
    match StoreHandle::open(&args.store, false, None) {
        Ok(handle) => {
            let result = facts(&handle).and_then(|facts| print(facts, args.json));
            handle.close(result)
        }
        Err(Error::Store {
            dir,
            why: amino_fs::Error::Store(amino_txn::Error::Held { pid, command, .. }),
        }) => {
            let mut facts = Facts::default();
            facts.put_path("store", "store", &dir);
            if let Ok(Some(engine)) = Store::engine_of(&dir) {
                facts.put("engine", "engine", engine.name(), engine.name());
            }
            facts.size(&dir);
            let shown = format!("process {pid} ({})", names::escape(command.as_bytes()));
            let holder = json!({"pid": pid, "command": command});
            facts.put("open by", "open_by", shown, holder);
            print(facts, args.json)
        }
        Err(error) => Err(error),
    }
}

fn facts(handle: &StoreHandle) -> Result<Facts, Error> {
    let fail = |why| Error::store(&handle.dir, why);
    let store = handle.fs.store();
    let info = store.info();
    let superblock = superblock(store).map_err(fail)?;
    let counts = Counts::of(store).map_err(fail)?;
    let mut facts = Facts::default();
    facts.put_path("store", "store", &handle.dir);
    let id = names::hex(&info.store_id);
    facts.put("id", "id", &id, id.as_str());
    facts.put("engine", "engine", info.engine.name(), info.engine.name());
    if let Some(superblock) = superblock {
        facts.put("format", "format", superblock.format, superblock.format);
        let made = i64::try_from(superblock.created_ns / 1_000_000_000).unwrap_or(i64::MAX);
        let nsec = (superblock.created_ns % 1_000_000_000) as u32;
        let stamp = goanna_vfs::Stamp { sec: made, nsec };
        facts.put(
            "made",
            "created",
            super::record::time_text(stamp, "%Y-%m-%d %H:%M:%S %z"),
            json!({"sec": made, "nsec": nsec}),
        );
    }
    facts.size(&handle.dir);
    for (label, count) in [
        ("names", counts.names),
        ("files", counts.files),
        ("directories", counts.directories),
        ("symlinks", counts.symlinks),
        ("special", counts.special),
        ("orphans", counts.orphans),
        ("bytes", counts.bytes),
    ] {
        facts.put(label, label, count, count);
    }
    for (label, key, seq) in [
        ("sequence", "appended_seq", info.appended_seq),
        ("durable", "durable_seq", info.durable_seq),
        ("applied", "applied_seq", info.applied_seq),
    ] {
        facts.put(label, key, seq, seq);
    }
    let replayed = store.stats().replayed;
    facts.put("replayed", "replayed", replayed, replayed);
    facts.put("open by", "open_by", "nobody else", Value::Null);
    Ok(facts)
}

fn superblock(store: &Store) -> Result<Option<Super>, amino_fs::Error> {
    let raw = store.get(&key::super_key())?;
    Ok(raw.map(|raw| Super::decode(&raw)).transpose()?)
}

/// Lines for people and the same as JSON.
#[derive(Default)]
struct Facts {
    lines: Vec<(&'static str, String)>,
    json: Map<String, Value>,
}

impl Facts {
    fn put(&mut self, label: &'static str, key: &str, text: impl Display, value: impl Into<Value>) {
        self.lines.push((label, text.to_string()));
        self.json.insert(key.to_owned(), value.into());
    }

    fn put_path(&mut self, label: &'static str, key: &str, path: &Path) {
        use std::os::unix::ffi::OsStrExt;
        self.lines.push((label, names::escape_path(path)));
        names::put(&mut self.json, key, path.as_os_str().as_bytes());
    }

    fn size(&mut self, dir: &Path) {
        let bytes = disk_bytes(dir);
        self.put("on disk", "disk_bytes", format!("{bytes} bytes"), bytes);
    }
}

fn print(facts: Facts, json: bool) -> Result<u8, Error> {
    let mut out = Output::new();
    if json {
        out.json(&Value::Object(facts.json))?;
        return Ok(0);
    }
    let width = facts.lines.iter().map(|(label, _)| label.len()).max();
    let width = width.unwrap_or(0);
    for (label, text) in &facts.lines {
        out.line(&format!("{label:width$}  {text}"))?;
    }
    out.finish()?;
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
