//! A full disk.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use amino_txn::{Changes, EngineKind, Error, Options, Store};
use common::small_disk::SmallDisk;
use common::{Model, all, apply};

const PERSISTENT: [EngineKind; 2] = [EngineKind::Fjall, EngineKind::Sled];

fn options(engine: EngineKind) -> Options {
    Options {
        engine,
        create: true,
        flush_interval: Duration::from_millis(100),
        ..Options::default()
    }
}

fn page(rng: &mut fastrand::Rng, number: u32) -> Changes {
    let mut changes = Changes::new();
    let value: Vec<u8> = std::iter::repeat_with(|| rng.u8(..))
        .take(64 << 10)
        .collect();
    changes.put([b"B", &number.to_be_bytes()[..]].concat(), value);
    changes
}

fn submit(store: &Store, changes: Changes) -> Result<(), Error> {
    store.throttle();
    store.submit(&store.enter(), changes)
}

/// Adds pages until one is refused, and says how many were accepted.
fn add_pages(store: &Store, model: &mut Model, from: u32) -> u32 {
    let mut rng = fastrand::Rng::with_seed(u64::from(from));
    for number in from.. {
        let changes = page(&mut rng, number);
        match submit(store, changes.clone()) {
            Ok(()) => apply(model, &changes),
            Err(error) => {
                assert_eq!(error.errno(), 28, "{error}");
                return number - from;
            }
        }
        assert!(number - from < 10_000, "the disk is never full");
    }
    0
}

fn reopen(path: &Path, engine: EngineKind, model: &Model) -> Store {
    let store = Store::open(path, options(engine)).unwrap();
    assert!(all(&store) == *model, "{engine:?}");
    store
}

/// Deletes all pages, and syncs before every `step`-th.
fn delete_pages(store: &Store, model: &mut Model, step: usize) {
    for (at, key) in model.keys().cloned().collect::<Vec<_>>().iter().enumerate() {
        if at % step == 0 {
            store.sync().unwrap();
        }
        let mut changes = Changes::new();
        changes.delete(key.clone());
        submit(store, changes.clone()).unwrap();
        apply(model, &changes);
    }
    store.sync().unwrap();
}

/// Regression: when the engine could not free the space of the last but few deletions, because the disk was too full at that
/// time, it was not asked again before there were many more.
#[test]
fn what_is_accepted_on_a_filling_disk_is_kept_and_removals_free_space() {
    let steps = [usize::MAX, 1, 70];
    for (engine, step) in PERSISTENT
        .into_iter()
        .flat_map(|engine| steps.map(|step| (engine, step)))
    {
        let Some(disk) = SmallDisk::mount(160) else {
            return;
        };
        let store = Store::open(&disk.store(), options(engine)).unwrap();
        let mut model = Model::new();
        let added = add_pages(&store, &mut model, 0);
        // sled has two copies, and takes several times the space itself.
        let least = if engine == EngineKind::Sled { 150 } else { 300 };
        assert!(added > least, "{engine:?}: only {added} pages of 64 KiB");
        store.sync().unwrap();
        assert!(all(&store) == model, "{engine:?}");
        store.close().unwrap();

        let store = reopen(&disk.store(), engine, &model);
        delete_pages(&store, &mut model, step);
        // Space is given back in the background.
        let begun = Instant::now();
        while add_pages(&store, &mut model, 20_000) < 100 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{engine:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        store.close().unwrap();
        reopen(&disk.store(), engine, &model).close().unwrap();
    }
}

/// The store keeps its guarantees when other programs take the space that it counted on.
#[test]
fn others_fill_the_disk_of_a_store_on_fjall() {
    others_fill_the_disk(EngineKind::Fjall);
}

/// Here it stopped: "cannot flush: StorageFull". sled takes no batch after a write that failed.
#[test]
fn others_fill_the_disk_of_a_store_on_sled() {
    others_fill_the_disk(EngineKind::Sled);
}

fn others_fill_the_disk(engine: EngineKind) {
    for crash in [false, true] {
        let Some(disk) = SmallDisk::mount(160) else {
            return;
        };
        let slow = Options {
            flush_interval: Duration::from_secs(60),
            ..options(engine)
        };
        let store = Store::open(&disk.store(), slow).unwrap();
        let (mut model, mut rng) = (Model::new(), fastrand::Rng::with_seed(7));
        for number in 0..100 {
            let changes = page(&mut rng, number);
            submit(&store, changes.clone()).unwrap();
            apply(&mut model, &changes);
        }
        disk.fill();
        store.sync().unwrap();
        let mut refused = 0;
        for number in 1000..1100 {
            let changes = page(&mut rng, number);
            match submit(&store, changes.clone()) {
                Ok(()) => apply(&mut model, &changes),
                Err(error) => {
                    assert_eq!(error.errno(), 28, "{error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 50, "{refused}");
        assert!(all(&store) == model);
        std::thread::sleep(Duration::from_millis(700));
        assert!(all(&store) == model);
        store.sync().unwrap();
        if crash {
            // As after a kill: the files as they are now, on a disk as full.
            let copy = tempfile::tempdir().unwrap();
            common::copy_dir(&disk.store(), copy.path());
            drop(store);
            fs::remove_dir_all(disk.store()).unwrap();
            disk.free_space();
            common::copy_dir(copy.path(), &disk.store());
        } else {
            store.close().unwrap();
        }
        for _ in 0..2 {
            disk.fill();
            let store = reopen(&disk.store(), engine, &model);
            assert_eq!(add_pages(&store, &mut model, 2000), 0);
            store.close().unwrap();
        }
        disk.free_space();
        let store = reopen(&disk.store(), engine, &model);
        assert!(add_pages(&store, &mut model, 3000) > 50);
        store.close().unwrap();
        reopen(&disk.store(), engine, &model).close().unwrap();
    }
}

/// A store that stays open while its disk is repeatedly full continues when there is space.
#[test]
fn a_store_goes_on_when_its_disk_has_space_again() {
    for engine in PERSISTENT {
        let Some(disk) = SmallDisk::mount(160) else {
            return;
        };
        let store = Store::open(&disk.store(), options(engine)).unwrap();
        let (mut model, mut rng) = (Model::new(), fastrand::Rng::with_seed(5));
        for round in 0..4 {
            for number in 0..60 {
                let changes = page(&mut rng, number);
                submit(&store, changes.clone()).unwrap();
                apply(&mut model, &changes);
            }
            disk.fill();
            // What the log has space for is accepted.
            let added = add_pages(&store, &mut model, 1000);
            assert!(added < 50, "{engine:?} {round}: {added}");
            // The committer meets the full disk, some times.
            std::thread::sleep(Duration::from_millis(400));
            assert!(all(&store) == model, "{engine:?} {round}");
            disk.free_space();
            // What is refused is tried again half a second later.
            let begun = Instant::now();
            while submit(&store, page(&mut rng, 0)).is_err() {
                assert!(begun.elapsed() < Duration::from_secs(30), "{engine:?}");
                std::thread::sleep(Duration::from_millis(50));
            }
            let mut changes = Changes::new();
            changes.delete([b"B", &0u32.to_be_bytes()[..]].concat());
            submit(&store, changes.clone()).unwrap();
            apply(&mut model, &changes);
        }
        store.close().unwrap();
        reopen(&disk.store(), engine, &model).close().unwrap();
    }
}

/// What is reserved for sled leaves most of the disk to what two copies and the log can hold.
#[test]
fn a_store_on_sled_takes_what_its_two_copies_can_hold() {
    let Some(disk) = SmallDisk::mount(512) else {
        return;
    };
    let store = Store::open(&disk.store(), options(EngineKind::Sled)).unwrap();
    let mut model = Model::new();
    let added = add_pages(&store, &mut model, 0);
    let mib = added / 16;
    assert!(mib >= 100, "only {mib} MiB");
    store.close().unwrap();
    reopen(&disk.store(), EngineKind::Sled, &model)
        .close()
        .unwrap();
}
