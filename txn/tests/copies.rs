//! An engine without crash safety has two copies: whatever a crash does to the one in use, the other one
//! and the log have everything.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amino_txn::{Changes, EngineKind, Error, Options, Records, Store};
use common::{Model, all, apply, copy_dir, options, random_changes};

const ENGINE: EngineKind = EngineKind::Sled;

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The copy that the header relies on. Of two, as a clean end leaves them, the first is used.
fn resting(store: &Path) -> &'static str {
    let header = fs::read_to_string(store.join("AMINO")).unwrap();
    let rests = |side: &str| header.contains(&format!(" {side}/db\n"));
    assert!(rests("a") || rests("b"), "{header}");
    if rests("b") { "b" } else { "a" }
}

const fn other(side: &str) -> &'static str {
    if matches!(side.as_bytes(), b"a") {
        "b"
    } else {
        "a"
    }
}

/// What a crash may make of files that were being written.
fn ruin(dir: &Path, rng: &mut fastrand::Rng) {
    for path in files(dir) {
        let mut raw = fs::read(&path).unwrap();
        match rng.u8(..5) {
            0 => raw.fill(0),
            1 => raw.truncate(rng.usize(..=raw.len())),
            2 => {
                fs::remove_file(&path).unwrap();
                continue;
            }
            3 => {
                for block in raw.chunks_mut(4096) {
                    if rng.bool() {
                        block.fill(0);
                    }
                }
            }
            _ => raw.iter_mut().for_each(|byte| *byte = rng.u8(..)),
        }
        fs::write(&path, raw).unwrap();
    }
}

/// Power cuts at any moment of a life with many checkpoints: of the copy in use nothing needs to be left.
#[test]
fn a_ruined_copy_in_use_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut path = dir.path().join("live");
    let options = Options {
        checkpoint_bytes: 50 << 10,
        flush_interval: Duration::from_millis(3),
        ..options(ENGINE)
    };
    let (mut model, mut rng) = (Model::new(), fastrand::Rng::with_seed(5));
    for round in 0..12 {
        let store = Store::open(&path, options.clone()).unwrap();
        assert_eq!(all(&store), model, "round {round}");
        let differences = store.snapshot().unwrap().differences().unwrap();
        assert_eq!(differences, [], "round {round}");
        for _ in 0..rng.u32(1..60) {
            let changes = random_changes(&mut rng, 8);
            apply(&mut model, &changes);
            store.throttle();
            store.submit(&store.enter(), changes).unwrap();
        }
        store.sync().unwrap();
        if rng.u8(..4) == 0 {
            store.close().unwrap();
            continue;
        }
        // Nothing moves while it is copied: what was synced is applied, and no checkpoint is in progress.
        let mut before = store.stats();
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = store.stats();
            if now == before && now.pending_bytes == 0 {
                break;
            }
            before = now;
        }
        let copy = dir.path().join(format!("crashed{round}"));
        copy_dir(&path, &copy);
        drop(store);
        ruin(&copy.join("engine").join(other(resting(&copy))), &mut rng);
        path = copy;
    }
}

fn closed(path: &Path) -> Model {
    let store = Store::open(path, options(ENGINE)).unwrap();
    let (mut model, mut rng) = (Model::new(), fastrand::Rng::with_seed(8));
    for _ in 0..200 {
        let changes = random_changes(&mut rng, 8);
        apply(&mut model, &changes);
        store.submit(&store.enter(), changes).unwrap();
    }
    store.close().unwrap();
    model
}

#[test]
fn damage_in_one_copy_of_a_closed_store_is_made_good_by_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    let model = closed(&whole);
    let mut rng = fastrand::Rng::with_seed(9);
    for round in 0..10 {
        let path = dir.path().join(format!("{round}"));
        copy_dir(&whole, &path);
        let side = if rng.bool() { "a" } else { "b" };
        ruin(&path.join("engine").join(side), &mut rng);
        for _ in 0..2 {
            let store = Store::open(&path, options(ENGINE)).unwrap();
            assert_eq!(all(&store), model);
            store.close().unwrap();
        }
    }
}

#[test]
fn damage_in_both_copies_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    closed(&path);
    for side in ["a", "b"] {
        let file = path.join("engine").join(side).join("db");
        let mut raw = fs::read(&file).unwrap();
        let middle = raw.len() / 2;
        raw[middle] ^= 1;
        fs::write(&file, raw).unwrap();
    }
    let error = Store::open(&path, options(ENGINE)).err().unwrap();
    assert!(
        matches!(&error, Error::Damaged { place, .. } if place.ends_with("/db")),
        "{error}"
    );
}

/// Reading, too, makes sled change its files; a store that was only read is as sound as before.
#[test]
fn a_store_that_was_only_read_rests_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let model = closed(&path);
    for _ in 0..3 {
        let store = Store::open(&path, options(ENGINE)).unwrap();
        assert_eq!(all(&store), model);
        store.close().unwrap();
        let header = fs::read_to_string(path.join("AMINO")).unwrap();
        assert!(
            header.contains(" a/db\n") && header.contains(" b/db\n"),
            "{header}"
        );
        for side in ["a", "b"] {
            let copy = dir.path().join(side);
            copy_dir(&path, &copy);
            fs::remove_dir_all(copy.join("engine").join(other(side))).unwrap();
            let store = Store::open(&copy, options(ENGINE)).unwrap();
            assert_eq!(all(&store), model, "from {side} alone");
            drop(store);
            fs::remove_dir_all(copy).unwrap();
        }
    }
}

/// One that no checkpoint relied on yet has no copy that rests.
#[test]
fn a_store_is_sound_from_its_first_moment() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("crashed"));
    let store = Store::open(&live, options(ENGINE)).unwrap();
    let mut changes = Changes::new();
    changes.put(b"Pa".to_vec(), b"1".to_vec());
    store.submit(&store.enter(), changes).unwrap();
    store.sync().unwrap();
    copy_dir(&live, &path);
    drop(store);
    fs::remove_dir_all(path.join("engine").join(other(resting(&path)))).unwrap();
    let store = Store::open(&path, options(ENGINE)).unwrap();
    assert_eq!(store.get(b"Pa").unwrap().as_deref(), Some(&b"1"[..]));
}

/// sled keeps a large node in a file of its own. Where such a file could not be written, closing sled waited forever, and the
/// checkpoint failed after ten seconds with "a thread of it still has them", after which the store took nothing any more.
#[test]
fn a_node_whose_file_cannot_be_written_does_not_keep_sled_from_being_closed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = ENGINE.open(dir.path(), None).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let mut large = Changes::new();
    for number in 0..40u8 {
        let value: Vec<u8> = std::iter::repeat_with(|| rng.u8(..))
            .take(64 << 10)
            .collect();
        large.put(vec![b'B', number], value);
    }
    engine.apply(&large, b"1").unwrap();
    let blobs = dir.path().join("a").join("blobs");
    fs::remove_dir_all(&blobs).unwrap();
    let failed = engine.checkpoint(false, &mut |_| Ok(())).unwrap_err();
    let why = failed.to_string();
    assert!(why.contains("write a batch"), "{why}");
    let db = fs::File::open(dir.path().join("a").join("db")).unwrap();
    db.try_lock().expect("sled has closed it");
}
