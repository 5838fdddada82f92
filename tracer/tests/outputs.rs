//! Output drivers: segments, disks that are full, receivers that leave, threads in between.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::fs::File;
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use amino_schema::trace::record::Value;
use goanna_tracer::assemble::{
    Aggregate, Assembly, DataMode, Groups, RotateWhen, StreamAssembly, WriterOptions,
};
use goanna_tracer::output::{
    Block, FileOptions, FileOutput, OnFailure, Output, Rotation, Stream, StreamOutput, live,
    manifest_path, segment_path,
};
use goanna_tracer::read::{Item, Keys, Problem, Reader};
use goanna_tracer::{Error, Event, OutputFilter, Pipeline, PipelineOptions, Sink};
use postmark::Workload;

fn small_blocks() -> PipelineOptions {
    PipelineOptions {
        writer: WriterOptions {
            block: Some(512),
            ..WriterOptions::default()
        },
        ..PipelineOptions::default()
    }
}

fn stream() -> Box<dyn Assembly> {
    Box::new(StreamAssembly::new(Groups::default(), DataMode::None))
}

fn run(
    options: PipelineOptions,
    assembly: Box<dyn Assembly>,
    driver: Box<dyn Output>,
    events: &[Event],
) -> Result<(), Error> {
    let pipeline = Pipeline::start(options, assembly, driver)?;
    let taken = events.iter().try_for_each(|event| pipeline.take(event));
    let finished = pipeline.finish();
    taken?;
    finished.map(|_| ())
}

/// Number of records, and the findings of the reader.
fn read(source: impl std::io::Read) -> (u64, Vec<Problem>) {
    let mut reader = Reader::new(source, &Keys::default()).unwrap();
    let (mut count, mut problems) = (0, Vec::new());
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Records(_, mut records) => {
                while records.next().unwrap().is_some() {
                    count += 1;
                }
            }
            Item::Finding(finding) => problems.push(finding.what),
            _ => {}
        }
    }
    (count, problems)
}

#[test]
fn segments_hold_all_records_and_each_is_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let events = Workload::postmark(1, 400, 100);
    for keep in [None, Some(3)] {
        let rotation = Some(Rotation { keep });
        let mut options = small_blocks();
        options.filters = vec![OutputFilter::Zstd(1)];
        options.writer.rotate = RotateWhen {
            bytes: Some(20_000),
            after: None,
        };
        let file = FileOutput::new(
            &path,
            FileOptions {
                rotation,
                ..FileOptions::default()
            },
        );
        run(options, stream(), Box::new(file), &events).unwrap();
        let manifest = std::fs::read_to_string(manifest_path(&path)).unwrap();
        let lines = manifest
            .lines()
            .map(|line| line.split('\t').collect::<Vec<_>>());
        let lines = lines.collect::<Vec<_>>();
        let mut total = 0;
        for line in &lines {
            let segment = dir.path().join(line[0]);
            let (records, problems) = read(File::open(&segment).unwrap());
            assert_eq!(problems, []);
            assert_eq!(
                std::fs::metadata(&segment).unwrap().len().to_string(),
                line[3]
            );
            total += records;
        }
        let on_disk = std::fs::read_dir(dir.path()).unwrap().count() - 1;
        assert_eq!(lines.len(), on_disk);
        match keep {
            None => {
                assert!(lines.len() > 4, "{manifest}");
                assert_eq!(total, events.len() as u64);
                // One after the other they are the whole stream.
                let all = lines
                    .iter()
                    .flat_map(|line| std::fs::read(dir.path().join(line[0])).unwrap());
                let all = all.collect::<Vec<_>>();
                let (records, problems) = read(Cursor::new(all));
                assert_eq!(records, events.len() as u64);
                assert!(
                    problems.iter().all(|it| *it == Problem::WrongIndex),
                    "{problems:?}"
                );
                for number in 0..lines.len() as u64 {
                    std::fs::remove_file(segment_path(&path, number)).unwrap();
                }
            }
            Some(keep) => assert_eq!(lines.len(), keep),
        }
    }
}

#[test]
fn synchronous_and_unbuffered_files_hold_each_block_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let options = FileOptions {
        buffer: 0,
        sync: true,
        rotation: None,
    };
    let driver = Box::new(FileOutput::new(&path, options));
    let pipeline = Pipeline::start(small_blocks(), stream(), driver).unwrap();
    let events = Workload::postmark(1, 10, 0);
    events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    // The trace has no end, but only the last block is missing.
    let (records, problems) = read(File::open(&path).unwrap());
    assert!(
        records > 0 && records + 100 > events.len() as u64,
        "{records} of {}",
        events.len()
    );
    assert_eq!(problems, [Problem::NoEnd]);
    pipeline.flush().unwrap();
    assert_eq!(read(File::open(&path).unwrap()).0, events.len() as u64);
    pipeline.finish().unwrap();
    assert_eq!(
        read(File::open(&path).unwrap()),
        (events.len() as u64, vec![])
    );
}

/// A driver like a disk that is full for a while.
struct Full {
    next: Box<dyn Output>,
    blocks: u64,
    full: std::ops::Range<u64>,
}

impl Output for Full {
    fn initialise(&mut self, stream: &Stream) -> Result<(), Error> {
        self.next.initialise(stream)
    }

    fn write(&mut self, block: Block) -> Result<(), Error> {
        self.blocks += 1;
        if self.full.contains(&self.blocks) {
            let (output, why) = (
                "disk".into(),
                std::io::Error::from_raw_os_error(libc::ENOSPC),
            );
            return Err(Error::Output { output, why });
        }
        self.next.write(block)
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.next.flush()
    }

    fn release(&mut self) -> Result<(), Error> {
        self.next.release()
    }

    fn preferred_block(&self) -> usize {
        self.next.preferred_block()
    }
}

#[test]
fn a_disk_that_is_full_for_a_while_leaves_a_gap_that_the_trace_reports() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let events = Workload::postmark(1, 30, 0);
    for asynchronous in [false, true] {
        let full = || {
            let next = Box::new(FileOutput::new(&path, FileOptions::default()));
            Box::new(Full {
                next,
                blocks: 0,
                full: 5..8,
            })
        };
        let reported = Arc::new(Mutex::new(Vec::new()));
        let mut options = small_blocks();
        if asynchronous {
            options.filters.push(OutputFilter::Asynchronous(2));
        }
        let heard = Arc::clone(&reported);
        options.report = Box::new(move |error| heard.lock().unwrap().push(error.to_string()));
        run(options, stream(), full(), &events).unwrap();
        assert_eq!(
            *reported.lock().unwrap(),
            ["disk: No space left on device (os error 28)"]
        );
        let (records, problems) = read(File::open(&path).unwrap());
        let [
            Problem::Missing {
                first: 4,
                last: 6,
                records: lost,
            },
        ] = problems[..]
        else {
            assert_eq!(problems, []);
            return;
        };
        assert_eq!(records + lost, events.len() as u64);
        let mut options = small_blocks();
        options.on_failure = OnFailure::Stop;
        if asynchronous {
            options.filters.push(OutputFilter::Asynchronous(2));
        }
        let error = run(options, stream(), full(), &events).unwrap_err();
        assert!(error.to_string().contains("No space left"), "{error}");
    }
}

/// `/dev/full` refuses every byte.
#[test]
fn a_file_that_takes_no_bytes_is_an_error_in_the_end() {
    let options = FileOptions {
        buffer: 1000,
        ..FileOptions::default()
    };
    let driver = Box::new(FileOutput::new("/dev/full", options));
    let error = run(
        small_blocks(),
        stream(),
        driver,
        &Workload::postmark(1, 3000, 0),
    )
    .unwrap_err();
    assert!(
        error.to_string().starts_with("/dev/full: No space left"),
        "{error}"
    );
}

#[test]
fn a_live_consumer_gets_the_trace_while_it_is_made_and_may_leave() {
    let events = Workload::postmark(1, 50, 0);
    let (driver, receiver) = live(1);
    let reader = std::thread::spawn(move || receiver.iter().flatten().collect::<Vec<u8>>());
    run(small_blocks(), stream(), Box::new(driver), &events).unwrap();
    let bytes = reader.join().unwrap();
    assert_eq!(read(Cursor::new(bytes)), (events.len() as u64, vec![]));
    let (driver, receiver) = live(1);
    drop(receiver);
    run(small_blocks(), stream(), Box::new(driver), &events).unwrap();
}

#[test]
fn a_pipe_whose_reader_has_left_is_reported() {
    struct Gone;
    impl Write for Gone {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let driver = Box::new(StreamOutput::new("standard output", Gone));
    let error = run(small_blocks(), stream(), driver, &[]).unwrap_err();
    assert!(
        error.to_string().starts_with("standard output: "),
        "{error}"
    );
}

/// Rows of (message, fields that are texts or numbers).
fn rows(path: &Path) -> Vec<(String, Vec<String>)> {
    let mut reader = Reader::open(path, &Keys::default()).unwrap();
    let mut rows = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        if let Item::Records(_, mut records) = item {
            while let Some(record) = records.next().unwrap() {
                let fields = record.fields().map(|(_, value)| match value {
                    Value::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                    Value::Number(number) => number.to_string(),
                    _ => String::new(),
                });
                rows.push((record.message.name.clone(), fields.collect()));
            }
        }
    }
    rows
}

#[test]
fn the_aggregate_counts_what_the_stream_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("trace");
    let mut workload = Workload::new(1, 1);
    workload.run(40, 60);
    let name = goanna_syscalls::Value::Path {
        given: b"/etc/x.conf".as_slice().into(),
        resolved: None,
    };
    workload.call("unlink", vec![name], -2, vec![]);
    let events = workload.events;
    let (first, last) = (times(&events[0]), times(&events[events.len() - 1]));
    let driver = || Box::new(FileOutput::new(&path, FileOptions::default()));
    let period = (last - first) / 3 - 1;
    run(
        small_blocks(),
        Box::new(Aggregate::new(Some(period))),
        driver(),
        &events,
    )
    .unwrap();
    let rows = rows(&path);
    let snapshots = rows
        .iter()
        .map(|(_, fields)| fields[1].parse::<u64>().unwrap());
    let latest = snapshots.max().unwrap();
    assert!((2..=4).contains(&latest), "{latest} snapshots");
    // time, snapshot, by, key, operation, calls, errors, bytes, nanoseconds
    let counter = |by: &str, key: &str, operation: &str| {
        let found = rows.iter().find(|(message, fields)| {
            message == "counter"
                && fields[1] == latest.to_string()
                && fields[2] == by
                && fields[3] == key
                && fields[4] == operation
        });
        found.unwrap().1[5..8]
            .iter()
            .map(|it| it.parse().unwrap())
            .collect::<Vec<u64>>()
    };
    let count = |name: &str| {
        events
            .iter()
            .filter(|event| event_name(event) == name)
            .count() as u64
    };
    let written = events
        .iter()
        .filter(|event| event_name(event) == "write")
        .map(result)
        .sum::<u64>();
    for (by, key) in [("0", "write"), ("1", "1000"), ("2", "4200 postmark")] {
        assert_eq!(counter(by, key, "write"), [count("write"), 0, written]);
    }
    assert_eq!(counter("4", "conf", "unlink")[..2], [1, 1]);
    assert_eq!(counter("3", "/etc/x.conf", "unlink")[..2], [1, 1]);
    let buckets = rows.iter().filter(|(message, fields)| {
        message == "bucket"
            && fields[1] == latest.to_string()
            && fields[2] == "write"
            && fields[3] == "0"
    });
    let calls = buckets
        .map(|(_, fields)| fields[5].parse::<u64>().unwrap())
        .sum::<u64>();
    assert_eq!(calls, count("write"));
}

fn times(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call.outcome.unwrap().left_ns,
        _ => 0,
    }
}

fn event_name(event: &Event) -> &str {
    match event {
        Event::Call(call) => call.call.signature.unwrap().name,
        _ => "",
    }
}

fn result(event: &Event) -> u64 {
    match event {
        Event::Call(call) => call.outcome.unwrap().result as u64,
        _ => 0,
    }
}
