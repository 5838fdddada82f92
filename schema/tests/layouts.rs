//! Every layout: round trips, order of keys, and damaged bytes that must be refused and never panic.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use amino_schema::header::{Checkpoint, FileSum, Header, Kept, SegmentSize, claimed_format};
use amino_schema::holdings::Holdings;
use amino_schema::key::{self, ParsedKey};
use amino_schema::log::{
    Author, FRAME_ALIGN, FRAME_HEADER_LEN, FoundFrame, FrameHeader, Frames, LOG_FORMAT,
    SEGMENT_HEADER_LEN, SegmentHeader, read_changes,
};
use amino_schema::record::{decode_page, decode_xattr, encode_page, encode_xattr};
use amino_schema::synced::{NOTE_LEN, SLOT_LEN, encode_slot, read_note};
use amino_schema::{
    DataRecord, FileKind, Meta, MetaFlags, OrphanRecord, PAGE_SIZE, PathRecord, SIZE_MAX, Super,
    Timestamp,
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
        0..=SIZE_MAX,
        any::<u32>(),
        any::<(u64, u64)>(),
        prop::option::of(vec(any::<u8>(), 0..600)),
    );
    (ids, rest, time(), time(), time(), time()).prop_map(
        |(ids, rest, atime, mtime, ctime, btime)| {
            let (kind, perm, nlink, uid, gid) = ids;
            let (rdev, size, flags, (generation, version), inline) = rest;
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
                generation,
                version,
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
        format: LOG_FORMAT,
    }
}

fn header(seq: u64, changes: usize) -> FrameHeader {
    FrameHeader {
        payload_len: 0,
        seq,
        parent: 2,
        durable: 3,
        time_ns: 4,
        author: Author {
            uid: 5,
            pid: 6,
            program: *b"a program\0\0\0\0\0\0\0",
        },
        others: true,
        transaction: true,
        changes: changes as u32,
    }
}

type Given = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Frames with these changes, numbered from `seq` on.
fn build(segment: &SegmentHeader, seq: u64, all: &[Given]) -> Vec<u8> {
    let mut frames = Frames::default();
    for changes in all {
        frames.begin();
        for (key, value) in changes {
            frames.put_change(key, value.as_deref());
        }
        frames.end();
    }
    let numbered = (seq..).zip(all);
    let headers = numbered.map(|(seq, changes)| header(seq, changes.len()));
    frames.seal(segment, headers).to_vec()
}

/// Reads a frame as recovery does; `None` where it is not whole.
fn reread(
    segment: &SegmentHeader,
    raw: &[u8],
) -> Option<(FoundFrame, Vec<amino_schema::log::Change>)> {
    let found = FoundFrame::decode(segment, raw).ok()?;
    let start = found.header_len;
    let end = start.checked_add(usize::try_from(found.header.payload_len).ok()?)?;
    let payload = raw.get(start..end)?;
    if !found.matches(payload) {
        return None;
    }
    let changes = read_changes(&Bytes::copy_from_slice(payload), found.header.changes).ok()?;
    Some((found, changes))
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
    fn superblocks_survive(id in any::<[u8; 16]>(), next in 0..=u64::MAX >> 1, engine in "[a-z]{0,200}", shift in 9..21) {
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
        let _ = FoundFrame::decode(&segment(1), &raw);
        let _ = FoundFrame::decode(&SegmentHeader { format: 1, ..segment(1) }, &raw);
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
    fn keys_parse_back(ino in any::<u64>(), parent in 1..=u64::MAX, index in 0..=SIZE_MAX / u64::from(PAGE_SIZE), name in name()) {
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
    fn log_frames_survive(all in vec(changes(), 1..4), seq in 0..u64::MAX - 9) {
        let raw = build(&segment(3), seq, &all);
        prop_assert_eq!(raw.len() % FRAME_ALIGN, 0);
        let mut at = 0;
        for (number, given) in (seq..).zip(all) {
            let (found, changes) = reread(&segment(3), &raw[at..]).unwrap();
            let expected = FrameHeader { payload_len: found.header.payload_len, ..header(number, given.len()) };
            prop_assert_eq!(found.header, expected);
            prop_assert_eq!(found.header.author.program(), b"a program");
            let expected: Vec<_> = given.into_iter().map(|(k, v)| (Bytes::from(k), v.map(Bytes::from))).collect();
            prop_assert_eq!(changes, expected);
            at += found.padded_len().unwrap() as usize;
        }
        prop_assert_eq!(at, raw.len());
    }

    #[test]
    fn damaged_log_frames_are_refused(changes in changes(), at in any::<prop::sample::Index>(), bit in 0..8) {
        let whole = build(&segment(3), 1, &[changes]);
        let used = FRAME_HEADER_LEN + reread(&segment(3), &whole).unwrap().0.header.payload_len as usize;
        let mut damaged = whole.clone();
        damaged[at.index(used)] ^= 1u8 << bit;
        prop_assert!(reread(&segment(3), &damaged).is_none());
        prop_assert!(reread(&segment(3), &whole[..at.index(used)]).is_none());
    }
}

/// Sums and products of such numbers would not fit into 64 bits.
#[test]
fn numbers_that_no_store_reaches_are_refused() {
    let key = key::page_key(2, SIZE_MAX / u64::from(PAGE_SIZE) + 1);
    assert_eq!(
        ParsedKey::parse(&key).unwrap_err().why,
        "a page lies behind the largest offset"
    );
    let mut superblock = Super::new([0; 16], "memory", 1);
    superblock.next_ino = 1 << 63;
    let error = Super::decode(&superblock.encode()).unwrap_err();
    assert_eq!(
        (error.offset, error.why),
        (9, "no store has had that many files")
    );
    let meta = Meta {
        size: SIZE_MAX + 1,
        ..sample_meta()
    };
    let error = OrphanRecord::decode(&OrphanRecord { meta }.encode()).unwrap_err();
    assert_eq!(
        (error.offset, error.why),
        (25, "the size is larger than any offset")
    );
}

fn one() -> Given {
    vec![
        (b"Pa".to_vec(), Some(b"value".to_vec())),
        (b"Pb".to_vec(), None),
    ]
}

fn hex(raw: &[u8]) -> String {
    raw.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<_> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let byte = |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

const GOLDEN_SEGMENT_1: &str = "\
    414d494e4f4c4f47010000000000000030313233343536373839616263646566070000000000000000002a36fe9c9717\
    00000000ccd520bf";
const GOLDEN_FRAME_1: &str = "\
    41524543010000000d000000000000002a00000000000000290000000000000001002a36fe9c9717e803000067120000\
    020000000000000086a30d4fd38ff7f20250610676616c75650250620000000000000000000000000000000000000000\
    0000000000000000000000000000000000000000000000000000000000000000";
const GOLDEN_SEGMENT_2: &str = "\
    414d494e4f4c4f47020000000000000030313233343536373839616263646566070000000000000000002a36fe9c9717\
    000000008db9d31f";
const GOLDEN_FRAME_2: &str = "\
    41524543020300000d000000000000002a00000000000000030000000000000004000000000000000500000006000000\
    02000000000000000200000000000000612070726f6772616d000000000000000000000000000000b0f1c865d3d9cfd4\
    0250610676616c75650250620000000000000000000000000000000000000000";

/// A segment with one frame, byte by byte as the program of format 1 wrote it.
#[test]
fn a_segment_of_format_1_is_read() {
    let head = unhex(GOLDEN_SEGMENT_1);
    let frame = unhex(GOLDEN_FRAME_1);
    let mut raw = head;
    raw.resize(SEGMENT_HEADER_LEN, 0);
    let segment = SegmentHeader::decode(&raw).unwrap();
    assert_eq!((segment.number, segment.format), (7, 1));
    let (found, changes) = reread(&segment, &frame).unwrap();
    let header = found.header;
    assert_eq!((header.seq, header.parent, header.durable), (42, 41, 41));
    assert_eq!(header.time_ns, 1_700_000_000_000_000_001);
    assert_eq!((header.author.uid, header.author.pid), (1000, 4711));
    assert_eq!(header.author.program(), b"");
    assert!(!header.transaction && !header.others);
    assert_eq!(found.padded_len(), Some(frame.len() as u64));
    let given: Vec<_> = one()
        .into_iter()
        .map(|(k, v)| (Bytes::from(k), v.map(Bytes::from)))
        .collect();
    assert_eq!(changes, given);
}

/// The layout of format 2, byte by byte.
#[test]
fn a_segment_of_format_2_is_written_as_documented() {
    let segment = SegmentHeader {
        store_id: *b"0123456789abcdef",
        number: 7,
        created_ns: 1_700_000_000_000_000_000,
        format: 2,
    };
    assert_eq!(hex(&segment.encode()[..56]), GOLDEN_SEGMENT_2);
    assert_eq!(hex(&build(&segment, 42, &[one()])), GOLDEN_FRAME_2);
}

/// A recycled segment file still holds the frames of its former number; they must not look like frames.
#[test]
fn a_frame_belongs_to_one_segment_of_one_store() {
    let raw = build(&segment(3), 1, &[one()]);
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
        segments: vec![SegmentSize {
            number: 3,
            bytes: 65536,
        }],
        keep_log: true,
        kept: vec![Kept { first: 1, last: 7 }, Kept { first: 9, last: 9 }],
    };
    let whole = header.encode();
    assert_eq!(Header::decode(&whole).unwrap(), header);
    assert_eq!(claimed_format(&whole), Some(3));
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

/// As the program wrote it before segments of the log could be kept.
#[test]
fn a_header_of_format_2_is_read() {
    let raw = "amino store\nformat 2\nengine fjall\nid 30313233343536373839616263646566\ncheckpoint 42\n\
               holds 50 1 5c9a74b044576f8f\nfile 7 0000000000000009 0.jnl\nsegment 7 65536\ncrc32c 9f95cfc3\n";
    let header = Header::decode(raw.as_bytes()).unwrap();
    assert_eq!(header.checkpoint.as_ref().unwrap().holdings.seq, 42);
    assert_eq!(header.segments[0].bytes, 65536);
    assert!(!header.keep_log && header.kept.is_empty());
    let rewritten = String::from_utf8(header.encode()).unwrap();
    assert!(rewritten.starts_with("amino store\nformat 3\n"));
    assert_eq!(Header::decode(rewritten.as_bytes()).unwrap(), header);
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

fn sample_meta() -> Meta {
    let time = Timestamp { secs: 5, nanos: 6 };
    Meta {
        mode: 0o100_644,
        nlink: 1,
        uid: 2,
        gid: 3,
        rdev: 4,
        size: 7,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: MetaFlags(1),
        generation: 8,
        version: 9,
        inline: Some(Bytes::from_static(b"content")),
    }
}

/// Stores that were made before files had generations and versions are read: both are 0, and nothing was lost by a crash.
#[test]
fn records_of_version_1_have_no_generation_and_no_version() {
    let seal = |body: &[u8]| {
        let mut raw = body.to_vec();
        raw.extend(crc32c::crc32c(body).to_le_bytes());
        Bytes::from(raw)
    };
    let meta = sample_meta();
    let raw = DataRecord { meta: meta.clone() }.encode();
    let (head, tail) = (&raw[1..85], &raw[101..raw.len() - 4]);
    let old = seal(&[&[1], head, tail].concat());
    let expected = Meta {
        generation: 0,
        version: 0,
        ..meta
    };
    assert_eq!(DataRecord::decode(&old).unwrap().meta, expected);

    let superblock = Super::new([7; 16], "fjall", 77);
    let raw = superblock.encode();
    let old = seal(&[&[1], &raw[1..raw.len() - 4 - 9]].concat());
    assert_eq!(Super::decode(&old).unwrap(), superblock);
}
