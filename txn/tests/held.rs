//! Everything as one transaction: nothing of it is in the store before the commit, and all of it after.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use std::time::Duration;

use amino_txn::{Changes, EngineKind, Error, Options, Store};
use common::options;

fn put(store: &Store, key: &str, value: &[u8]) -> Result<(), Error> {
    let mut changes = Changes::new();
    changes.put(key.to_owned(), value.to_owned());
    store.throttle();
    store.submit(&store.enter(), changes)
}

fn delete(store: &Store, key: &str) {
    let mut changes = Changes::new();
    changes.delete(key.to_owned());
    store.submit(&store.enter(), changes).unwrap();
}

fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    store.get(key.as_bytes()).unwrap().map(|v| v.to_vec())
}

/// Flushes often and checkpoints soon, so that what leaks out is seen.
fn hasty(engine: EngineKind) -> Options {
    Options {
        flush_interval: Duration::from_millis(2),
        max_pending_bytes: 1 << 20,
        checkpoint_bytes: 1 << 20,
        ..options(engine)
    }
}

fn fill(store: &Store) {
    put(store, "old", b"changed").unwrap();
    delete(store, "gone");
    for n in 0..200 {
        put(store, &format!("new{n}"), &[1; 10_000]).unwrap();
        store.sync().unwrap();
    }
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(
        get(store, "old").unwrap(),
        b"changed",
        "own writes are read"
    );
    assert_eq!(get(store, "gone"), None);
}

#[test]
fn closing_forgets_and_committing_keeps() {
    for engine in [EngineKind::Fjall, EngineKind::Sled] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let store = Store::open(&path, hasty(engine)).unwrap();
        put(&store, "old", b"old").unwrap();
        put(&store, "gone", b"gone").unwrap();
        store.hold().unwrap();
        fill(&store);
        store.close().unwrap();

        let store = Store::open(&path, hasty(engine)).unwrap();
        assert_eq!(get(&store, "old").unwrap(), b"old", "{engine:?}");
        assert_eq!(get(&store, "gone").unwrap(), b"gone");
        assert_eq!(get(&store, "new0"), None);
        store.hold().unwrap();
        fill(&store);
        let records = store.stats().records;
        store.commit_held().unwrap();
        assert_eq!(
            store.stats().records,
            records + 1,
            "one record, all or nothing"
        );
        let copy = dir.path().join("copy");
        let copied = std::process::Command::new("cp")
            .arg("-a")
            .args([&path, &copy])
            .status();
        assert!(copied.unwrap().success());
        let store = Store::open(&copy, hasty(engine)).unwrap();
        assert_eq!(get(&store, "old").unwrap(), b"changed");
        assert_eq!(get(&store, "gone"), None);
        assert_eq!(get(&store, "new199").unwrap().len(), 10_000);
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_rest_stays() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let small = Options {
        transaction_bytes: 100 << 10,
        ..hasty(EngineKind::Fjall)
    };
    let store = Store::open(&path, small).unwrap();
    store.hold().unwrap();
    let mut kept = 0;
    let refused = loop {
        match put(&store, &format!("k{kept}"), &[7; 10_000]) {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, Error::NoSpace), "{refused}");
    assert!((9..=10).contains(&kept), "{kept}");
    delete(&store, "k0");
    store.commit_held().unwrap();
    put(&store, "after", &[0; 200_000]).unwrap();
    assert_eq!(get(&store, "k0"), None);
    assert_eq!(get(&store, "k1").unwrap().len(), 10_000);
    store.close().unwrap();
}
