//! Frames of the log: one for each transaction, with its author and time; and segments that are kept.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use amino_schema::log::{FoundFrame, FrameHeader, SEGMENT_HEADER_LEN, SegmentHeader};
use amino_txn::{Actor, Changes, EngineKind, Store};
use common::{all, copy_dir, options, persistent};

const ALICE: Actor = Actor { uid: 1000, pid: 1 };

fn me() -> Actor {
    Actor {
        uid: nix::unistd::getuid().as_raw(),
        pid: std::process::id(),
    }
}

fn put(name: &str) -> Changes {
    let mut changes = Changes::new();
    changes.put(format!("P{name}").into_bytes(), name.as_bytes().to_vec());
    changes
}

fn single(store: &Store, name: &str, by: Actor) {
    let operation = store.enter();
    store.submit(&operation, put(name)).unwrap();
    store.note_author(by);
}

fn transaction(store: &Store, name: &str, by: Actor) {
    let authors = amino_txn::Authors::default();
    authors.note(by);
    let transaction = store.begin().unwrap();
    store.submit(transaction.operation(), put(name)).unwrap();
    transaction.end(authors.take());
}

fn files(store: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(store.join("log")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(suffix));
    files.sort();
    files
}

/// The frames of a segment, with their payloads.
fn frames(path: &Path) -> (SegmentHeader, Vec<(FrameHeader, Vec<u8>)>) {
    let raw = fs::read(path).unwrap();
    let segment = SegmentHeader::decode(&raw).unwrap();
    let (mut at, mut found) = (SEGMENT_HEADER_LEN, Vec::new());
    while let Ok(frame) = raw.get(at..).map_or(Err(()), |raw| {
        FoundFrame::decode(&segment, raw).map_err(|_| ())
    }) {
        let start = at + frame.header_len;
        let payload = raw[start..start + frame.header.payload_len as usize].to_vec();
        assert!(frame.matches(&payload));
        found.push((frame.header, payload));
        at += frame.padded_len().unwrap() as usize;
    }
    (segment, found)
}

fn headers(store: &Path) -> Vec<FrameHeader> {
    let segment = files(store, ".seg").pop().unwrap();
    let (_, frames) = frames(&segment);
    frames.into_iter().map(|(header, _)| header).collect()
}

#[test]
fn each_transaction_has_a_frame_with_its_author_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos() as u64
    };
    let begun = now();
    single(&store, "a", me());
    single(&store, "b", me());
    transaction(&store, "c", ALICE);
    transaction(&store, "d", me());
    single(&store, "e", ALICE);
    single(&store, "f", me());
    let operation = store.enter();
    store.submit(&operation, Changes::new()).unwrap();
    drop(operation);
    store.sync().unwrap();
    let headers = headers(&path);
    let expected = [
        (false, me(), false, 2),
        (true, ALICE, false, 1),
        (true, me(), false, 1),
        (false, ALICE, true, 2),
    ];
    assert_eq!(headers.len(), expected.len(), "{headers:?}");
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    let mut time = begun;
    for ((header, expected), seq) in headers.iter().zip(expected).zip(1..) {
        let (transaction, by, others, changes) = expected;
        assert_eq!((header.seq, header.parent), (seq, seq - 1));
        assert_eq!((header.author.uid, header.author.pid), (by.uid, by.pid));
        if by == me() {
            assert_eq!(header.author.program(), comm.trim_end().as_bytes());
        }
        let found = (header.transaction, header.others, header.changes);
        assert_eq!(found, (transaction, others, changes), "{seq}");
        assert!(time <= header.time_ns && header.time_ns <= now(), "{seq}");
        time = header.time_ns;
    }
    // They share the write's sync.
    assert_eq!((store.stats().frames, store.stats().fdatasyncs), (4, 1));
}

#[test]
fn transactions_without_a_waiting_caller_are_logged_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    for number in 0..50 {
        single(&store, &format!("single{number}"), me());
        transaction(&store, &format!("txn{number}"), ALICE);
        assert_eq!(all(&store).len(), 2 * (number + 1));
    }
    // Some were written without a sync.
    assert!(store.stats().frames > 80 && store.stats().fdatasyncs == 0);
    store.sync().unwrap();
    let transactions: Vec<_> = headers(&path)
        .iter()
        .map(|header| header.transaction)
        .collect();
    assert_eq!(transactions, [false, true].repeat(50));
    store.close().unwrap();
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    assert_eq!(all(&store).len(), 100);
}

/// A transaction that is given up before it changes anything leaves no frame.
#[test]
fn a_transaction_without_changes_leaves_no_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
    drop(store.begin().unwrap());
    store.begin().unwrap().end(None);
    store.sync().unwrap();
    assert_eq!(store.stats().frames, 0);
    single(&store, "a", me());
    drop(store.begin().unwrap());
    store.sync().unwrap();
    assert_eq!(store.stats().frames, 1);
}

/// Writes a segment again as the program of format 1 did.
fn as_format_1(path: &Path) {
    let len = fs::metadata(path).unwrap().len();
    let (mut segment, frames) = frames(path);
    segment.format = 1;
    let mut raw = segment.encode();
    let seed = crc32c::crc32c(&raw[16..48]);
    for (header, payload) in frames {
        let mut head = b"AREC\x01\0\0\0".to_vec();
        for field in [
            header.payload_len,
            header.seq,
            header.durable,
            header.time_ns,
        ] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        for field in [header.author.uid, header.author.pid, header.changes, 0] {
            head.extend_from_slice(&field.to_le_bytes());
        }
        let sum = crc32c::crc32c_append(seed, &head);
        head.extend_from_slice(&sum.to_le_bytes());
        head.extend_from_slice(&crc32c::crc32c_append(sum, &payload).to_le_bytes());
        raw.extend_from_slice(&head);
        raw.extend_from_slice(&payload);
        raw.resize(raw.len().next_multiple_of(64), 0);
    }
    assert!(raw.len() as u64 <= len);
    raw.resize(len as usize, 0);
    fs::write(path, raw).unwrap();
}

fn rewrite_header(store: &Path, change: impl Fn(&str) -> String) {
    let path = store.join("AMINO");
    let text = fs::read_to_string(&path).unwrap();
    let (body, _) = text.split_once("crc32c ").unwrap();
    let body = change(body);
    let sum = crc32c::crc32c(body.as_bytes());
    fs::write(path, format!("{body}crc32c {sum:08x}\n")).unwrap();
}

/// A store that the program of format 2 left with a log to replay.
#[test]
fn a_store_with_a_log_of_format_1_is_replayed_and_upgraded() {
    for engine in persistent() {
        let dir = tempfile::tempdir().unwrap();
        let (live, old) = (dir.path().join("live"), dir.path().join("old"));
        let store = Store::open(&live, options(engine)).unwrap();
        copy_dir(&live, &old);
        for number in 0..10 {
            single(&store, &format!("single{number}"), me());
            store.sync().unwrap();
        }
        for part in ["AMINO", "synced"] {
            fs::copy(live.join(part), old.join(part)).unwrap();
        }
        copy_dir(&live.join("log"), &old.join("log"));
        let expected = all(&store);
        store.close().unwrap();
        as_format_1(&files(&old, ".seg").pop().unwrap());
        rewrite_header(&old, |body| body.replace("format 3\n", "format 2\n"));
        for replayed in [10, 0] {
            let store = Store::open(&old, options(engine)).unwrap();
            assert_eq!(store.stats().replayed, replayed, "{engine:?}");
            assert_eq!(all(&store), expected, "{engine:?}");
            store.close().unwrap();
        }
        let header = fs::read_to_string(old.join("AMINO")).unwrap();
        assert!(header.contains("format 3\n"), "{header}");
    }
}

/// A store whose log was kept through checkpoints, closing and a crash: transactions 1 to 30.
fn kept(dir: &Path, engine: EngineKind) -> PathBuf {
    let (live, path) = (dir.join("live"), dir.join("s"));
    let options = options(engine);
    let store = Store::open(&live, options.clone()).unwrap();
    store.keep_log(true).unwrap();
    (0..10).for_each(|number| transaction(&store, &format!("{number}"), ALICE));
    store.close().unwrap();
    let store = Store::open(&live, options.clone()).unwrap();
    (10..20).for_each(|number| transaction(&store, &format!("{number}"), ALICE));
    store.sync().unwrap();
    copy_dir(&live, &path);
    store.close().unwrap();
    let store = Store::open(&path, options).unwrap();
    assert_eq!(store.stats().replayed, 10);
    (20..30).for_each(|number| transaction(&store, &format!("{number}"), ALICE));
    store.close().unwrap();
    path
}

#[test]
fn a_kept_log_has_every_transaction() {
    for engine in persistent() {
        let dir = tempfile::tempdir().unwrap();
        let path = kept(dir.path(), engine);
        assert_eq!(files(&path, ".seg"), [] as [PathBuf; 0]);
        let segments = files(&path, ".kept");
        assert_eq!(segments.len(), 3, "{segments:?}");
        let seqs = segments.iter().flat_map(|path| frames(path).1);
        let seqs: Vec<_> = seqs.map(|(header, _)| header.seq).collect();
        assert_eq!(seqs, (1..=30).collect::<Vec<_>>());
        let store = Store::open(&path, options(engine)).unwrap();
        for payloads in [false, true] {
            let log = store.kept_log(payloads).unwrap();
            assert!(log.keeps);
            assert_eq!((log.segments, log.transactions), (3, 30));
            assert_eq!(log.losses, []);
            let (first, last) = log.times.unwrap();
            assert!(first < last);
            let bytes = segments
                .iter()
                .map(|path| fs::metadata(path).unwrap().len());
            assert_eq!(log.bytes, bytes.sum::<u64>());
        }
        // Others go; those that were kept stay.
        store.keep_log(false).unwrap();
        transaction(&store, "more", ALICE);
        store.close().unwrap();
        assert_eq!(files(&path, ""), segments);
        // And after a gap more are kept.
        let store = Store::open(&path, options(engine)).unwrap();
        store.keep_log(true).unwrap();
        transaction(&store, "later", ALICE);
        store.close().unwrap();
        let store = Store::open(&path, options(engine)).unwrap();
        let log = store.kept_log(true).unwrap();
        assert_eq!((log.segments, log.transactions), (4, 31));
        assert_eq!(log.losses, []);
        assert_eq!(all(&store).len(), 32);
    }
}

#[test]
fn damage_of_a_kept_log_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = kept(dir.path(), EngineKind::Fjall);
    let segments = files(&path, ".kept");
    let whole: Vec<_> = segments
        .iter()
        .map(|path| fs::read(path).unwrap())
        .collect();
    let losses = || {
        let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
        store.kept_log(true).unwrap().losses
    };
    assert_eq!(losses(), []);
    for (index, segment) in segments.iter().enumerate() {
        let (first, last) = (10 * index + 1, 10 * index + 10);
        let lost = |first| format!("transactions {first} to {last}, which were kept, are not");
        fs::remove_file(segment).unwrap();
        assert!(losses()[0].what.starts_with(&lost(first)), "{:?}", losses());
        fs::write(segment, &whole[index][..whole[index].len() - 1]).unwrap();
        assert!(losses()[0].what.starts_with(&lost(last)), "{:?}", losses());
        let place = segment.display().to_string();
        assert_eq!(losses()[0].place, place);
        let mut flipped = whole[index].clone();
        let payload = SEGMENT_HEADER_LEN + 4 * 128 + 100;
        flipped[payload] ^= 4;
        fs::write(segment, flipped).unwrap();
        let what = format!("transactions {0} to {0}, which", first + 4);
        assert!(losses()[0].what.starts_with(&what), "{:?}", losses());
        fs::write(segment, &whole[index]).unwrap();
        assert_eq!(losses(), []);
    }
}

/// The power fails after the header says that a segment is kept and before it has its name.
#[test]
fn a_segment_that_is_kept_and_not_renamed_yet_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = kept(dir.path(), EngineKind::Fjall);
    for segment in files(&path, ".kept") {
        fs::rename(&segment, segment.with_extension("seg")).unwrap();
    }
    // One that was released, which a power cut has brought back.
    let mut stray = fs::read(&files(&path, ".seg")[0]).unwrap();
    stray.truncate(SEGMENT_HEADER_LEN);
    fs::write(path.join("log/00000000000000ff.seg"), stray).unwrap();
    for _ in 0..2 {
        let store = Store::open(&path, options(EngineKind::Fjall)).unwrap();
        let log = store.kept_log(true).unwrap();
        assert_eq!((log.segments, log.transactions), (3, 30));
        assert_eq!(log.losses, []);
        transaction(&store, "more", ALICE);
        store.keep_log(false).unwrap();
        store.close().unwrap();
        assert_eq!(files(&path, "").len(), 3);
    }
}
