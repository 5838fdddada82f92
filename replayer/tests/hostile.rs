//! Compiled replays and traces that are made to do harm: refused, or contained below the root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amino_schema::replay::{
    Block, Call, Command, Content, Data, HEAD_LEN, Head, Index, Initial, Lane, Located, Place,
    Target, Wait, What,
};
use goanna_replayer::Error;
use goanna_replayer::compile::compile;
use goanna_replayer::prepare::prepare;
use goanna_replayer::run::{Options, Reads, Report, Speed, Verify, run};
use goanna_replayer::stored::Stored;
use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value, by_name};
use goanna_tracer as tracer;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly, WriterOptions};
use goanna_tracer::output::{FileOptions, FileOutput, OnFailure};
use goanna_tracer::{Pipeline, PipelineOptions, Sink};
use proptest::prelude::*;

fn command(order: u64, call: Call) -> Command {
    Command {
        call,
        order,
        start_ns: 0,
        duration_ns: 0,
        expected: Some(0),
        is_racy: false,
        waits: Vec::new(),
        targets: Vec::new(),
        numbers: Vec::new(),
        result: None,
        text: None,
        data: None,
    }
}

fn place(directory: u32, name: &str) -> Target {
    let name = name.as_bytes().to_vec();
    Target::Place(Place { directory, name })
}

fn on(order: u64, call: Call, target: Target, numbers: &[u64]) -> Command {
    Command {
        targets: vec![target],
        numbers: numbers.to_vec(),
        ..command(order, call)
    }
}

/// Writes a compiled replay with these lanes.
fn write(path: &Path, mut index: Index, lanes: &[Vec<Command>]) {
    let mut raw = vec![0; HEAD_LEN];
    for lane in lanes {
        let mut block = Block::default();
        for command in lane {
            block.push(command);
        }
        let offset = raw.len() as u64;
        let bytes = block.finish();
        let length = bytes.len() as u32;
        raw.extend(bytes);
        let blocks = vec![Located { offset, length }];
        index.lanes.push(Lane { blocks });
    }
    let index_at = raw.len() as u64;
    let encoded = index.encode();
    raw.extend(&encoded);
    let head = Head {
        index_at,
        index_len: encoded.len() as u64,
        index_sum: crc32c::crc32c(&encoded),
    };
    raw[..HEAD_LEN].copy_from_slice(&head.encode());
    fs::write(path, raw).unwrap();
}

fn options(root: &Path) -> Options {
    Options {
        root: root.to_owned(),
        speed: Speed::Fast,
        reads: Reads::Now,
        verify: Verify::Warn,
        until: None,
        only: None,
    }
}

struct Scene {
    scratch: tempfile::TempDir,
}

impl Scene {
    /// A root with links that lead out of it, and what they lead to.
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let outside = scratch.path().join("outside");
        let root = scratch.path().join("root");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(outside.join("victims")).unwrap();
        fs::write(outside.join("victim"), "untouched").unwrap();
        fs::write(outside.join("victims/one"), "untouched").unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink(outside.join("victim"), root.join("file")).unwrap();
        Self { scratch }
    }

    fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    fn run(&self, index: Index, lanes: &[Vec<Command>]) -> Result<Report, Error> {
        let path = self.scratch.path().join("compiled");
        write(&path, index, lanes);
        run(&path, options(&self.root()))
    }

    fn assert_untouched(&self) {
        let outside = self.scratch.path().join("outside");
        let mut names: Vec<_> = fs::read_dir(&outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["victim", "victims"]);
        for name in ["victim", "victims/one"] {
            let path = outside.join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), "untouched");
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o644);
        }
    }
}

fn index(directories: &[&str]) -> Index {
    Index {
        directories: directories
            .iter()
            .map(|it| it.as_bytes().to_vec())
            .collect(),
        slots: 4,
        mappings: 1,
        ..Index::default()
    }
}

const CREATE: u64 = (libc::O_CREAT | libc::O_RDWR) as u64;

#[test]
fn links_out_of_the_root_lead_nowhere() {
    let scene = Scene::new();
    let directories = ["", "absolute", "relative", "absolute/victims"];
    let mut commands = Vec::new();
    let mut add = |call, target, numbers: &[u64]| {
        let order = commands.len() as u64 + 1;
        commands.push(on(order, call, target, numbers));
    };
    for directory in 1..4 {
        add(Call::Open, place(directory, "new"), &[CREATE, 0o666]);
        add(
            Call::Open,
            place(directory, "victim"),
            &[CREATE | libc::O_TRUNC as u64, 0o666],
        );
        for call in [
            Call::Unlink,
            Call::Rmdir,
            Call::Mkdir,
            Call::Truncate,
            Call::Chmod,
        ] {
            for name in ["victim", "victims", "victims/", "one", "made"] {
                add(call, place(directory, name), &[0]);
            }
        }
        add(
            Call::Mknod,
            place(directory, "node"),
            &[u64::from(libc::S_IFIFO | 0o600)],
        );
    }
    let names = ["file", "file/", "absolute", "absolute/", "relative/"];
    for name in names {
        add(Call::Open, place(0, name), &[libc::O_RDWR as u64, 0]);
        for call in [Call::Truncate, Call::Chmod, Call::Utimes, Call::Chdir] {
            add(call, place(0, name), &[0]);
        }
    }
    for name in names {
        let order = commands.len() as u64 + 1;
        commands.push(Command {
            text: Some(b"user.mark".to_vec()),
            data: Some(Data {
                length: 4,
                content: Content::Unknown,
            }),
            ..on(order, Call::Setxattr, place(0, name), &[0])
        });
    }
    let report = scene.run(index(&directories), &[commands]).unwrap();
    assert!(report.different() > 0);
    scene.assert_untouched();
}

#[test]
fn names_and_paths_that_leave_the_root_are_refused() {
    for name in ["..", "../x", "a/b", "/etc/passwd", "", "a\0b", "../"] {
        let scene = Scene::new();
        let commands = vec![on(1, Call::Unlink, place(0, name), &[])];
        let why = scene.run(index(&[""]), &[commands]).unwrap_err();
        assert!(
            why.to_string().contains("a name is not one component"),
            "{why}"
        );
        scene.assert_untouched();
    }
    for path in ["..", "../outside", "/etc", "a/../..", "a//b", "./a", "a/"] {
        let scene = Scene::new();
        let why = scene.run(index(&[path]), &[Vec::new()]).unwrap_err();
        assert!(
            why.to_string().contains("a path leaves its directory"),
            "{path}: {why}"
        );
        let initial = Initial {
            path: path.as_bytes().to_vec(),
            what: What::Directory,
            mode: None,
            owner: None,
            size: 0,
            extents: Vec::new(),
        };
        let compiled = scene.scratch.path().join("compiled");
        let initial = vec![initial];
        write(
            &compiled,
            Index {
                initial,
                ..index(&[])
            },
            &[],
        );
        assert!(prepare(&compiled, &scene.root()).is_err());
        scene.assert_untouched();
    }
}

#[test]
fn an_initial_state_below_a_link_is_made_in_the_root() {
    let scene = Scene::new();
    let entry = |path: &str, what| Initial {
        path: path.as_bytes().to_vec(),
        what,
        mode: Some(0o600),
        owner: None,
        size: 3,
        extents: Vec::new(),
    };
    let initial = vec![
        entry("absolute/new", What::Regular),
        entry("file", What::Regular),
    ];
    let compiled = scene.scratch.path().join("compiled");
    write(
        &compiled,
        Index {
            initial,
            ..index(&[])
        },
        &[],
    );
    assert!(prepare(&compiled, &scene.root()).is_err());
    scene.assert_untouched();
}

#[test]
fn devices_are_not_made() {
    let scene = Scene::new();
    let mode = u64::from(libc::S_IFBLK | 0o666);
    let commands = vec![on(1, Call::Mknod, place(0, "disk"), &[mode])];
    let report = scene.run(index(&[""]), &[commands]).unwrap();
    assert_eq!(report.first().next().unwrap().got, "EPERM");
    assert!(!scene.root().join("disk").exists());
}

#[test]
fn commands_that_wait_for_each_other_are_refused() {
    let waiting = |order, lane, other| Command {
        waits: vec![Wait { lane, order: other }],
        ..command(order, Call::Begin)
    };
    // Each waits for the other: one of the two waits for a later command.
    let scene = Scene::new();
    let lanes = [vec![waiting(1, 1, 2)], vec![waiting(2, 0, 1)]];
    let why = scene.run(index(&[""]), &lanes).unwrap_err();
    assert!(
        why.to_string()
            .contains("waits for itself or a later command"),
        "{why}"
    );
    // A lane that never comes so far, and one that does not exist.
    let lanes = [vec![waiting(9, 1, 8)], vec![command(2, Call::Begin)]];
    scene.run(index(&[""]), &lanes).unwrap();
    let why = scene
        .run(index(&[""]), &[vec![waiting(9, 7, 8)]])
        .unwrap_err();
    assert!(
        why.to_string().contains("a lane that does not exist"),
        "{why}"
    );
}

#[test]
fn numbers_that_name_nothing_are_refused_or_fail() {
    let scene = Scene::new();
    let slot = |slot| Target::Slot(slot);
    let why = scene
        .run(index(&[""]), &[vec![on(1, Call::Close, slot(4), &[])]])
        .unwrap_err();
    assert!(
        why.to_string().contains("a slot that does not exist"),
        "{why}"
    );
    let why = scene
        .run(
            index(&[""]),
            &[vec![on(1, Call::Rmdir, place(3, "x"), &[])]],
        )
        .unwrap_err();
    assert!(
        why.to_string().contains("a directory that does not exist"),
        "{why}"
    );
    let many = Index {
        slots: u32::MAX,
        ..index(&[""])
    };
    assert!(scene.run(many, &[]).is_err());
    let buffers = Content::Buffers(vec![(u64::MAX - 1, 4, 0)]);
    let write = Command {
        data: Some(Data {
            length: 4,
            content: buffers,
        }),
        ..on(1, Call::Write, slot(0), &[])
    };
    let why = scene.run(index(&[""]), &[vec![write]]).unwrap_err();
    assert!(why.to_string().contains("a buffer does not stand"), "{why}");
    // Sizes and offsets that are negative, or as large as numbers are.
    let mut commands = vec![Command {
        result: Some(0),
        ..on(1, Call::Open, place(0, "f"), &[CREATE, 0o600])
    }];
    for number in [u64::MAX, 1 << 63, i64::MAX as u64] {
        for call in [
            Call::Read,
            Call::Pread,
            Call::Write,
            Call::Pwrite,
            Call::Seek,
            Call::Truncate,
            Call::Allocate,
            Call::Readdir,
            Call::Advise,
            Call::Map,
            Call::Touch,
            Call::Msync,
            Call::Unmap,
            Call::Lock,
            Call::Fcntl,
            Call::Copy,
            Call::Clone,
            Call::Sync,
        ] {
            let length = if call == Call::Pwrite { 1 } else { number };
            // A write of the most that the kernel takes would fill a disk.
            let is_long = call == Call::Write && number <= i64::MAX as u64;
            let data = Some(Data {
                length: if is_long { 1 } else { length },
                content: Content::Unknown,
            });
            let order = commands.len() as u64 + 1;
            commands.push(Command {
                data,
                ..on(order, call, slot(0), &[number; 5])
            });
        }
    }
    let report = scene.run(index(&[""]), &[commands]).unwrap();
    assert!(report.different() > 0);
    scene.assert_untouched();
}

#[test]
fn an_initial_file_that_exceeds_the_disk_is_refused_first() {
    let scene = Scene::new();
    let initial = vec![Initial {
        path: b"huge".to_vec(),
        what: What::Regular,
        mode: None,
        owner: None,
        size: u64::MAX,
        extents: Vec::new(),
    }];
    let compiled = scene.scratch.path().join("compiled");
    write(
        &compiled,
        Index {
            initial,
            ..index(&[])
        },
        &[],
    );
    let why = prepare(&compiled, &scene.root()).unwrap_err();
    assert!(why.to_string().contains("there is room for"), "{why}");
    assert!(!scene.root().join("huge").exists());
}

#[test]
fn what_is_no_compiled_replay_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("file");
    for content in [
        &b""[..],
        b"short",
        &[0; 36],
        &[7; 4096],
        b"\x89GRP\r\n\x1a\n",
    ] {
        fs::write(&path, content).unwrap();
        assert!(Stored::open(&path).is_err());
    }
}

#[test]
fn names_in_messages_control_no_terminal() {
    let scene = Scene::new();
    let evil = "a\x1b[31m\nb\u{9b}";
    let root = scene.root();
    fs::write(scene.scratch.path().join(evil), "hello").unwrap();
    // The file is removed in one trace only.
    let path = Value::Path {
        given: evil.as_bytes().into(),
        resolved: None,
    };
    record(&scene.scratch.path().join("none"), Vec::new());
    record(
        &scene.scratch.path().join("removes"),
        vec![("unlink", vec![path], 0)],
    );
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
            .current_dir(scene.scratch.path())
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
fn record(path: &Path, calls: Vec<(&str, Vec<Value>, i64)>) {
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
    let trace = scene.scratch.path().join("trace");
    record(&trace, calls);
    let compiled = scene.scratch.path().join("compiled");
    let summary = compile(&trace, &compiled, &Default::default(), &mut |_| {}).unwrap();
    assert!(summary.skipped.contains_key("outside of the directory"));
    // Whether it is refused or replayed with differences: nothing outside changes.
    let _ = prepare(&compiled, &scene.root());
    let _ = run(&compiled, options(&scene.root()));
    scene.assert_untouched();
}

proptest! {
    /// Whatever stands in a block with the right checksum: it is refused, or gives commands that stay in their bounds.
    #[test]
    fn any_block_gives_commands_within_bounds_or_an_error(
        payload in prop::collection::vec(any::<u8>(), 0..300),
        count in 0u32..20,
        lane in 0u32..3,
    ) {
        let mut raw = count.to_le_bytes().to_vec();
        raw.extend(crc32c::crc32c(&payload).to_le_bytes());
        raw.extend(7u64.to_le_bytes());
        raw.extend(&payload);
        let mut commands = Block::commands(&raw, lane, 7).unwrap();
        let mut last = 7;
        while let Ok(Some(command)) = commands.next() {
            prop_assert!(command.order > last);
            last = command.order;
            for wait in &command.waits {
                prop_assert!(wait.order < command.order && wait.lane != lane);
            }
            for target in &command.targets {
                if let Target::Place(place) = target {
                    let name = place.name.strip_suffix(b"/").unwrap_or(&place.name);
                    prop_assert!(!name.is_empty() && name != b".." && !name.contains(&b'/'));
                }
            }
        }
    }

    /// A compiled replay with altered bytes, and with checksums that are right again, is read without harm.
    #[test]
    fn an_altered_index_is_refused_or_read(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("compiled");
        let initial = vec![Initial {
            path: b"a/b".to_vec(),
            what: What::Regular,
            mode: Some(0o600),
            owner: Some((1, 2)),
            size: 10,
            extents: Vec::new(),
        }];
        write(&path, Index { initial, ..index(&["", "a"]) }, &[vec![command(1, Call::Begin)]]);
        let mut raw = fs::read(&path).unwrap();
        let head = Head::decode(&raw).unwrap();
        let at = head.index_at as usize;
        for (place, byte) in changes {
            let length = raw.len() - at;
            raw[at + place.index(length)] = byte;
        }
        let index_sum = crc32c::crc32c(&raw[at..]);
        raw[..HEAD_LEN].copy_from_slice(&Head { index_sum, ..head }.encode());
        fs::write(&path, raw).unwrap();
        if let Ok(stored) = Stored::open(&path) {
            for directory in &stored.index.directories {
                prop_assert!(!directory.starts_with(b"/"));
            }
            for file in &stored.index.initial {
                prop_assert!(!file.path.split(|byte| *byte == b'/').any(|part| part == b".."));
            }
        }
    }
}

/// Opening one end of a FIFO waits for the other end, which a trace need not open.
#[test]
fn a_trace_that_opens_a_fifo_does_not_hang() {
    let scene = Scene::new();
    let fifo = || place(0, "fifo");
    let open = |order, flags: i32, slot| Command {
        result: Some(slot),
        ..on(order, Call::Open, fifo(), &[flags as u64, 0])
    };
    let read = |order, slot| Command {
        data: Some(Data {
            length: 10,
            content: Content::Unknown,
        }),
        ..on(order, Call::Read, Target::Slot(slot), &[])
    };
    let flags = [libc::F_SETFL as u64, 0];
    let mode = u64::from(libc::S_IFIFO | 0o600);
    let commands = vec![
        on(1, Call::Mknod, fifo(), &[mode]),
        open(2, libc::O_WRONLY, 0),
        open(3, libc::O_RDONLY, 1),
        open(4, libc::O_WRONLY, 2),
        on(5, Call::Fcntl, Target::Slot(1), &flags),
        read(6, 1),
    ];
    let report = scene.run(index(&[""]), &[commands]).unwrap();
    let got: Vec<String> = report.first().map(|it| it.got).collect();
    // Nobody reads at the first open, and nothing was written at the read.
    assert!(got.contains(&"ENXIO".to_owned()), "{got:?}");
    assert!(got.contains(&"EAGAIN".to_owned()), "{got:?}");
}

/// A lock that is never released is given up.
#[test]
fn a_trace_that_waits_for_a_lock_that_it_holds_does_not_hang() {
    let scene = Scene::new();
    let flags = (libc::O_CREAT | libc::O_RDWR) as u64;
    let open = |order, slot| Command {
        result: Some(slot),
        ..on(order, Call::Open, place(0, "locked"), &[flags, 0o600])
    };
    let flock = [libc::LOCK_EX as u64];
    let whole = [libc::F_OFD_SETLKW as u64, libc::F_WRLCK as u64, 0, 0, 0];
    let lanes = [
        vec![
            open(1, 0),
            open(2, 1),
            on(3, Call::Flock, Target::Slot(0), &flock),
            on(5, Call::Flock, Target::Slot(1), &flock),
        ],
        vec![
            open(6, 2),
            open(7, 3),
            on(8, Call::Lock, Target::Slot(2), &whole),
            on(9, Call::Lock, Target::Slot(3), &whole),
        ],
    ];
    let report = scene.run(index(&[""]), &lanes).unwrap();
    let mut timed_out: Vec<_> = report
        .first()
        .filter(|it| it.got == "ETIMEDOUT")
        .map(|it| it.order)
        .collect();
    timed_out.sort_unstable();
    assert_eq!(timed_out, [5, 9]);
}
