//! Compiled replays and traces that are made to do harm: refused, or contained below the root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod altered;
mod mutated;
mod scene;
mod traces;
mod waits;

use std::fs;

use amino_schema::replay::{Call, Command, Content, Data, Index, Initial, Target, What};
use goanna_replayer::stored::Stored;

use self::scene::{CREATE, Scene, index, on, place};

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
            attributes: Vec::new(),
        };
        assert!(scene.prepare(vec![initial]).is_err());
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
        attributes: Vec::new(),
    };
    let initial = vec![
        entry("absolute/new", What::Regular),
        entry("file", What::Regular),
    ];
    assert!(scene.prepare(initial).is_err());
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
    assert!(
        why.to_string()
            .contains("a buffer extends beyond the start of the index"),
        "{why}"
    );
}

/// Sizes and offsets that are negative, or as large as numbers are.
#[test]
fn extreme_numbers_fail() {
    let scene = Scene::new();
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
            // A write of the maximum length that the kernel accepts would fill a disk.
            let is_long = call == Call::Write && number <= i64::MAX as u64;
            let data = Some(Data {
                length: if is_long { 1 } else { length },
                content: Content::Unknown,
            });
            let order = commands.len() as u64 + 1;
            commands.push(Command {
                data,
                ..on(order, call, Target::Slot(0), &[number; 5])
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
        attributes: Vec::new(),
    }];
    let why = scene.prepare(initial).unwrap_err();
    assert!(why.to_string().contains("there is space for"), "{why}");
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
