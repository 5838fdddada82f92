//! Exports to formats of other programs: these programs read the content of the trace.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use amino_schema::trace::pairs::Pairs;
use goanna_skip::{Facility, skip};
use goanna_syscalls::Value;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::{Event, Pipeline, PipelineOptions, Sink};
use postmark::Workload;

fn trace(path: &Path) -> Vec<Event> {
    let mut workload = Workload::new(1, 3);
    workload.run(20, 30);
    let text = |text: &[u8]| Box::<[u8]>::from(text);
    let path_of = |given: &[u8]| Value::Path {
        given: text(given),
        resolved: None,
    };
    workload.call("unlink", vec![path_of(b"/tmp/\"quoted\\\xff")], -2, vec![]);
    let argv = Value::Texts([text(b"make"), text(b"all")].into());
    workload.call("execve", vec![path_of(b"/bin/make"), argv], 0, vec![]);
    let wait = vec![
        Value::Signed(-1),
        Value::Null,
        Value::Unsigned(0),
        Value::Null,
    ];
    workload.call("wait4", wait, 4300, vec![]);
    let mut context = Pairs::new();
    let mut put = |name: &str, value: &str| context.push((name.into(), value.into()));
    put("host", "a \"host\"");
    put("clock", "1700000000000000000");
    put("clock.monotonic", "81234567890123");
    let options = PipelineOptions {
        context,
        ..PipelineOptions::default()
    };
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::None));
    let driver = Box::new(FileOutput::new(path, FileOptions::default()));
    let pipeline = Pipeline::start(options, assembly, driver).unwrap();
    workload
        .events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
    workload.events
}

fn export(directory: &Path, format: &str, to: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
    let words = ["export", "--format", format, "t", "-o", to];
    let output = command.args(words).current_dir(directory).output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn babeltrace_reads_the_ctf_of_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let events = trace(&dir.path().join("t"));
    assert_eq!(export(dir.path(), "ctf", "ctf"), (Some(0), String::new()));
    // The export refuses a directory that is not empty, and leaves it unchanged.
    assert_eq!(export(dir.path(), "ctf", "ctf").0, Some(125));
    assert_eq!(export(dir.path(), "ctf", "-").0, Some(125));
    let read = Command::new("babeltrace2")
        .arg("--clock-seconds")
        .arg(dir.path().join("ctf"))
        .output();
    let Ok(read) = read else {
        skip(Facility::Program, "babeltrace2 is not installed");
        return;
    };
    assert_eq!(String::from_utf8(read.stderr).unwrap(), "");
    let text = String::from_utf8(read.stdout).unwrap();
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(lines.len(), events.len());
    assert!(lines[0].starts_with("[1700000000.0000"), "{}", lines[0]);
    assert!(lines[0].contains(" openat: {"), "{}", lines[0]);
    for part in [
        "flags = 66, flags_names = \"O_RDWR|O_CREAT\"",
        "result_path = \"/tmp/postmark/s0/0\"",
        "result = -2, result_error = \"ENOENT\"",
        "argv = \"make all\"",
        "pid = 4200, ",
        "pid_argument = -1",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

/// A value of the Thrift compact protocol.
#[derive(Debug, Clone)]
enum Thrift {
    Number(i64),
    Bytes(Vec<u8>),
    List(Vec<Thrift>),
    Fields(BTreeMap<u8, Thrift>),
}

impl Thrift {
    fn get(&self, id: u8) -> &Self {
        match self {
            Self::Fields(fields) => &fields[&id],
            other => unreachable!("{other:?}"),
        }
    }

    fn list(&self) -> &[Self] {
        match self {
            Self::List(list) => list,
            other => unreachable!("{other:?}"),
        }
    }

    fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            other => unreachable!("{other:?}"),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
            other => unreachable!("{other:?}"),
        }
    }

    fn read(kind: u8, input: &mut &[u8]) -> Self {
        match kind {
            1 | 2 => Self::Number(i64::from(kind == 1)),
            5 | 6 => {
                let coded = varint(input);
                Self::Number((coded >> 1) as i64 ^ -((coded & 1) as i64))
            }
            8 => {
                let len = varint(input) as usize;
                let (bytes, rest) = input.split_at(len);
                *input = rest;
                Self::Bytes(bytes.to_vec())
            }
            9 => {
                let head = byte(input);
                let count = if head >> 4 == 15 {
                    varint(input)
                } else {
                    u64::from(head >> 4)
                };
                Self::List((0..count).map(|_| Self::read(head & 15, input)).collect())
            }
            12 => {
                let (mut fields, mut last) = (BTreeMap::new(), 0);
                loop {
                    let head = byte(input);
                    if head == 0 {
                        return Self::Fields(fields);
                    }
                    assert!(head >> 4 > 0);
                    last += head >> 4;
                    fields.insert(last, Self::read(head & 15, input));
                }
            }
            other => unreachable!("type {other}"),
        }
    }
}

fn byte(input: &mut &[u8]) -> u8 {
    let (first, rest) = input.split_first().unwrap();
    *input = rest;
    *first
}

fn varint(input: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let next = byte(input);
        value |= u64::from(next & 127) << shift;
        shift += 7;
        if next < 128 {
            return value;
        }
    }
}

/// The columns of a Parquet file as texts; an empty one where a row has no value.
fn columns(file: &[u8]) -> BTreeMap<String, Vec<String>> {
    assert!(file.starts_with(b"PAR1") && file.ends_with(b"PAR1"));
    let tail = file.len() - 8;
    let len = u32::from_le_bytes(file[tail..tail + 4].try_into().unwrap()) as usize;
    let footer = Thrift::read(12, &mut &file[tail - len..tail]);
    let mut columns = BTreeMap::<String, Vec<String>>::new();
    for group in footer.get(4).list() {
        for chunk in group.get(1).list() {
            let about = chunk.get(3);
            let name = about.get(3).list()[0].text();
            let mut input = &file[about.get(9).number() as usize..];
            let header = Thrift::read(12, &mut input);
            let (raw, packed) = (
                header.get(2).number() as usize,
                header.get(3).number() as usize,
            );
            let page = zstd::bulk::decompress(&input[..packed], raw).unwrap();
            let levels = u32::from_le_bytes(page[..4].try_into().unwrap()) as usize;
            let (mut levels, mut values) = (&page[4..4 + levels], &page[4 + levels..]);
            assert_eq!(varint(&mut levels) & 1, 1);
            for row in 0..header.get(5).get(1).number() as usize {
                let present = levels[row / 8] >> (row % 8) & 1 == 1;
                let len = match (present, about.get(1).number()) {
                    (false, _) => 0,
                    (true, 2) => 8,
                    (true, _) => {
                        let (len, rest) = values.split_at(4);
                        values = rest;
                        u32::from_le_bytes(len.try_into().unwrap()) as usize
                    }
                };
                let (value, rest) = values.split_at(len);
                values = rest;
                columns.entry(name.clone()).or_default().push(
                    match (present, about.get(1).number()) {
                        (true, 2) => i64::from_le_bytes(value.try_into().unwrap()).to_string(),
                        _ => String::from_utf8(value.to_vec()).unwrap(),
                    },
                );
            }
            assert_eq!(values, b"");
        }
    }
    assert!(
        columns
            .values()
            .all(|it| it.len() as i64 == footer.get(3).number())
    );
    columns
}

#[test]
fn a_parquet_file_has_a_row_for_each_record() {
    let dir = tempfile::tempdir().unwrap();
    let events = trace(&dir.path().join("t"));
    assert_eq!(
        export(dir.path(), "parquet", "t.parquet"),
        (Some(0), String::new())
    );
    let columns = columns(&std::fs::read(dir.path().join("t.parquet")).unwrap());
    assert_eq!(columns.len(), 19);
    assert_eq!(columns["message"].len(), events.len());
    let first = |name: &str| columns[name][0].as_str();
    assert_eq!(
        (first("message"), first("call"), first("result")),
        ("openat", "257", "5")
    );
    assert_eq!(
        (first("pid"), first("uid"), first("comm")),
        ("4200", "1000", "postmark")
    );
    assert!(
        first("realtime").starts_with("17000000000000"),
        "{}",
        first("realtime")
    );
    assert_eq!((first("error"), first("bytes")), ("", ""));
    let unlink = columns["message"].len() - 3;
    assert_eq!(columns["error"][unlink], "ENOENT");
    assert_eq!(columns["path"][unlink], "/tmp/\"quoted\\\u{fffd}");
    let fields = &columns["fields"][unlink + 2];
    let fields = serde_json::from_str::<serde_json::Value>(fields).unwrap();
    assert_eq!(
        (&fields["message"], &fields["pid.argument"]),
        (&"wait4".into(), &(-1).into())
    );
}
