//! Shared by the tests of this crate.
#![allow(dead_code, clippy::unwrap_used)] // not every test uses all of it

use std::collections::BTreeMap;
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::time::Duration;

use amino_txn::{Changes, EngineKind, Options, Records, Store};

pub mod small_disk;

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[cfg(feature = "sled")]
pub const ENGINES: [EngineKind; 3] = [EngineKind::Fjall, EngineKind::Sled, EngineKind::Memory];
#[cfg(not(feature = "sled"))]
pub const ENGINES: [EngineKind; 2] = [EngineKind::Fjall, EngineKind::Memory];

/// Those whose stores can be closed and opened again without their log.
pub fn persistent() -> impl Iterator<Item = EngineKind> {
    let persistent = |kind: &EngineKind| *kind != EngineKind::Memory;
    ENGINES.into_iter().filter(persistent)
}

pub fn options(engine: EngineKind) -> Options {
    Options {
        engine,
        create: true,
        log_segment_bytes: 64 << 10,
        flush_interval: Duration::from_secs(60),
        ..Options::default()
    }
}

/// A few keys under a few prefixes, so that changes meet.
pub fn random_key(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut key = vec![*rng.choice(b"BPX\xff").unwrap()];
    key.extend((0..rng.usize(..4)).map(|_| *rng.choice(b"\0ab\xff").unwrap()));
    key
}

pub fn random_changes(rng: &mut fastrand::Rng, most: usize) -> Changes {
    let mut changes = Changes::new();
    for _ in 0..rng.usize(1..=most) {
        let key = random_key(rng);
        if rng.u8(..3) == 0 {
            changes.delete(key);
        } else {
            let len = if rng.u8(..20) == 0 {
                20_000
            } else {
                rng.usize(..60)
            };
            changes.put(key, vec![rng.u8(..); len]);
        }
    }
    changes
}

pub fn apply(model: &mut Model, changes: &Changes) {
    for (key, value) in changes.iter() {
        match value {
            Some(value) => model.insert(key.to_vec(), value.to_vec()),
            None => model.remove(&key[..]),
        };
    }
}

pub fn scan(store: &Store, from: Bound<&[u8]>, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    store
        .scan(from, prefix, &mut |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    seen
}

pub fn all(store: &Store) -> Model {
    scan(store, Bound::Unbounded, b"").into_iter().collect()
}

/// Copies a directory as a crash would find it: files as they are at this moment.
pub fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_dir(&entry.path(), &target),
            _ => drop(fs::copy(entry.path(), target)),
        }
    }
}

/// Makes an engine's files what the first version of the program left: it kept a sequence number and nothing else.
pub fn as_format_1(kind: EngineKind, dir: &Path, seq: u64) {
    let engine = kind.open(dir, None).unwrap();
    engine.apply(&Changes::new(), &seq.to_le_bytes()).unwrap();
    engine.checkpoint(true, &mut |_| Ok(())).unwrap();
}
