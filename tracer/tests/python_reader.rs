//! The independent reader in Python, which knows nothing but the description of the format, finds the same records.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::path::{Path, PathBuf};
use std::process::Command;

use amino_schema::trace::record::{Records, Value};
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::read::{Item, Keys, Reader};
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink};
use postmark::Workload;
use serde_json::{Map, Value as Json, json};

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tools/read_trace.py")
}

fn by_python(trace: &Path, options: &[&str]) -> Result<Vec<Json>, String> {
    let mut command = Command::new("python3");
    let output = command
        .arg(script())
        .arg(trace)
        .args(options)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.collect();
    match output.status.success() {
        true => Ok(lines),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// A byte string as the script prints it: a character for each byte.
fn latin(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| char::from(byte)).collect()
}

fn lines_of(mut records: Records, out: &mut Vec<Json>) {
    use amino_schema::trace::Type;
    while let Some(record) = records.next().unwrap() {
        let mut line = Map::new();
        line.insert("message".into(), record.message.name.as_str().into());
        for (argument, value) in record.fields() {
            let value = match (value, argument.kind) {
                (Value::Absent, _) => continue,
                (Value::Null, _) => Json::Null,
                (Value::Unread(address), _) => json!({ "unread": address }),
                (Value::Number(number), Type::Signed) => json!(number as i64),
                (Value::Number(number), _) => json!(number),
                (Value::Bytes(bytes), Type::Data) => bytes
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<String>()
                    .into(),
                (Value::Bytes(bytes), _) => latin(bytes).into(),
            };
            line.insert(argument.name.clone(), value);
        }
        out.push(line.into());
    }
}

fn by_reader(trace: &Path, keys: &Keys) -> Vec<Json> {
    let mut reader = Reader::open(trace, keys).unwrap();
    let mut lines = Vec::new();
    while let Some(item) = reader.next().unwrap() {
        match item {
            Item::Records(_, records) => lines_of(*records, &mut lines),
            Item::Finding(finding) => assert_eq!(finding.to_string(), ""),
            _ => {}
        }
    }
    lines
}

fn write(path: &Path, events: &[Event], filters: Vec<OutputFilter>, elide: bool, data: DataMode) {
    let options = PipelineOptions {
        writer: WriterOptions {
            block: Some(3000),
            elide,
            ..WriterOptions::default()
        },
        filters,
        ..PipelineOptions::default()
    };
    let assembly = Box::new(StreamAssembly::new(Groups::default(), data));
    let driver = Box::new(FileOutput::new(path, FileOptions::default()));
    let pipeline = Pipeline::start(options, assembly, driver).unwrap();
    events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
}

#[test]
fn the_reader_in_python_finds_the_same_records() {
    let dir = tempfile::tempdir().unwrap();
    let (trace, key) = (dir.path().join("trace"), dir.path().join("key"));
    std::fs::write(&key, [7; 32]).unwrap();
    let key_option = ["--hmac-key", key.to_str().unwrap()];
    let keys = Keys {
        authenticate: Some(Key::new([7; 32])),
        encrypt: None,
    };
    let mut workload = Workload::new(11, 70);
    workload.data = 300;
    workload.run(20, 60);
    let events = workload.events;
    let hmac = || OutputFilter::Authenticate(Key::new([7; 32]));
    let zstd = || OutputFilter::Zstd(3);
    write(&trace, &events, vec![], true, DataMode::None);
    assert_eq!(
        by_python(&trace, &[]).unwrap(),
        by_reader(&trace, &Keys::default())
    );
    write(&trace, &events, vec![], false, DataMode::Hash);
    assert_eq!(
        by_python(&trace, &[]).unwrap(),
        by_reader(&trace, &Keys::default())
    );
    for filters in [vec![hmac()], vec![zstd(), hmac()], vec![hmac(), zstd()]] {
        write(&trace, &events, filters, true, DataMode::Full);
        assert_eq!(
            by_python(&trace, &key_option).unwrap(),
            by_reader(&trace, &keys)
        );
    }
    std::fs::write(&key, [8; 32]).unwrap();
    assert!(
        by_python(&trace, &key_option)
            .unwrap_err()
            .contains("does not verify")
    );
}

#[test]
fn the_golden_trace_is_read_as_when_it_was_written() {
    golden("version-1");
}

/// Its records are in columns, which minor version 2 brought.
#[test]
fn the_golden_trace_with_columns_is_read_as_when_it_was_written() {
    golden("version-1.2");
}

/// Checks a trace that an earlier version wrote against its stored records: later versions must read it, and so must the
/// reader in Python. `GOANNA_BLESS=NAME` rewrites it, which is right only when the format gets a new version.
fn golden(name: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let trace = golden.join(format!("{name}.gtr"));
    let key = golden.join("version-1.key");
    let expected = golden.join(format!("{name}.jsonl"));
    let keys = Keys {
        authenticate: Some(Key::new([7; 32])),
        encrypt: None,
    };
    if std::env::var_os("GOANNA_BLESS").is_some_and(|it| it == name) {
        std::fs::create_dir_all(&golden).unwrap();
        std::fs::write(&key, "07".repeat(32) + "\n").unwrap();
        let mut workload = Workload::new(12, 3);
        workload.data = 64;
        workload.run(3, 4);
        let path = goanna_syscalls::Value::Path {
            given: b"/\xff\n".as_slice().into(),
            resolved: None,
        };
        workload.call("unlink", vec![path], -2, vec![]);
        workload.call(
            "unlink",
            vec![goanna_syscalls::Value::Unread(16)],
            -14,
            vec![],
        );
        workload.call("stat", vec![goanna_syscalls::Value::Null], -14, vec![]);
        let hmac = OutputFilter::Authenticate(Key::new([7; 32]));
        let filters = vec![OutputFilter::Zstd(19), hmac];
        write(&trace, &workload.events, filters, true, DataMode::Full);
        let lines = by_reader(&trace, &keys);
        let text = lines
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>();
        std::fs::write(&expected, text).unwrap();
    }
    let text = std::fs::read_to_string(expected).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap());
    let lines = lines.collect::<Vec<_>>();
    assert!(lines.len() > 50);
    assert_eq!(by_reader(&trace, &keys), lines);
    let options = ["--hmac-key", key.to_str().unwrap()];
    assert_eq!(by_python(&trace, &options).unwrap(), lines);
}
