//! The same operations on every engine have the same results.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::ops::Bound;

use amino_txn::engine::{Engine, Reclaim, Snapshot};
use amino_txn::{Changes, EngineKind, Store};
use common::{ENGINES, Model, apply, random_changes, random_key};

fn range(view: &dyn Snapshot, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    view.range(from, to)
        .map(|entry| entry.unwrap())
        .map(|(key, value)| (key.to_vec(), value.to_vec()))
        .collect()
}

fn expected(model: &Model, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let after = |key: &[u8]| match from {
        Bound::Included(from) => key >= from,
        Bound::Excluded(from) => key > from,
        Bound::Unbounded => true,
    };
    let before = |key: &[u8]| match to {
        Bound::Included(to) => key <= to,
        Bound::Excluded(to) => key < to,
        Bound::Unbounded => true,
    };
    model
        .iter()
        .filter(|(key, _)| after(key) && before(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn random_bound<'a>(rng: &mut fastrand::Rng, key: &'a [u8]) -> Bound<&'a [u8]> {
    match rng.u8(..3) {
        0 => Bound::Included(key),
        1 => Bound::Excluded(key),
        _ => Bound::Unbounded,
    }
}

fn check(engine: &dyn Engine, model: &Model, rng: &mut fastrand::Rng) {
    let view = engine.snapshot().unwrap();
    assert_eq!(
        range(&*view, Bound::Unbounded, Bound::Unbounded),
        expected(model, Bound::Unbounded, Bound::Unbounded)
    );
    for _ in 0..5 {
        let (a, b) = (random_key(rng), random_key(rng));
        let (from, to) = (random_bound(rng, &a), random_bound(rng, &b));
        assert_eq!(
            range(&*view, from, to),
            expected(model, from, to),
            "{from:?} {to:?}"
        );
        assert_eq!(
            engine.get(&a).unwrap().as_deref(),
            model.get(&a).map(Vec::as_slice)
        );
        assert_eq!(
            view.get(&b).unwrap().as_deref(),
            model.get(&b).map(Vec::as_slice)
        );
    }
}

fn conformance(kind: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = kind.open(&dir.path().join("engine"), None).unwrap();
    assert_eq!(engine.applied().unwrap(), None);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut model = Model::new();
    for seq in 1..=300u32 {
        let changes = random_changes(&mut rng, 30);
        let applied = seq.to_le_bytes();
        engine.apply(&changes, &applied).unwrap();
        apply(&mut model, &changes);
        assert_eq!(engine.applied().unwrap().as_deref(), Some(&applied[..]));
        if seq % 10 == 0 {
            check(&*engine, &model, &mut rng);
        }
        if seq % 70 == 0 && engine.is_persistent() {
            let mut files = None;
            let crash = rng.bool();
            let last = !crash && rng.bool();
            let mut publish = |relied_on| {
                files = Some(relied_on);
                Ok(())
            };
            engine.checkpoint(last, &mut publish).unwrap();
            if crash {
                // As after a crash: what came after the checkpoint is in the log.
                engine
                    .apply(&random_changes(&mut rng, 30), b"later")
                    .unwrap();
                let later = all(&*engine);
                drop(engine);
                engine = kind
                    .open(&dir.path().join("engine"), files.as_deref())
                    .unwrap();
                if engine.applied().unwrap().as_deref() == Some(b"later") {
                    model = later;
                    engine.apply(&Changes::new(), &applied).unwrap();
                }
            } else {
                drop(engine);
                engine = kind
                    .open(&dir.path().join("engine"), files.as_deref())
                    .unwrap();
            }
            assert_eq!(engine.applied().unwrap().as_deref(), Some(&applied[..]));
            check(&*engine, &model, &mut rng);
        }
    }
    if engine.is_persistent() {
        assert!(engine.files().unwrap().size_on_disk().unwrap() > 0);
    }
}

fn all(engine: &dyn Engine) -> Model {
    let view = engine.snapshot().unwrap();
    range(&*view, Bound::Unbounded, Bound::Unbounded)
        .into_iter()
        .collect()
}

/// A view does not change while batches are applied, whether the engine keeps versions or lets the batch wait.
fn snapshots_stand_still(kind: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let engine = kind.open(&dir.path().join("engine"), None).unwrap();
    let batch = |round: u8| {
        (0..100u8)
            .map(|key| (vec![b'P', key].into(), Some(vec![round].into())))
            .collect::<Changes>()
    };
    engine.apply(&batch(0), b"1").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (1..=100).for_each(|round| engine.apply(&batch(round), &[round]).unwrap()));
        for _ in 0..200 {
            let view = engine.snapshot().unwrap();
            let seen = range(&*view, Bound::Unbounded, Bound::Unbounded);
            assert_eq!(seen.len(), 100);
            assert!(
                seen.iter().all(|(_, value)| *value == seen[0].1),
                "{kind:?} shows half a batch"
            );
        }
    });
}

#[test]
fn engines_agree() {
    ENGINES.into_iter().for_each(conformance);
}

#[test]
fn snapshots_do_not_change() {
    ENGINES.into_iter().for_each(snapshots_stand_still);
}

/// Applies batches, makes checkpoints, lets the engine rewrite its files and opens them again while snapshots are kept, and
/// compares all of them after each step.
fn kept_snapshots_stay_as_they_were(kind: EngineKind) {
    let dir = tempfile::tempdir().unwrap();
    let engine = kind.open(&dir.path().join("engine"), None).unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut model = Model::new();
    let mut kept: Vec<(Box<dyn Snapshot>, Model, u32)> = Vec::new();
    for seq in 1..=80u32 {
        let changes = random_changes(&mut rng, 30);
        engine.apply(&changes, &seq.to_le_bytes()).unwrap();
        apply(&mut model, &changes);
        match rng.u8(..10) {
            0..3 => kept.push((engine.snapshot().unwrap(), model.clone(), seq)),
            3 if !kept.is_empty() => drop(kept.swap_remove(rng.usize(..kept.len()))),
            4..7 => engine.checkpoint(false, &mut |_| Ok(())).unwrap(),
            7 => {
                engine.checkpoint(false, &mut |_| Ok(())).unwrap();
                let files = engine.files();
                files.map(|files| files.reclaim(u64::MAX).unwrap());
            }
            8 => drop(engine.files().map(|files| files.reopen().unwrap())),
            _ => {}
        }
        for (view, then, seq) in &kept {
            let (a, b) = (random_key(&mut rng), random_key(&mut rng));
            for (from, to) in [
                (Bound::Unbounded, Bound::Unbounded),
                (random_bound(&mut rng, &a), random_bound(&mut rng, &b)),
            ] {
                let seen = range(&**view, from, to);
                assert_eq!(
                    seen,
                    expected(then, from, to),
                    "{kind:?} {seq} {from:?} {to:?}"
                );
            }
            let value = view.get(&a).unwrap();
            assert_eq!(value.as_deref(), then.get(&a).map(Vec::as_slice));
            let applied = view.get(amino_schema::key::APPLIED).unwrap();
            assert_eq!(applied.as_deref(), Some(&seq.to_le_bytes()[..]), "{kind:?}");
        }
    }
}

/// sled made batches wait for a snapshot's end, and fjall the opening of its files.
#[test]
fn a_kept_snapshot_stays_as_it_was_and_nothing_waits_for_it() {
    ENGINES
        .into_iter()
        .for_each(kept_snapshots_stay_as_they_were);
}

#[test]
fn what_only_a_snapshot_needs_is_freed_when_it_is_dropped() {
    const BYTES: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let engine = EngineKind::Fjall
        .open(&dir.path().join("engine"), None)
        .unwrap();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut value = || -> Vec<u8> {
        std::iter::repeat_with(|| rng.u8(..))
            .take(64 << 10)
            .collect()
    };
    let keys = || (0..BYTES >> 16).map(|number| [b"P", &number.to_be_bytes()[..]].concat());
    let changes: Changes = keys()
        .map(|key| (key.into(), Some(value().into())))
        .collect();
    engine.apply(&changes, b"1").unwrap();
    let snapshot = engine.snapshot().unwrap();
    let removed: Changes = keys().map(|key| (key.into(), None)).collect();
    engine.apply(&removed, b"2").unwrap();
    let size_after_compaction = || {
        engine.checkpoint(false, &mut |_| Ok(())).unwrap();
        let reclaimed = engine.files().unwrap().reclaim(u64::MAX);
        assert_eq!(reclaimed.unwrap(), Reclaim::Done);
        engine.files().unwrap().reopen().unwrap();
        engine.files().unwrap().size_on_disk().unwrap()
    };
    assert!(size_after_compaction() >= BYTES);
    let seen = range(&*snapshot, Bound::Unbounded, Bound::Unbounded);
    assert_eq!(seen.len() as u64, BYTES >> 16);
    drop(snapshot);
    assert!(size_after_compaction() < BYTES / 4);
}

/// fjall reads its journal entry by entry at each start, also what is in its tables already. It must not count its
/// sequence numbers from zero, either, when there is nothing to read: later changes would be older than earlier ones.
#[test]
fn fjall_starts_without_a_journal_after_a_large_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let journal = || {
        let entries = std::fs::read_dir(path.join("engine")).unwrap();
        let journals = entries.map(|entry| entry.unwrap());
        let bytes = journals
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(".jnl"))
            .map(|entry| entry.metadata().unwrap().len());
        bytes.collect::<Vec<_>>()
    };
    let mut model = Model::new();
    for round in 0..4u8 {
        let store = Store::open(&path, common::options(EngineKind::Fjall)).unwrap();
        assert_eq!(common::all(&store), model, "round {round}");
        for number in 0..200u32 {
            let mut changes = Changes::new();
            let key = [b"P", &number.to_be_bytes()[..]].concat();
            if (number + u32::from(round)).is_multiple_of(5) {
                changes.delete(key);
            } else {
                changes.put(key, vec![round; 6000]);
            }
            apply(&mut model, &changes);
            store.submit(&store.enter(), changes).unwrap();
        }
        store.close().unwrap();
        assert_eq!(journal(), [0], "round {round}");
    }
    let store = Store::open(&path, common::options(EngineKind::Fjall)).unwrap();
    assert_eq!(common::all(&store), model);
}

/// fjall removes a journal whose batches are all in tables, also one that the checkpoint lists. The store made a new one of
/// that name when it was opened after a crash; and when it crashed again, it took that one for damage.
#[test]
fn a_second_crash_after_fjall_has_removed_a_journal_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let open = |files| EngineKind::Fjall.open(dir.path(), files).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    let engine = open(None);
    engine.apply(&random_changes(&mut rng, 30), b"1").unwrap();
    let mut files = Vec::new();
    let publish = &mut |found| {
        files = found;
        Ok(())
    };
    engine.checkpoint(true, publish).unwrap();
    drop(engine);
    let journals: Vec<_> = files
        .iter()
        .filter(|file| file.name.ends_with(".jnl"))
        .collect();
    assert!(journals.iter().any(|file| file.len > 0), "{journals:?}");
    for file in journals {
        std::fs::remove_file(dir.path().join(&file.name)).unwrap();
    }
    for _ in 0..2 {
        let engine = open(Some(&files));
        engine.apply(&random_changes(&mut rng, 30), b"2").unwrap();
    }
}

/// `--no-default-features`: neither a new store nor one that another build has made is touched.
#[cfg(not(feature = "sled"))]
#[test]
fn an_engine_that_is_not_built_in_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let refused = || Store::open(&path, common::options(EngineKind::Sled)).err();
    let error = refused().unwrap().to_string();
    assert_eq!(error, "this program was built without the engine sled");
    assert!(!path.exists());
    Store::open(&path, common::options(EngineKind::Fjall))
        .unwrap()
        .close()
        .unwrap();
    assert!(refused().is_some());
}
