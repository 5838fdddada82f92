//! A full disk, which is a small tmpfs of its own: mounting needs root, so without it these tests say so and do nothing.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use amino_txn::{Changes, EngineKind, Error, Options, Store};
use common::{Model, all, apply};
use goanna_skip::{Facility, skip};

const PERSISTENT: [EngineKind; 2] = [EngineKind::Fjall, EngineKind::Sled];

/// A file system of `mib` MiB.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(mib: u32) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "tmpfs"])
            .arg(dir.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(dir));
        }
        skip(Facility::Mounts, "no tmpfs can be mounted");
        None
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("s")
    }

    /// Leaves no byte to others.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("others");
        let mut file = File::create(&path).unwrap();
        let mut len = 1 << 20;
        while len > 0 {
            // Of what does not fit, a part is written before it fails.
            match file.write_all(&vec![1; len]) {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                    len /= 2;
                }
            }
        }
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

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

#[test]
fn what_is_accepted_on_a_filling_disk_is_kept_and_removals_make_room() {
    for engine in PERSISTENT {
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
        for key in model.keys().cloned().collect::<Vec<_>>() {
            let mut changes = Changes::new();
            changes.delete(key);
            submit(&store, changes.clone()).unwrap();
            apply(&mut model, &changes);
        }
        store.sync().unwrap();
        // Space is given back in the background, by fjall; sled gives back little of it.
        let begun = Instant::now();
        while engine == EngineKind::Fjall && add_pages(&store, &mut model, 20_000) < 100 {
            assert!(begun.elapsed() < Duration::from_secs(30), "{engine:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
        store.close().unwrap();
        reopen(&disk.store(), engine, &model).close().unwrap();
    }
}

/// The store keeps its promises when others take the space that it counted on.
#[test]
fn others_fill_the_disk() {
    for crash in [false, true] {
        let Some(disk) = SmallDisk::mount(160) else {
            return;
        };
        let engine = EngineKind::Fjall;
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
        let others = disk.fill();
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
        let path = if crash {
            // As after a kill: the files as they are now, on a disk as full.
            let copy = tempfile::tempdir().unwrap();
            common::copy_dir(&disk.store(), copy.path());
            drop(store);
            fs::remove_dir_all(disk.store()).unwrap();
            fs::remove_file(&others).unwrap();
            common::copy_dir(copy.path(), &disk.store());
            disk.fill()
        } else {
            store.close().unwrap();
            others
        };
        for _ in 0..2 {
            let store = reopen(&disk.store(), engine, &model);
            assert_eq!(add_pages(&store, &mut model, 2000), 0);
            store.close().unwrap();
        }
        fs::remove_file(path).unwrap();
        let store = reopen(&disk.store(), engine, &model);
        assert!(add_pages(&store, &mut model, 3000) > 50);
        store.close().unwrap();
        reopen(&disk.store(), engine, &model).close().unwrap();
    }
}
