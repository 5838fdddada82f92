//! Snapshots: the state at one moment between two operations, whatever changes later.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use amino_txn::{Changes, DirtySource, Options, Records, Snapshot, Store};
use common::{ENGINES, Model, apply, options, random_changes, random_key};

fn seen(snapshot: &Snapshot, from: Bound<&[u8]>, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut seen = Vec::new();
    snapshot
        .scan(from, prefix, &mut |key, value| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    seen
}

#[test]
fn what_comes_later_is_not_in_it() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            flush_interval: Duration::from_millis(2),
            checkpoint_bytes: 200 << 10,
            ..options(engine)
        };
        let store = Store::open(&dir.path().join("store"), options).unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let mut model = Model::new();
        let change = |model: &mut Model, rng: &mut fastrand::Rng, count| {
            for _ in 0..count {
                let changes = random_changes(rng, 8);
                apply(model, &changes);
                store.submit(&store.enter(), changes).unwrap();
            }
        };
        for round in 0..60 {
            change(&mut model, &mut rng, 40);
            if round % 7 == 0 {
                store.sync().unwrap();
            }
            let then = model.clone();
            let snapshot = store.snapshot().unwrap();
            change(&mut model, &mut rng, 40);
            let all: Model = seen(&snapshot, Bound::Unbounded, b"").into_iter().collect();
            assert!(all == then, "{engine:?} {round}");
            let (key, prefix) = (random_key(&mut rng), random_key(&mut rng));
            let expected: Vec<_> = then
                .range::<[u8], _>((Bound::Excluded(&key[..]), Bound::Unbounded))
                .filter(|(key, _)| key.starts_with(&prefix))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            assert_eq!(seen(&snapshot, Bound::Excluded(&key), &prefix), expected);
            let value = snapshot.get(&key).unwrap();
            assert_eq!(value.as_deref(), then.get(&key).map(Vec::as_slice));
        }
        assert!(common::all(&store) == model);
        store.close().unwrap();
    }
}

/// Keeps the last number in memory only.
#[derive(Default)]
struct Kept(Mutex<Option<u64>>, AtomicU64);

impl DirtySource for Kept {
    fn collect(&self, out: &mut Changes) {
        self.1.store(0, SeqCst);
        if let Some(number) = self.0.lock().unwrap().take() {
            out.put(b"Pkept".to_vec(), number.to_be_bytes().to_vec());
        }
    }

    fn dirty_bytes(&self) -> usize {
        self.1.load(SeqCst) as usize
    }
}

#[test]
fn it_lies_between_two_operations_and_has_what_was_dirty() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            flush_interval: Duration::from_millis(1),
            ..options(engine)
        };
        let store = Store::open(&dir.path().join("store"), options).unwrap();
        let kept = Arc::new(Kept::default());
        let source: Arc<dyn DirtySource> = kept.clone();
        store.set_source(Arc::downgrade(&source));
        let over = AtomicBool::new(false);
        let last = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1_u64.. {
                    if over.load(SeqCst) {
                        return;
                    }
                    store.throttle();
                    let guard = store.enter();
                    for name in [b"Pone", b"Ptwo"] {
                        let mut changes = Changes::new();
                        changes.put(name.to_vec(), number.to_be_bytes().to_vec());
                        store.submit(&guard, changes).unwrap();
                    }
                    store.reserve(64).unwrap();
                    kept.1.store(64, SeqCst);
                    *kept.0.lock().unwrap() = Some(number);
                    drop(guard);
                    last.store(number, SeqCst);
                }
            });
            for _ in 0..300 {
                let done = last.load(SeqCst);
                let snapshot = store.snapshot().unwrap();
                let number = |key: &[u8]| {
                    let raw = snapshot.get(key).unwrap();
                    raw.map_or(0, |raw| u64::from_be_bytes(raw[..].try_into().unwrap()))
                };
                let numbers = [number(b"Pone"), number(b"Ptwo"), number(b"Pkept")];
                assert!(numbers[0] >= done, "{engine:?} {numbers:?} {done}");
                assert_eq!(numbers, [numbers[0]; 3], "{engine:?}");
                drop(snapshot);
                while last.load(SeqCst) < done + 3 {
                    std::thread::yield_now();
                }
            }
            over.store(true, SeqCst);
        });
        store.close().unwrap();
    }
}
