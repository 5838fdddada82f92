//! The bytes of a store: keys, records, frames of the log, dumps. The first byte of an input chooses what the others are. A checksum at the end
//! is not part of an input.

use amino_schema::dump::{self, DumpTotals};
use amino_schema::header::{self, Header, SegmentSize};
use amino_schema::holdings::Holdings;
use amino_schema::log::{self, FoundFrame, Frames, SegmentHeader};
use amino_schema::record::{decode_page, decode_xattr};
use amino_schema::{
    DataRecord, FileKind, Meta, MetaFlags, OrphanRecord, ParsedKey, PathRecord, Super, Timestamp,
    key,
};
use bytes::Bytes;
use crc32c::crc32c;

/// A page's size.
const PAGE: u32 = 4096;

/// Offsets of the checksum in the header of a segment.
const SEGMENT_SUM: usize = 52;

/// Length of the line with the checksum of a store's header.
const HEADER_SUM_LEN: usize = 16;

type Decode = fn(&Bytes);

/// Decodes a record with its checksum; what it has decoded survives being encoded.
macro_rules! round_trip {
    ($record:ident) => {
        |raw| {
            if let Ok(record) = $record::decode(&sealed(raw)) {
                assert_eq!($record::decode(&record.encode()), Ok(record));
            }
        }
    };
}

const DECODERS: [Decode; 11] = [
    parsed_key,
    round_trip!(PathRecord),
    round_trip!(DataRecord),
    round_trip!(OrphanRecord),
    round_trip!(Super),
    |raw| {
        let _ = decode_xattr(raw);
        if let Ok(page) = decode_page(raw, PAGE) {
            assert!(page.len() <= PAGE as usize);
        }
    },
    |raw| {
        if let Ok(holdings) = Holdings::decode(raw) {
            let _ = holdings.encode();
        }
    },
    |raw| {
        let mut text = raw.to_vec();
        text.extend_from_slice(format!("crc32c {:08x}\n", crc32c(raw)).as_bytes());
        if let Ok(header) = Header::decode(&text) {
            assert_eq!(Header::decode(&header.encode()), Ok(header));
        }
        let _ = header::claimed_format(&text);
    },
    |raw| {
        let count = raw.len() as u32;
        let _ = (log::read_changes(raw, count), log::read_changes(raw, 1));
        let _ = dump::read_records(raw, 1);
    },
    |raw| {
        let _ = DumpTotals::decode(raw);
    },
    segment,
];

/// Decodes the bytes after the first one.
pub fn read(input: &[u8]) {
    if let Some((first, rest)) = input.split_first()
        && let Some(decode) = DECODERS.get(usize::from(*first))
    {
        decode(&Bytes::copy_from_slice(rest));
    }
}

/// The bytes and their checksum.
fn sealed(raw: &[u8]) -> Bytes {
    [raw, &crc32c(raw).to_le_bytes()].concat().into()
}

fn parsed_key(raw: &Bytes) {
    if let Ok(parsed) = ParsedKey::parse(raw) {
        assert_eq!(parsed.to_vec(), raw[..]);
    }
}

/// A segment of the log: its header, and frames.
fn segment(raw: &Bytes) {
    let mut raw = raw.to_vec();
    let sum = raw.get(..SEGMENT_SUM).map(crc32c);
    if let Some((place, sum)) = raw.get_mut(SEGMENT_SUM..SEGMENT_SUM + 4).zip(sum) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    let Ok(header) = SegmentHeader::decode(&raw) else {
        return;
    };
    let mut at = log::SEGMENT_HEADER_LEN;
    while let Some(rest) = raw.get(at..)
        && let Ok(frame) = FoundFrame::decode(&header, rest)
    {
        let start = at + frame.header_len;
        let end = (start as u64).saturating_add(frame.header.payload_len);
        let payload = raw.get(start..usize::try_from(end).unwrap_or(usize::MAX));
        if let Some(payload) = payload.filter(|payload| frame.matches(payload)) {
            let _ = log::read_changes(&Bytes::copy_from_slice(payload), frame.header.changes);
        }
        match frame.padded_len() {
            Some(len) => at = at.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)),
            None => break,
        }
    }
}

/// A value of each kind.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut frames = Frames::default();
    frames.begin();
    frames.put_change(&key::path_key(1, b"name"), Some(b"value"));
    frames.put_change(&key::page_key(2, 3), None);
    frames.end();
    let segment = SegmentHeader {
        store_id: [7; 16],
        number: 1,
        created_ns: 2,
        format: log::LOG_FORMAT,
    };
    let mut payload = Vec::new();
    dump::put_record(&mut payload, &key::data_key(5), b"text");
    let meta = Meta {
        mode: 0o100_644,
        nlink: 1,
        uid: 1000,
        gid: 1000,
        rdev: 0,
        size: 4,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        btime: Timestamp::default(),
        flags: MetaFlags::default(),
        generation: 1,
        version: 2,
        inline: Some(Bytes::from_static(b"text")),
    };
    let path = PathRecord {
        ino: 2,
        kind: FileKind::Regular,
        meta: Some(meta.clone()),
    };
    let unsealed = |mut record: Vec<u8>| {
        record.truncate(record.len().saturating_sub(4));
        record
    };
    let header = Header {
        engine: "fjall".to_owned(),
        store_id: [7; 16],
        checkpoint: None,
        segments: vec![SegmentSize {
            number: 1,
            bytes: 4096,
        }],
        keep_log: true,
        kept: Vec::new(),
    };
    let mut text = header.encode();
    text.truncate(text.len().saturating_sub(HEADER_SUM_LEN));
    let values: [(u8, Vec<u8>); 11] = [
        (7, text),
        (0, key::path_key(1, b"name")),
        (0, key::xattr_key(1, b"user.name")),
        (0, key::link_key(3, 4, b"link")),
        (0, key::page_key(5, 6)),
        (1, unsealed(path.encode().to_vec())),
        (3, unsealed(OrphanRecord { meta }.encode().to_vec())),
        (
            4,
            unsealed(Super::new([7; 16], "fjall", 1).encode().to_vec()),
        ),
        (6, Holdings::default().encode()),
        (8, payload),
        (10, segment.encode()),
    ];
    values
        .map(|(kind, value)| [&[kind][..], &value].concat())
        .to_vec()
}
