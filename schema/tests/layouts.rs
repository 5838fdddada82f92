//! Every layout: round trips, order of keys, and damaged bytes that must be refused and never panic.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use amino_schema::header::{Checkpoint, FileSum, Header, SegmentRoom, claimed_format};
use amino_schema::holdings::Holdings;
use amino_schema::key::{self, ParsedKey};
use amino_schema::log::{
    FoundRecord, RECORD_ALIGN, RECORD_HEADER_LEN, RecordHeader, SegmentHeader, begin_record,
    finish_record, put_change, read_changes, record_len,
};
use amino_schema::record::{decode_page, decode_xattr, encode_page, encode_xattr};
use amino_schema::synced::{NOTE_LEN, SLOT_LEN, encode_slot, read_note};
use amino_schema::{
    DataRecord, FileKind, Meta, MetaFlags, OrphanRecord, PAGE_SIZE, PathRecord, Super, Timestamp,
};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

fn time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Timestamp { secs, nanos })
}

fn meta() -> impl Strategy<Value = Meta> {
    let kind = prop::sample::select(vec![1u8, 2, 4, 6, 8, 10, 12]);
    let ids = (
        kind,
        0..0o10000u32,
        any::<u32>(),
        any::<u32>(),
        any::<u32>(),
    );
    let rest = (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        prop::option::of(vec(any::<u8>(), 0..600)),
    );
    (ids, rest, time(), time(), time(), time()).prop_map(
        |(ids, rest, atime, mtime, ctime, btime)| {
            let (kind, perm, nlink, uid, gid) = ids;
            let (rdev, size, flags, inline) = rest;
            Meta {
                mode: u32::from(kind) << 12 | perm,
                nlink,
                uid,
                gid,
                rdev,
                size,
                atime,
                mtime,
                ctime,
                btime,
                flags: MetaFlags(flags),
                inline: inline.map(Bytes::from),
            }
        },
    )
}

fn path_record() -> impl Strategy<Value = PathRecord> {
    (1..=u64::MAX, meta(), any::<bool>()).prop_map(|(ino, meta, local)| PathRecord {
        ino,
        kind: meta.kind().unwrap(),
        meta: local.then_some(meta),
    })
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(
        any::<u8>().prop_filter("names", |&byte| byte != b'/' && byte != 0),
        1..40,
    )
}

fn changes() -> impl Strategy<Value = Vec<(Vec<u8>, Option<Vec<u8>>)>> {
    vec(
        (
            vec(any::<u8>(), 0..40),
            prop::option::of(vec(any::<u8>(), 0..300)),
        ),
        0..20,
    )
}

fn segment(number: u64) -> SegmentHeader {
    SegmentHeader {
        store_id: [7; 16],
        number,
        created_ns: 9,
    }
}

fn build(segment: &SegmentHeader, seq: u64, changes: &[(Vec<u8>, Option<Vec<u8>>)]) -> Vec<u8> {
    let mut out = Vec::new();
    begin_record(&mut out);
    for (key, value) in changes {
        put_change(&mut out, key, value.as_deref());
    }
    let changes = changes.len() as u32;
    let header = RecordHeader {
        payload_len: 0,
        seq,
        durable: 3,
        time_ns: 4,
        uid: 5,
        pid: 6,
        changes,
    };
    finish_record(&mut out, segment, &header);
    out
}

/// Reads a record as recovery does; `None` where it is not whole.
fn reread(
    segment: &SegmentHeader,
    raw: &[u8],
) -> Option<(RecordHeader, Vec<amino_schema::log::Change>)> {
    let found = FoundRecord::decode(segment, raw).ok()?;
    let end = RECORD_HEADER_LEN.checked_add(usize::try_from(found.header.payload_len).ok()?)?;
    let payload = raw.get(RECORD_HEADER_LEN..end)?;
    if !found.matches(payload) {
        return None;
    }
    let changes = read_changes(&Bytes::copy_from_slice(payload), found.header.changes).ok()?;
    Some((found.header, changes))
}

proptest! {
    #[test]
    fn path_records_survive(record in path_record()) {
        prop_assert_eq!(PathRecord::decode(&record.encode()).unwrap(), record);
    }

    #[test]
    fn data_and_orphan_records_survive(meta in meta()) {
        let data = DataRecord { meta: meta.clone() };
        prop_assert_eq!(DataRecord::decode(&data.encode()).unwrap(), data);
        let orphan = OrphanRecord { meta };
        prop_assert_eq!(OrphanRecord::decode(&orphan.encode()).unwrap(), orphan);
    }

    #[test]
    fn superblocks_survive(id in any::<[u8; 16]>(), next in any::<u64>(), engine in "[a-z]{0,200}", shift in 9..21) {
        let mut superblock = Super::new(id, &engine, 77);
        superblock.next_ino = next;
        superblock.page_size = 1u32 << shift;
        prop_assert_eq!(Super::decode(&superblock.encode()).unwrap(), superblock);
    }

    #[test]
    fn pages_and_attributes_survive(content in vec(any::<u8>(), 0..2000)) {
        prop_assert_eq!(&decode_page(&encode_page(&content), PAGE_SIZE).unwrap()[..], &content[..]);
        prop_assert_eq!(&decode_xattr(&encode_xattr(&content)).unwrap()[..], &content[..]);
    }

    #[test]
    fn a_flipped_bit_or_a_lost_tail_is_noticed(record in path_record(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let whole = record.encode();
        let mut damaged = whole.to_vec();
        damaged[at.index(whole.len())] ^= 1u8 << bit;
        prop_assert!(PathRecord::decode(&Bytes::from(damaged)).is_err());
        prop_assert!(PathRecord::decode(&whole.slice(..at.index(whole.len()))).is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(raw in vec(any::<u8>(), 0..300)) {
        let shared = Bytes::from(raw.clone());
        let _ = PathRecord::decode(&shared);
        let _ = DataRecord::decode(&shared);
        let _ = OrphanRecord::decode(&shared);
        let _ = Super::decode(&shared);
        let _ = decode_page(&shared, 64);
        let _ = decode_xattr(&shared);
        let _ = Header::decode(&raw);
        let _ = SegmentHeader::decode(&raw);
        let _ = FoundRecord::decode(&segment(1), &raw);
        let _ = read_changes(&shared, u32::MAX);
        if let Ok(key) = ParsedKey::parse(&raw) {
            prop_assert_eq!(key.to_vec(), raw);
        }
    }

    /// The checksum hides the field decoders from random bytes; here it is made to match.
    #[test]
    fn sealed_arbitrary_bytes_never_panic(mut raw in vec(any::<u8>(), 0..300)) {
        if let Some(first) = raw.first_mut() {
            *first = 1;
        }
        let sum = crc32c::crc32c(&raw);
        raw.extend_from_slice(&sum.to_le_bytes());
        let raw = Bytes::from(raw);
        let _ = PathRecord::decode(&raw);
        let _ = DataRecord::decode(&raw);
        let _ = Super::decode(&raw);
    }

    #[test]
    fn keys_sort_as_their_parts(a in (any::<u64>(), name()), b in (any::<u64>(), name()), i in any::<u64>(), j in any::<u64>()) {
        prop_assert_eq!(key::path_key(a.0, &a.1).cmp(&key::path_key(b.0, &b.1)), a.cmp(&b));
        prop_assert_eq!(key::page_key(a.0, i).cmp(&key::page_key(b.0, j)), (a.0, i).cmp(&(b.0, j)));
        prop_assert!(key::path_key(a.0, &a.1).starts_with(&key::path_prefix(a.0)));
        prop_assert!(key::link_key(i, a.0, &a.1).starts_with(&key::link_prefix(i)));
        prop_assert!(key::page_key(i, j).starts_with(&key::page_prefix(i)));
    }

    #[test]
    fn keys_parse_back(ino in any::<u64>(), parent in 1..=u64::MAX, index in any::<u64>(), name in name()) {
        let keys = [
            ParsedKey::Path { parent, name: &name },
            ParsedKey::Path { parent: 0, name: b"" },
            ParsedKey::Data { ino },
            ParsedKey::Page { ino, index },
            ParsedKey::Link { ino, parent, name: &name },
            ParsedKey::Orphan { ino },
            ParsedKey::Xattr { ino, name: &name },
            ParsedKey::Super,
        ];
        for key in keys {
            let raw = key.to_vec();
            prop_assert_eq!(ParsedKey::parse(&raw).unwrap(), key);
            prop_assert!(ParsedKey::parse(&raw[..raw.len().min(5)]).is_err() || raw.len() == 1);
        }
    }

    #[test]
    fn a_prefix_ends_after_all_it_starts(prefix in vec(any::<u8>(), 0..5), rest in vec(any::<u8>(), 0..5)) {
        let key = [prefix.clone(), rest].concat();
        match key::prefix_end(&prefix) {
            Some(end) => prop_assert!(key < end && !end.starts_with(&prefix)),
            None => prop_assert!(prefix.iter().all(|&byte| byte == 0xff)),
        }
    }

    #[test]
    fn log_records_survive(changes in changes(), seq in any::<u64>()) {
        let raw = build(&segment(3), seq, &changes);
        let (header, found) = reread(&segment(3), &raw).unwrap();
        prop_assert_eq!((header.seq, header.durable, header.time_ns, header.uid, header.pid), (seq, 3, 4, 5, 6));
        prop_assert_eq!(record_len(header.payload_len).unwrap(), raw.len() as u64);
        prop_assert_eq!(raw.len() % RECORD_ALIGN, 0);
        let expected: Vec<_> = changes.into_iter().map(|(k, v)| (Bytes::from(k), v.map(Bytes::from))).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn damaged_log_records_are_refused(changes in changes(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let whole = build(&segment(3), 1, &changes);
        let used = RECORD_HEADER_LEN + reread(&segment(3), &whole).unwrap().0.payload_len as usize;
        let mut damaged = whole.clone();
        damaged[at.index(used)] ^= 1u8 << bit;
        prop_assert!(reread(&segment(3), &damaged).is_none());
        prop_assert!(reread(&segment(3), &whole[..at.index(used)]).is_none());
    }
}

/// A recycled segment file still holds the records of its former number; they must not look like records.
#[test]
fn a_record_belongs_to_one_segment_of_one_store() {
    let raw = build(&segment(3), 1, &[(b"k".to_vec(), Some(b"v".to_vec()))]);
    assert!(reread(&segment(3), &raw).is_some());
    let recreated = SegmentHeader {
        created_ns: 10,
        ..segment(3)
    };
    assert!(reread(&recreated, &raw).is_none());
    assert!(reread(&segment(4), &raw).is_none());
    assert!(
        reread(
            &SegmentHeader {
                store_id: [8; 16],
                ..segment(3)
            },
            &raw
        )
        .is_none()
    );
}

#[test]
fn segment_headers_survive_and_any_flipped_bit_is_noticed() {
    let header = segment(u64::MAX);
    let whole = header.encode();
    assert_eq!(SegmentHeader::decode(&whole).unwrap(), header);
    for at in 0..56 * 8 {
        let mut damaged = whole.clone();
        damaged[at / 8] ^= 1u8 << (at % 8);
        assert!(SegmentHeader::decode(&damaged).is_err(), "bit {at}");
    }
}

#[test]
fn headers_survive_and_any_flipped_bit_is_noticed() {
    let mut holdings = Holdings {
        seq: u64::MAX,
        ..Holdings::default()
    };
    holdings.add(b"Pa", b"1");
    holdings.add(b"\xff", b"");
    let checkpoint = Checkpoint {
        holdings,
        files: vec![FileSum {
            name: "0.jnl".to_owned(),
            len: 7,
            sum: u64::MAX,
        }],
    };
    let header = Header {
        engine: "fjall".to_owned(),
        store_id: *b"0123456789abcdef",
        checkpoint: Some(checkpoint),
        segments: vec![SegmentRoom {
            number: 3,
            bytes: 65536,
        }],
    };
    let whole = header.encode();
    assert_eq!(Header::decode(&whole).unwrap(), header);
    assert_eq!(claimed_format(&whole), Some(2));
    assert_eq!(
        claimed_format(b"amino store\nformat 70000\nsomething else"),
        Some(70000)
    );
    for at in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[at / 8] ^= 1u8 << (at % 8);
        assert!(Header::decode(&damaged).is_err(), "bit {at}");
    }
    for len in 0..whole.len() {
        assert!(Header::decode(&whole[..len]).is_err(), "length {len}");
    }
}

/// As the first version of the program wrote it.
#[test]
fn a_header_of_format_1_is_read() {
    let body = "amino store\nformat 1\nengine sled\nid 00112233445566778899aabbccddeeff\n";
    let raw = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
    let header = Header::decode(raw.as_bytes()).unwrap();
    assert_eq!(header.engine, "sled");
    assert_eq!(header.store_id[..3], [0, 0x11, 0x22]);
    assert_eq!(header.checkpoint, None);
    assert_eq!(header.encode(), raw.as_bytes());
}

#[test]
fn holdings_do_not_depend_on_the_order_and_forget_what_is_removed() {
    let (mut a, mut b) = (Holdings::default(), Holdings::default());
    a.add(b"Pa", b"1");
    a.add(b"Pb", b"2");
    a.add(b"Bx", b"3");
    b.add(b"Bx", b"3");
    b.add(b"Pb", b"2");
    b.add(b"Pc", b"4");
    assert_ne!(a, b);
    b.remove(b"Pc", b"4");
    b.add(b"Pa", b"1");
    assert_eq!(a, b);
    let raw = a.encode();
    assert_eq!(Holdings::decode(&raw).unwrap(), a);
    for at in 0..raw.len() {
        let mut damaged = raw.clone();
        damaged[at] ^= 4;
        assert!(Holdings::decode(&damaged).is_err(), "byte {at}");
    }
    for (key, value) in [(b"Pa", b"1"), (b"Pb", b"2"), (b"Bx", b"3")] {
        a.remove(key, value);
    }
    assert_eq!(a, Holdings::default());
    // Neither a value under another key nor a longer key with a shorter value is the same entry.
    let mut swapped = Holdings::default();
    swapped.add(b"Pa", b"2");
    swapped.add(b"Pb", b"1");
    swapped.add(b"Bx", b"3");
    assert_ne!(swapped, b);
    assert_eq!(Holdings::former_seq(&7u64.to_le_bytes()), Some(7));
    assert_eq!(Holdings::former_seq(&raw), None);
}

#[test]
fn a_torn_note_leaves_the_one_before() {
    let id = b"0123456789abcdef";
    let mut note = [encode_slot(id, 8), encode_slot(id, 9)].concat();
    assert_eq!(note.len(), NOTE_LEN);
    assert_eq!(read_note(id, &note), Some(9));
    note[SLOT_LEN + 30] ^= 1;
    assert_eq!(read_note(id, &note), Some(8));
    assert_eq!(read_note(id, &note[..20]), None);
    assert_eq!(read_note(b"another store id", &note), None);
}

#[test]
fn an_error_names_the_record_and_the_place() {
    let record = PathRecord {
        ino: 5,
        kind: FileKind::Regular,
        meta: None,
    };
    let mut raw = record.encode().to_vec();
    raw.truncate(9);
    let error = PathRecord::decode(&Bytes::from(raw)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "damaged path record: its checksum does not match at byte 5"
    );
}
