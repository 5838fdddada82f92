//! Tests of filters as a whole: against an evaluator that knows nothing of the graph, and with bad texts.

use fastrand::Rng;
use goanna_syscalls::{DecodedCall, Outcome, Subject, Treatment, Value};

use super::*;
use crate::event::{Call, File};

const OPEN: u32 = libc::SYS_openat as u32;
const READ: u32 = libc::SYS_read as u32;
const CLOSE: u32 = libc::SYS_close as u32;
const UNLINK: u32 = libc::SYS_unlink as u32;
const GETPID: u32 = libc::SYS_getpid as u32;

fn subject(uid: u32, pid: i32, comm: &str) -> Subject {
    Subject {
        pid,
        tid: pid,
        uid,
        gid: uid + 1,
        sid: 7,
        comm: comm.into(),
    }
}

fn file(inode: u64, links: u64, path: &str) -> File {
    File {
        device: 1,
        inode,
        mode: 0o100_644,
        links,
        size: 0,
        path: Some(path.as_bytes().into()),
    }
}

fn call(nr: u32, subject: Subject, result: i64, args: Vec<Value>, files: Vec<(u8, File)>) -> Call {
    let outcome = Outcome {
        result,
        left_ns: 1,
        treatment: Treatment::Kernel,
    };
    let call = DecodedCall {
        signature: goanna_syscalls::signature(nr),
        nr,
        raw: [0; 6],
        args,
    };
    Call {
        subject,
        call,
        entered_ns: 0,
        outcome: Some(outcome),
        files,
    }
}

fn path(path: &str) -> Value {
    Value::Path {
        given: path.as_bytes().into(),
        resolved: None,
    }
}

fn selects(text: &str, call: &Call) -> bool {
    let filter = Filter::parse(text).unwrap_or_else(|error| panic!("{error}"));
    filter.selects(&Facts::of(call), &mut filter.name_cache())
}

#[test]
fn the_example_of_the_manual_selects_what_it_says() {
    let text = r#"(uid == 0 && name == "foo") || (gid == 4 && op == open)"#;
    let of = |nr, uid, at: &str| call(nr, subject(uid, 10, "sh"), 0, vec![path(at)], vec![]);
    assert!(selects(text, &of(UNLINK, 0, "/tmp/foo")));
    assert!(!selects(text, &of(UNLINK, 0, "/tmp/foo/bar")));
    assert!(selects(text, &of(OPEN, 3, "/tmp/bar")));
    assert!(!selects(text, &of(UNLINK, 3, "/tmp/foo")));
    let filter = Filter::parse(text).unwrap();
    let at_entry = |nr, uid| filter.at_entry(nr, &subject(uid, 10, "sh"));
    assert_eq!(at_entry(OPEN, 3), Verdict::Undecided, "it may be a create");
    assert_eq!(at_entry(OPEN, 4), Verdict::Rejected);
    assert_eq!(at_entry(READ, 0), Verdict::Undecided);
}

#[test]
fn each_field_and_operator_tests_what_it_names() {
    let args = vec![path("/src/main.tar.gz")];
    let failed = call(OPEN, subject(1000, 42, "cc1"), -2, args, vec![]);
    for text in [
        "",
        "uid == 1000 and gid == 1001 and pid == 42 and tid == 42 and sid == 7",
        "uid != 0",
        "uid in {0, 1000} and not uid in (1, 2) and uid not in {3}",
        "uid > 999 and uid >= 1000 and uid < 1001 and uid <= 1000",
        "comm == cc1 and comm ~ \"cc?\" and comm !~ 'x*'",
        "name == main.tar.gz and ext == gz and ext != \"tar\" and ext in {c, gz}",
        "path ~ \"*.gz\" and path ~ /src/** and path == /src/main.tar.gz and path ~ src/*",
        "op == open and op in {read, open} and op in {open, create} and call == openat and call != read",
        "ret == ENOENT and ret < 0 and ret == -2",
        "!(uid == 0) && not (uid == 0 || uid == 1)",
    ] {
        assert!(selects(text, &failed), "{text}");
        assert!(
            text.is_empty() || !selects(&format!("not ({text})"), &failed),
            "{text}"
        );
    }
    let args = vec![Value::Null, Value::Null, Value::Unsigned(5000)];
    let read = call(READ, subject(0, 1, "sh"), 10, args, vec![]);
    assert!(selects(
        "size > 4K and size < 0x2000 and size == 5000 and ret == 10",
        &read
    ));
    let plain = call(GETPID, subject(0, 1, "init"), 1, vec![], vec![]);
    for text in [
        "size == 0",
        "path ~ **",
        "ext == \"\"",
        "name ~ *",
        "size != 1 and size == 1",
    ] {
        assert!(!selects(text, &plain), "{text}");
    }
    let hidden = call(
        OPEN,
        subject(0, 1, "sh"),
        3,
        vec![path("/.profile")],
        vec![],
    );
    assert!(!selects("ext == profile", &hidden));
}

#[test]
fn only_calls_that_can_match_are_in_the_set() {
    let calls = |text: &str| Filter::parse(text).unwrap().calls();
    assert_eq!(calls("").ranges(), [(0, operation::LIMIT)]);
    let opens = calls("op == open and uid == 0");
    assert!(opens.contains(OPEN) && !opens.contains(READ) && !opens.contains(9999));
    assert_eq!(opens, calls("op == open"));
    assert!(calls("call == read or uid == 0").contains(9999));
    assert_eq!(calls("call == read and call == close").ranges(), []);
    assert_eq!(calls("call == read and ret > 0").ranges(), [(READ, READ)]);
    let others = calls("not call in {read, close}");
    assert!(!others.contains(READ) && !others.contains(CLOSE) && others.contains(OPEN));
    assert!(calls("op == create").contains(OPEN) && !calls("op == create").contains(READ));
}

#[test]
fn a_create_is_an_open_that_makes_the_file() {
    let open = |flags: i32| {
        let args = vec![Value::Null, path("/a"), Value::Unsigned(flags as u64)];
        call(OPEN, subject(0, 1, "sh"), 3, args, vec![])
    };
    assert!(selects("op == open", &open(0)) && !selects("op == create", &open(0)));
    let made = open(libc::O_CREAT);
    assert!(selects("op == create", &made) && !selects("op == open", &made));
    assert!(selects("op in {open, create}", &made));
}

#[test]
fn a_file_keeps_each_name_that_it_was_seen_with() {
    let filter = Filter::parse("name == foo").unwrap();
    let mut cache = filter.name_cache();
    let mut seen = |nr: u32, inode: u64, links: u64, at: &str| {
        let descriptor = Value::Descriptor {
            number: 3,
            file: Some(at.as_bytes().into()),
        };
        let files = vec![(0, file(inode, links, at))];
        let call = call(nr, subject(0, 1, "sh"), 0, vec![descriptor], files);
        filter.selects(&Facts::of(&call), &mut cache)
    };
    assert!(seen(READ, 5, 2, "/tmp/foo"));
    assert!(seen(READ, 5, 2, "/tmp/bar"), "its second name");
    assert!(seen(READ, 5, 0, "/tmp/bar (deleted)"), "it was foo");
    assert!(!seen(READ, 6, 1, "/tmp/bar"));
    assert!(seen(READ, 6, 1, "/tmp/foo"), "renamed");
    assert!(
        !seen(READ, 6, 1, "/tmp/baz"),
        "a new file with the number of one that is gone"
    );
    // More files than there are entries.
    for inode in 100..30_000 {
        assert!(!seen(READ, inode, 1, "/tmp/x"));
        assert!(seen(READ, 5, 1, "/tmp/foo"));
    }
}

#[test]
fn errors_point_at_the_column() {
    for (text, column, width, message) in [
        ("uidd == 0", 1, 4, "unknown field uidd; did you mean uid?"),
        ("uid == 0 && nmae == foo", 13, 4, "did you mean name?"),
        (
            "op == opne",
            7,
            4,
            "unknown operation opne; did you mean open?",
        ),
        (
            "call in {read, wriite}",
            16,
            6,
            "unknown system call wriite; did you mean write?",
        ),
        ("uid = 0", 5, 1, "write '=='"),
        ("uid == foo", 8, 3, "foo is not a number"),
        ("ret == ENOETN", 8, 6, "did you mean ENOENT?"),
        ("(uid == 0", 10, 1, "expected ')', found the end"),
        (
            "uid == 0 uid == 1",
            10,
            3,
            "expected 'and', 'or' or the end",
        ),
        ("uid ~ 0", 5, 1, "expected 'in' or one of"),
        ("name == \"foo", 9, 1, "without a closing quote"),
        ("path ~ \"[a\"", 8, 2, "a set without a closing ']'"),
        ("uid == 0 & gid == 0", 10, 1, "write '&&'"),
        ("uid in 0", 8, 1, "a list of values"),
        ("uid == 99999999999999999999", 8, 20, "is not a number"),
        ("uid ==", 7, 1, "expected a number, found the end"),
        ("", 0, 0, ""),
        ("uid == 0 and\nname ==", 8, 1, "expected a string"),
        ("é", 1, 1, "unknown field"),
        ("uid not == 0", 9, 2, "expected 'in'"),
    ] {
        let Err(error) = Filter::parse(text) else {
            assert!(text.is_empty(), "{text}");
            continue;
        };
        assert!(error.message.contains(message), "{text}: {error}");
        assert_eq!(
            (error.column, error.width),
            (column, width),
            "{text}: {error}"
        );
    }
    let shown = Filter::parse("uid == 0 && nmae == foo")
        .unwrap_err()
        .to_string();
    assert!(
        shown.ends_with("  uid == 0 && nmae == foo\n              ^^^^"),
        "{shown}"
    );
    let deep = format!("{}uid == 0", "(".repeat(100_000));
    assert!(
        Filter::parse(&deep[..60_000])
            .unwrap_err()
            .message
            .contains("nested")
    );
    assert!(Filter::parse(&deep).unwrap_err().message.contains("longer"));
}

/// An expression that the test makes: its text, and whether it holds, found out without the graph.
struct Made {
    text: String,
    holds: Holds,
}

type Holds = Box<dyn Fn(&Call) -> bool>;

fn leaf(random: &mut Rng) -> Made {
    let number = random.i64(-3..4);
    let names = ["foo", "bar", "a.c"];
    let name = names[random.usize(..names.len())];
    let of_paths = |call: &Call, test: &dyn Fn(&str) -> bool| {
        call.call.args.iter().any(|value| match value {
            Value::Path { given, .. } => test(std::str::from_utf8(given).unwrap()),
            _ => false,
        })
    };
    let (text, holds): (String, Holds) = match random.u8(..9) {
        0 => (
            format!("uid == {number}"),
            Box::new(move |call| i64::from(call.subject.uid) == number),
        ),
        1 => (
            format!("pid < {number}"),
            Box::new(move |call| i64::from(call.subject.pid) < number),
        ),
        2 => (
            format!("gid in {{1, {number}}}"),
            Box::new(move |call| call.subject.gid == 1 || i64::from(call.subject.gid) == number),
        ),
        3 => (
            format!("ret >= {number}"),
            Box::new(move |call| call.outcome.unwrap().result >= number),
        ),
        4 => (
            format!("comm == {name}"),
            Box::new(move |call| &*call.subject.comm == name),
        ),
        5 => (
            format!("name == {name}"),
            Box::new(move |call| of_paths(call, &|path| path.ends_with(&format!("/{name}")))),
        ),
        6 => (
            "ext ~ c*".into(),
            Box::new(move |call| of_paths(call, &|path| path.ends_with(".c"))),
        ),
        7 => (
            "op in {open, close}".into(),
            Box::new(|call| matches!(call.call.nr, OPEN | CLOSE)),
        ),
        _ => ("call != read".into(), Box::new(|call| call.call.nr != READ)),
    };
    Made { text, holds }
}

fn made(random: &mut Rng, depth: u32) -> Made {
    if depth == 0 || random.u8(..4) == 0 {
        return leaf(random);
    }
    if random.u8(..4) == 0 {
        let inner = made(random, depth - 1);
        let word = ["!", "not "][random.usize(..2)];
        let text = format!("{word}({})", inner.text);
        return Made {
            text,
            holds: Box::new(move |call| !(inner.holds)(call)),
        };
    }
    let parts: Vec<Made> = (0..random.usize(2..5))
        .map(|_| made(random, depth - 1))
        .collect();
    let is_all = random.bool();
    let words = if is_all {
        [" and ", " && "]
    } else {
        [" or ", " || "]
    };
    let texts: Vec<String> = parts
        .iter()
        .map(|part| format!("({})", part.text))
        .collect();
    let text = texts.join(words[random.usize(..2)]);
    Made {
        text,
        holds: Box::new(move |call| {
            let mut each = parts.iter().map(|part| (part.holds)(call));
            if is_all {
                each.all(|holds| holds)
            } else {
                each.any(|holds| holds)
            }
        }),
    }
}

fn some_call(random: &mut Rng) -> Call {
    let names = ["foo", "bar", "a.c"];
    let mut name = || names[random.usize(..names.len())];
    let comm = name();
    let args = vec![
        path(&format!("/tmp/{}", name())),
        path(&format!("/usr/{}/{}", name(), name())),
    ];
    let nr = [OPEN, READ, CLOSE, UNLINK, GETPID][random.usize(..5)];
    let args = args.into_iter().take(random.usize(..3)).collect();
    call(
        nr,
        subject(random.u32(..4), random.i32(-3..4), comm),
        random.i64(-3..4),
        args,
        vec![],
    )
}

#[test]
fn the_graph_equals_a_naive_evaluation() {
    let seed = std::env::var("GOANNA_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut random = Rng::with_seed(seed.unwrap_or(2004));
    for _ in 0..3000 {
        let made = made(&mut random, 4);
        let filter = Filter::parse(&made.text).unwrap_or_else(|error| panic!("{error}"));
        let mut cache = filter.name_cache();
        let tests = made.text.matches(['=', '<', '~']).count() + made.text.matches(" in ").count();
        assert!(filter.tests() <= tests, "{}", made.text);
        let calls = filter.calls();
        for _ in 0..20 {
            let call = some_call(&mut random);
            let holds = (made.holds)(&call);
            assert_eq!(
                filter.selects(&Facts::of(&call), &mut cache),
                holds,
                "{}: {call:?}",
                made.text
            );
            assert!(
                !holds || calls.contains(call.call.nr),
                "{}: {call:?}",
                made.text
            );
            match filter.at_entry(call.call.nr, &call.subject) {
                Verdict::Selected => assert!(holds, "{}: {call:?}", made.text),
                Verdict::Rejected => assert!(!holds, "{}: {call:?}", made.text),
                Verdict::Undecided => {}
            }
            assert!(
                !holds || filter.selects_subject(&call.subject),
                "{}",
                made.text
            );
        }
    }
}

#[test]
fn equal_tests_behind_each_other_are_made_once() {
    let tests = |text: &str| Filter::parse(text).unwrap().tests();
    assert_eq!(tests("uid == 0 and uid == 0 and not uid != 0"), 1);
    assert_eq!(tests("uid == 0 or uid == 0x0"), 1);
    assert_eq!(
        tests("(uid == 0 and pid == 1) or (gid == 0 and pid == 1)"),
        3,
        "one test of pid for both"
    );
}

#[test]
fn no_text_makes_the_parser_fail_otherwise_than_with_an_error() {
    let mut random = Rng::with_seed(99);
    let parts = [
        "uid", "name", "path", "op", "ret", " ", "==", "!", "~", "(", ")", "{", "}", ",", "and",
        "or", "not", "in", "\"", "\\", "'", "0", "-", "0x", "9K", "ENOENT", "[", "*", "é", "\u{0}",
        "\n", "&&", "||", "<", "open",
    ];
    for round in 0..30_000 {
        let text: String = if round % 2 == 0 {
            (0..random.usize(..20))
                .map(|_| parts[random.usize(..parts.len())])
                .collect()
        } else {
            let bytes: Vec<u8> = (0..random.usize(..40)).map(|_| random.u8(..)).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        match Filter::parse(&text) {
            Ok(filter) => drop(filter.calls()),
            Err(error) => {
                assert!(error.column >= 1 && error.width >= 1, "{text:?}");
                let _ = error.to_string();
            }
        }
    }
}
