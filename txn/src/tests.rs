//! What can only be seen from inside: failures of the host that cannot be had on demand.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::{Changes, DirtySource, EngineKind, Error, Options, Store, change_cost};

fn options() -> Options {
    Options {
        engine: EngineKind::Memory,
        create: true,
        log_segment_bytes: 64 << 10,
        flush_interval: Duration::from_secs(60),
        ..Options::default()
    }
}

fn put(store: &Store, key: &str, value: &str) -> Result<(), Error> {
    let mut changes = Changes::new();
    changes.put(key.to_owned(), value.to_owned());
    store.submit(&store.enter(), changes)
}

/// The kernel forgets pages it could not write, so a second fsync succeeds and means nothing.
#[test]
fn a_failed_sync_stops_the_store_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    put(&store, "a", "1").unwrap();
    store.sync().unwrap();
    put(&store, "b", "2").unwrap();
    store.shared().log.fail_sync.store(true, SeqCst);
    let first = store.sync().unwrap_err();
    store.shared().log.fail_sync.store(false, SeqCst);

    assert!(
        matches!(&first, Error::Stopped { why } if why.contains("sync")),
        "{first}"
    );
    for again in [
        store.sync(),
        put(&store, "c", "3"),
        store.reserve(1),
        store.clone().close(),
    ] {
        assert!(matches!(again, Err(Error::Stopped { .. })), "{again:?}");
    }
    assert_eq!(first.errno(), 5);
    drop(store);

    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    assert_eq!(store.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(store.get(b"c").unwrap(), None);
}

#[derive(Default)]
struct Pages {
    dirty: Mutex<Vec<u8>>,
    collected: AtomicUsize,
}

impl DirtySource for Pages {
    fn collect(&self, out: &mut Changes) {
        for page in self.dirty.lock().unwrap().drain(..) {
            out.put(vec![b'B', page], vec![page; 100]);
        }
        self.collected.fetch_add(1, SeqCst);
    }

    fn dirty_bytes(&self) -> usize {
        self.dirty.lock().unwrap().len() * change_cost(2, 100)
    }
}

/// A page dirtied by an operation must be in the record that has what the operation submitted, and in no earlier one.
#[test]
fn dirty_pages_join_the_batch_of_their_operation() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    let pages = Arc::new(Pages::default());
    let source: Arc<dyn DirtySource> = pages.clone();
    store.set_source(Arc::downgrade(&source));
    for page in 0..50u8 {
        let guard = store.enter();
        store.reserve(change_cost(2, 100)).unwrap();
        pages.dirty.lock().unwrap().push(page);
        let mut changes = Changes::new();
        changes.put(vec![b'P', page], vec![page]);
        store.submit(&guard, changes).unwrap();
        drop(guard);
        if page % 7 == 0 {
            store.sync().unwrap();
        }
    }
    store.sync().unwrap();
    assert!(pages.collected.load(SeqCst) >= 8);
    let mut seen = Vec::new();
    store
        .scan(
            std::ops::Bound::Unbounded,
            b"",
            &mut |key, value: &Bytes| {
                seen.push((key.to_vec(), value.len()));
                ControlFlow::Continue(())
            },
        )
        .unwrap();
    assert_eq!(seen.len(), 100);
    assert_eq!(seen[0], (vec![b'B', 0], 100));
    assert_eq!(seen[99], (vec![b'P', 49], 1));
    assert_eq!(store.shared().log.promised(), 0);
}
