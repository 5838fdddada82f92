//! Traces with altered payloads whose checksums are right, as an attacker could make them: no tool panics or takes endless memory.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod every_tool;
mod postmark;

use std::io::Cursor;
use std::path::Path;

use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, Footer, SYNC, Stored};
use goanna_syscalls::Value;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::read::{Finding, Keys, Reader};
use goanna_tracer::select::Filter;
use goanna_tracer::tools::anonymize::{Anonymize, FieldKeys, anonymize};
use goanna_tracer::tools::{Statistics, consume};
use goanna_tracer::{Pipeline, PipelineOptions, Sink};
use postmark::Workload;

/// A trace without compression.
fn plain(path: &Path) -> Vec<u8> {
    let mut workload = Workload::new(1, 2);
    workload.data = 64;
    workload.run(3, 8);
    let argv = Value::Texts([Box::<[u8]>::from(b"make".as_slice())].into());
    workload.call("execve", vec![Value::Null, argv], -2, vec![]);
    workload.call("getuid", vec![], 1000, vec![]);
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::Full));
    let driver = Box::new(FileOutput::new(path, FileOptions::default()));
    let pipeline = Pipeline::start(PipelineOptions::default(), assembly, driver).unwrap();
    workload
        .events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
    std::fs::read(path).unwrap()
}

/// The trace with its payloads altered, and headers that fit them; decompressed where they were compressed.
fn mutated(trace: &[u8], random: &mut fastrand::Rng) -> Vec<u8> {
    let mut out = trace[..FILE_HEADER_LEN].to_vec();
    let mut at = FILE_HEADER_LEN;
    while trace[at..].starts_with(&SYNC) {
        let stored = Stored::decode(&trace[at..]).unwrap();
        let start = at + BlockHeader::LEN;
        at = start + stored.stored_len as usize;
        let mut header = stored.header;
        let mut payload = trace[start..at].to_vec();
        if header.codecs[0] == 1 {
            payload = zstd::bulk::decompress(&payload, header.raw_len as usize).unwrap();
            header.codecs = [0; 8];
        }
        let changes = random.usize(..4) * random.usize(..2);
        for _ in 0..changes {
            let place = random.usize(..payload.len());
            match random.u8(..4) {
                0 => payload[place] = random.u8(..),
                1 => payload[place] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff]).unwrap(),
                2 => payload.insert(place, random.u8(..)),
                _ => {
                    let end = (place + random.usize(..12)).min(payload.len() - 1);
                    payload.drain(place..end);
                }
            }
        }
        header.raw_len = payload.len() as u32;
        header.encode(&payload, &mut out);
    }
    out
}

#[test]
fn no_tool_panics_on_a_mutated_trace() {
    let dir = tempfile::tempdir().unwrap();
    let keys = FieldKeys::create(&dir.path().join("keys")).unwrap();
    let original = plain(&dir.path().join("t"));
    let hidden = dir.path().join("hidden");
    let mut reader = Reader::new(Cursor::new(original.clone()), &Keys::default()).unwrap();
    anonymize(
        &mut reader,
        &hidden,
        &keys,
        Anonymize::default(),
        &mut |_| {},
    )
    .unwrap();
    let traces = [original, std::fs::read(hidden).unwrap()];
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|it| it.parse::<u64>().ok())
    };
    let rounds = number("GOANNA_ROUNDS").unwrap_or(60);
    let seed = number("GOANNA_SEED").unwrap_or(1);
    for round in 0..rounds {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_add(round));
        let trace = mutated(&traces[round as usize % 2], &mut random);
        every_tool::run(&trace, dir.path(), &keys).unwrap();
    }
}

/// An index with a right checksum is compared with the blocks: its entries may be arbitrary.
#[test]
fn no_index_makes_the_reader_panic_or_hides_a_record() {
    let dir = tempfile::tempdir().unwrap();
    let trace = plain(&dir.path().join("t"));
    let start = trace.windows(8).rposition(|it| it == Footer::MAGIC);
    let (blocks, index) = trace.split_at(start.unwrap());
    let entries = &index[Footer::HEAD..index.len() - Footer::TAIL];
    let read = |trace: Vec<u8>| {
        let mut reader = Reader::new(Cursor::new(trace), &Keys::default()).unwrap();
        let mut statistics = Statistics::default();
        let mut findings = Vec::new();
        let found = &mut |finding: &Finding| findings.push(finding.what.clone());
        let records = consume(&mut reader, &mut statistics, found).unwrap();
        (records, findings)
    };
    let (records, findings) = read(trace.clone());
    assert!(records > 20 && findings.is_empty(), "{findings:?}");
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..400 {
        let mut entries = entries.to_vec();
        for _ in 0..random.usize(1..5) {
            let place = random.usize(..entries.len());
            match random.u8(..3) {
                0 => entries[place] = random.u8(..),
                1 => entries.insert(place, *random.choice([0, 0x80, 0xff].iter()).unwrap()),
                _ => drop(entries.drain(place..)),
            }
            if entries.is_empty() {
                break;
            }
        }
        let mut damaged = blocks.to_vec();
        damaged.extend_from_slice(&Footer::MAGIC);
        damaged.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        damaged.extend_from_slice(&entries);
        damaged.extend_from_slice(&crc32c::crc32c(&entries).to_le_bytes());
        damaged.extend_from_slice(&(blocks.len() as u64).to_le_bytes());
        damaged.extend_from_slice(&Footer::END);
        let is_same = damaged == trace;
        let (read, findings) = read(damaged);
        assert_eq!(read, records);
        assert_eq!(findings.is_empty(), is_same, "{findings:?}");
    }
}

#[test]
fn no_file_of_keys_makes_its_reader_panic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("keys");
    FieldKeys::create(&path).unwrap();
    let original = std::fs::read(&path).unwrap();
    let mut random = fastrand::Rng::with_seed(8);
    for _ in 0..500 {
        let mut text = original.clone();
        for _ in 0..random.usize(1..6) {
            let place = random.usize(..text.len());
            match random.u8(..4) {
                0 => text[place] = random.u8(..),
                1 => text[place] = *random.choice(b" \n#\xff\0".iter()).unwrap(),
                2 => text.truncate(place.max(1)),
                _ => text.insert(place, random.u8(..)),
            }
        }
        std::fs::write(&path, &text).unwrap();
        if let Err(error) = FieldKeys::read(&path) {
            assert!(error.to_string().contains("keys"), "{error}");
        }
    }
}

#[test]
fn no_filter_text_makes_the_parser_panic() {
    const WORDS: [&str; 24] = [
        "uid",
        "gid",
        "comm",
        "name",
        "path",
        "op",
        "call",
        "ret",
        "size",
        "==",
        "!=",
        "<=",
        "~",
        "!~",
        "in",
        "{",
        "}",
        "(",
        ")",
        "and",
        "or",
        "not",
        "\"a*[b\"",
        "99999999999999999999",
    ];
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..random.usize(..14) {
            match random.u8(..8) {
                0 => text.push(random.char(..)),
                1 => text.push_str(&random.i64(..).to_string()),
                _ => text.push_str(random.choice(WORDS).unwrap()),
            }
            text.push_str(random.choice([" ", "", ","]).unwrap());
        }
        if let Err(error) = Filter::parse(&text) {
            assert!(!error.to_string().is_empty());
        }
    }
}
