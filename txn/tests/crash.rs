//! What a crash leaves behind: a copy of the directory at some moment, with the log's tail cut, torn or damaged. A prefix
//! of what was submitted must be there, everything synced with it, and damage to what was synced must be reported.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use amino_schema::log::{FRAME_ALIGN, SEGMENT_HEADER_LEN};
use amino_txn::{Changes, EngineKind, Error, Options, Store};
use common::{ENGINES, Model, all, apply, copy_dir, options, random_changes};

/// Step `number` of a history in which each step leaves a trace of its own and overwrites a common one.
fn step(number: u32) -> Changes {
    let mut changes = Changes::new();
    changes.put(b"Plast".to_vec(), number.to_be_bytes().to_vec());
    changes.put(
        [b"P", &number.to_be_bytes()[..]].concat(),
        vec![number as u8; 40],
    );
    changes
}

/// How many steps a store holds; panics if they are not a prefix of the history.
fn steps(store: &Store) -> u32 {
    let found = all(store);
    let count = found
        .get(&b"Plast"[..])
        .map_or(0, |raw| u32::from_be_bytes(raw[..].try_into().unwrap()));
    let mut model = Model::new();
    (1..=count).for_each(|number| apply(&mut model, &step(number)));
    assert_eq!(found, model, "not a prefix of {count} steps");
    count
}

fn segment(store: &Path) -> PathBuf {
    let mut segments: Vec<_> = fs::read_dir(store.join("log"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    segments.sort();
    segments.pop().unwrap()
}

/// Bytes of `raw` up to the end of the last record.
fn used(raw: &[u8]) -> usize {
    raw.iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| (last + 1).next_multiple_of(FRAME_ALIGN))
}

/// Where the records of a segment start.
fn starts(raw: &[u8]) -> Vec<usize> {
    (SEGMENT_HEADER_LEN..raw.len())
        .step_by(FRAME_ALIGN)
        .filter(|&at| raw[at..].starts_with(b"AREC"))
        .collect()
}

/// A crashed store with steps 1 to 10 in a record each, all of them synced, and an engine that knows none of them.
fn crashed(dir: &Path) -> PathBuf {
    let (live, crashed) = (dir.join("live"), dir.join("crashed"));
    let store = Store::open(&live, options(EngineKind::Memory)).unwrap();
    for number in 1..=10 {
        store.submit(&store.enter(), step(number)).unwrap();
        store.sync().unwrap();
    }
    copy_dir(&live, &crashed);
    drop(store);
    crashed
}

fn reopen(path: &Path) -> Result<u32, Error> {
    Store::open(path, options(EngineKind::Memory)).map(|store| steps(&store))
}

/// As if the power had failed before the disk had the note that the last records were synced.
fn forget_note(path: &Path) {
    fs::remove_file(path.join("synced")).unwrap();
}

#[test]
fn a_log_torn_anywhere_in_its_last_record_loses_that_record_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = crashed(dir.path());
    assert_eq!(reopen(&path).unwrap(), 10);
    let segment = segment(&path);
    let header = fs::read(path.join("AMINO")).unwrap();
    let whole = fs::read(&segment).unwrap();
    let (last, end) = (*starts(&whole).last().unwrap(), used(&whole));
    let last_byte = whole.iter().rposition(|&byte| byte != 0).unwrap();
    for cut in last..end {
        let expected = if cut > last_byte { 10 } else { 9 };
        forget_note(&path);
        let mut zeroed = whole.clone();
        zeroed[cut..].fill(0);
        fs::write(&segment, &zeroed).unwrap();
        assert_eq!(reopen(&path).unwrap(), expected, "zeros from {cut}");
        fs::write(path.join("AMINO"), &header).unwrap();
        clear_new_segments(&path, &segment);
    }
}

/// Segments are made with their whole length, and the header knows it.
#[test]
fn a_log_that_is_cut_or_missing_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let path = crashed(dir.path());
    let segment = segment(&path);
    let whole = fs::read(&segment).unwrap();
    for cut in [
        0,
        100,
        4096,
        starts(&whole)[5],
        used(&whole),
        whole.len() - 1,
    ] {
        fs::write(&segment, &whole[..cut]).unwrap();
        let error = reopen(&path).unwrap_err().to_string();
        assert!(
            error.contains(&format!("byte {cut}: it has been cut")),
            "{error}"
        );
    }
    fs::remove_file(&segment).unwrap();
    let error = reopen(&path).unwrap_err().to_string();
    assert!(
        error.contains(segment.to_str().unwrap()) && error.contains("missing"),
        "{error}"
    );
}

/// What was acknowledged is not taken for a torn tail: the note beside the log says that it was on disk.
#[test]
fn damage_of_the_last_acknowledged_record_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = crashed(dir.path());
    let segment = segment(&path);
    let whole = fs::read(&segment).unwrap();
    let (middle, last) = (starts(&whole)[5], *starts(&whole).last().unwrap());
    for (from, to, lost) in [
        (last, last + 1, "transaction 10,"),
        (middle, whole.len(), "transactions 6 to 10,"),
        (0, whole.len(), "magic"),
    ] {
        let mut zeroed = whole.clone();
        zeroed[from..to].fill(0);
        fs::write(&segment, &zeroed).unwrap();
        let error = reopen(&path).unwrap_err().to_string();
        assert!(error.contains(segment.to_str().unwrap()), "{error}");
        assert!(error.contains(lost), "{error}");
    }
}

/// Opening may have begun a segment; the next case starts from the crashed one alone.
fn clear_new_segments(path: &Path, keep: &Path) {
    for entry in fs::read_dir(path.join("log")).unwrap() {
        let entry = entry.unwrap().path();
        if entry != keep {
            fs::remove_file(entry).unwrap();
        }
    }
}

#[test]
fn a_flipped_bit_in_a_last_record_not_known_to_be_synced_loses_that_record_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = crashed(dir.path());
    forget_note(&path);
    let segment = segment(&path);
    let whole = fs::read(&segment).unwrap();
    let last = *starts(&whole).last().unwrap();
    let last_byte = whole.iter().rposition(|&byte| byte != 0).unwrap();
    let header = fs::read(path.join("AMINO")).unwrap();
    for at in last..=last_byte {
        fs::write(path.join("AMINO"), &header).unwrap();
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&segment, &damaged).unwrap();
        assert_eq!(reopen(&path).unwrap(), 9, "byte {at}");
        forget_note(&path);
        clear_new_segments(&path, &segment);
    }
}

/// Later records say that this one had been on disk, so this is not a torn tail.
#[test]
fn damage_before_the_tail_is_reported_with_its_position() {
    let dir = tempfile::tempdir().unwrap();
    let path = crashed(dir.path());
    let segment = segment(&path);
    let whole = fs::read(&segment).unwrap();
    let starts = starts(&whole);
    for (number, &start) in starts[..starts.len() - 2].iter().enumerate() {
        for at in [start, start + 20, start + 70] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&segment, &damaged).unwrap();
            let error = reopen(&path).unwrap_err().to_string();
            assert!(error.contains(segment.to_str().unwrap()), "{error}");
            assert!(
                error.contains(&format!("byte {start}: transaction {}", number + 1)),
                "{error}"
            );
        }
    }
    let mut headless = whole.clone();
    headless[40] ^= 1;
    fs::write(&segment, &headless).unwrap();
    assert!(matches!(reopen(&path), Err(Error::Damaged { .. })));
}

/// The disk may write records that were never synced in any order: a hole before one of them is a torn tail.
#[test]
fn unsynced_records_that_reached_the_disk_out_of_order_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("crashed"));
    // The committer appends whenever this much is pending, and syncs only when its time has come.
    let options = Options {
        max_pending_bytes: 300,
        ..options(EngineKind::Memory)
    };
    let store = Store::open(&live, options).unwrap();
    store.submit(&store.enter(), step(1)).unwrap();
    store.sync().unwrap();
    for number in 2..=10 {
        store.submit(&store.enter(), step(number)).unwrap();
        while store.stats().frames < u64::from(number) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(store.stats().fdatasyncs, 1);
    copy_dir(&live, &path);
    let segment = segment(&path);
    let mut raw = fs::read(&segment).unwrap();
    let second = starts(&raw)[1];
    raw[second + 64] ^= 1;
    fs::write(&segment, &raw).unwrap();
    assert_eq!(reopen(&path).unwrap(), 1);
}

/// After a torn tail its numbers are used again; the old tail must not come back.
#[test]
fn a_second_crash_does_not_revive_the_first_tail() {
    for engine in ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut seen = 0;
        for round in 1..=4u32 {
            let store = Store::open(&path, options(engine)).unwrap();
            assert_eq!(steps(&store), seen, "{engine:?} round {round}");
            for number in seen + 1..=seen + 3 {
                store.submit(&store.enter(), step(number)).unwrap();
                store.sync().unwrap();
            }
            let copy = dir.path().join(format!("copy{round}"));
            copy_dir(&path, &copy);
            drop(store);
            // What the engine has applied beyond the log's end is a prefix too; here it must start behind it.
            fs::remove_dir_all(&path).unwrap();
            fs::rename(&copy, &path).unwrap();
            let segment = segment(&path);
            let mut raw = fs::read(&segment).unwrap();
            let middle = starts(&raw)[1];
            let third = starts(&raw)[2];
            raw[middle..third].fill(0);
            // The third record's claim that the second was on disk would make this damage: tear it too.
            raw[third + 60] ^= 1;
            fs::write(&segment, &raw).unwrap();
            forget_note(&path);
            let store = Store::open(&path, options(engine)).unwrap();
            let now = steps(&store);
            assert!(
                now > seen && now <= seen + 3,
                "{engine:?}: {now} after {seen}"
            );
            seen = now;
            store.close().unwrap();
        }
    }
}

/// The directory is copied while the store works, so files are caught at different moments: the log last, as a disk
/// would have it that is never behind the engine.
#[test]
fn a_store_copied_at_any_moment_opens_with_a_prefix() {
    for engine in [EngineKind::Fjall, EngineKind::Memory] {
        let dir = tempfile::tempdir().unwrap();
        let live = dir.path().join("live");
        let options = Options {
            flush_interval: Duration::from_millis(3),
            ..options(engine)
        };
        let store = Store::open(&live, options.clone()).unwrap();
        let (mut number, mut synced) = (0, 0);
        let mut rng = fastrand::Rng::with_seed(3);
        for round in 0..15 {
            for _ in 0..rng.u32(1..60) {
                number += 1;
                store.submit(&store.enter(), step(number)).unwrap();
                if rng.u8(..10) == 0 {
                    store.sync().unwrap();
                    synced = number;
                }
            }
            std::thread::sleep(Duration::from_millis(rng.u64(..6)));
            let copy = dir.path().join(format!("copy{round}"));
            fs::create_dir(&copy).unwrap();
            // What they say of the others holds from then on.
            for file in ["AMINO", "synced"] {
                fs::copy(live.join(file), copy.join(file)).unwrap();
            }
            for part in ["engine", "log"] {
                copy_dir(&live.join(part), &copy.join(part));
            }
            let reopened = Store::open(&copy, options.clone()).unwrap();
            let found = steps(&reopened);
            assert!(
                (synced..=number).contains(&found),
                "{engine:?}: {found}, synced {synced} of {number}"
            );
        }
    }
}

/// An engine that was lost back to its checkpoint is brought up to date by the log, with any number of batches.
#[test]
fn an_old_engine_and_a_new_log_make_the_new_state() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("crashed"));
    let store = Store::open(&live, options(EngineKind::Fjall)).unwrap();
    copy_dir(&live, &path);
    let mut model = Model::new();
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..200 {
        let changes = random_changes(&mut rng, 5);
        apply(&mut model, &changes);
        store.submit(&store.enter(), changes).unwrap();
        store.sync().unwrap();
    }
    fs::remove_dir_all(path.join("log")).unwrap();
    copy_dir(&live.join("log"), &path.join("log"));
    for file in ["AMINO", "synced"] {
        fs::copy(live.join(file), path.join(file)).unwrap();
    }
    for _ in 0..2 {
        // Recovery itself may be interrupted before it has released the log: doing it again changes nothing.
        let again = dir.path().join("again");
        copy_dir(&path.join("log"), &again);
        let header = fs::read(path.join("AMINO")).unwrap();
        let reopened = Store::open(&path, options(EngineKind::Fjall)).unwrap();
        assert_eq!(all(&reopened), model);
        drop(reopened);
        fs::remove_dir_all(path.join("log")).unwrap();
        fs::rename(&again, path.join("log")).unwrap();
        fs::write(path.join("AMINO"), header).unwrap();
    }
}

/// fjall opens an empty database where there is no journal, and accepts one that lost its end.
#[test]
fn an_engine_that_went_back_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, damage) in [("removed", None), ("emptied", Some(0)), ("cut", Some(1000))] {
        let path = dir.path().join(name);
        let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
        (1..=50).for_each(|number| {
            store.submit(&store.enter(), step(number)).unwrap();
            store.sync().unwrap();
        });
        store.close().unwrap();
        let journal = path.join("engine/0.jnl");
        match damage {
            None => fs::remove_file(&journal).unwrap(),
            Some(len) => {
                let whole = fs::read(&journal).unwrap();
                assert!(whole.len() > len);
                fs::write(&journal, &whole[..len]).unwrap();
            }
        }
        for _ in 0..2 {
            let error = Store::open(&path, options(EngineKind::Fjall))
                .err()
                .unwrap();
            let Error::Damaged { place, why } = &error else {
                panic!("{name}: {error}");
            };
            assert!(place.contains("engine"), "{name}: {error}");
            assert_eq!(why, "the engine is empty, which no store's is", "{name}");
        }
    }
}

/// fjall takes a keyspace without its file `current` for one that was never finished, and deletes its tables. What its journal
/// still has would then look like the whole store.
#[test]
fn fjall_deletes_no_tables_of_a_damaged_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    for (from, to) in [(1, 40), (41, 45)] {
        let large = Options {
            checkpoint_bytes: 1,
            ..options(EngineKind::Fjall)
        };
        let store = Store::open(&path, large).unwrap();
        for number in from..=to {
            store.submit(&store.enter(), step(number)).unwrap();
            store.sync().unwrap();
        }
        store.close().unwrap();
    }
    for keyspace in ["0", "1"] {
        let current = path.join("engine/keyspaces").join(keyspace).join("current");
        let content = fs::read(&current).unwrap();
        fs::remove_file(&current).unwrap();
        for _ in 0..2 {
            let error = Store::open(&path, options(EngineKind::Fjall))
                .err()
                .unwrap();
            assert!(
                matches!(&error, Error::Damaged { place, .. } if place.ends_with("current")),
                "{error}"
            );
        }
        fs::write(&current, content).unwrap();
        let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
        assert_eq!(steps(&store), 45);
        store.close().unwrap();
    }
}

/// A power cut may leave anything in what was not synced; fjall refuses some of it, but the log has it all.
#[test]
fn garbage_behind_the_synced_part_of_the_engines_journal_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let (live, path) = (dir.path().join("live"), dir.path().join("crashed"));
    let store = Store::open(&live, options(EngineKind::Fjall)).unwrap();
    (1..=20).for_each(|number| store.submit(&store.enter(), step(number)).unwrap());
    store.close().unwrap();
    let store = Store::open(&live, options(EngineKind::Fjall)).unwrap();
    for number in 21..=40 {
        store.submit(&store.enter(), step(number)).unwrap();
        store.sync().unwrap();
        // A batch for each: the journal must have several.
        while store.info().applied_seq < store.info().durable_seq {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    copy_dir(&live, &path);
    let journal = path.join("engine/0.jnl");
    let mut raw = fs::read(&journal).unwrap();
    // A later batch is whole, so this is what fjall cannot read.
    let places: Vec<_> = raw
        .windows(5)
        .enumerate()
        .filter(|(_, found)| *found == b"Plast")
        .collect();
    let at = places[places.len() - 10].0;
    raw[at] ^= 1;
    fs::write(&journal, raw).unwrap();
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    assert_eq!(steps(&store), 40);
}

/// A store as the first version of the program left it: closed, or with a log to replay.
#[test]
fn a_store_of_format_1_is_opened_and_upgraded() {
    for crashed in [false, true] {
        for engine in [EngineKind::Fjall, EngineKind::Sled] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let store = Store::open(&path, options(engine)).unwrap();
            let (id, mut open) = (store.info().store_id, Some(store));
            for number in 1..=10 {
                if number == 6 && crashed {
                    open.take().unwrap().close().unwrap();
                    open = Some(Store::open(&path, options(engine)).unwrap());
                }
                let store = open.as_ref().unwrap();
                store.submit(&store.enter(), step(number)).unwrap();
                store.sync().unwrap();
            }
            let old = dir.path().join("old");
            if crashed {
                copy_dir(&path.join("log"), &old.join("log"));
            } else {
                fs::create_dir_all(old.join("log")).unwrap();
            }
            open.take().unwrap().close().unwrap();
            copy_dir(&path.join("engine"), &old.join("engine"));
            let engine_dir = old.join("engine");
            common::as_format_1(engine, &engine_dir, 10);
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            let body = format!("amino store\nformat 1\nengine {}\nid {id}\n", engine.name());
            let sum = crc32c::crc32c(body.as_bytes());
            fs::write(old.join("AMINO"), format!("{body}crc32c {sum:08x}\n")).unwrap();
            for _ in 0..2 {
                let store = Store::open(&old, options(engine)).unwrap();
                assert_eq!(steps(&store), 10, "{engine:?} {crashed}");
                assert_eq!(store.snapshot().unwrap().differences().unwrap(), []);
                store.close().unwrap();
                let header = fs::read_to_string(old.join("AMINO")).unwrap();
                assert!(
                    header.contains("format 3\n") && header.contains("holds 50 11 "),
                    "{header}"
                );
            }
        }
    }
}

/// Damage in the engine's own files is reported with the file's name; it is neither repaired silently nor a panic.
#[test]
fn a_damaged_engine_journal_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    (1..=50).for_each(|number| store.submit(&store.enter(), step(number)).unwrap());
    store.close().unwrap();
    let journal = path.join("engine/0.jnl");
    let mut raw = fs::read(&journal).unwrap();
    let at = raw
        .windows(5)
        .position(|window| window == b"Plast")
        .unwrap();
    raw[at] ^= 1;
    fs::write(&journal, raw).unwrap();
    let error = Store::open(&path, options(EngineKind::Fjall))
        .err()
        .unwrap();
    assert!(
        matches!(&error, Error::Damaged { place, .. } if place.ends_with(".jnl")),
        "{error}"
    );
}
