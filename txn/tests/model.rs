//! The store against a map, reopened at random points; several threads; limits.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::time::Duration;

use amino_txn::{Changes, EngineKind, Error, Options, Records, Store};
use common::{ENGINES, Model, all, apply, options, random_changes, random_key, scan};

fn check(store: &Store, model: &Model, rng: &mut fastrand::Rng) {
    for _ in 0..3 {
        let (key, prefix) = (random_key(rng), random_key(rng));
        assert_eq!(
            store.get(&key).unwrap().as_deref(),
            model.get(&key).map(Vec::as_slice)
        );
        for from in [
            Bound::Included(&key[..]),
            Bound::Excluded(&key[..]),
            Bound::Unbounded,
        ] {
            let expected: Vec<_> = model
                .range::<[u8], _>((from, Bound::Unbounded))
                .filter(|(key, _)| key.starts_with(&prefix))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(scan(store, from, &prefix), expected, "{from:?} {prefix:?}");
        }
    }
}

fn against_model(engine: EngineKind, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    // Small limits, so that every batch, checkpoint and merge of layers happens often.
    let options = Options {
        checkpoint_bytes: 200 << 10,
        max_pending_bytes: 64 << 10,
        flush_interval: Duration::from_millis(2),
        ..options(engine)
    };
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut model = Model::new();
    let mut store = Store::open(&path, options.clone()).unwrap();
    for _ in 0..1500 {
        let changes = random_changes(&mut rng, 8);
        apply(&mut model, &changes);
        store.throttle();
        store.submit(&store.enter(), changes).unwrap();
        match rng.u32(..200) {
            0..8 => store.sync().unwrap(),
            8..40 => check(&store, &model, &mut rng),
            40 => {
                store.close().unwrap();
                store = Store::open(&path, options.clone()).unwrap();
                assert_eq!(all(&store), model);
            }
            41 => {
                drop(store);
                store = Store::open(&path, options.clone()).unwrap();
                assert_eq!(all(&store), model);
            }
            _ => {}
        }
    }
    assert_eq!(all(&store), model);
    let info = store.info();
    assert!(
        info.durable_seq <= info.appended_seq && info.applied_seq <= info.appended_seq,
        "{info:?}"
    );
    store.close().unwrap();
    let left = std::fs::read_dir(path.join("log")).unwrap().count();
    assert_eq!(
        left == 0,
        engine != EngineKind::Memory,
        "a closed store needs no log"
    );
}

#[test]
fn the_store_is_a_map() {
    for engine in ENGINES {
        against_model(engine, 1);
        against_model(engine, 2);
    }
}

fn open(path: &Path, change: impl FnOnce(&mut Options)) -> Store {
    let mut options = options(EngineKind::Fjall);
    change(&mut options);
    Store::open(path, options).unwrap()
}

fn one(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Changes {
    let mut changes = Changes::new();
    changes.put(key.into(), value.into());
    changes
}

/// Keys that are moved, one leaving as the other comes, must be seen exactly once by every reader at every time.
#[test]
fn a_reader_sees_whole_submissions_only() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"), |options| {
        options.flush_interval = Duration::from_millis(1)
    });
    store.submit(&store.enter(), one("Pa", "x")).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..4000 {
                let (from, to) = if round % 2 == 0 {
                    ("Pa", "Pz")
                } else {
                    ("Pz", "Pa")
                };
                let mut changes = one(to, "x");
                changes.delete(from);
                store.submit(&store.enter(), changes).unwrap();
                if round % 100 == 0 {
                    store.sync().unwrap();
                }
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(scan(&store, Bound::Unbounded, b"P").len(), 1);
        }
    });
}

#[test]
fn a_scan_stops_on_request_and_may_submit() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"), |_| {});
    // More than the chunks in which a scan takes the overlay.
    for key in 0..5000u32 {
        store
            .submit(
                &store.enter(),
                one([b"P", &key.to_be_bytes()[..]].concat(), "x"),
            )
            .unwrap();
    }
    let mut seen = 0;
    store
        .scan(Bound::Unbounded, b"P", &mut |key, _| {
            seen += 1;
            let mut changes = Changes::new();
            changes.delete(key.to_vec());
            store.submit(&store.enter(), changes).unwrap();
            if seen == 4000 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
    assert_eq!(seen, 4000);
    assert_eq!(scan(&store, Bound::Unbounded, b"P").len(), 1000);
}

#[test]
fn callers_that_sync_together_share_one_sync() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("s"), |_| {});
    let (threads, rounds) = (8u8, 50u8);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let store = &store;
            scope.spawn(move || {
                for round in 0..rounds {
                    store
                        .submit(&store.enter(), one(vec![b'P', thread, round], "x"))
                        .unwrap();
                    store.sync().unwrap();
                }
            });
        }
    });
    let stats = store.stats();
    assert_eq!(stats.syncs, u64::from(threads) * u64::from(rounds));
    assert!(stats.fdatasyncs < stats.syncs, "{stats:?}");
    assert_eq!(
        all(&store).len(),
        usize::from(threads) * usize::from(rounds)
    );
    // With nothing new there is nothing to wait for.
    store.sync().unwrap();
    assert_eq!(store.stats().fdatasyncs, stats.fdatasyncs);
}

#[test]
fn a_full_log_refuses_before_anything_changes_and_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let limit = 256 << 10;
    let store = open(&dir.path().join("s"), |options| {
        options.log_limit_bytes = limit
    });
    let huge = store.submit(&store.enter(), one("Phuge", vec![1; limit as usize]));
    assert!(matches!(huge, Err(Error::NoSpace)), "{huge:?}");
    assert_eq!(huge.unwrap_err().errno(), 28);
    assert_eq!(store.get(b"Phuge").unwrap(), None);

    let mut model = Model::new();
    let mut refused = 0;
    for key in 0..2000u32 {
        let (key, value) = ([b"P", &key.to_be_bytes()[..]].concat(), vec![7; 1000]);
        match store.submit(&store.enter(), one(key.clone(), value.clone())) {
            Ok(()) => drop(model.insert(key, value)),
            Err(Error::NoSpace) => {
                refused += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(store.info().log_bytes_on_disk <= limit);
    }
    // The log holds an eighth of what was written, so it was full and a checkpoint made space, again and again.
    assert!(
        refused > 0 && store.stats().checkpoints > 0,
        "{refused} {:?}",
        store.stats()
    );
    assert!(model.len() > 1000, "{}", model.len());
    assert_eq!(all(&store), model);
    store.close().unwrap();
    assert_eq!(all(&open(&dir.path().join("s"), |_| {})), model);
}

#[test]
fn throttling_bounds_what_is_pending() {
    let dir = tempfile::tempdir().unwrap();
    let most = 1 << 20;
    let store = open(&dir.path().join("s"), |options| {
        options.max_pending_bytes = most
    });
    for key in 0..2000u32 {
        store.throttle();
        let key = [b"B", &key.to_be_bytes()[..]].concat();
        store
            .submit(&store.enter(), one(key, vec![7; 16 << 10]))
            .unwrap();
        assert!(store.stats().pending_bytes <= most as u64 + (17 << 10));
    }
}

/// Everything at once: several writers, small segments, checkpoints and a limit that is often reached.
#[test]
fn writers_checkpoints_and_a_short_log_get_along() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let options = Options {
            flush_interval: Duration::from_millis(1),
            checkpoint_bytes: 150 << 10,
            log_limit_bytes: 400 << 10,
            max_pending_bytes: 100 << 10,
            ..options(engine)
        };
        let store = Store::open(&path, options.clone()).unwrap();
        let work = |thread: u8, store: &Store| {
            let mut rng = fastrand::Rng::with_seed(u64::from(thread));
            let mut model = Model::new();
            for _ in 0..600 {
                let key = vec![b'P', thread, rng.u8(..40)];
                let changes = one(key.clone(), vec![rng.u8(..); rng.usize(..3000)]);
                store.throttle();
                match store.submit(&store.enter(), changes.clone()) {
                    Ok(()) => apply(&mut model, &changes),
                    Err(Error::NoSpace) => std::thread::sleep(Duration::from_millis(1)),
                    Err(error) => panic!("{error}"),
                }
                if rng.u8(..30) == 0 {
                    store.sync().unwrap();
                }
                assert_eq!(
                    store.get(&key).unwrap().as_deref(),
                    model.get(&key).map(Vec::as_slice)
                );
            }
            assert_eq!(
                scan(store, Bound::Unbounded, &[b'P', thread]),
                model.clone().into_iter().collect::<Vec<_>>()
            );
            model
        };
        let mut model = Model::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6)
                .map(|thread| {
                    scope.spawn({
                        let (work, store) = (&work, &store);
                        move || work(thread, store)
                    })
                })
                .collect();
            threads
                .into_iter()
                .for_each(|thread| model.extend(thread.join().unwrap()));
        });
        assert!(store.stats().checkpoints > 1, "{:?}", store.stats());
        assert_eq!(all(&store), model);
        drop(store);
        assert_eq!(all(&Store::open(&path, options).unwrap()), model);
    }
}
