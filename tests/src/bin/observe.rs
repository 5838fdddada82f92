//! Runs a command with an observer, which writes a line for each event: `observe OUT WANTED MOUNT... -- COMMAND...`.
//! WANTED is `files`, `all` or names of calls with commas between them; a MOUNT is as for `goanna run --mount`.

use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use goanna_monitor::observe::{Ended, Observer};
use goanna_monitor::{Interception, Reporter};
use goanna_session::mounts::{self, MountType};
use goanna_session::{Environment, Outside, Plan, Report, credentials, perform};
use goanna_syscalls::{Subject, SysnoSet, Treatment, Value};
use serde_json::{Value as Json, json};

/// Writes a line for each event.
struct Writer {
    wanted: SysnoSet,
    out: Mutex<BufWriter<File>>,
}

impl Writer {
    fn line(&self, line: &Json) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        // The test that reads the file notices missing lines.
        let _ = writeln!(out, "{line}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn value(value: &Value) -> Json {
    match value {
        Value::Signed(number) => json!(number),
        Value::Unsigned(number) => json!(number),
        Value::Path { given, resolved } => {
            json!({"given": text(given), "resolved": resolved.as_deref().map(text)})
        }
        Value::Text(bytes) => json!(text(bytes)),
        Value::Descriptor { number, file } => {
            json!({"fd": number, "file": file.as_deref().map(text)})
        }
        Value::Bytes { len, .. } => json!({"len": len}),
        Value::Message {
            len, descriptors, ..
        } => json!({"len": len, "descriptors": descriptors}),
        Value::Texts(texts) => json!(texts.iter().map(|one| text(one)).collect::<Vec<_>>()),
        Value::Times(times) => json!(
            times
                .iter()
                .map(|one| (one.seconds, one.nanoseconds))
                .collect::<Vec<_>>()
        ),
        Value::DescriptorPair(pair) => json!({"pair": pair}),
        Value::Null => Json::Null,
        Value::Absent => json!("absent"),
        Value::Unread(_) => json!("unread"),
    }
}

impl Observer for Writer {
    fn interest(&self) -> SysnoSet {
        self.wanted
    }

    fn exit(&self, call: &Ended<'_>) {
        let files = call.files.iter().map(|(index, file)| {
            json!({"index": index, "inode": file.inode, "size": file.size, "path": file.path.as_deref().map(text)})
        });
        self.line(&json!({
            "event": "call",
            "pid": call.subject.pid,
            "tid": call.subject.tid,
            "comm": &*call.subject.comm,
            "name": call.call.signature.map(|one| one.name),
            "args": call.call.args.iter().map(value).collect::<Vec<_>>(),
            "result": call.outcome.map(|outcome| outcome.result),
            "answered": call.outcome.is_some_and(|outcome| outcome.treatment == Treatment::Monitor),
            "files": files.collect::<Vec<_>>(),
        }));
    }

    fn began(&self, subject: &Subject, parent: i32, _: u64) {
        self.line(
            &json!({"event": "began", "pid": subject.pid, "tid": subject.tid, "parent": parent}),
        );
    }

    fn executed(&self, subject: &Subject, program: &[u8], _: u64) {
        self.line(&json!({"event": "executed", "pid": subject.pid, "comm": &*subject.comm, "program": text(program)}));
    }

    fn ended(&self, subject: &Subject, status: i32, _: u64) {
        self.line(
            &json!({"event": "ended", "pid": subject.pid, "tid": subject.tid, "status": status}),
        );
    }
}

fn wanted(list: &str) -> SysnoSet {
    let names: Vec<&str> = list.split(',').collect();
    SysnoSet::of(|call| match list {
        "all" => true,
        "files" => call.concerns_files(),
        _ => names.contains(&call.name),
    })
}

fn run(args: Vec<OsString>) -> Result<u8, Box<dyn Error>> {
    let mut args = args.into_iter();
    let (Some(out), Some(list)) = (args.next(), args.next()) else {
        return Err("usage: observe OUT WANTED MOUNT... -- COMMAND...".into());
    };
    let types = &[
        MountType::Backend(&goanna_passfs::PassBackend),
        MountType::Store,
    ];
    let specs: Vec<OsString> = args
        .by_ref()
        .take_while(|arg| arg != OsStr::new("--"))
        .collect();
    let writer = Arc::new(Writer {
        wanted: wanted(&list.to_string_lossy()),
        out: Mutex::new(BufWriter::new(File::create(out)?)),
    });
    let plan = Plan {
        specs: mounts::parse(types, None, &specs)?,
        engine: None,
        create: true,
        default_store: false,
        one_transaction: false,
        profile: None,
        outside: Outside::Allow,
        stats: false,
        in_process: true,
        keep_log: None,
        trace: None,
    };
    let signals = goanna_monitor::prepare()?;
    let report = Reporter::new(|line| eprintln!("observe: {line}"));
    let environment = Environment {
        types,
        owned: None,
        caller: &credentials::current(),
        note: report.clone(),
        fail: report,
        observers: vec![Arc::<Writer>::clone(&writer)],
        trace: None,
        describe: Box::new(|error| Report {
            text: error.to_string(),
            hint: None,
            code: 125,
        }),
    };
    let result = perform(&plan, environment, |run| {
        Ok(run.command(args.collect(), Interception::Auto, &signals)?)
    })?;
    writer
        .out
        .lock()
        .map_err(|_| "a panic while writing")?
        .flush()?;
    Ok(match result.ended {
        Ok(code) => code as u8,
        Err(signal) => 128 + signal as u8,
    })
}

fn main() -> ExitCode {
    run(std::env::args_os().skip(1).collect()).map_or_else(
        |error| {
            eprintln!("observe: {error}");
            ExitCode::from(125)
        },
        ExitCode::from,
    )
}
