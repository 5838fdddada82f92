//! What is left of a damaged store can be read, and what is missing is listed.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests are tests too

mod common;

use std::fs;
use std::path::Path;

use amino_txn::{Changes, EngineKind, Salvaged, Store, salvage};
use common::{Model, all, apply, copy_dir, options};

/// Transaction `number` with a key of its own.
fn step(number: u32) -> Changes {
    let mut changes = Changes::new();
    changes.put(
        [b"P", &number.to_be_bytes()[..]].concat(),
        vec![number as u8; 40],
    );
    changes
}

fn model(numbers: impl IntoIterator<Item = u32>) -> Model {
    let mut model = Model::new();
    for number in numbers {
        apply(&mut model, &step(number));
    }
    model
}

fn saved(salvaged: &Salvaged) -> Model {
    let store = Store::open(&salvaged.store(), options(EngineKind::Fjall)).unwrap();
    let found = all(&store);
    store.close().unwrap();
    found
}

fn flip(path: &Path, at: usize) {
    let mut raw = fs::read(path).unwrap();
    raw[at] ^= 4;
    fs::write(path, raw).unwrap();
}

/// Ten transactions in an engine, ten more in the log.
fn crashed(engine: EngineKind, dir: &Path) -> std::path::PathBuf {
    let (live, path) = (dir.join("live"), dir.join("crashed"));
    let store = Store::open(&live, options(engine)).unwrap();
    for number in 1..=10 {
        store.submit(&store.enter(), step(number)).unwrap();
        store.sync().unwrap();
    }
    store.close().unwrap();
    let store = Store::open(&live, options(engine)).unwrap();
    for number in 11..=20 {
        store.submit(&store.enter(), step(number)).unwrap();
        store.sync().unwrap();
    }
    copy_dir(&live, &path);
    drop(store);
    path
}

#[test]
fn one_damaged_record_does_not_make_the_rest_unreadable() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let path = crashed(engine, dir.path());
        let segment = fs::read_dir(path.join("log")).unwrap().next().unwrap();
        let segment = segment.unwrap().path();
        let raw = fs::read(&segment).unwrap();
        let records = raw
            .windows(4)
            .enumerate()
            .filter(|(_, found)| *found == b"AREC");
        let fifth = records.map(|(at, _)| at).nth(4).unwrap();
        flip(&segment, fifth + 80);
        // What sled's copy in use had by chance does not matter: it is dropped after a crash.
        assert!(Store::open(&path, options(engine)).is_err(), "{engine:?}");
        let before = listing(&path);
        let salvaged = salvage(&path).unwrap();
        assert_eq!(
            saved(&salvaged),
            model((1..=20).filter(|&n| n != 15)),
            "{engine:?}"
        );
        let [loss] = &salvaged.losses[..] else {
            panic!("{:?}", salvaged.losses);
        };
        assert!(loss.place.contains(segment.to_str().unwrap()), "{loss:?}");
        assert!(loss.what.contains("transaction 15,"), "{loss:?}");
        drop(salvaged);
        assert_eq!(
            listing(&path),
            before,
            "{engine:?}: nothing is changed or left"
        );
    }
}

/// All files with their content.
fn listing(dir: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(listing(&path));
        } else if !path.ends_with("lock") {
            let content = fs::read(&path).unwrap();
            found.push((path, content));
        }
    }
    found.sort();
    found
}

/// fjall itself refuses a journal with one damaged batch.
#[test]
fn one_damaged_batch_does_not_make_the_rest_unreadable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    for number in 1..=20 {
        store.submit(&store.enter(), step(number)).unwrap();
        store.sync().unwrap();
        while store.info().applied_seq < store.info().durable_seq {
            std::thread::yield_now();
        }
    }
    store.close().unwrap();
    let journal = path.join("engine/0.jnl");
    let raw = fs::read(&journal).unwrap();
    let key = [b"P", &7u32.to_be_bytes()[..]].concat();
    let at = raw.windows(5).position(|bytes| bytes == key).unwrap();
    flip(&journal, at + 10);
    assert!(Store::open(&path, options(EngineKind::Fjall)).is_err());
    let salvaged = salvage(&path).unwrap();
    assert_eq!(saved(&salvaged), model((1..=20).filter(|&n| n != 7)));
    assert!(
        salvaged
            .losses
            .iter()
            .any(|loss| loss.place.contains("0.jnl")),
        "{:?}",
        salvaged.losses
    );
}

#[test]
fn a_store_without_header_is_read() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        for former in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = crashed(engine, dir.path());
            fs::remove_file(path.join("AMINO")).unwrap();
            if !former {
                fs::remove_file(path.join("AMINO.next")).unwrap();
            }
            let salvaged = salvage(&path).unwrap();
            let found = saved(&salvaged);
            let first = model(1..=10);
            assert!(
                first
                    .iter()
                    .all(|(key, value)| found.get(key) == Some(value)),
                "{engine:?}"
            );
            assert!(
                salvaged.losses[0].place.ends_with("AMINO"),
                "{:?}",
                salvaged.losses
            );
        }
    }
}

#[test]
fn nothing_is_missing_from_a_sound_store() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let path = crashed(engine, dir.path());
        let salvaged = salvage(&path).unwrap();
        assert_eq!(salvaged.losses, [], "{engine:?}");
        assert_eq!(saved(&salvaged), model(1..=20));
        let store = Store::open(&path, options(engine)).unwrap();
        let held = salvage(&path).unwrap_err().to_string();
        assert!(held.contains("in use"), "{held}");
        drop(store);
    }
}
