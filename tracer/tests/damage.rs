//! Traces that were cut, damaged or tampered with: the reader returns the intact records, reports the damage, and
//! does not panic.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::io::Cursor;
use std::ops::Range;
use std::sync::OnceLock;

use amino_schema::trace::record::Value as Field;
use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, SYNC, Schema, Stored};
use goanna_tracer::assemble::{
    Assembly, DataMode, Definitions, Groups, StreamAssembly, Writer, WriterOptions,
};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::read::{Finding, Item, Keys, Problem, Reader};
use goanna_tracer::tools::recover;
use goanna_tracer::{Error, Event, OutputFilter, Pipeline, PipelineOptions, Sink};
use postmark::Workload;

/// An assembly whose schema is small, so that each byte of a whole trace can be tried.
struct Small;

impl Assembly for Small {
    fn schema(&mut self) -> Schema {
        Definitions::counters("call", &["number", "time"])
    }

    fn event(&mut self, event: &Event, out: &mut Writer) -> Result<(), Error> {
        let Event::Call(call) = event else {
            return Ok(());
        };
        let time = call.entered_ns;
        let values = [Field::Number(call.call.nr.into()), Field::Number(time)];
        out.put(0, call.subject.tid as u64, time, &values)
    }
}

fn trace(filters: Vec<OutputFilter>, assembly: Box<dyn Assembly>, events: &[Event]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let options = PipelineOptions {
        writer: WriterOptions {
            block: Some(256),
            ..WriterOptions::default()
        },
        filters,
        ..PipelineOptions::default()
    };
    let driver = FileOutput::new(&path, FileOptions::default());
    let pipeline = Pipeline::start(options, assembly, Box::new(driver)).unwrap();
    events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
    std::fs::read(path).unwrap()
}

fn events() -> &'static [Event] {
    static EVENTS: OnceLock<Vec<Event>> = OnceLock::new();
    EVENTS.get_or_init(|| Workload::postmark(9, 4, 14))
}

fn small(filters: Vec<OutputFilter>) -> Vec<u8> {
    trace(filters, Box::new(Small), events())
}

fn hmac() -> OutputFilter {
    OutputFilter::Authenticate(Key::new([5; 32]))
}

fn keys() -> Keys {
    Keys {
        authenticate: Some(Key::new([5; 32])),
        encrypt: Some(Key::new([6; 32])),
    }
}

/// Where the blocks stand in a trace that is intact, with their headers.
fn blocks(trace: &[u8]) -> Vec<(Range<usize>, BlockHeader)> {
    let mut at = FILE_HEADER_LEN;
    let mut blocks = Vec::new();
    while trace[at..].starts_with(&SYNC) {
        let stored = Stored::decode(&trace[at..]).unwrap();
        let end = at + BlockHeader::LEN + stored.stored_len as usize;
        blocks.push((at..end, stored.header));
        at = end;
    }
    blocks
}

type Read = (Vec<Vec<u64>>, Vec<Problem>);

/// The fields of each record, and the findings of the reader.
fn read(trace: &[u8], keys: &Keys) -> Result<Read, Error> {
    let (mut rows, mut problems) = (Vec::new(), Vec::new());
    let mut reader = Reader::new(Cursor::new(trace), keys)?;
    while let Some(item) = reader.next()? {
        match item {
            Item::Records(_, mut records) => loop {
                match records.next() {
                    Ok(Some(record)) => {
                        let numbers = record.fields().filter_map(|(_, value)| match value {
                            Field::Number(number) => Some(number),
                            _ => None,
                        });
                        rows.push(numbers.collect());
                    }
                    Ok(None) => break,
                    Err(error) => {
                        let (sequence, records) = (0, 0);
                        let why = error.to_string();
                        problems.push(Problem::Malformed {
                            sequence,
                            records,
                            why,
                        });
                        break;
                    }
                }
            },
            Item::Finding(Finding { what, .. }) => problems.push(what),
            _ => {}
        }
    }
    Ok((rows, problems))
}

/// How many records end at or before each byte of an uncompressed trace.
fn whole_records(trace: &[u8], cut: usize) -> usize {
    let mut whole = 0;
    for (range, header) in blocks(trace) {
        if range.end <= cut {
            whole += header.records as usize;
        } else if range.start + BlockHeader::LEN < cut && header.records > 0 {
            let mut at = range.start + BlockHeader::LEN;
            // A record of this trace is shorter than 128 bytes: its length is one byte.
            while at < cut && at + 1 + usize::from(trace[at]) <= cut {
                at += 1 + usize::from(trace[at]);
                whole += 1;
            }
        }
    }
    whole
}

#[test]
fn a_trace_cut_at_any_byte_gives_every_whole_record_and_says_what_is_lost() {
    let trace = small(vec![]);
    let (all, none) = read(&trace, &Keys::default()).unwrap();
    assert_eq!((all.len(), none), (events().len(), vec![]));
    let end = blocks(&trace).last().unwrap().0.end;
    for cut in 0..trace.len() {
        let result = read(&trace[..cut], &Keys::default());
        if cut < FILE_HEADER_LEN {
            assert!(matches!(result, Err(Error::NoTrace(_))), "cut at {cut}");
            continue;
        }
        let (rows, problems) = result.unwrap();
        assert_eq!(rows.len(), whole_records(&trace, cut), "cut at {cut}");
        assert_eq!(rows, all[..rows.len()], "cut at {cut}");
        let says_so = problems.contains(&Problem::NoEnd);
        assert_eq!(says_so, cut < end, "cut at {cut}: {problems:?}");
        // Within the index, no record is lost, and the remains of the index are named.
        let garbage = problems
            .iter()
            .any(|it| matches!(it, Problem::Garbage { .. }));
        assert!(cut <= end || garbage, "cut at {cut}");
    }
}

#[test]
fn a_compressed_trace_that_was_cut_gives_records_up_to_about_the_cut() {
    let trace = small(vec![OutputFilter::Zstd(3)]);
    let (all, _) = read(&trace, &Keys::default()).unwrap();
    for cut in FILE_HEADER_LEN..trace.len() {
        let (rows, _) = read(&trace[..cut], &Keys::default()).unwrap();
        let whole = blocks(&trace)
            .into_iter()
            .filter(|(range, _)| range.end <= cut);
        let least = whole
            .map(|(_, header)| header.records as usize)
            .sum::<usize>();
        assert!(
            rows.len() >= least && rows == all[..rows.len()],
            "cut at {cut}"
        );
    }
}

#[test]
fn records_that_a_cut_keeps_from_being_authenticated_are_not_read() {
    let trace = small(vec![hmac()]);
    for cut in FILE_HEADER_LEN..trace.len() {
        let (rows, _) = read(&trace[..cut], &keys()).unwrap();
        let whole = blocks(&trace)
            .into_iter()
            .filter(|(range, _)| range.end <= cut);
        let records = whole
            .map(|(_, header)| header.records as usize)
            .sum::<usize>();
        assert_eq!(rows.len(), records, "cut at {cut}");
    }
}

#[test]
fn every_flipped_bit_is_found_and_all_other_blocks_are_read() {
    for filters in [vec![], vec![OutputFilter::Zstd(3), hmac()]] {
        let with_key = !filters.is_empty();
        let keys = if with_key { keys() } else { Keys::default() };
        let trace = trace(filters, Box::new(Small), &events()[..70]);
        let (all, _) = read(&trace, &keys).unwrap();
        let layout = blocks(&trace);
        for bit in 0..trace.len() * 8 {
            let mut flipped = trace.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (rows, problems) = read(&flipped, &keys).unwrap();
            assert!(!problems.is_empty(), "bit {bit} with key: {with_key}");
            let hit = layout.iter().find(|(range, _)| range.contains(&(bit / 8)));
            let hit = hit.map(|(_, header)| header);
            let expected = match hit {
                // Without its first schema, a stream that cannot be read twice has no records.
                Some(header) if header.sequence == 0 => continue,
                Some(header) => {
                    let start = header.records_before as usize;
                    let end = start + header.records as usize;
                    [&all[..start], &all[end..]].concat()
                }
                None => all.clone(),
            };
            assert_eq!(rows, expected, "bit {bit}");
        }
    }
}

/// Puts blocks together to a trace without an index.
fn rebuild(trace: &[u8], blocks: &[&[u8]]) -> Vec<u8> {
    let mut rebuilt = trace[..FILE_HEADER_LEN].to_vec();
    rebuilt.extend(blocks.concat());
    rebuilt
}

#[test]
fn every_removed_block_is_found() {
    let trace = small(vec![hmac()]);
    let layout = blocks(&trace);
    for removed in 0..layout.len() {
        let rest = layout.iter().enumerate().filter(|(at, _)| *at != removed);
        let rest = rest
            .map(|(_, (range, _))| &trace[range.clone()])
            .collect::<Vec<_>>();
        let (rows, problems) = read(&rebuild(&trace, &rest), &keys()).unwrap();
        let header = layout[removed].1;
        if removed + 1 == layout.len() {
            assert_eq!(problems, [Problem::NoEnd]);
            continue;
        }
        let (first, last) = (header.sequence, header.sequence);
        let records = u64::from(header.records);
        assert!(
            problems.contains(&Problem::Missing {
                first,
                last,
                records
            }),
            "{removed}: {problems:?}"
        );
        assert!(removed == 0 || rows.len() as u64 + records == events().len() as u64);
    }
}

#[test]
fn all_removed_blocks_at_the_end_are_found() {
    let trace = small(vec![hmac()]);
    let layout = blocks(&trace);
    for kept in 1..layout.len() {
        let rest = layout[..kept]
            .iter()
            .map(|(range, _)| &trace[range.clone()]);
        let (_, problems) = read(&rebuild(&trace, &rest.collect::<Vec<_>>()), &keys()).unwrap();
        assert_eq!(problems, [Problem::NoEnd]);
    }
}

#[test]
fn swapped_and_replayed_blocks_are_found_and_none_is_read_twice() {
    let trace = small(vec![hmac()]);
    let layout = blocks(&trace);
    let parts = layout
        .iter()
        .map(|(range, _)| &trace[range.clone()])
        .collect::<Vec<_>>();
    for one in 1..parts.len() - 1 {
        for other in one + 1..parts.len() - 1 {
            let mut swapped = parts.clone();
            swapped.swap(one, other);
            let (rows, problems) = read(&rebuild(&trace, &swapped), &keys()).unwrap();
            let found = problems
                .iter()
                .any(|it| matches!(it, Problem::OutOfOrder { .. }));
            assert!(found, "{one} and {other}: {problems:?}");
            assert_eq!(rows.len(), events().len());
        }
        let mut replayed = parts.clone();
        replayed.insert(parts.len() - 1, parts[one]);
        let (rows, problems) = read(&rebuild(&trace, &replayed), &keys()).unwrap();
        let sequence = layout[one].1.sequence;
        assert_eq!(problems, [Problem::Repeated { sequence }]);
        assert_eq!(rows.len(), events().len());
    }
}

#[test]
fn a_block_of_another_trace_in_the_place_of_one_is_found() {
    let (trace, other) = (small(vec![hmac()]), small(vec![hmac()]));
    let (layout, foreign) = (blocks(&trace), blocks(&other));
    let serial = &trace[12..28];
    for at in 1..layout.len() - 1 {
        let mut parts = layout
            .iter()
            .map(|(range, _)| trace[range.clone()].to_vec())
            .collect::<Vec<_>>();
        parts[at] = other[foreign[at].0.clone()].to_vec();
        for disguised in [false, true] {
            if disguised {
                // With the serial of the trace, and checksums that fit.
                let stored = Stored::decode(&parts[at]).unwrap();
                let mut header = stored.header;
                header.serial.copy_from_slice(serial);
                let payload = parts[at].split_off(BlockHeader::LEN);
                parts[at].clear();
                header.encode(&payload, &mut parts[at]);
            }
            let slices = parts.iter().map(Vec::as_slice).collect::<Vec<_>>();
            let (rows, problems) = read(&rebuild(&trace, &slices), &keys()).unwrap();
            assert!(!problems.is_empty());
            let lost = layout[at].1.records as usize;
            assert_eq!(rows.len() + lost, events().len(), "{at}: {problems:?}");
        }
    }
}

#[test]
fn an_altered_block_with_new_checksums_is_found_by_its_hmac() {
    for filters in [
        vec![hmac()],
        vec![hmac(), OutputFilter::Encrypt(Key::new([6; 32]))],
    ] {
        let trace = small(filters);
        for (range, header) in blocks(&trace) {
            let mut altered = trace.clone();
            let mut block = altered.split_off(range.start);
            let after = block.split_off(range.len());
            let mut payload = block.split_off(BlockHeader::LEN);
            payload[3] ^= 1;
            for stripped in [false, true] {
                let mut header = header;
                if stripped {
                    // An attacker without the key leaves the HMAC out.
                    header.codecs = [0; 8];
                    header.raw_len = payload.len() as u32;
                }
                let mut whole = altered.clone();
                header.encode(&payload, &mut whole);
                whole.extend_from_slice(&after);
                let (rows, problems) = read(&whole, &keys()).unwrap();
                let found = problems.iter().any(|it| {
                    matches!(it, Problem::Codec { .. } | Problem::Unauthenticated { .. })
                });
                assert!(found, "block {}: {problems:?}", header.sequence);
                if header.sequence > 0 {
                    assert_eq!(rows.len(), events().len() - header.records as usize);
                }
            }
        }
    }
}

#[test]
fn a_trace_of_a_newer_version_and_other_files_are_refused_by_name() {
    let mut newer = small(vec![]);
    newer[8] = 2;
    let sum = crc32c::crc32c(&newer[..28]);
    newer[28..32].copy_from_slice(&sum.to_le_bytes());
    let error = read(&newer, &Keys::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the trace has format version 2.2, this program reads version 1"
    );
    for other in [
        &b""[..],
        b"\x7fELF and so on",
        &[0; 100_000],
        b"GTRINDEX\xff\xff\xff\xff",
    ] {
        let error = read(other, &Keys::default()).unwrap_err();
        assert!(error.to_string().contains("not a trace"), "{error}");
    }
}

#[test]
fn random_damage_never_panics_or_takes_endless_memory() {
    let filters = || {
        vec![
            OutputFilter::Zstd(3),
            hmac(),
            OutputFilter::Encrypt(Key::new([6; 32])),
        ]
    };
    let stream = || Box::new(StreamAssembly::new(Groups::default(), DataMode::Full));
    let traces = [
        small(vec![]),
        small(filters()),
        trace(vec![], stream(), &events()[..60]),
        trace(vec![OutputFilter::Zstd(1)], stream(), &events()[..60]),
    ];
    let mut random = fastrand::Rng::with_seed(4711);
    for round in 0..1500 {
        let mut damaged = traces[round % traces.len()].clone();
        for _ in 0..random.usize(1..8) {
            let at = random.usize(..damaged.len());
            match random.u8(..5) {
                0 => damaged[at] = random.u8(..),
                1 => damaged.truncate(at.max(1)),
                2 => {
                    let end = (at + random.usize(..300)).min(damaged.len());
                    damaged.drain(at..end);
                }
                3 => {
                    let end = (at + random.usize(..300)).min(damaged.len());
                    let copy = damaged[at..end].to_vec();
                    let to = random.usize(..damaged.len());
                    damaged.splice(to..to, copy);
                }
                _ => {
                    // A header whose checksum is right, with other lengths: codecs and records must bound themselves.
                    let headers = (0..damaged.len()).filter(|&at| damaged[at..].starts_with(&SYNC));
                    let headers = headers.collect::<Vec<_>>();
                    if let Some(&at) = random.choice(&headers)
                        && at + BlockHeader::LEN <= damaged.len()
                    {
                        damaged[at + 8 + random.usize(..88)] = random.u8(..);
                        let sum = crc32c::crc32c(&damaged[at + 8..at + 96]);
                        damaged[at + 96..at + 100].copy_from_slice(&sum.to_le_bytes());
                    }
                }
            }
            if damaged.is_empty() {
                break;
            }
        }
        let keys = if random.bool() {
            keys()
        } else {
            Keys::default()
        };
        let _ = read(&damaged, &keys);
    }
}

#[test]
fn a_trace_within_a_damaged_trace_is_not_taken_for_its_own() {
    let inner = small(vec![]);
    let mut workload = Workload::new(1, 1);
    let data = goanna_syscalls::Value::Bytes {
        len: inner.len() as u64,
        data: inner.clone().into(),
    };
    let count = goanna_syscalls::Value::Unsigned(inner.len() as u64);
    let fd = goanna_syscalls::Value::Descriptor {
        number: 3,
        file: None,
    };
    workload.call(
        "write",
        vec![fd, data, count],
        inner.len() as i64,
        Vec::new(),
    );
    workload.run(1, 0);
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::Full));
    let mut outer = trace(vec![], assembly, &workload.events);
    let (whole, problems) = read(&outer, &Keys::default()).unwrap();
    assert_eq!(problems, []);
    // The header of the block with the inner trace is gone.
    let holds = |range: &Range<usize>| {
        outer[range.start + 100..range.end]
            .windows(8)
            .any(|it| it == SYNC)
    };
    let range = blocks(&outer)
        .into_iter()
        .find(|(range, _)| holds(range))
        .unwrap()
        .0;
    outer[range.start + 50] ^= 1;
    let (rows, problems) = read(&outer, &Keys::default()).unwrap();
    assert!(rows.len() < whole.len());
    assert!(rows.iter().all(|row| whole.contains(row)));
    assert!(
        problems
            .iter()
            .any(|it| matches!(it, Problem::Missing { .. })),
        "{problems:?}"
    );
}

#[test]
fn recovery_writes_all_that_is_intact_to_a_trace_that_is() {
    let mut damaged = small(vec![]);
    let layout = blocks(&damaged);
    let (all, _) = read(&damaged, &Keys::default()).unwrap();
    damaged[layout[2].0.start + 120] ^= 4;
    damaged.truncate(layout[4].0.end - 40);
    let (rows, _) = read(&damaged, &Keys::default()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recovered");
    let mut reader = Reader::new(Cursor::new(&damaged), &Keys::default()).unwrap();
    let mut said = Vec::new();
    let recovered = recover(&mut reader, &path, &mut |finding| {
        said.push(finding.to_string())
    })
    .unwrap();
    assert_eq!(recovered.records, rows.len() as u64);
    assert!(recovered.lost >= u64::from(layout[2].1.records), "{said:?}");
    let (again, problems) = read(&std::fs::read(path).unwrap(), &Keys::default()).unwrap();
    assert_eq!((again, problems), (rows.clone(), vec![]));
    assert!(rows.iter().all(|row| all.contains(row)) && !rows.is_empty());
}
