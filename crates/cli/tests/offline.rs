//! The commands on a store, as users type them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::Fixture;
use serde_json::Value;

mod common;

impl Fixture {
    fn command(&self, args: &[&str]) -> Command {
        self.program(env!("CARGO_BIN_EXE_amino"), args)
    }

    fn amino(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed and print nothing on stderr except that it made a store.
    fn good(&self, args: &[&str]) -> Vec<u8> {
        let output = self.amino(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let lines = complaint.lines();
        let others = lines.filter(|line| !line.starts_with("amino: made a store in "));
        let complaint: String = others.collect();
        assert!(
            output.status.success() && complaint.is_empty(),
            "{args:?}: {complaint}"
        );
        output.stdout
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_slice(&self.good(args)).unwrap()
    }

    /// Runs a command that must fail with `status`, and returns its stderr.
    fn bad(&self, args: &[&str], status: i32) -> String {
        let output = self.amino(args);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {complaint}");
        complaint
    }
}

fn round_trip(engine: &str) {
    let fixture = Fixture::new();
    common::build(&fixture.path("source"));
    let report = fixture.json(&["import", "--json", "--engine", engine, "source", "/in/side"]);
    assert_eq!(report["hard_links"], 3);
    assert_eq!(report["skipped"], Value::Array(Vec::new()));
    assert!(
        report["bytes"].as_u64().unwrap() < 5_000_000,
        "holes were copied: {report}"
    );
    assert_eq!(fixture.json(&["info", "--json"])["engine"], engine);

    let back = fixture.json(&["export", "--json", "/in/side", "back"]);
    assert_eq!(back["files"], report["files"]);
    common::assert_same(&fixture.path("source"), &fixture.path("back"));

    let checked = fixture.json(&["fsck", "--json"]);
    assert_eq!(checked["clean"], true, "{checked}");
    assert_eq!(checked["findings"], Value::Array(Vec::new()));
    assert!(
        fs::read(fixture.path("source/large")).unwrap() == fixture.good(&["cat", "/in/side/large"])
    );
}

#[test]
fn a_nasty_tree_survives_a_fjall_store() {
    round_trip("fjall");
}

#[test]
fn a_nasty_tree_survives_a_sled_store() {
    round_trip("sled");
}

#[test]
fn a_store_is_made_for_its_owner_alone() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    let store = fixture.path("not/yet/there");
    let output = fixture.amino(&[
        "import",
        "--create",
        "--store",
        store.to_str().unwrap(),
        "source",
        "/",
    ]);
    assert!(output.status.success(), "{output:?}");
    for dir in ["not", "not/yet", "not/yet/there"] {
        let mode = fixture.path(dir).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "{dir}");
    }
}

#[test]
fn names_are_raw_in_a_pipe_and_lossless_in_json() {
    let fixture = Fixture::new();
    let source = fixture.path("source");
    fs::create_dir(&source).unwrap();
    let odd = b"a\xff\nb";
    fs::write(source.join(OsStr::from_bytes(odd)), "x").unwrap();
    fs::write(source.join(".hidden"), "y").unwrap();
    std::os::unix::fs::symlink(OsStr::from_bytes(b"\xfe"), source.join("link")).unwrap();
    fixture.good(&["import", "source", "/d"]);

    assert_eq!(fixture.good(&["ls", "/d"]), b"a\xff\nb\nlink\n");
    assert_eq!(
        fixture.good(&["ls", "-a", "d"]),
        b".hidden\na\xff\nb\nlink\n"
    );
    let list = fixture.json(&["ls", "-a", "--json", "/d"]);
    assert_eq!(list[1]["name"], "a\\xff\nb");
    assert_eq!(list[1]["name_bytes"], "61ff0a62");
    assert_eq!(list[1]["path_bytes"], "2f642f61ff0a62");
    assert_eq!(
        (&list[1]["size"], &list[1]["kind"]),
        (&Value::from(1), &Value::from("file"))
    );
    assert_eq!(list[2]["target_bytes"], "fe");
    assert!(list[0].get("name_bytes").is_none());

    let mut stat = fixture.command(&["stat", "--json"]);
    let output = stat
        .arg(OsStr::from_bytes(b"/d/a\xff\nb"))
        .output()
        .unwrap();
    let stat: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(stat[0]["name_bytes"], "61ff0a62");
    let depths: Vec<i64> = fixture
        .json(&["tree", "--json", "-a", "/"])
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["depth"].as_i64().unwrap())
        .collect();
    assert_eq!(depths, [0, 1, 2, 2, 2]);
}

#[test]
fn listings_look_as_expected() {
    let fixture = Fixture::new();
    let source = fixture.path("source");
    fs::create_dir_all(source.join("b/c")).unwrap();
    fs::write(source.join("a"), "12345").unwrap();
    fs::set_permissions(source.join("a"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("a", source.join("l")).unwrap();
    fixture.good(&["import", "source", "/"]);

    let long = String::from_utf8(fixture.good(&["ls", "-l"])).unwrap();
    let lines: Vec<&str> = long.lines().collect();
    assert!(
        lines[0].starts_with("-rw-r----- 1 ") && lines[0].ends_with(" a"),
        "{long}"
    );
    assert!(lines[0].contains(" 5 "), "{long}");
    assert!(
        lines[1].starts_with("drwx") && lines[1].ends_with(" b"),
        "{long}"
    );
    assert!(lines[2].ends_with(" l -> a"), "{long}");

    assert_eq!(fixture.good(&["ls", "/a", "/b"]), b"/a\n\n/b:\nc\n");
    assert_eq!(fixture.good(&["ls", "/l"]), b"/l\n");
    assert_eq!(fixture.good(&["cat", "/l", "a"]), b"1234512345");
    let tree = String::from_utf8(fixture.good(&["tree"])).unwrap();
    assert_eq!(
        tree,
        "/\n\u{251c}\u{2500}\u{2500} a\n\u{251c}\u{2500}\u{2500} b\n\u{2502}   \u{2514}\u{2500}\u{2500} c\n\
         \u{2514}\u{2500}\u{2500} l -> a\n\n2 directories, 2 files\n"
    );
    let flat = String::from_utf8(fixture.good(&["tree", "-L", "1"])).unwrap();
    assert!(
        !flat.contains(" c\n") && flat.ends_with("1 directory, 2 files\n"),
        "{flat}"
    );
    let info = fixture.json(&["info", "--json"]);
    assert_eq!(
        (&info["files"], &info["directories"]),
        (&Value::from(1), &Value::from(3))
    );
    assert_eq!(
        (&info["symlinks"], &info["bytes"]),
        (&Value::from(1), &Value::from(5))
    );
}

#[test]
fn missing_operands_are_reported_and_the_others_processed() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    fs::write(fixture.path("source/a"), "x").unwrap();
    fixture.good(&["import", "source", "/"]);

    let output = fixture.amino(&["cat", "/nope", "/", "/a"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout, b"x");
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        text,
        "amino: /nope: No such file or directory\namino: /: Is a directory\n"
    );

    assert!(
        fixture
            .bad(&["ls", "/nope"], 1)
            .starts_with("amino: /nope: ")
    );
    assert!(
        fixture
            .bad(&["stat", "/a/b"], 1)
            .contains("Not a directory")
    );
    assert!(fixture.bad(&["tree", "/a"], 1).contains("Not a directory"));
    assert!(
        fixture
            .bad(&["export", "/nope", "out"], 1)
            .starts_with("amino: /nope: ")
    );
    assert!(!fixture.path("out").exists());
    fixture.bad(&["import", "nope", "/"], 125);
    fixture.bad(&["import", "source/a", "/"], 125);
    let text = fixture.bad(&["import", "source", "/"], 1);
    assert!(text.contains("--force replaces it"), "{text}");
    fixture.good(&["import", "--force", "source", "/"]);
}

#[test]
fn exports_keep_out_of_where_they_do_not_belong() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    fs::write(fixture.path("source/a"), "x").unwrap();
    fixture.good(&["import", "source", "/"]);
    let text = fixture.bad(&["export", "/", "source"], 125);
    assert!(
        text.contains("not empty") && text.contains("--force"),
        "{text}"
    );
    let text = fixture.bad(&["export", "/", "store/x"], 125);
    assert!(text.contains("store's own directory"), "{text}");
    fixture.good(&["export", "/", "new"]);
    common::assert_same(&fixture.path("source"), &fixture.path("new"));
    fs::write(fixture.path("source/a"), "other").unwrap();
    fs::write(fixture.path("source/b"), "kept").unwrap();
    fixture.good(&["export", "--force", "/", "source"]);
    assert_eq!(fs::read(fixture.path("source/a")).unwrap(), b"x");
    assert_eq!(fs::read(fixture.path("source/b")).unwrap(), b"kept");
}

#[test]
fn other_directories_are_no_stores() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    fs::write(fixture.path("source/a"), "x").unwrap();
    for args in [
        &["ls", "--store", "source"][..],
        &["fsck", "--store", "source"],
        &["info", "--store", "source"],
        &["import", "--store", "source", "source", "/"],
    ] {
        let text = fixture.bad(args, 125);
        assert!(
            text.starts_with("amino: source: not an amino store: "),
            "{text}"
        );
    }
    assert_eq!(fs::read_dir(fixture.path("source")).unwrap().count(), 1);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    fs::write(fixture.path("source/large"), vec![b'x'; 4 << 20]).unwrap();
    fixture.good(&["import", "source", "/"]);
    let mut child = fixture
        .command(&["cat", "/large"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(141));
}

/// Bytes of a data file of the store are inverted; `fsck` must not report the store as clean.
#[test]
fn fsck_finds_damage() {
    let fixture = Fixture::new();
    fs::create_dir(fixture.path("source")).unwrap();
    for n in 0..200 {
        fs::write(
            fixture.path("source").join(format!("file{n}")),
            vec![b'x'; 300],
        )
        .unwrap();
    }
    fixture.good(&["import", "source", "/"]);
    fixture.good(&["fsck"]);
    let victim = largest(&fixture.path("store/engine"));
    let mut bytes = fs::read(&victim).unwrap();
    let middle = bytes.len() / 2;
    for byte in &mut bytes[middle..middle + 16] {
        *byte ^= 0xff;
    }
    fs::write(&victim, bytes).unwrap();
    let output = fixture.amino(&["fsck"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

/// Imports a tree three times, in a batch each, and damages one of these in the engine's journal; returns its path and content.
fn damage_one_import(fixture: &Fixture) -> (PathBuf, Vec<u8>) {
    fs::create_dir(fixture.path("source")).unwrap();
    for n in 0..40 {
        fs::write(
            fixture.path(&format!("source/file{n}")),
            format!("content {n}"),
        )
        .unwrap();
    }
    fixture.good(&["import", "source", "/first"]);
    fixture.good(&["import", "source", "/second"]);
    fixture.good(&["import", "source", "/third"]);
    let journal = fixture.path("store/engine/0.jnl");
    let mut bytes = fs::read(&journal).unwrap();
    let content = |bytes: &[u8]| {
        let found = bytes
            .windows(9)
            .enumerate()
            .filter(|(_, found)| *found == b"content 7");
        found.map(|(at, _)| at).collect::<Vec<_>>()
    };
    let places = content(&bytes);
    bytes[places[places.len() / 2]] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    (journal, bytes)
}

/// A store that cannot be opened: its readable part is listed, checked and copied, and the store stays unchanged.
#[test]
fn what_is_left_of_a_damaged_store_can_be_read() {
    let fixture = Fixture::new();
    let (journal, bytes) = damage_one_import(&fixture);
    let refused = fixture.amino(&["fsck"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    let hint = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        hint.contains("0.jnl") && hint.contains("--salvage"),
        "{hint}"
    );

    let checked = fixture.amino(&["fsck", "--salvage", "--json"]);
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let json: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(json["clean"], false);
    let missing = json["missing"].as_array().unwrap();
    assert!(
        missing[0]["place"].as_str().unwrap().ends_with("0.jnl"),
        "{json}"
    );

    let exported = fixture.amino(&["export", "--salvage", "/", "out"]);
    assert_eq!(exported.status.code(), Some(1), "{exported:?}");
    let said = String::from_utf8_lossy(&exported.stderr).into_owned();
    assert!(said.contains("amino: missing: "), "{said}");
    let copied: Vec<_> = ["first", "second", "third"]
        .iter()
        .filter(|name| fixture.path(&format!("out/{name}/file3")).exists())
        .collect();
    assert!(!copied.is_empty(), "{said}");
    for name in &copied {
        let file = format!("/{name}/file3");
        let output = fixture.amino(&["cat", "--salvage", &file]);
        assert_eq!(output.stdout, b"content 3", "{output:?}");
        let host = fs::read(fixture.path(&format!("out{file}"))).unwrap();
        assert_eq!(host, b"content 3");
    }
    assert_eq!(
        fixture.amino(&["ls", "--salvage", "/"]).status.code(),
        Some(1)
    );
    assert_eq!(fs::read(&journal).unwrap(), bytes);
    let left = fs::read_dir(fixture.path("store")).unwrap();
    let scratch = left.filter(|entry| {
        entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("salvage")
    });
    assert_eq!(scratch.count(), 0);
}

fn largest(dir: &Path) -> PathBuf {
    let mut files = Vec::new();
    let mut stack = vec![dir.to_owned()];
    while let Some(dir) = stack.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                stack.push(entry.path());
            } else {
                files.push((meta.len(), entry.path()));
            }
        }
    }
    files.into_iter().max().unwrap().1
}
