//! The store's directory, other processes, and sudden death.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use amino_txn::{Changes, EngineKind, Error, Options, Records, Store};
use common::{ENGINES, all, copy_dir, options};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, chown, geteuid, setuid};

const STORE: &str = "AMINO_TXN_TEST_STORE";
const ENGINE: &str = "AMINO_TXN_TEST_ENGINE";
const NO_THREADS: &str = "AMINO_TXN_TEST_NO_THREADS";
const NOBODY: u32 = 65534;

fn change(number: u32) -> Changes {
    let mut changes = Changes::new();
    changes.put(b"Plast".to_vec(), number.to_be_bytes().to_vec());
    changes.put([b"Q", &number.to_be_bytes()[..]].concat(), vec![1; 200]);
    changes
}

/// The process that other tests start. Submits forever and prints what is durable.
#[test]
#[ignore = "run as a process of its own by tests below"]
fn child_that_submits() {
    let path = std::env::var_os(STORE).unwrap();
    let engine = EngineKind::from_name(&std::env::var(ENGINE).unwrap()).unwrap();
    let options = Options {
        flush_interval: Duration::from_millis(2),
        checkpoint_bytes: 300 << 10,
        ..options(engine)
    };
    let store = Store::open(Path::new(&path), options).unwrap();
    let first = store
        .get(b"Plast")
        .unwrap()
        .map_or(0, |raw| u32::from_be_bytes(raw[..].try_into().unwrap()));
    for number in first + 1.. {
        store.throttle();
        store.submit(&store.enter(), change(number)).unwrap();
        if number % 50 == 0 {
            store.sync().unwrap();
            println!("durable {number}");
        }
    }
}

fn child(path: &Path, engine: EngineKind) -> (Child, impl Iterator<Item = u32>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_submits", "--ignored", "--nocapture"])
        .env(STORE, path)
        .env(ENGINE, engine.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (
        child,
        lines.filter_map(|line| line.ok()?.strip_prefix("durable ")?.parse().ok()),
    )
}

#[test]
fn a_killed_process_leaves_a_prefix_with_all_that_was_durable() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for round in 0..4u64 {
            let (mut child, mut durable) = child(&path, engine);
            let mut last = durable.next().unwrap();
            for _ in 0..round * 7 {
                last = durable.next().unwrap();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            last = durable.last().unwrap_or(last);

            let store = Store::open(&path, options(engine)).unwrap();
            let found = all(&store);
            let count = u32::from_be_bytes(found[&b"Plast"[..]][..].try_into().unwrap());
            assert!(count >= last, "{engine:?}: {count} steps, {last} durable");
            let numbers = found
                .keys()
                .filter_map(|key| key.strip_prefix(b"Q"))
                .map(<[u8]>::to_vec);
            let expected = (1..=count).map(|number| number.to_be_bytes().to_vec());
            assert!(numbers.eq(expected), "{engine:?}: not a prefix");
            store.close().unwrap();
        }
    }
}

#[test]
fn a_store_in_use_says_by_whom() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (mut child, mut durable) = child(&path, EngineKind::Fjall);
    durable.next().unwrap();
    let error = Store::open(&path, options(EngineKind::Fjall))
        .err()
        .unwrap();
    let Error::Held { pid, command, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(*pid, child.id());
    assert!(command.contains("child_that_submits"), "{command}");
    assert_eq!(error.errno(), 16);
    child.kill().unwrap();
    child.wait().unwrap();
    Store::open(&path, options(EngineKind::Fjall))
        .unwrap()
        .close()
        .unwrap();
}

/// The process that the next test starts. It can start no more threads, and closes its store.
#[test]
#[ignore = "run as a process of its own by the next test"]
fn child_without_threads() {
    let path = std::env::var_os(NO_THREADS).unwrap();
    if geteuid().is_root() {
        // The limit does not hold for root.
        chown(Path::new(&path), Some(Uid::from_raw(NOBODY)), None).unwrap();
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    let store = Store::open(&Path::new(&path).join("s"), options(EngineKind::Sled)).unwrap();
    store.submit(&store.enter(), change(1)).unwrap();
    store.sync().unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
    setrlimit(Resource::RLIMIT_NPROC, 0, hard).unwrap();
    let error = store.close().unwrap_err().to_string();
    assert!(error.contains("start a thread"), "{error}");
    assert!(!error.contains("panic"), "{error}");
}

/// A thread that sled writes by could not be started; that was a panic in the committer.
#[test]
fn sled_without_threads_stops_the_store_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([
        "--exact",
        "child_without_threads",
        "--ignored",
        "--nocapture",
    ]);
    assert!(
        child
            .env(NO_THREADS, dir.path())
            .status()
            .unwrap()
            .success()
    );
    let store = Store::open(&dir.path().join("s"), options(EngineKind::Sled)).unwrap();
    assert!(store.get(b"Plast").unwrap().is_some());
    store.close().unwrap();
}

/// A process that opens a store while another one makes it finds a store, or the holder's lock; never anything else.
#[test]
fn several_may_make_a_store_at_once() {
    for _ in 0..300 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let open = || match Store::open(&path, options(EngineKind::Memory)) {
            Ok(store) => {
                store.close().unwrap();
                true
            }
            Err(Error::Held { pid, .. }) if pid == std::process::id() => false,
            Err(error) => panic!("{error}"),
        };
        let opened = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(open)).collect();
            threads
                .into_iter()
                .filter_map(|thread| thread.join().unwrap().then_some(()))
                .count()
        });
        assert!(opened > 0);
    }
}

#[test]
fn a_store_is_for_its_owner_alone_and_opens_only_as_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let closed = |error: Result<Store, Error>| error.err().unwrap();
    let missing = closed(Store::open(&path, Options::default()));
    assert!(matches!(missing, Error::NotAStore { .. }), "{missing}");
    assert!(!path.exists());
    assert_eq!(Store::engine_of(&path).unwrap(), None);

    let store = Store::open(&path, options(EngineKind::Sled)).unwrap();
    assert!(store.info().created);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o700
    );
    let id = store.info().store_id;
    store.close().unwrap();
    assert_eq!(Store::engine_of(&path).unwrap(), Some(EngineKind::Sled));
    let other = closed(Store::open(&path, options(EngineKind::Fjall)));
    assert!(matches!(other, Error::EngineMismatch { .. }), "{other}");
    let store = Store::open(
        &path,
        Options {
            create: false,
            ..options(EngineKind::Sled)
        },
    )
    .unwrap();
    assert_eq!((store.info().store_id, store.info().created), (id, false));
    store.close().unwrap();

    fs::write(
        path.join("AMINO"),
        "amino store\nformat 9\nand what the future has\n",
    )
    .unwrap();
    let newer = closed(Store::open(&path, options(EngineKind::Sled)));
    assert!(
        matches!(
            newer,
            Error::NewerVersion {
                found: 9,
                supported: 3,
                ..
            }
        ),
        "{newer}"
    );
    fs::write(path.join("AMINO"), "amino stork").unwrap();
    let damaged = closed(Store::open(&path, options(EngineKind::Sled)));
    assert!(matches!(damaged, Error::Damaged { .. }), "{damaged}");
}

#[test]
fn what_is_no_store_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("home");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("letter"), "dear").unwrap();
    let before = fs::metadata(&path).unwrap().modified().unwrap();
    let error = Store::open(&path, options(EngineKind::Fjall))
        .err()
        .unwrap();
    assert!(matches!(error, Error::NotAStore { .. }), "{error}");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before);
    let file = Store::open(&path.join("letter"), options(EngineKind::Fjall))
        .err()
        .unwrap();
    assert!(matches!(file, Error::NotAStore { .. }), "{file}");

    // An empty directory, on the other hand, is where a user wants his store.
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    Store::open(&empty, options(EngineKind::Fjall))
        .unwrap()
        .close()
        .unwrap();
}

/// Creation is cut short at each of its steps and then begun again.
#[test]
fn an_interrupted_creation_is_done_again() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole");
    Store::open(&whole, options(EngineKind::Fjall))
        .unwrap()
        .close()
        .unwrap();
    let marker = fs::read(whole.join("AMINO")).unwrap();
    for (number, parts) in [&["lock"][..], &["lock", "log"], &["lock", "log", "engine"]]
        .iter()
        .enumerate()
    {
        for torn in [0, 10, marker.len()] {
            let half = dir.path().join(format!("half{number}-{torn}"));
            fs::create_dir(&half).unwrap();
            for part in *parts {
                match whole.join(part) {
                    file if file.is_file() => drop(fs::copy(file, half.join(part)).unwrap()),
                    tree => copy_dir(&tree, &half.join(part)),
                }
            }
            fs::write(half.join("AMINO.new"), &marker[..torn]).unwrap();
            let opened = Store::open(&half, options(EngineKind::Fjall));
            // The marker is whole before anything else is made, so with an incomplete marker these belong to another program.
            let foreign = torn < marker.len() && parts.len() > 1;
            assert_eq!(opened.is_err(), foreign, "{parts:?} {torn}");
        }
    }
    fs::remove_dir_all(whole.join("engine")).unwrap();
    let lost = Store::open(&whole, options(EngineKind::Fjall))
        .err()
        .unwrap();
    assert!(
        matches!(lost, Error::Damaged { .. }),
        "a store whose engine is gone is not an empty store: {lost}"
    );
}
