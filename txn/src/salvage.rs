//! Salvage: reads the readable part of a damaged store.
//!
//! It does not change the store. It copies the readable part of the engine and the log to a sound store in a directory of
//! its own, which exists as long as [`Salvaged`], and lists the unreadable parts.

use std::fs::{self, DirBuilder};
use std::ops::Bound;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use amino_schema::header::Header;
use amino_schema::holdings::Holdings;

use crate::engine::{Engine, Snapshot, differences, link_tree, repair};
use crate::log::recover;
use crate::{Changes, EngineKind, Error, Loss, Options, Store, dir};

/// Bytes that are submitted to the new store at a time.
const BATCH: usize = 4 << 20;

/// The readable part of a damaged store: a sound store, which is removed with this value.
#[derive(Debug)]
pub struct Salvaged {
    scratch: Scratch,
    /// The unreadable parts; empty if the store is not damaged.
    pub losses: Vec<Loss>,
}

impl Salvaged {
    /// The directory of the sound store.
    pub fn store(&self) -> PathBuf {
        self.scratch.0.join("store")
    }
}

/// A directory that is removed with this value.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Scratch {
    /// Makes a directory beside the store's files, because that disk has the space for a store; elsewhere if it cannot be
    /// made there.
    fn make(store: &Path) -> Result<Self, Error> {
        let name = format!("salvage-{}-{:08x}", std::process::id(), fastrand::u32(..));
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        let (here, elsewhere) = (store.join(&name), std::env::temp_dir().join(&name));
        if make(&here).is_ok() {
            return Ok(Self(here));
        }
        make(&elsewhere).map_err(Error::io("create", &elsewhere))?;
        Ok(Self(elsewhere))
    }
}

/// Saves the readable part of the store in `path`, which no process may have open. Takes as much space as the store has.
pub fn salvage(path: &Path) -> Result<Salvaged, Error> {
    if !path.is_dir() {
        return Err(Error::NotAStore {
            path: path.to_owned(),
            why: "it is not a directory",
        });
    }
    let _lock = match dir::lock(path) {
        Err(held @ Error::Held { .. }) => return Err(held),
        lock => lock.ok(),
    };
    let mut losses = Vec::new();
    let header = find_header(path, &mut losses)?;
    let scratch = Scratch::make(path)?;
    let target = scratch.0.join("store");
    let options = Options {
        create: true,
        ..Options::default()
    };
    let mut into = Target {
        store: Store::open(&target, options)?,
        batch: Changes::new(),
    };
    let mut reached = 0;
    if let Some(engine) = open_engine(path, &scratch.0, &header, &mut losses) {
        reached = applied(&*engine);
        note_gap(path, &header, reached, &mut losses);
        match engine.snapshot() {
            Ok(view) => {
                copy_entries(&*view, &mut into, &mut losses)?;
                // Unreadable entries are listed already.
                let missing = differences(&*view).unwrap_or_default();
                let place = path.join(dir::ENGINE).display().to_string();
                losses.extend(missing.into_iter().map(|(_, what)| Loss::new(&place, what)));
            }
            Err(error) => losses.push(Loss::of(path, &error)),
        }
        into.flush()?;
    }
    let recovered = recover(
        path,
        &header,
        reached,
        &mut |_, changes| into.add(changes.clone()),
        &mut |damage| {
            losses.push(Loss::of(path, &damage));
            Ok(())
        },
    );
    if let Err(error) = recovered {
        losses.push(Loss::of(&path.join(dir::LOG), &error));
    }
    into.flush()?;
    into.store.close()?;
    Ok(Salvaged { scratch, losses })
}

/// The store being made.
struct Target {
    store: Store,
    batch: Changes,
}

impl Target {
    fn add(&mut self, changes: Changes) -> Result<(), Error> {
        self.batch.merge(changes);
        if self.batch.byte_size() > BATCH {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        let batch = std::mem::take(&mut self.batch);
        self.store.throttle();
        self.store.submit(&self.store.enter(), batch)
    }
}

/// The header. If it is damaged, a former one, or one that is derived from the directory.
fn find_header(path: &Path, losses: &mut Vec<Loss>) -> Result<Header, Error> {
    match dir::read_header(path) {
        Ok(Some(header)) => return Ok(header),
        Err(newer @ Error::NewerVersion { .. }) => return Err(newer),
        Err(error @ Error::Damaged { .. }) => losses.push(Loss::of(path, &error)),
        Ok(None) | Err(_) => losses.push(Loss::new(
            path.join("AMINO").display().to_string(),
            "the store's header is missing",
        )),
    }
    let engine = path.join(dir::ENGINE);
    if !engine.is_dir() {
        return Err(Error::NotAStore {
            path: path.to_owned(),
            why: "there is no header and no engine in it",
        });
    }
    let former = dir::former_header(path);
    let kind = repair::kind_of(&engine);
    // The files and segments in a former header may be outdated, but its engine and id are right.
    Ok(Header {
        engine: former
            .as_ref()
            .map_or(kind.name(), |former| &former.engine)
            .to_owned(),
        store_id: former.map_or([0; 16], |former| former.store_id),
        checkpoint: None,
        segments: Vec::new(),
        keep_log: false,
        kept: Vec::new(),
    })
}

/// A copy of the engine, opened in one of several ways; `None` if it cannot be read at all.
fn open_engine(
    path: &Path,
    scratch: &Path,
    header: &Header,
    losses: &mut Vec<Loss>,
) -> Option<Box<dyn Engine>> {
    let from = path.join(dir::ENGINE);
    let Some(kind) = EngineKind::from_name(&header.engine) else {
        losses.push(Loss::new(&header.engine, "this program has no such engine"));
        return None;
    };
    let mut first = None;
    let files = header.checkpoint.as_ref().map(|at| at.files.clone());
    for (number, attempt) in repair::attempts(kind, &from, files).into_iter().enumerate() {
        let copy = scratch.join(format!("engine{number}"));
        let opened = link_tree(&from, &copy).and_then(|()| attempt.open(kind, &copy));
        match opened.and_then(|engine| Ok((engine.applied()?, engine))) {
            Ok((Some(_), engine)) => {
                losses.extend(first);
                return Some(engine);
            }
            Ok((None, _)) => {
                let empty = Loss::new(from.display().to_string(), "the engine is empty");
                first.get_or_insert(empty);
            }
            Err(error) => drop(first.get_or_insert(Loss::of(&from, &error))),
        }
    }
    losses.extend(first);
    let place = from.display().to_string();
    let lost = "nothing in it can be read; only what the log has is left";
    losses.push(Loss::new(place, lost));
    None
}

fn applied(engine: &dyn Engine) -> u64 {
    let raw = engine.applied().ok().flatten().unwrap_or_default();
    let seq = Holdings::decode(&raw).map(|holdings| holdings.seq).ok();
    seq.or_else(|| Holdings::former_seq(&raw)).unwrap_or(0)
}

fn note_gap(path: &Path, header: &Header, reached: u64, losses: &mut Vec<Loss>) {
    let expected = header.checkpoint.as_ref().map_or(0, |at| at.holdings.seq);
    if reached < expected {
        let place = path.join(dir::ENGINE).display().to_string();
        let first = reached + 1;
        losses.push(Loss::new(
            place,
            format!("the engine misses the transactions {first} to {expected}"),
        ));
    }
}

/// Copies all entries that can be read.
fn copy_entries(
    view: &dyn Snapshot,
    into: &mut Target,
    losses: &mut Vec<Loss>,
) -> Result<(), Error> {
    let mut from = Bound::Unbounded;
    loop {
        let mut last = match &from {
            Bound::Included(key) | Bound::Excluded(key) => Vec::clone(key),
            Bound::Unbounded => Vec::new(),
        };
        let mut why = None;
        for entry in view.range(from.as_ref().map(Vec::as_slice), Bound::Unbounded) {
            match entry {
                Ok((key, value)) => {
                    last.clear();
                    last.extend_from_slice(&key);
                    into.add(Changes::from_iter([(key, Some(value))]))?;
                }
                Err(error) => {
                    why = Some(error);
                    break;
                }
            }
        }
        let Some(why) = why else { return Ok(()) };
        let next = readable_after(view, &last);
        let to = next
            .as_ref()
            .map_or_else(|| "the end".to_owned(), |key| name(key));
        let place = format!("entries after {} up to {to}", name(&last));
        losses.push(Loss::new(place, why.to_string()));
        match next {
            Some(key) => from = Bound::Included(key),
            None => return Ok(()),
        }
    }
}

fn name(key: &[u8]) -> String {
    if key.is_empty() {
        "the beginning".to_owned()
    } else {
        format!("key {}", key.escape_ascii())
    }
}

/// A key behind `key` from which on entries can be read again. Tries a number of keys to find a near one.
fn readable_after(view: &dyn Snapshot, key: &[u8]) -> Option<Vec<u8>> {
    let readable = |from: &[u8]| {
        let mut entries = view.range(Bound::Included(from), Bound::Unbounded);
        !matches!(entries.next(), Some(Err(_)))
    };
    // Numbers in keys are big-endian, so the last bytes make the small steps.
    for at in (0..key.len().max(1)).rev() {
        let byte = key.get(at).copied().unwrap_or_default();
        for step in [1, 2, 4, 8, 16, 32, 64, 128] {
            let Some(byte) = u8::checked_add(byte, step) else {
                break;
            };
            let mut candidate = key.get(..at).unwrap_or_default().to_vec();
            candidate.push(byte);
            if readable(&candidate) {
                return Some(candidate);
            }
        }
    }
    None
}
