//! Anonymised traces: their bytes contain none of the original names and users, and the keys restore the original.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use amino_schema::trace::pairs::Pairs;
use amino_schema::trace::{BlockHeader, FILE_HEADER_LEN, SYNC, Schema, Stored};
use goanna_syscalls::Value;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::read::{Item, Keys, Reader};
use goanna_tracer::tools::anonymize::{
    Anonymize, DataRule, Field, FieldKeys, Fields, anonymize, deanonymize,
};
use goanna_tracer::{Error, Event, Pipeline, PipelineOptions, Sink};
use postmark::Workload;
use tempfile::TempDir;

const UID: u32 = 271_828;
const GID: u32 = 314_159;
/// All that must not be found in an anonymised trace.
const NAMES: [&str; 11] = [
    "tollkirsche", // home directory
    "geheimakte",  // file
    "sippschaft",  // program
    "abgesandter", // argument
    "urkunde",     // extended attribute
    "rechnername", // host
    "briefkasten", // socket
    "innenleben",  // content
    "postmark",    // working directory, process name
    "beziehung",   // target of a symbolic link
    "verkehr",     // input filter
];

fn bytes(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

fn path(text: &str) -> Value {
    Value::Path {
        given: bytes(text),
        resolved: Some(bytes(text)),
    }
}

fn events() -> Vec<Event> {
    let mut workload = Workload::new(1, 2);
    let file = "/home/tollkirsche/../tollkirsche/geheimakte.tar.gz";
    workload.run(3, 9);
    workload.call("unlink", vec![path(file)], -2, vec![]);
    workload.call(
        "access",
        vec![path("/home/./tollkirsche//geheimakte.c/")],
        0,
        vec![],
    );
    let argv = Value::Texts([bytes("sippschaft"), bytes(""), bytes("--abgesandter")].into());
    workload.call("execve", vec![path("/bin/sippschaft"), argv], 0, vec![]);
    let ids = [UID, GID].map(|id| Value::Unsigned(id.into()));
    let [uid, gid] = ids;
    workload.call("chown", vec![path(file), uid, gid], 0, vec![]);
    workload.call("getuid", vec![], UID.into(), vec![]);
    workload.call("getgid", vec![], GID.into(), vec![]);
    workload.call(
        "setxattr",
        vec![path(file), Value::Text(bytes("user.urkunde"))],
        0,
        vec![],
    );
    let target = Value::Text(bytes("/home/beziehung/x"));
    workload.call(
        "readlink",
        vec![path("/home/l"), target, Value::Unsigned(64)],
        17,
        vec![],
    );
    let address = Value::Bytes {
        len: 14,
        data: b"\x01\0briefkasten\0".as_slice().into(),
    };
    let socket = Value::Descriptor {
        number: 3,
        file: None,
    };
    workload.call("connect", vec![socket.clone(), address], 0, vec![]);
    let content = Value::Bytes {
        len: 10,
        data: b"innenleben".as_slice().into(),
    };
    workload.call(
        "write",
        vec![socket, content, Value::Unsigned(10)],
        10,
        vec![],
    );
    workload.call("getcwd", vec![Value::Unread(9), Value::Null], -14, vec![]);
    for event in &mut workload.events {
        if let Event::Call(call) = event {
            (call.subject.uid, call.subject.gid) = (UID, GID);
        }
    }
    let Some(Event::Call(call)) = workload.events.first() else {
        return Vec::new();
    };
    let subject = call.subject.clone();
    let program = bytes("/opt/sippschaft");
    workload.events.push(Event::Executed {
        subject,
        program,
        at_ns: 81_234_567_990_123,
    });
    workload.events
}

struct Place {
    dir: TempDir,
    keys: FieldKeys,
}

impl Place {
    /// A directory with the trace `t` and a key file.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = FieldKeys::create(&dir.path().join("keys")).unwrap();
        let mut context = Pairs::new();
        let mut put = |name: &str, value: &str| context.push((name.into(), value.into()));
        put("program", "goanna-trace 0");
        put("host", "rechnername");
        put("directory", "/home/tollkirsche");
        put("command", "sippschaft");
        put(
            "mount",
            "36 35 98:0 / /home/tollkirsche rw - ext4 /dev/root rw",
        );
        put("filter", "name == \"verkehr\"");
        put("clock", "1700000000000000000");
        put("clock.monotonic", "81234567890123");
        let options = PipelineOptions {
            context,
            ..PipelineOptions::default()
        };
        let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::Full));
        let driver = Box::new(FileOutput::new(
            dir.path().join("t"),
            FileOptions::default(),
        ));
        let pipeline = Pipeline::start(options, assembly, driver).unwrap();
        events()
            .iter()
            .for_each(|event| pipeline.take(event).unwrap());
        pipeline.finish().unwrap();
        Self { dir, keys }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn reader(&self, name: &str) -> Reader<std::fs::File> {
        Reader::open(&self.path(name), &Keys::default()).unwrap()
    }

    fn hide(&self, from: &str, to: &str, how: Anonymize) {
        let complain = &mut |finding: &_| assert_eq!(format!("{finding:?}"), "");
        anonymize(
            &mut self.reader(from),
            &self.path(to),
            &self.keys,
            how,
            complain,
        )
        .unwrap();
    }

    fn show(&self, from: &str, to: &str, keys: &FieldKeys) -> Result<(), Error> {
        let complain = &mut |finding: &_| assert_eq!(format!("{finding:?}"), "");
        deanonymize(&mut self.reader(from), &self.path(to), keys, complain).map(|_| ())
    }

    /// The schema, the context without the pairs that name the file, and the records.
    fn content(&self, name: &str) -> (Schema, Pairs, Vec<String>) {
        let (mut schema, mut context, mut lines) = (Schema::default(), Pairs::new(), Vec::new());
        let mut reader = self.reader(name);
        while let Some(item) = reader.next().unwrap() {
            match item {
                Item::Schema(more) => {
                    schema.extend(&more).unwrap();
                }
                Item::Context(pairs) => context.extend(pairs),
                Item::Records(_, mut records) => {
                    while let Some(record) = records.next().unwrap() {
                        let fields = record
                            .fields()
                            .map(|(it, value)| format!("{}={value:?}", it.name));
                        let fields = fields.collect::<Vec<_>>().join(" ");
                        lines.push(format!("{} {fields}", record.message.name));
                    }
                }
                Item::Finding(finding) => assert_eq!(finding.to_string(), ""),
                Item::End(_) => {}
            }
        }
        context.retain(|(name, _)| !matches!(name.as_str(), "segment" | "sequence"));
        (schema, context, lines)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
        command
            .args(words)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }
}

/// The bytes of a trace, and its payloads before compression.
fn all_bytes(path: &Path) -> Vec<u8> {
    let raw = std::fs::read(path).unwrap();
    let mut all = raw.clone();
    let mut at = FILE_HEADER_LEN;
    while raw[at..].starts_with(&SYNC) {
        let stored = Stored::decode(&raw[at..]).unwrap();
        at += BlockHeader::LEN;
        let end = at + stored.stored_len as usize;
        if stored.header.codecs[0] == 1 {
            let most = stored.header.raw_len as usize;
            all.extend(zstd::bulk::decompress(&raw[at..end], most).unwrap());
        }
        at = end;
    }
    all
}

/// A number as a trace, a schema or a text could have it.
fn forms(number: u32) -> Vec<Vec<u8>> {
    let varint = |mut value: u64| {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
        out
    };
    let number = u64::from(number);
    vec![
        number.to_le_bytes()[..4].to_vec(),
        varint(number),
        varint(number << 1),
        number.to_string().into_bytes(),
    ]
}

fn count(haystack: &[u8], needle: &[u8]) -> usize {
    haystack
        .windows(needle.len())
        .filter(|it| *it == needle)
        .count()
}

#[test]
fn no_original_name_uid_or_component_is_left_in_the_bytes() {
    let place = Place::new();
    for (name, how) in [
        ("a", Anonymize::default()),
        (
            "b",
            Anonymize {
                keep_extensions: true,
                data: DataRule::Encrypt,
                ..Anonymize::default()
            },
        ),
        (
            "c",
            Anonymize {
                fields: "all".parse().unwrap(),
                ..Anonymize::default()
            },
        ),
    ] {
        place.hide("t", name, how);
        let (original, hidden) = (all_bytes(&place.path("t")), all_bytes(&place.path(name)));
        for needle in NAMES {
            assert!(
                count(&original, needle.as_bytes()) > 0,
                "the test looks for {needle}"
            );
            assert_eq!(count(&hidden, needle.as_bytes()), 0, "{needle} in {name}");
        }
        for number in [UID, GID] {
            let found = |all: &[u8]| forms(number).iter().map(|it| count(all, it)).sum::<usize>();
            assert!(found(&original) > 0, "the test looks for {number}");
            assert_eq!(found(&hidden), 0, "{number} in {name}");
        }
    }
    let lines = place.content("c").2.concat();
    for left in ["4200", "4201", "81234567"] {
        assert!(!lines.contains(left), "{left} in {lines}");
    }
}

#[test]
fn the_keys_restore_the_original() {
    let place = Place::new();
    for (number, keep_extensions) in [(0, false), (1, true)] {
        let how = Anonymize {
            fields: "all".parse().unwrap(),
            keep_extensions,
            data: DataRule::Encrypt,
        };
        let (hidden, shown) = (format!("a{number}"), format!("b{number}"));
        place.hide("t", &hidden, how);
        place.show(&hidden, &shown, &place.keys).unwrap();
        assert_ne!(place.content(&hidden).2, place.content("t").2);
        assert_eq!(place.content(&shown), place.content("t"));
    }
}

#[test]
fn a_key_opens_its_field_and_no_other_one() {
    let place = Place::new();
    place.hide("t", "a", Anonymize::default());
    let mut keys = FieldKeys::default();
    keys.set(Field::Uid, place.keys.get(Field::Uid).unwrap().clone());
    place.show("a", "b", &keys).unwrap();
    let (hidden, shown) = (place.content("a"), place.content("b"));
    assert!(!hidden.2.concat().contains(&UID.to_string()));
    assert!(shown.2.concat().contains(&format!("uid=Number({UID})")));
    assert!(!shown.2.concat().contains(&GID.to_string()));
    assert!(!shown.2.concat().contains("tollkirsche"));
    let list = |context: &Pairs| {
        let pair = context
            .iter()
            .find(|(name, _)| name == "anonymized")
            .unwrap();
        String::from_utf8(pair.1.clone()).unwrap()
    };
    assert_eq!(
        list(&hidden.1),
        "path,text,argv,comm,uid,gid,socket,hash,context"
    );
    assert_eq!(
        list(&shown.1),
        "path,text,argv,comm,gid,socket,hash,context"
    );
    // The other keys still fit the remaining fields.
    place.show("b", "c", &place.keys).unwrap();
    assert_eq!(place.content("c").0, {
        place.hide(
            "t",
            "plain",
            Anonymize {
                fields: Fields::new(vec![]),
                ..Anonymize::default()
            },
        );
        place.content("plain").0
    });
    keys.set(Field::Uid, Key::new([7; 32]));
    let error = place.show("a", "d", &keys).unwrap_err().to_string();
    assert!(
        error.contains("the field uid does not fit its key"),
        "{error}"
    );
}

/// Values of an argument, in the order of the records that have it.
fn texts(place: &Place, name: &str, message: &str, argument: &str) -> Vec<String> {
    let mut texts = Vec::new();
    let mut reader = place.reader(name);
    while let Some(item) = reader.next().unwrap() {
        if let Item::Records(_, mut records) = item {
            while let Some(record) = records.next().unwrap() {
                for (it, value) in record.fields() {
                    if let (true, amino_schema::trace::record::Value::Bytes(text)) =
                        (record.message.name == message && it.name == argument, value)
                    {
                        texts.push(String::from_utf8(text.to_vec()).unwrap());
                    }
                }
            }
        }
    }
    texts
}

#[test]
fn paths_keep_their_structure_and_equal_components_stay_equal() {
    let place = Place::new();
    place.hide(
        "t",
        "a",
        Anonymize {
            keep_extensions: true,
            ..Anonymize::default()
        },
    );
    let path = texts(&place, "a", "unlink", "pathname").pop().unwrap();
    let parts = path.split('/').collect::<Vec<_>>();
    let [root, home, user, up, again, file] = parts[..] else {
        unreachable!("{path}");
    };
    assert_eq!((root, up), ("", ".."));
    assert_eq!(user, again);
    assert_ne!(home, user);
    assert!(
        file.ends_with(".gz") && file.matches('.').count() == 1,
        "{file}"
    );
    let other = texts(&place, "a", "access", "pathname").pop().unwrap();
    let parts = other.split('/').collect::<Vec<_>>();
    assert_eq!(
        (parts[1], parts[2], parts[3], parts[4], parts[6]),
        (home, ".", user, "", "")
    );
    assert!(!parts[5].contains('.'), "{other}");
}

#[test]
fn each_field_has_a_key_of_its_own() {
    let place = Place::new();
    place.hide("t", "a", Anonymize::default());
    // A number has different hidden forms as a user and as a group, and so has a string as a path and as an argument.
    let mut seen = BTreeMap::new();
    for (message, argument) in [("chown", "owner"), ("getuid", "result"), ("chown", "group")] {
        seen.insert(
            (message, argument),
            texts(&place, "a", message, argument).pop(),
        );
    }
    assert_eq!(seen[&("chown", "owner")], seen[&("getuid", "result")]);
    assert_ne!(seen[&("chown", "owner")], seen[&("chown", "group")]);
    let program = texts(&place, "a", "execve", "pathname").pop().unwrap();
    let argv = texts(&place, "a", "execve", "argv").pop().unwrap();
    let (component, word) = (
        program.rsplit('/').next().unwrap(),
        argv.split('\0').next().unwrap(),
    );
    assert_eq!(component.len(), word.len());
    assert_ne!(component, word);
}

#[test]
fn the_command_makes_keys_reports_rate_and_growth_and_refuses_what_it_does_not_know() {
    let place = Place::new();
    let output = place.run(&["anonymize", "t", "-o", "a", "--keys", "new"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for part in [
        "new: made",
        " records and ",
        " MB a second; ",
        " times as many",
        "content that was left out",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let mode = std::fs::metadata(place.path("new"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let output = place.run(&["anonymize", "--reverse", "a", "-o", "b", "--keys", "new"]);
    assert_eq!(output.status.code(), Some(0));
    let cat = |name| String::from_utf8(place.run(&["cat", name]).stdout).unwrap();
    assert_eq!(cat("b"), cat("t"));
    for (words, part) in [
        (
            &["--fields", "pahts", "--keys", "new"][..],
            "unknown field \"pahts\"; the fields are path, ",
        ),
        (
            &["--fields", "commm", "--keys", "new"],
            "did you mean comm?",
        ),
        (
            &["--keys", "bad"],
            "bad: line 2: the key of uid is not 64 hexadecimal digits",
        ),
        (&["--keys", "odd"], "odd: line 1: \"uids\" is not a field"),
        (&["--keys", "few"], "no key for the field path"),
        (&["--keys", "none", "--reverse"], "none: No such file"),
    ] {
        std::fs::write(place.path("bad"), "\nuid 00ff\n").unwrap();
        std::fs::write(place.path("odd"), "uids 00ff\n").unwrap();
        std::fs::write(place.path("few"), format!("uid {}\n", "0f".repeat(32))).unwrap();
        let words = [&["anonymize", "t", "-o", "c"], words].concat();
        let output = place.run(&words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(125), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
    let output = place.run(&["anonymize", "t", "-o", "t", "--keys", "new"]);
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn a_hidden_trace_is_read_by_all_tools() {
    let place = Place::new();
    place.hide(
        "t",
        "a",
        Anonymize {
            fields: "all".parse().unwrap(),
            ..Anonymize::default()
        },
    );
    for words in [
        &["cat"][..],
        &["cat", "--json"],
        &["stat"],
        &["verify"],
        &["schema"],
        &["top"],
    ] {
        let output = place.run(&[words, &["a"]].concat());
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{words:?}");
    }
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tools/read_trace.py");
    let by_python = Command::new("python3")
        .arg(reader)
        .arg(place.path("a"))
        .output()
        .unwrap();
    assert!(by_python.status.success());
    let lines = String::from_utf8(by_python.stdout).unwrap().lines().count();
    assert_eq!(lines, place.content("a").2.len());
}
