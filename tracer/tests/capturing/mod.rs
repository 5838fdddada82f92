//! Captures into memory.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex};

use goanna_syscalls::{Returns, Value};
use goanna_tracer::capture::ptrace::{Ptrace, Recorded, Target};
use goanna_tracer::capture::{CaptureEnd, CaptureError, Data, Source, Wanted};
use goanna_tracer::event::Call;
use goanna_tracer::select::Filter;
use goanna_tracer::{Error, Event, Selection, Sink};

/// Keeps the events that it receives.
#[derive(Default)]
pub struct Kept(pub Mutex<Vec<Event>>);

impl Sink for Kept {
    fn take(&self, event: &Event) -> Result<(), Error> {
        self.0.lock().unwrap().push(event.clone());
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Keeps the events that a filter selects.
struct Selected(Mutex<Selection>, Kept);

impl Sink for Selected {
    fn take(&self, event: &Event) -> Result<(), Error> {
        if self.0.lock().unwrap().selects(event) {
            self.1.take(event)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Captures from a source the events that a filter selects.
pub fn capture(
    mut source: Ptrace,
    filter: &str,
    data: Data,
) -> (Result<CaptureEnd, CaptureError>, Vec<Event>) {
    let filter = Arc::new(Filter::parse(filter).unwrap());
    let wanted = Wanted::new(vec![Arc::clone(&filter)], data);
    let sink = Selected(Mutex::new(Selection::new(filter)), Kept::default());
    let ending = source.capture(&wanted, &sink);
    (ending, sink.1.0.into_inner().unwrap())
}

/// Captures a command.
pub fn run(command: &[&str], filter: &str) -> (Result<CaptureEnd, CaptureError>, Vec<Event>) {
    capture(of_command(command), filter, Data::None)
}

/// The source of a command, whose calls are recorded inside it.
pub fn of_command(command: &[&str]) -> Ptrace {
    let target = Target::Command(command.iter().map(OsString::from).collect());
    Ptrace::new(target).recorded(Recorded::AtOnce)
}

/// The calls among events.
pub fn calls(events: &[Event]) -> impl Iterator<Item = &Call> {
    events.iter().filter_map(|event| match event {
        Event::Call(call) => Some(&**call),
        _ => None,
    })
}

/// A call as text: `name(arguments) = result`.
pub fn text(call: &Call) -> String {
    let name = call.call.signature.map_or("?", |signature| signature.name);
    let args: Vec<String> = call.call.args.iter().map(value).collect();
    let result = match call.outcome {
        None => "?".into(),
        Some(outcome)
            if call
                .call
                .signature
                .is_some_and(|one| one.returns == Returns::Address) =>
        {
            if outcome.result < 0 {
                outcome.result.to_string()
            } else {
                "ADDRESS".into()
            }
        }
        Some(outcome) => outcome.result.to_string(),
    };
    format!("{name}({}) = {result}", args.join(", "))
}

fn value(value: &Value) -> String {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match value {
        Value::Path { given, .. } => format!("{:?}", lossy(given)),
        Value::Text(text) => format!("{:?}", lossy(text)),
        Value::Descriptor { number, .. } => number.to_string(),
        Value::Signed(number) => number.to_string(),
        Value::Unsigned(number) => format!("{number:#x}"),
        Value::Bytes { len, .. } => format!("[{len}]"),
        other => format!("{other:?}"),
    }
}

/// The program of a source in `tests/programs`.
pub fn program(name: &str) -> std::path::PathBuf {
    compiled(&format!("tests/programs/{name}.c"))
}

/// The program of this source file; the path is relative to the package.
pub fn compiled(source: &str) -> std::path::PathBuf {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&directory).unwrap();
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let name = source.file_stem().unwrap().display();
    // Several tests compile it at the same time.
    let own = directory.join(format!("{name}-{:?}", std::thread::current().id()));
    let status = std::process::Command::new("cc")
        .args(["-O1", "-pthread", "-Wno-unused-result", "-o"])
        .args([&own, &source])
        .status()
        .unwrap();
    assert!(status.success());
    own
}

/// How often each mark was recorded with this result.
pub fn marks(events: &[Event]) -> BTreeMap<String, usize> {
    let mut marks = BTreeMap::new();
    for call in calls(events).filter(|call| call.call.nr == libc::SYS_mkdir as u32) {
        let Some(Value::Path { given, .. }) = call.call.args.first() else {
            panic!("{call:?}");
        };
        let name = String::from_utf8_lossy(given).replace("/nowhere/", "");
        *marks.entry(name).or_default() += 1;
    }
    marks
}

pub fn once(names: &[&str]) -> BTreeMap<String, usize> {
    names.iter().map(|name| (name.to_string(), 1)).collect()
}
