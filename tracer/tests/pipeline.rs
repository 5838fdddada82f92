//! From events through each chain of output filters to a file, and back.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::path::Path;
use std::sync::Arc;

use amino_schema::trace::record::Value as Field;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::read::{Finding, Item, Keys, Reader};
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink, Summary};
use postmark::Workload;

fn options(filters: Vec<OutputFilter>, block: usize, elide: bool) -> PipelineOptions {
    PipelineOptions {
        writer: WriterOptions {
            block: Some(block),
            elide,
            ..WriterOptions::default()
        },
        filters,
        ..PipelineOptions::default()
    }
}

fn write(path: &Path, events: &[Event], options: PipelineOptions, data: DataMode) -> Summary {
    let assembly = StreamAssembly::new(Groups::default(), data);
    let driver = FileOutput::new(path, FileOptions::default());
    let pipeline = Pipeline::start(options, Box::new(assembly), Box::new(driver)).unwrap();
    for event in events {
        pipeline.take(event).unwrap();
    }
    pipeline.finish().unwrap()
}

fn keys() -> Keys {
    Keys {
        authenticate: Some(Key::new([1; 32])),
        encrypt: Some(Key::new([2; 32])),
    }
}

/// Each record as a line, and the findings of the reader.
fn read(path: &Path, keys: &Keys) -> (Vec<String>, Vec<Finding>) {
    let (mut lines, mut findings) = (Vec::new(), Vec::new());
    let mut reader = Reader::open(path, keys).unwrap();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Records(_, mut records) => {
                while let Some(record) = records.next().unwrap() {
                    let mut line = record.message.name.clone();
                    for (argument, value) in record.fields() {
                        match value {
                            Field::Absent => {}
                            Field::Bytes(bytes) => {
                                let text = bytes.escape_ascii();
                                line.push_str(&format!(" {}={text}", argument.name));
                            }
                            value => line.push_str(&format!(" {}={value:?}", argument.name)),
                        }
                    }
                    lines.push(line);
                }
            }
            Item::Finding(finding) => findings.push(finding),
            _ => {}
        }
    }
    (lines, findings)
}

/// Three transforms in each order, with and without a thread in between.
fn chains() -> Vec<Vec<OutputFilter>> {
    let one = |index: usize| match index {
        0 => OutputFilter::Zstd(3),
        1 => OutputFilter::Encrypt(Key::new([2; 32])),
        _ => OutputFilter::Authenticate(Key::new([1; 32])),
    };
    let mut chains = vec![vec![]];
    for a in 0..3 {
        chains.push(vec![one(a)]);
        for b in (0..3).filter(|&b| b != a) {
            chains.push(vec![one(a), OutputFilter::Asynchronous(4), one(b)]);
            let c = 3 - a - b;
            chains.push(vec![OutputFilter::Asynchronous(1), one(a), one(b), one(c)]);
        }
    }
    chains
}

#[test]
fn all_chains_of_output_filters_give_the_same_records_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let events = Workload::postmark(1, 40, 60);
    let mut plain = None;
    for filters in chains() {
        let authenticated = format!("{filters:?}").contains("Authenticate");
        let summary = write(&path, &events, options(filters, 4096, true), DataMode::None);
        assert_eq!(summary.bytes > 0, summary.dropped == 0);
        assert_eq!(summary.records, events.len() as u64);
        let mut keys = keys();
        if !authenticated {
            keys.authenticate = None;
        }
        let (lines, findings) = read(&path, &keys);
        assert_eq!(findings, []);
        assert_eq!(lines.len(), events.len());
        assert_eq!(plain.get_or_insert_with(|| lines.clone()), &lines);
    }
    let first = &plain.unwrap()[0];
    for part in [
        "openat",
        "pathname=/tmp/postmark/s0/0",
        "dirfd=Number(18446744073709551516)",
        "result.inode=Number(1310000)",
        "comm=postmark",
        "result=Number(5)",
    ] {
        assert!(first.contains(part), "{part} in {first}");
    }
}

#[test]
fn eliding_and_its_absence_give_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let (elided, raw) = (dir.path().join("elided"), dir.path().join("raw"));
    let mut workload = Workload::new(7, 90);
    workload.data = 100_000;
    workload.run(30, 100);
    write(
        &elided,
        &workload.events,
        options(vec![], 5000, true),
        DataMode::Full,
    );
    write(
        &raw,
        &workload.events,
        options(vec![], 5000, false),
        DataMode::Full,
    );
    assert_eq!(
        read(&elided, &Keys::default()),
        read(&raw, &Keys::default())
    );
}

/// The goal of the design: at least 9 times smaller than raw records by eliding alone, 18 times with zstd.
#[test]
fn eliding_makes_postmark_nine_times_smaller_and_zstd_eighteen_times() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let events = Workload::postmark(3, 2000, 5000);
    let size = |filters, elide| {
        let mut options = options(filters, 256 << 10, elide);
        options.writer.block = Some(256 << 10);
        write(&path, &events, options, DataMode::None);
        std::fs::metadata(&path).unwrap().len()
    };
    let raw = size(vec![], false);
    let elided = size(vec![], true);
    let zstd = size(vec![OutputFilter::Zstd(3)], true);
    let all = size(
        vec![
            OutputFilter::Zstd(3),
            OutputFilter::Encrypt(Key::new([2; 32])),
            OutputFilter::Authenticate(Key::new([1; 32])),
        ],
        true,
    );
    let each = |bytes: u64| bytes as f64 / events.len() as f64;
    println!(
        "{} events; bytes an event: raw {:.1}, elided {:.1}, zstd {:.1}, zstd+aes+hmac {:.1}",
        events.len(),
        each(raw),
        each(elided),
        each(zstd),
        each(all)
    );
    assert!(raw >= 9 * elided, "raw {raw}, elided {elided}");
    assert!(raw >= 18 * zstd, "raw {raw}, zstd {zstd}");
}

#[test]
fn content_is_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut workload = Workload::new(5, 2);
    workload.data = 4096;
    workload.run(30, 0);
    write(
        &path,
        &workload.events,
        options(vec![], 4096, true),
        DataMode::Full,
    );
    let (lines, findings) = read(&path, &Keys::default());
    assert_eq!(findings, []);
    let blobs = lines
        .iter()
        .filter(|line| line.starts_with("blob"))
        .collect::<Vec<_>>();
    let mut different = blobs.clone();
    different.sort();
    different.dedup();
    assert_eq!(blobs.len(), different.len());
    assert!(!blobs.is_empty() && blobs.len() < lines.len() / 4);
    // Every hash that a call names is that of a blob before it.
    for (at, line) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| line.contains("buf.hash="))
    {
        let hash = line
            .split(" buf.hash=")
            .nth(1)
            .unwrap()
            .split(" count=")
            .next()
            .unwrap();
        let stored = format!("blob hash={hash} ");
        assert!(
            lines[..at].iter().any(|line| line.starts_with(&stored)),
            "{line}"
        );
    }
}

#[test]
fn threads_that_send_at_once_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let assembly = StreamAssembly::new(Groups::default(), DataMode::None);
    let driver = FileOutput::new(&path, FileOptions::default());
    let filters = vec![OutputFilter::Asynchronous(2), OutputFilter::Zstd(1)];
    let pipeline = Pipeline::start(
        options(filters, 1000, true),
        Box::new(assembly),
        Box::new(driver),
    );
    let pipeline = Arc::new(pipeline.unwrap());
    let events = Arc::new(Workload::postmark(2, 20, 20));
    let threads = (0..4).map(|_| {
        let (pipeline, events) = (Arc::clone(&pipeline), Arc::clone(&events));
        std::thread::spawn(move || {
            events
                .iter()
                .for_each(|event| pipeline.take(event).unwrap())
        })
    });
    threads
        .collect::<Vec<_>>()
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    pipeline.finish().unwrap();
    let (lines, findings) = read(&path, &Keys::default());
    assert_eq!((lines.len(), findings), (events.len() * 4, vec![]));
}

/// Schemas and records that a trace holds, in their order: the number of definitions, and the records after each.
fn definitions(path: &Path) -> Vec<(usize, usize)> {
    let mut reader = Reader::open(path, &Keys::default()).unwrap();
    let mut found = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Schema(schema) => found.push((schema.messages.len(), 0)),
            Item::Records(header, mut records) => {
                while let Some(record) = records.next().unwrap() {
                    assert!(!record.message.name.is_empty());
                    found.last_mut().unwrap().1 += 1;
                }
                assert_eq!(records.unknown(), 0, "block {}", header.sequence);
            }
            Item::Finding(finding) => assert_eq!(finding.to_string(), ""),
            _ => {}
        }
    }
    found
}

/// All definitions are 90 KB, which was the size of the trace of a program that does nothing.
#[test]
fn a_small_trace_defines_only_what_its_records_need() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut workload = Workload::new(1, 1);
    workload.call("sync", vec![], 0, vec![]);
    write(
        &path,
        &workload.events,
        options(vec![], 4096, true),
        DataMode::None,
    );
    assert_eq!(definitions(&path), [(1, 1)]);
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes < 6000, "{bytes} bytes for one record");
}

#[test]
fn a_schema_grows_with_the_records_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut workload = Workload::new(1, 1);
    // A new call in each block, as the smallest block has a few records.
    for signature in goanna_syscalls::SIGNATURES {
        for _ in 0..40 {
            workload.call(signature.name, vec![], 0, vec![]);
        }
    }
    let events = &workload.events;
    write(&path, events, options(vec![], 256, true), DataMode::None);
    let found = definitions(&path);
    let records = found.iter().map(|(_, records)| records).sum::<usize>();
    assert_eq!(records, events.len());
    assert!(found.len() > 3, "{found:?}");
    assert!(found.len() < 12, "{found:?}");
    assert!(
        found.is_sorted_by_key(|(messages, _)| *messages),
        "{found:?}"
    );
    let all = found.last().unwrap().0;
    assert!(all > goanna_syscalls::SIGNATURES.len(), "{found:?}");
}
