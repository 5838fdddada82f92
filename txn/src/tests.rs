//! Tests with access to private items: failures of the host that cannot be produced from outside.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::{Changes, DirtySource, EngineKind, Error, Options, Records, Store, change_cost};

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

/// The kernel drops pages that it could not write, so a second fsync succeeds without effect.
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

/// The engine got no changes before 8 MiB waited for it, or half a second had passed. So the end of a short run waited for all of
/// them.
#[test]
fn the_engine_takes_changes_while_others_are_made() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    let value = "x".repeat(1 << 10);
    for number in 0..3 << 10 {
        put(&store, &format!("A{number}"), &value).unwrap();
    }
    // The flush interval is a minute.
    let begun = std::time::Instant::now();
    while store.info().applied_seq == 0 {
        assert!(
            begun.elapsed() < Duration::from_secs(30),
            "{:?}",
            store.stats()
        );
        std::thread::yield_now();
    }
    assert_eq!(store.stats().syncs, 0);
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
    assert_eq!(store.shared().log.reserved(), 0);
}

/// A file system that owns its store and is dropped with its last reference.
struct Owner {
    store: Store,
    pages: Pages,
}

impl DirtySource for Owner {
    fn collect(&self, out: &mut Changes) {
        self.pages.collect(out);
        // Gives the test time to drop its own reference, so that the store's is the last.
        std::thread::sleep(Duration::from_millis(30));
    }

    fn dirty_bytes(&self) -> usize {
        self.pages.dirty_bytes()
    }
}

/// Dropping the source closes the store, which waits for the committer, which needs the locks of a commit.
#[test]
fn the_last_reference_to_the_source_may_be_the_commits_own() {
    for by_sync in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let flush_interval = if by_sync {
            Duration::from_secs(60)
        } else {
            Duration::from_millis(5)
        };
        let store = Store::open(
            &path,
            Options {
                flush_interval,
                ..options()
            },
        )
        .unwrap();
        let owner = Arc::new(Owner {
            store: store.clone(),
            pages: Pages::default(),
        });
        let source: Arc<dyn DirtySource> = owner.clone();
        store.set_source(Arc::downgrade(&source));
        drop(source);
        {
            let _guard = owner.store.enter();
            owner.store.reserve(change_cost(2, 100)).unwrap();
            owner.pages.dirty.lock().unwrap().push(1);
        }
        let syncing = std::thread::spawn(move || if by_sync { store.sync() } else { Ok(()) });
        // The commit has collected the changes, and is not finished.
        while owner.pages.dirty_bytes() > 0 {
            std::thread::yield_now();
        }
        drop(owner);
        syncing.join().unwrap().unwrap();
        // If the committer has dropped the last reference to the store, closing continues in the committer.
        let again = (0..200).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            Store::open(&path, options()).ok()
        });
        assert_eq!(
            again
                .unwrap()
                .get(&[b'B', 1])
                .unwrap()
                .map(|page| page.len()),
            Some(100)
        );
    }
}

/// A source that panics when the thread `leader` commits.
struct Panicking {
    begun: Barrier,
}

impl DirtySource for Panicking {
    fn prepare(&self) {
        if std::thread::current().name() == Some("leader") {
            self.begun.wait();
            panic!("on purpose");
        }
    }

    fn collect(&self, _out: &mut Changes) {}

    fn dirty_bytes(&self) -> usize {
        0
    }
}

/// One caller of `sync` commits for the others. When it panics, they get an error and do not wait forever.
#[test]
fn a_panic_in_a_commit_leaves_no_caller_of_sync_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("s"), options()).unwrap();
    let source = Arc::new(Panicking {
        begun: Barrier::new(2),
    });
    let shared: Arc<dyn DirtySource> = source.clone();
    store.set_source(Arc::downgrade(&shared));
    let sync = |name: &str| {
        let (store, (done, result)) = (store.clone(), channel());
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || done.send(store.sync()));
        (thread.unwrap(), result)
    };
    let (leader, _) = sync("leader");
    source.begun.wait();
    let (_, result) = sync("other");
    let result = result.recv_timeout(Duration::from_secs(60));
    let result = result.expect("it waits for a commit that has ended");
    assert!(
        matches!(&result, Err(Error::Stopped { why }) if why.contains("panicked")),
        "{result:?}"
    );
    assert!(leader.join().is_err());
}
