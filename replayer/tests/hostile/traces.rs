//! Traces that are made to do harm.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use goanna_replayer::compile::compile;
use goanna_replayer::prepare::prepare;
use goanna_replayer::run::run;
use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value, by_name};
use goanna_tracer as tracer;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::output::{FileOptions, FileOutput, OnFailure};
use goanna_tracer::{Pipeline, PipelineOptions, Sink};

use crate::scene::{CREATE, Scene, options};

#[test]
fn names_in_messages_control_no_terminal() {
    let scene = Scene::new();
    let evil = "a\x1b[31m\nb\u{9b}";
    let root = scene.root();
    fs::write(scene.path(evil), "hello").unwrap();
    // The file is removed in one trace only.
    let path = Value::Path {
        given: evil.as_bytes().into(),
        resolved: None,
    };
    record(&scene.path("none"), Vec::new());
    record(&scene.path("removes"), vec![("unlink", vec![path], 0)]);
    let commands = [
        vec!["compare", "none", "removes"],
        vec!["compile", evil, "-o", "out"],
        vec!["compile", "none\x1b[2J\n", "-o", "out"],
        vec!["run", "--root", root.to_str().unwrap(), evil],
        vec!["run", "--\x1b[31m"],
    ];
    for words in commands {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_replayer"))
            .args(&words)
            .current_dir(scene.path(""))
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (found, errors) = (text(output.stdout), text(output.stderr));
        assert!(!output.status.success(), "{words:?}");
        assert!(!found.is_empty() || !errors.is_empty(), "{words:?}");
        if words[0] == "compare" {
            assert!(found.contains(r"a\x1b[31m\nb\xc2\x9b"), "{found:?}");
        }
        let controls = |c: char| c != '\n' && c.is_control();
        assert!(
            !found.chars().chain(errors.chars()).any(controls),
            "{found:?} {errors:?}"
        );
        let is_ours = |line: &str| line.starts_with("replayer: ");
        assert!(errors.lines().all(is_ours), "{errors:?}");
    }
}

/// Records calls of one process as a trace whose directory is `/work`.
pub fn record(path: &Path, calls: Vec<(&str, Vec<Value>, i64)>) {
    let options = PipelineOptions {
        writer: WriterOptions::default(),
        filters: Vec::new(),
        on_failure: OnFailure::Stop,
        report: Box::new(|error| panic!("{error}")),
        select: None,
        context: vec![("directory".into(), b"/work".to_vec())],
    };
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::None));
    let output = Box::new(FileOutput::new(path, FileOptions::default()));
    let pipeline = Pipeline::start(options, assembly, output).unwrap();
    for (number, (name, args, result)) in calls.into_iter().enumerate() {
        let signature = by_name(name).unwrap();
        let call = DecodedCall {
            signature: Some(signature),
            nr: signature.nr,
            raw: [0; 6],
            args,
        };
        let at_ns = 1000 + number as u64;
        let call = Box::new(tracer::event::Call {
            subject: Subject {
                pid: 9,
                tid: 9,
                uid: 0,
                gid: 0,
                sid: 9,
                comm: Arc::from("hostile"),
            },
            call,
            outcome: Some(Outcome {
                result,
                left_ns: at_ns,
                treatment: Treatment::Kernel,
            }),
            files: Vec::new(),
            entered_ns: at_ns,
        });
        pipeline.take(&tracer::Event::Call(call)).unwrap();
    }
    pipeline.finish().unwrap();
}

#[test]
fn a_hostile_trace_stays_below_the_root() {
    let scene = Scene::new();
    let cwd = || Value::Descriptor {
        number: libc::AT_FDCWD,
        file: Some(b"/work".as_slice().into()),
    };
    let fd = |number| Value::Descriptor { number, file: None };
    let path = |given: &str, resolved: Option<&str>| Value::Path {
        given: given.as_bytes().into(),
        resolved: resolved.map(|it| it.as_bytes().into()),
    };
    let flags = || Value::Unsigned(CREATE | libc::O_TRUNC as u64);
    let mut calls = Vec::new();
    for (given, resolved) in [
        ("../../etc/passwd", None),
        ("../outside/victim", Some("/work/../outside/victim")),
        ("absolute/victim", None),
        ("relative/victim", Some("/work/relative/victim")),
        ("file", Some("/work/file")),
        ("inside", Some("/work/x/../../inside")),
        ("inside", Some("/work/inside")),
    ] {
        let open = vec![
            cwd(),
            path(given, resolved),
            flags(),
            Value::Unsigned(0o666),
        ];
        calls.push(("openat", open, i64::from(i32::MAX)));
        let number = fd(i32::MAX);
        calls.push(("ftruncate", vec![number.clone(), Value::Signed(-1)], -22));
        calls.push((
            "lseek",
            vec![number.clone(), Value::Signed(i64::MIN), Value::Unsigned(0)],
            -22,
        ));
        let data = Value::Bytes {
            len: u64::MAX,
            data: [].into(),
        };
        calls.push((
            "write",
            vec![number.clone(), data, Value::Unsigned(u64::MAX)],
            -14,
        ));
        calls.push(("dup2", vec![number, fd(i32::MIN)], i64::from(i32::MIN)));
        calls.push(("unlink", vec![path(given, resolved)], 0));
    }
    let trace = scene.path("trace");
    record(&trace, calls);
    let compiled = scene.path("compiled");
    let summary = compile(&trace, &compiled, &Default::default(), &mut |_| {}).unwrap();
    assert!(summary.skipped.contains_key("outside of the directory"));
    // Whether it is refused or replayed with differences: nothing outside changes.
    let _ = prepare(&compiled, &scene.root(), None);
    let _ = run(&compiled, options(&scene.root()));
    scene.assert_untouched();
}
