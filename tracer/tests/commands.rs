//! `goanna-trace` as users start it: its output, and its exit statuses.

#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod postmark;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use amino_schema::trace::pairs::Pairs;
use goanna_syscalls::Value;
use goanna_tracer::assemble::{DataMode, Groups, StreamAssembly};
use goanna_tracer::codec::Key;
use goanna_tracer::output::{FileOptions, FileOutput};
use goanna_tracer::{Event, OutputFilter, Pipeline, PipelineOptions, Sink};
use postmark::Workload;
use tempfile::TempDir;

fn write(path: &Path, events: &[Event], filters: Vec<OutputFilter>) {
    let mut context = Pairs::new();
    let mut put = |name: &str, value: &str| context.push((name.into(), value.as_bytes().to_vec()));
    put("command", "postmark");
    put("clock", "1700000000000000000");
    put("clock.monotonic", "81234567890123");
    let options = PipelineOptions {
        filters,
        context,
        ..PipelineOptions::default()
    };
    let assembly = Box::new(StreamAssembly::new(Groups::default(), DataMode::None));
    let driver = Box::new(FileOutput::new(path, FileOptions::default()));
    let pipeline = Pipeline::start(options, assembly, driver).unwrap();
    events
        .iter()
        .for_each(|event| pipeline.take(event).unwrap());
    pipeline.finish().unwrap();
}

struct Place {
    dir: TempDir,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
        command
            .args(words)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Exit status, standard output, standard error.
    fn text(&self, words: &[&str]) -> (i32, String, String) {
        let output = self.run(words);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }
}

#[test]
fn cat_prints_lines_as_strace_does() {
    let place = Place::new();
    let mut workload = Workload::new(1, 1);
    workload.run(1, 0);
    let path = Value::Path {
        given: b"/no\nsuch".as_slice().into(),
        resolved: None,
    };
    workload.call("unlink", vec![path], -2, vec![]);
    workload.call(
        "dup",
        vec![Value::Descriptor {
            number: 7,
            file: None,
        }],
        -9,
        vec![],
    );
    workload.call(
        "getcwd",
        vec![Value::Unread(0x10), Value::Unsigned(5)],
        -14,
        vec![],
    );
    write(&place.path("t"), &workload.events, vec![]);
    let (status, text, errors) = place.text(&["cat", "t"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    let lines = text.lines().collect::<Vec<_>>();
    assert!(lines[0].starts_with("4200 1700000000.0000"), "{}", lines[0]);
    let rest = |line: &str| {
        line.splitn(3, ' ')
            .nth(2)
            .unwrap()
            .rsplit_once(" <")
            .unwrap()
            .0
            .to_owned()
    };
    assert_eq!(
        rest(lines[0]),
        "openat(AT_FDCWD</tmp/postmark>, \"/tmp/postmark/s0/0\", O_RDWR|O_CREAT, 0644) = 5</tmp/postmark/s0/0>"
    );
    assert_eq!(
        rest(lines[1]),
        "write(5</tmp/postmark/s0/0>, \"\"..., 512) = 512"
    );
    let last = lines.len() - 1;
    assert_eq!(rest(lines[last - 3]), "close(5</tmp/postmark/s0/0>) = 0");
    assert_eq!(
        rest(lines[last - 2]),
        r#"unlink("/no\nsuch") = -1 ENOENT (error 2)"#
    );
    assert_eq!(rest(lines[last - 1]), "dup(7) = -1 EBADF (error 9)");
    assert_eq!(rest(lines[last]), "getcwd(0x10, 5) = -1 EFAULT (error 14)");
}

#[test]
fn exported_json_is_an_object_a_line() {
    let place = Place::new();
    let events = Workload::postmark(1, 2, 2);
    write(&place.path("t"), &events, vec![OutputFilter::Zstd(1)]);
    let (status, _, errors) = place.text(&["export", "--format", "json", "t", "-o", "t.json"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    let text = std::fs::read_to_string(place.path("t.json")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let lines = lines.collect::<Vec<_>>();
    assert_eq!(lines.len(), events.len());
    assert_eq!(lines[0]["message"], "openat");
    assert_eq!(lines[0]["flags.names"], "O_RDWR|O_CREAT");
    assert_eq!(lines[0]["result.path"], "/tmp/postmark/s0/0");
    assert!(lines[0]["realtime"].as_u64().unwrap() > 1_700_000_000_000_000_000);
}

#[test]
fn exported_perfetto_packets_begin_and_end_a_slice_for_each_call() {
    let place = Place::new();
    let events = Workload::postmark(1, 2, 2);
    write(&place.path("t"), &events, vec![]);
    let (status, _, errors) =
        place.text(&["export", "--format", "perfetto", "t", "-o", "t.pftrace"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    let bytes = std::fs::read(place.path("t.pftrace")).unwrap();
    // Trace.packet is field 1, of wire type 2; lengths are below 16384 here.
    let (mut at, mut packets) = (0, 0);
    while at < bytes.len() {
        assert_eq!(bytes[at], 0x0a);
        let low = usize::from(bytes[at + 1]);
        let (len, head) = match low & 0x80 {
            0 => (low, 2),
            _ => ((low & 0x7f) | usize::from(bytes[at + 2]) << 7, 3),
        };
        at += head + len;
        packets += 1;
    }
    // A descriptor of the thread's track, and two packets a call.
    assert_eq!((at, packets), (bytes.len(), 1 + 2 * events.len()));
}

#[test]
fn stat_counts_and_schema_names_what_a_trace_holds() {
    let place = Place::new();
    let events = Workload::postmark(1, 3, 0);
    write(&place.path("t"), &events, vec![]);
    let (status, text, _) = place.text(&["stat", "t", "--json"]);
    let figures: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, figures["records"].as_u64()),
        (0, Some(events.len() as u64))
    );
    let messages = figures["messages"].as_array().unwrap();
    let closes = messages.iter().find(|it| it["message"] == "close").unwrap();
    assert_eq!(closes["records"], 3);
    assert!(place.text(&["stat", "t"]).1.contains("  openat\n"));
    let (status, text, _) = place.text(&["schema", "t"]);
    assert_eq!(status, 0);
    for line in ["257 write (call 1)", "513 openat (call 257)"] {
        assert!(text.contains(line), "{line}");
    }
    let (_, text, _) = place.text(&["schema", "t", "--json"]);
    let schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    // Only the messages of which the trace has records.
    let messages = schema["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 3, "{messages:?}");
}

#[test]
fn a_damaged_trace_gives_status_3_and_says_what_is_lost() {
    let place = Place::new();
    let events = Workload::postmark(1, 200, 200);
    write(&place.path("t"), &events, vec![]);
    assert_eq!(place.text(&["verify", "t"]).0, 0);
    let mut bytes = std::fs::read(place.path("t")).unwrap();
    let at = bytes.len() - 30_000;
    bytes.truncate(at);
    std::fs::write(place.path("cut"), bytes).unwrap();
    for words in [&["cat", "cut"][..], &["stat", "cut"], &["verify", "cut"]] {
        let (status, _, errors) = place.text(words);
        assert_eq!(status, 3, "{words:?}");
        assert!(
            errors.contains("cut: byte ") && errors.contains("has no end"),
            "{errors}"
        );
    }
    let (status, _, errors) = place.text(&["recover", "cut", "-o", "new"]);
    assert_eq!(status, 3);
    assert!(errors.contains("records recovered"), "{errors}");
    let (status, text, _) = place.text(&["verify", "new"]);
    assert_eq!(status, 0);
    let whole = place.text(&["cat", "t"]).1;
    assert!(whole.starts_with(&place.text(&["cat", "new"]).1));
    assert!(text.contains("nothing lost or altered"));
}

#[test]
fn keys_are_checked_and_needed() {
    let place = Place::new();
    let events = Workload::postmark(1, 3, 3);
    let key = || Key::new([9; 32]);
    write(
        &place.path("t"),
        &events,
        vec![
            OutputFilter::Encrypt(key()),
            OutputFilter::Authenticate(key()),
        ],
    );
    std::fs::write(place.path("key"), [9; 32]).unwrap();
    std::fs::write(place.path("hex"), "09".repeat(32) + "\n").unwrap();
    std::fs::write(place.path("other"), [8; 32]).unwrap();
    std::fs::write(place.path("short"), [8; 31]).unwrap();
    let verify = |hmac: &str, encrypt: &str| {
        place.text(&["verify", "t", "--hmac-key", hmac, "--encrypt-key", encrypt])
    };
    assert_eq!(verify("key", "key").0, 0);
    assert_eq!(verify("hex", "hex").0, 0);
    let (status, _, errors) = verify("other", "key");
    assert_eq!(status, 3);
    assert!(errors.contains("the block does not verify"), "{errors}");
    assert_eq!(verify("key", "other").0, 3);
    let (status, _, errors) = verify("short", "key");
    assert_eq!(status, 125);
    assert!(
        errors.contains(
            "short: not a key: it has 31 bytes, and a key has 32, or 64 hexadecimal digits"
        )
    );
    let (status, _, errors) = place.text(&["cat", "t"]);
    assert_eq!(status, 3);
    assert!(
        errors.contains("the block is encrypted, and no key was given"),
        "{errors}"
    );
}

#[test]
fn what_is_no_trace_gives_status_125_with_its_name() {
    let place = Place::new();
    std::fs::write(place.path("text"), "hello").unwrap();
    for (words, says) in [
        (
            &["cat", "text"][..],
            "goanna-trace: text: not a trace of goanna-trace",
        ),
        (
            &["verify", "nothing"],
            "goanna-trace: nothing: No such file or directory",
        ),
        (&["stat", "."], "goanna-trace: .: Is a directory"),
        (
            &["cat"],
            "goanna-trace: the following required arguments were not provided",
        ),
        (
            &["recover", "text", "-o", "text"],
            "goanna-trace: --output: text is the trace that is read",
        ),
    ] {
        let (status, _, errors) = place.text(words);
        assert_eq!(status, 125, "{words:?}");
        assert!(errors.starts_with(says), "{errors}");
    }
    assert_eq!(std::fs::read(place.path("text")).unwrap(), b"hello");
}

#[test]
fn names_in_messages_control_no_terminal() {
    let place = Place::new();
    let evil = "a\x1b[31m\nb\u{9b}";
    std::fs::write(place.path(evil), "hello").unwrap();
    for words in [
        &["cat", evil][..],
        &["stat", "none\x1b[2J\n"],
        &["recover", evil, "-o", evil],
        &["record", "--config", evil, "--", "true"],
        &["record", "--config", "none\x1b[2J\n", "--", "true"],
        &["cat", "--\x1b[31m"],
    ] {
        let (status, _, errors) = place.text(words);
        assert_eq!(status, 125, "{words:?}");
        let controls = errors.chars().any(|c| c != '\n' && c.is_control());
        assert!(!controls, "{errors:?}");
        // A name with a newline makes no line of its own.
        let is_ours = |line: &str| line.starts_with("goanna-trace: ") && !line.contains(": b\\x");
        assert!(errors.lines().all(is_ours), "{errors:?}");
    }
}

/// Each part of a line was a write(2) of its own, so lines of several processes mixed; further lines of an error had no prefix. A
/// datagram holds what one write(2) wrote.
#[test]
fn a_message_is_written_at_once_and_each_line_has_its_prefix() {
    let place = Place::new();
    let filter = "uid == 0 and nmae == x";
    for (words, lines) in [
        (&["cat", "none"][..], 1),
        (&["--filter", filter, "-o", "t", "--", "true"], 3),
    ] {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_goanna-trace"));
        command.args(words).current_dir(place.dir.path());
        let status = command.stderr(OwnedFd::from(theirs)).status().unwrap();
        assert_eq!(status.code(), Some(125));
        ours.set_nonblocking(true).unwrap();
        let mut bytes = [0; 1000];
        let length = ours.recv(&mut bytes).unwrap();
        let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        assert!(text.ends_with('\n'), "{text:?}");
        let has_prefix = |line: &str| line.starts_with("goanna-trace: ");
        assert!(text.lines().all(has_prefix), "{text:?}");
        assert_eq!(text.lines().count(), lines, "{text:?}");
        assert!(ours.recv(&mut bytes).is_err(), "more after {text:?}");
    }
}

#[test]
fn a_trace_comes_through_a_pipe_and_a_reader_that_leaves_is_no_error() {
    let place = Place::new();
    write(&place.path("t"), &Workload::postmark(1, 300, 100), vec![]);
    let program = env!("CARGO_BIN_EXE_goanna-trace");
    let script = format!("{program} cat - < t | head -n 2; echo ${{PIPESTATUS[0]}}");
    let mut shell = Command::new("bash");
    let output = shell
        .arg("-c")
        .arg(script)
        .current_dir(place.dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert_eq!(text.lines().last(), Some("141"));
    assert!(output.stderr.is_empty());
}

#[test]
fn top_names_the_busiest_calls_files_and_processes() {
    let place = Place::new();
    let events = Workload::postmark(1, 3, 0);
    write(&place.path("t"), &events, vec![]);
    let (status, text, errors) = place.text(&["top", "t", "-n", "2"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(lines[0], format!("{} records", events.len()));
    assert!(
        lines[3].ends_with("  write")
            && lines[3].trim().starts_with(&(events.len() - 6).to_string())
    );
    assert!(
        lines
            .iter()
            .any(|line| line.ends_with("  /tmp/postmark/s0/0"))
    );
    assert!(lines.iter().any(|line| line.ends_with("  4200 postmark")));
}

/// wait4(2) has an argument `pid`, setuid(2) one `uid`, as each record has for its thread.
#[test]
fn arguments_are_not_taken_for_the_thread_that_calls() {
    let place = Place::new();
    let mut workload = Workload::new(1, 1);
    let number = |number: i64| Value::Signed(number);
    let wait = vec![number(-1), Value::Null, Value::Unsigned(0), Value::Null];
    workload.call("wait4", wait, 4300, vec![]);
    workload.call("setuid", vec![Value::Unsigned(77)], 0, vec![]);
    write(&place.path("t"), &workload.events, vec![]);
    let text = place.text(&["cat", "t"]).1;
    assert!(text.contains(" wait4(-1, NULL, 0, NULL) = 4300"), "{text}");
    assert!(text.contains(" setuid(77) = 0"), "{text}");
    assert!(place.text(&["top", "t"]).1.contains("  4200 postmark\n"));
    let json = place.text(&["cat", "--json", "t"]).1;
    let lines = json
        .lines()
        .map(|it| serde_json::from_str::<serde_json::Value>(it).unwrap());
    let lines = lines.collect::<Vec<_>>();
    assert_eq!(
        (&lines[0]["pid"], &lines[0]["pid.argument"]),
        (&4200.into(), &(-1).into())
    );
    assert_eq!(
        (&lines[1]["uid"], &lines[1]["uid.argument"]),
        (&1000.into(), &77.into())
    );
}

#[test]
fn the_report_is_one_page_that_shows_what_the_trace_has() {
    let place = Place::new();
    let mut workload = Workload::new(1, 3);
    workload.run(40, 60);
    let path: Box<[u8]> = b"/tmp/<img src=x onerror='alert(1)'>&\"".as_slice().into();
    for _ in 0..200 {
        let path = Value::Path {
            given: path.clone(),
            resolved: Some(path.clone()),
        };
        workload.call("unlink", vec![path], -13, vec![]);
    }
    write(&place.path("t"), &workload.events, vec![]);
    let (status, page, errors) = place.text(&["report", "t", "-o", "-"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    for part in [
        "<h2>Operations over time</h2>",
        "<h2>Busiest files</h2>",
        "<h2>Busiest processes</h2>",
        "<h2>Latencies</h2>",
        "<h2>Sizes of reads and writes</h2>",
        "<h2>Errors</h2>",
        "<td>EACCES</td><td>unlink</td>",
        "<b>postmark</b>",
        "<td title=\"4200 postmark\">",
        "/tmp/&lt;img src=x onerror='alert(1)'&gt;&amp;&quot;",
        "2023-11-14 22:13",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing from outside, and no text of the trace as markup.
    for part in [
        "<script", "<link", "<img", "http:", "https:", "@import", "url(",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    let opened = page.matches("<svg ").count();
    assert!(opened >= 5 && opened == page.matches("</svg>").count());
    // A trace without calls has a page, too.
    write(&place.path("empty"), &[], vec![]);
    let (status, page, _) = place.text(&["report", "empty", "-o", "-"]);
    assert_eq!(status, 0);
    assert!(page.contains("The trace has no calls.") && page.contains("</html>"));
}

/// The lines of a man page that keep their layout, between `.nf` and `.fi`.
fn as_written(page: &str) -> Vec<String> {
    let sections = page.split("\n.nf\n").skip(1);
    let lines = sections.flat_map(|section| section.split("\n.fi\n").next().unwrap().lines());
    let plain = |line: &str| line.replace("\\-", "-").replace("\\*(Aq", "'");
    lines.map(plain).collect()
}

#[test]
fn man_pages_and_completions_are_made_for_every_command() {
    let place = Place::new();
    assert_eq!(
        place.text(&["man", "pages"]),
        (0, String::new(), String::new())
    );
    let help = place.text(&["--help"]).1;
    let commands = help.split("Commands:").nth(1).unwrap();
    let commands = commands.split("Arguments:").next().unwrap().lines();
    let names = commands.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    let names = names.collect::<Vec<_>>();
    assert!(
        names.len() >= 12 && names.contains(&"anonymize"),
        "{names:?}"
    );
    let overview = std::fs::read_to_string(place.path("pages/goanna-trace.1")).unwrap();
    for page in std::fs::read_dir(place.path("pages")).unwrap() {
        let page = page.unwrap().path();
        // Help would break these lines at 80 columns, and with them the examples.
        for line in as_written(&std::fs::read_to_string(&page).unwrap()) {
            assert!(line.chars().count() <= 80, "{}: {line}", page.display());
        }
    }
    for name in &names {
        let page = place.path(&format!("pages/goanna-trace-{name}.1"));
        let text = std::fs::read_to_string(&page).unwrap();
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS"] {
            assert!(text.contains(section), "{name} lacks {section}");
        }
        let entry = format!("goanna\\-trace\\-{name}");
        assert!(overview.contains(&entry), "{entry} is not in the overview");
        let warnings = Command::new("groff")
            .args(["-man", "-Tutf8", "-ww"])
            .arg(&page)
            .output();
        if let Ok(output) = warnings {
            assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{name}");
        }
    }
    for shell in ["bash", "zsh", "fish"] {
        let (status, script, _) = place.text(&["completions", shell]);
        assert_eq!(status, 0);
        assert!(
            script.contains("anonymize") && script.contains("config"),
            "{shell}"
        );
        std::fs::write(place.path(shell), script).unwrap();
        let check = Command::new(shell)
            .arg("-n")
            .arg(place.path(shell))
            .status();
        if let Ok(status) = check {
            assert!(status.success(), "{shell} rejects its completions");
        }
    }
}
