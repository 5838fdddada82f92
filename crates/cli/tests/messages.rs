//! Messages on stderr: prefixes, hints, no control characters; and where stores are made.
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
use std::path::PathBuf;
use std::process::{Command, Output};

use goanna_skip::{Facility, skip};
use tempfile::TempDir;

const AMINO: &str = env!("CARGO_BIN_EXE_amino");

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(AMINO);
        command.args(args).current_dir(self.0.path());
        command.env("HOME", self.path("home"));
        command
            .env_remove("XDG_DATA_HOME")
            .env_remove("AMINO_STORE");
        command
    }

    fn run(&self, args: &[&str]) -> (i32, String) {
        said(self.command(args).output().unwrap())
    }
}

/// The status and stderr. Each line of stderr must have the prefix.
fn said(output: Output) -> (i32, String) {
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.lines().all(|line| line.starts_with("amino: ")),
        "{text}"
    );
    (output.status.code().unwrap(), text)
}

#[test]
fn a_store_is_not_made_where_its_path_is_likely_mistyped() {
    let home = Home::new();
    let nowhere = home.path("nope/a/store");
    let nowhere = nowhere.to_str().unwrap();
    fs::create_dir(home.path("src")).unwrap();
    let mount = format!("amino={nowhere}:/x");
    let parent = home.path("nope/a");
    let expected = format!(
        "amino: {nowhere}: there is no store here, and no directory {} to make one in\namino: hint: give --create ",
        parent.display()
    );
    for args in [
        &["run", "--store", nowhere, "true"][..],
        &["run", "-q", "--mount", &mount, "true"],
        &["import", "--store", nowhere, "src", "/"],
    ] {
        let (status, text) = home.run(args);
        assert_eq!(status, 125, "{args:?}: {text}");
        assert!(text.contains(&expected), "{args:?}: {text}");
        assert!(!home.path("nope").exists(), "{args:?}");
    }
    let mut env = home.command(&["run", "true"]);
    let (status, text) = said(env.env("AMINO_STORE", nowhere).output().unwrap());
    assert_eq!((status, text.starts_with(&expected)), (125, true), "{text}");
}

#[test]
fn a_new_store_is_reported() {
    let home = Home::new();
    fs::create_dir(home.path("src")).unwrap();
    let made = |name: &str| format!("amino: made a store in {}\n", home.path(name).display());
    let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
    let told = |args: &[&str]| {
        let (status, text) = home.run(args);
        assert_eq!(status, 0, "{args:?}: {text}");
        text
    };
    // At the default place, with the directories above it.
    assert_eq!(told(&["run", "true"]), made("home/.local/share/amino"));
    assert_eq!(told(&["run", "true"]), "");
    assert_eq!(told(&["run", "--store", &path("run"), "true"]), made("run"));
    assert_eq!(told(&["run", "-q", "--store", &path("quiet"), "true"]), "");
    assert_eq!(
        told(&["import", "--store", &path("import"), "src", "/"]),
        made("import")
    );
    assert_eq!(
        told(&["import", "--store", &path("import"), "src", "/"]),
        ""
    );
    let mount = format!("amino={}:/x", path("mounted"));
    assert_eq!(told(&["run", "--mount", &mount, "true"]), made("mounted"));
    assert_eq!(
        told(&["run", "--create", "--store", &path("deep/er"), "true"]),
        made("deep/er")
    );
    assert_eq!(
        told(&[
            "import",
            "--create",
            "--store",
            &path("deeper/still"),
            "src",
            "/"
        ]),
        made("deeper/still")
    );
    let relative = home.run(&["run", "--store", "relative", "true"]);
    assert_eq!(relative, (0, made("relative")));
}

#[test]
fn what_is_missing_or_in_the_way_has_a_hint() {
    let home = Home::new();
    let hint = |command: &mut Command, status: i32, hint: &str| {
        let (got, text) = said(command.output().unwrap());
        assert_eq!(got, status, "{text}");
        let lines: Vec<_> = text.lines().collect();
        let is_it = |line: &&str| line.starts_with(hint);
        assert!(lines.iter().any(is_it), "{hint}: {text}");
    };
    let mut empty = home.command(&["ls", "/"]);
    hint(
        empty.env("AMINO_STORE", ""),
        125,
        "amino: hint: $AMINO_STORE is empty",
    );
    // A directory in which not even root can create files.
    let mut read_only = home.command(&["run", "true"]);
    read_only.env("HOME", "/proc/self");
    hint(
        &mut read_only,
        125,
        "amino: hint: name another place with --store DIR or $AMINO_STORE",
    );

    let (status, _) = home.run(&["run", "sh", "-c", "echo x > /amino/f"]);
    assert_eq!(status, 0);
    let root = "amino: hint: a path begins at the store's root, without the mount point: /f";
    for command in ["cat", "ls", "stat"] {
        hint(&mut home.command(&[command, "/amino/f"]), 1, root);
    }
    hint(&mut home.command(&["export", "/amino/f", "out"]), 1, root);

    fs::create_dir_all(home.path("full/of")).unwrap();
    let full = home.path("full");
    let mut hides = home.command(&["run", "--at", full.to_str().unwrap(), "true"]);
    hint(
        &mut hides,
        0,
        &format!(
            "amino: --at {} hides what the host has there",
            full.display()
        ),
    );
    let (_, text) = home.run(&["run", "-q", "--at", full.to_str().unwrap(), "true"]);
    assert_eq!(text, "");
}

/// Runs in a mount namespace of its own, if that is possible.
fn without(place: &str, home: &Home) -> Option<(i32, String)> {
    fs::create_dir_all(home.path("empty")).unwrap();
    let script = format!(
        "mount --bind {} {place} && exec {AMINO} run --store store true",
        home.path("empty").display()
    );
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-c", &script])
        .current_dir(home.0.path());
    let probe = Command::new("unshare").args(["-rm", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        skip(Facility::UserNamespaces, "unshare -rm fails");
        return None;
    }
    Some(said(command.output().unwrap()))
}

#[test]
fn a_missing_proc_or_dev_null_is_named() {
    let home = Home::new();
    for (place, hint) in [
        ("/proc", "amino: hint: /proc is not mounted here"),
        ("/dev", "amino: hint: /dev/null is missing here"),
    ] {
        if let Some((status, text)) = without(place, &home) {
            assert_eq!(status, 125, "{place}: {text}");
            assert!(text.contains(hint), "{place}: {text}");
        }
    }
}

#[test]
fn names_in_messages_control_no_terminal() {
    let home = Home::new();
    let evil = OsStr::from_bytes(b"a\x1b[31m\nb\x9b");
    let shown = r"a\x1b[31m\nb\x9b";
    let store = home.path("store");
    let store = store.to_str().unwrap();
    fs::create_dir(home.path("src")).unwrap();
    let file = home.path("src").join(evil);
    fs::write(&file, "x").unwrap();
    assert_eq!(
        home.run(&["import", "-q", "--store", store, "src", "/"]).0,
        0
    );
    let commands: [(&[&str], &OsStr); 8] = [
        (&["cat", "--store", store], evil),
        (&["run", "--store", store], evil),
        (&["run", "--store"], evil),
        (&["run", "--at"], evil),
        (&["run", "--mount"], evil),
        (&["run", "--profile"], evil),
        (&["import", "--store", store], evil),
        (&["txn", "begin", "--name"], evil),
    ];
    for (args, name) in commands {
        let mut command = home.command(args);
        command.arg(name);
        match args[..] {
            ["import", ..] => drop(command.arg("/")),
            ["run", _] => drop(command.arg("true")),
            _ => {}
        }
        // Each line has its prefix: a newline in a name does not begin a line.
        let output = command.output().unwrap();
        assert!(!output.stderr.contains(&0x1b), "{args:?}");
        if args[0] != "cat" && !args.contains(&"--name") && output.status.code() != Some(0) {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains(shown), "{args:?}: {text}");
        }
        if output.status.code() != Some(0) {
            said(output);
        }
    }
    // An import that meets a file it cannot read, or the name twice.
    let again = said(
        home.command(&["import", "--store", store, "src", "/"])
            .output()
            .unwrap(),
    );
    assert_eq!(again.0, 1);
    assert!(again.1.contains(shown), "{}", again.1);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_line_is_written_at_once() {
    if Command::new("strace").arg("-V").output().is_err() {
        skip(Facility::Program, "strace is not installed");
        return;
    }
    let home = Home::new();
    let trace = home.path("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-e", "trace=write", "-o"])
        .arg(&trace)
        .arg(AMINO);
    command.args(["ls", "--store", "/nonexistent"]);
    said(command.output().unwrap());
    let trace = fs::read_to_string(trace).unwrap();
    let lines = trace.lines().filter(|line| line.contains("write(2, "));
    let lines: Vec<_> = lines.collect();
    assert_eq!(lines.len(), 2, "{trace}");
    assert!(
        lines
            .iter()
            .all(|line| line.contains(r#"write(2, "amino: "#)),
        "{trace}"
    );
}
