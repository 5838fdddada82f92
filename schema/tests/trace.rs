//! The layouts of traces: round trips, limits, and damaged bytes that must be refused and never panic.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

use std::sync::Arc;

use amino_schema::trace::record::{Encoder, MAX_STRING, Records, Value};
use amino_schema::trace::{
    Argument, BlockHeader, FileHeader, Footer, Hidden, Indexed, Kind, Message, Schema, Stored,
    Symbols, Type, claimed_version, pairs,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value that a test owns.
#[derive(Debug, Clone, PartialEq)]
enum Owned {
    Absent,
    Null,
    Unread(u64),
    Number(u64),
    Bytes(Vec<u8>),
}

impl Owned {
    fn lend(&self) -> Value<'_> {
        match self {
            Self::Absent => Value::Absent,
            Self::Null => Value::Null,
            Self::Unread(address) => Value::Unread(*address),
            Self::Number(number) => Value::Number(*number),
            Self::Bytes(bytes) => Value::Bytes(bytes),
        }
    }

    fn of(value: Value<'_>) -> Self {
        match value {
            Value::Absent => Self::Absent,
            Value::Null => Self::Null,
            Value::Unread(address) => Self::Unread(address),
            Value::Number(number) => Self::Number(number),
            Value::Bytes(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

fn argument(name: &str, kind: Type, size: u8, cell: u32) -> Argument {
    Argument {
        name: name.into(),
        kind,
        size,
        unit: "bytes".into(),
        role: "size".into(),
        symbols: (name == "flags").then_some(0),
        cell,
        hidden: (name == "resolved").then(|| Hidden {
            field: "path".into(),
            kind: Type::Bytes,
            size: 0,
        }),
    }
}

/// Two messages that share arguments and cells.
fn schema() -> Arc<Schema> {
    let symbols = vec![Symbols {
        name: "open_flags".into(),
        bits: true,
        field: 3,
        values: vec![(0o101, "A".into()), (1, "B".into())],
    }];
    let arguments = vec![
        argument("time", Type::Unsigned, 8, 0),
        argument("fd", Type::Signed, 4, 1),
        argument("path", Type::Bytes, 0, 2),
        argument("resolved", Type::Bytes, 0, 3),
        argument("flags", Type::Unsigned, 2, 4),
        argument("content", Type::Data, 0, 5),
        argument("other", Type::Signed, 8, 1),
    ];
    let message = |id, name: &str, arguments: Vec<u32>| Message {
        id,
        name: name.into(),
        number: id.checked_sub(256),
        arguments,
    };
    Arc::new(Schema {
        symbols,
        arguments,
        messages: vec![
            message(3, "blob", vec![5, 1]),
            message(257, "open", vec![0, 1, 2, 3, 4, 6]),
            message(600, "rename", vec![2, 3, 2, 0]),
        ],
    })
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..4u64, any::<u64>(), 1000..1100u64, Just(u64::MAX)]
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "/(a|bc)/[xy]{0,3}".prop_map(String::into_bytes),
        vec(any::<u8>(), 0..20),
        (4090..4100usize).prop_map(|len| vec![b'l'; len]),
    ]
}

fn field(kind: Type) -> BoxedStrategy<Owned> {
    let some = match kind {
        Type::Unsigned | Type::Signed => number().prop_map(Owned::Number).boxed(),
        Type::Bytes | Type::Data => text().prop_map(Owned::Bytes).boxed(),
    };
    prop_oneof![
        1 => Just(Owned::Absent),
        1 => Just(Owned::Null),
        1 => any::<u64>().prop_map(Owned::Unread),
        9 => some,
    ]
    .boxed()
}

/// Position of the message, thread, values.
type Made = (usize, u64, Vec<Owned>);

fn record() -> impl Strategy<Value = Made> {
    (0..3usize, 0..80u64).prop_flat_map(|(message, thread)| {
        let schema = schema();
        let arguments = &schema.messages[message].arguments;
        let kinds = arguments
            .iter()
            .map(|&it| schema.arguments[it as usize].kind);
        let fields = kinds.map(field).collect::<Vec<_>>();
        (Just(message), Just(thread), fields)
    })
}

fn encode(records: &[Made], elide: bool) -> Vec<u8> {
    fill(Encoder::new(schema(), elide), records)
}

fn encode_in_columns(records: &[Made]) -> Vec<u8> {
    fill(Encoder::with_columns(schema()), records)
}

fn fill(mut encoder: Encoder, records: &[Made]) -> Vec<u8> {
    // What an earlier block left behind must not matter.
    encoder.put(
        1,
        5,
        &[Value::Number(9), Value::Null, Value::Bytes(b"/before")],
    );
    encoder.finish();
    for (message, thread, values) in records {
        let values = values.iter().map(Owned::lend).collect::<Vec<_>>();
        encoder.put(*message, *thread, &values);
    }
    assert_eq!(encoder.records() as usize, records.len());
    encoder.finish()
}

type Found = Vec<(String, Vec<Owned>)>;

fn decode(payload: Vec<u8>) -> Result<Found, amino_schema::DecodeError> {
    all(Records::new(schema(), payload))
}

fn decode_columns(payload: Vec<u8>) -> Result<Found, amino_schema::DecodeError> {
    all(Records::in_columns(schema(), payload)?)
}

fn all(mut records: Records) -> Result<Found, amino_schema::DecodeError> {
    let mut found = Vec::new();
    while let Some(record) = records.next()? {
        let fields = record.fields().map(|(_, value)| Owned::of(value));
        found.push((record.message.name.clone(), fields.collect()));
    }
    Ok(found)
}

fn expected(records: &[Made]) -> Vec<(String, Vec<Owned>)> {
    let named =
        |(message, _, values): &Made| (schema().messages[*message].name.clone(), values.clone());
    records.iter().map(named).collect()
}

proptest! {
    #[test]
    fn records_come_back_whatever_came_before_them(records in vec(record(), 0..120), elide: bool) {
        prop_assert_eq!(decode(encode(&records, elide)).unwrap(), expected(&records));
    }

    #[test]
    fn records_come_back_from_columns_whatever_came_before_them(records in vec(record(), 0..120)) {
        prop_assert_eq!(decode_columns(encode_in_columns(&records)).unwrap(), expected(&records));
    }

    #[test]
    fn records_of_columns_that_were_cut_are_true(records in vec(record(), 1..30), cut in 0..4000usize) {
        let mut payload = encode_in_columns(&records);
        payload.truncate(cut);
        if let Ok(mut reader) = Records::in_columns(schema(), payload) {
            let mut found = Vec::new();
            while let Ok(Some(record)) = reader.next() {
                let fields = record.fields().map(|(_, value)| Owned::of(value));
                found.push((record.message.name.clone(), fields.collect::<Vec<_>>()));
            }
            prop_assert_eq!(&found[..], &expected(&records)[..found.len()]);
        }
    }

    #[test]
    fn each_whole_record_of_a_payload_that_was_cut_comes_back(records in vec(record(), 1..30), cut in 0..4000usize) {
        let mut payload = encode(&records, true);
        payload.truncate(cut);
        let mut reader = Records::new(schema(), payload);
        let mut found = Vec::new();
        while let Ok(Some(record)) = reader.next() {
            let fields = record.fields().map(|(_, value)| Owned::of(value));
            found.push((record.message.name.clone(), fields.collect::<Vec<_>>()));
        }
        prop_assert_eq!(&found[..], &expected(&records)[..found.len()]);
    }

    #[test]
    fn damaged_records_give_errors_or_other_records_but_no_panic(
        records in vec(record(), 1..30), at: prop::sample::Index, bit in 0..8u8,
    ) {
        let mut payload = encode(&records, true);
        let at = at.index(payload.len());
        payload[at] ^= 1 << bit;
        let _ = decode(payload);
        let mut payload = encode_in_columns(&records);
        let at = at % payload.len();
        payload[at] ^= 1 << bit;
        let _ = decode_columns(payload);
    }

    #[test]
    fn random_bytes_give_errors_but_no_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode(bytes.clone());
        let _ = decode_columns(bytes.clone());
        let _ = Schema::decode(&bytes);
        let _ = Stored::decode(&bytes);
        let _ = FileHeader::decode(&bytes);
        let _ = Footer::decode(&bytes);
        let _ = pairs::decode(&bytes);
    }

    #[test]
    fn context_comes_back(found in vec(("[a-z]{0,9}", vec(any::<u8>(), 0..30)), 0..9)) {
        prop_assert_eq!(pairs::decode(&pairs::encode(&found)).unwrap(), found);
    }
}

#[test]
fn a_schema_comes_back_and_later_additions_are_skipped() {
    let raw = schema().encode();
    assert_eq!(Schema::decode(&raw).unwrap(), *schema());
    // One byte more at the end of the first definition, the symbol set, and in its length.
    let mut longer = raw.clone();
    let len = usize::from(longer[1]);
    longer[1] += 1;
    longer.insert(2 + len, 77);
    assert_eq!(Schema::decode(&longer).unwrap(), *schema());
    for cut in 0..raw.len() {
        assert!(Schema::decode(&raw[..cut]).is_err());
    }
}

#[test]
fn a_path_in_the_directory_of_the_path_before_takes_one_byte_in_columns() {
    let sizes = [false, true].map(|resolved| {
        let mut encoder = Encoder::with_columns(schema());
        for round in 0..100u64 {
            let given = format!("file{round}");
            let whole = format!("/some/directory/file{round}");
            let path = Value::Bytes(given.as_bytes());
            let whole = match resolved {
                true => Value::Bytes(whole.as_bytes()),
                false => Value::Absent,
            };
            encoder.put(1, 1, &[Value::Number(7), Value::Number(3), path, whole]);
        }
        let len = encoder.len();
        let found = decode_columns(encoder.finish()).unwrap();
        let last = Owned::Bytes(b"/some/directory/file99".to_vec());
        assert_eq!(found.len(), 100);
        assert_eq!(found[99].1[3] == last, resolved);
        len
    });
    assert!(sizes[1] <= sizes[0] + 130, "{sizes:?}");
}

#[test]
fn equal_fields_and_even_steps_take_no_space() {
    let mut encoder = Encoder::new(schema(), true);
    for round in 0..1000u64 {
        let path = Value::Bytes(b"/some/where");
        let time = Value::Number(5_000_000 + round * 1000);
        let values = [
            time,
            Value::Number(3),
            path,
            path,
            Value::Number(0),
            Value::Number(7),
        ];
        encoder.put(1, 1, &values);
    }
    // Length and shape, and the two fields that share a cell.
    assert!(encoder.len() < 1000 * 4 + 200, "{} bytes", encoder.len());
}

#[test]
fn strings_beyond_the_bounds_of_the_table_are_written_out() {
    let mut records = Vec::new();
    for number in 0..70_000u64 {
        let path = if number % 30 == 0 {
            let mut long = vec![b'x'; MAX_STRING];
            long[..8].copy_from_slice(&number.to_be_bytes());
            long
        } else {
            number.to_be_bytes().to_vec()
        };
        records.push((
            2,
            0,
            vec![
                Owned::Bytes(path),
                Owned::Absent,
                Owned::Bytes(b"/always".to_vec()),
                Owned::Number(number),
            ],
        ));
    }
    assert_eq!(decode(encode(&records, true)).unwrap(), expected(&records));
}

#[test]
fn a_block_header_comes_back_and_every_flipped_bit_shows() {
    let header = BlockHeader {
        kind: Kind::Records,
        raw_len: 9,
        codecs: [1, 2, 3, 0, 0, 0, 0, 0],
        serial: *b"0123456789abcdef",
        sequence: 10,
        records_before: 11,
        records: 12,
        schema_id: 13,
        first_ns: 14,
        last_ns: 15,
        lost: 16,
    };
    let mut raw = Vec::new();
    header.encode(b"payload", &mut raw);
    let (head, payload) = raw.split_at(BlockHeader::LEN);
    let stored = Stored::decode(head).unwrap();
    assert_eq!(stored.header, header);
    assert!(stored.matches(payload));
    for bit in 0..raw.len() * 8 {
        let mut flipped = raw.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let (head, payload) = flipped.split_at(BlockHeader::LEN);
        let found = Stored::decode(head);
        assert!(
            !found.is_ok_and(|found| found.matches(payload)),
            "bit {bit}"
        );
    }
}

#[test]
fn a_file_header_comes_back_and_a_newer_version_is_named() {
    let header = FileHeader { serial: [7; 16] };
    let mut raw = header.encode();
    assert_eq!(FileHeader::decode(&raw).unwrap(), header);
    assert_eq!(claimed_version(&raw), Some((1, 2)));
    raw[8] = 2;
    assert!(FileHeader::decode(&raw).is_err());
    assert_eq!(claimed_version(&raw), None);
}

#[test]
fn a_footer_comes_back() {
    let block = |offset, sequence, first_ns| Indexed {
        kind: Kind::Records,
        offset,
        sequence,
        first_ns,
    };
    let footer = Footer {
        blocks: vec![block(32, 0, 0), block(900, 1, 77), block(1 << 40, 2, 5)],
    };
    let raw = footer.encode(1 << 41);
    assert_eq!(Footer::len(&raw), Some(raw.len()));
    assert_eq!(Footer::decode(&raw).unwrap(), (footer, 1 << 41));
}

#[test]
fn a_part_of_a_schema_describes_the_records_of_its_messages() {
    let whole = schema();
    let part = whole.subset(|position| position != 0);
    assert_eq!(part.messages.len(), 2);
    assert_eq!(part.symbols, whole.symbols);
    assert!(part.arguments.iter().all(|it| it.name != "content"));
    let mut encoder = Encoder::new(Arc::clone(&whole), true);
    let values = [Value::Number(7), Value::Number(3), Value::Bytes(b"/a")];
    encoder.put(1, 1, &values);
    encoder.put(1, 1, &values);
    let payload = encoder.finish();
    let part = Arc::new(Schema::decode(&part.encode()).unwrap());
    let mut records = Records::new(part, payload);
    for _ in 0..2 {
        let record = records.next().unwrap().unwrap();
        let fields = record
            .fields()
            .map(|(argument, value)| (argument.name.as_str(), value));
        let fields = fields.take(3).collect::<Vec<_>>();
        assert_eq!(fields[0], ("time", values[0]));
        assert_eq!(fields[2], ("path", values[2]));
    }
    assert!(records.next().unwrap().is_none());
}

#[test]
fn parts_of_a_schema_add_up_to_it_and_other_definitions_are_refused() {
    let whole = schema();
    let mut sum = Schema::default();
    assert_eq!(sum.extend(&whole.subset(|it| it == 2)), Ok(true));
    assert_eq!(sum.extend(&whole.subset(|it| it == 2)), Ok(false));
    assert_eq!(sum.extend(&whole.subset(|it| it != 2)), Ok(true));
    assert_eq!(sum.extend(&whole), Ok(false));
    let ids = |schema: &Schema| schema.messages.iter().map(|it| it.id).collect::<Vec<_>>();
    assert_eq!(ids(&sum), ids(&whole));
    let mut other = Schema::clone(&whole);
    other.arguments[2].role = "text".into();
    let conflict = sum.extend(&other).unwrap_err();
    assert_eq!((conflict.id, conflict.first.as_str()), (257, "open"));
}
