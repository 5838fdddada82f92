//! `amino txn`: outside of a monitor, and under a fake one that answers the call.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

const AMINO: &str = env!("CARGO_BIN_EXE_amino");
const ID: &str = "0123456789abcdef0123456789abcdef";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn outside_every_command_says_so() {
    for args in [
        &["begin"][..],
        &["commit"],
        &["abort"],
        &["status"],
        &["status", "--json"],
        &["suspend"],
        &["resume", ID],
        &["attach", ID],
        &["detach"],
        &["run", "--", "touch", "/nonexistent/never run"],
    ] {
        let output = Command::new(AMINO).arg("txn").args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
        let message = format!(
            "amino: txn {}: not running under amino\namino: hint: start the shell with: amino run bash\n",
            args[0]
        );
        assert_eq!(text(&output.stderr), message);
    }
}

/// A directory with the fake monitor; see `fake_monitor.c`.
struct Fake {
    dir: TempDir,
}

impl Fake {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client-c/tests");
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-o"]);
        gcc.arg(dir.path().join("fake.so"));
        gcc.arg(tests.join("fake_monitor.c")).arg("-ldl");
        assert!(gcc.status().unwrap().success());
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `program` under the fake monitor, with `amino` in PATH.
    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        let bin = Path::new(AMINO).parent().unwrap().display();
        command.args(args).current_dir(self.dir.path());
        command.env("PATH", format!("{bin}:/usr/bin:/bin"));
        command.env("LD_PRELOAD", self.path("fake.so"));
        command.env("FAKE_STATE", self.path("state"));
        command.env("FAKE_LOG", self.path("log"));
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(AMINO, &["txn", "run"]);
        command.args(args).output().unwrap()
    }

    /// The calls that the fake monitor has received, except status calls.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines = log.lines().filter(|line| !line.starts_with("status"));
        lines.map(ToOwned::to_owned).collect()
    }
}

#[test]
fn commands_act_on_the_calling_shell() {
    let fake = Fake::new();
    let script = "
        set -e
        outer=$(amino txn begin)
        inner=$(amino txn begin)
        test ${#outer} = 32 && test $outer != $inner
        amino txn status
        amino txn abort
        test $(amino txn suspend) = $outer
        amino txn status
        amino txn status --json
        amino txn resume $outer
        sh -c 'amino txn begin; amino txn commit' >/dev/null
        amino txn commit
    ";
    let output = fake.command("sh", &["-c", script]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let mut lines = lines.lines();
    let mut next = || lines.next().unwrap().to_owned();
    for depth in 1..=2 {
        assert_eq!(next(), format!("transaction {depth:032}"));
        assert_eq!(next(), format!("  depth      {depth}"));
        assert_eq!(next(), "  changes    1 names, 2 inodes, 4096 bytes");
        assert_eq!(next(), "  locks      3 shared, 4 exclusive");
        assert_eq!(next(), "  conflicts  0");
        assert!(next().starts_with("  processes  "));
    }
    assert_eq!(next(), "no current transaction");
    assert_eq!(next(), format!("suspended {:032}", 1));
    let json = format!(r#"{{"current":[],"suspended":["{:032}"]}}"#, 1);
    assert_eq!(next(), json);
    let resume = format!("resume parent {:032}", 1);
    assert_eq!(
        fake.log(),
        [
            "begin parent",
            "begin parent",
            "abort parent",
            "suspend parent",
            &resume,
            "begin parent",
            "commit parent",
            "commit parent"
        ]
    );
}

#[test]
fn impossible_operations_are_reported_with_status_1() {
    let fake = Fake::new();
    let cases = [
        (
            "amino txn commit",
            "amino: txn commit: there is no current transaction\namino: hint: amino txn begin begins one\n",
        ),
        (
            "amino txn attach 0123456789abcdef0123456789abcdef",
            "amino: txn attach: there is no such transaction\namino: hint: it may have ended",
        ),
        (
            "amino txn begin >id; amino txn resume $(cat id)",
            "amino: txn resume: there is a current transaction already\namino: hint: end it",
        ),
        (
            "amino txn begin >id; FAKE_FAIL=commit:28 amino txn commit",
            "amino: txn commit: no space left to commit; the transaction was aborted\n",
        ),
        (
            "amino txn begin >id; FAKE_FAIL=commit:16 amino txn commit",
            "amino: txn commit: another process has a transaction open",
        ),
    ];
    for (script, message) in cases {
        // More than one command, so that the shell stays the parent.
        let script = format!("{script}; exit $?");
        let output = fake.command("sh", &["-c", &script]).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{script}: {stderr}");
        assert!(stderr.starts_with(message), "{script}: {stderr}");
    }
}

#[test]
fn run_commits_at_0_and_aborts_otherwise() {
    for (args, status, log, stderr) in [
        (&["true"][..], 0, ["begin self", "commit self"], ""),
        (
            &["--", "sh", "-c", "exit 7"],
            7,
            ["begin self", "abort self"],
            "amino: the command exited with 7; the transaction was aborted\n",
        ),
        (
            &["--retry", "3", "sh", "-c", "kill -TERM $$"],
            143,
            ["begin self", "abort self"],
            "amino: signal 15 killed the command; the transaction was aborted\n",
        ),
        (&["-q", "false"], 1, ["begin self", "abort self"], ""),
        (
            &["no-such-command"],
            127,
            ["begin self", "abort self"],
            "amino: no-such-command: command not found\n",
        ),
        (
            &["/etc/passwd"],
            126,
            ["begin self", "abort self"],
            "amino: /etc/passwd: cannot be executed: Permission denied\n",
        ),
    ] {
        let fake = Fake::new();
        let output = fake.run(args);
        assert_eq!(text(&output.stderr), stderr);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert_eq!(fake.log(), log, "{args:?}");
    }
}

#[test]
fn the_command_runs_inside_of_the_transaction() {
    let fake = Fake::new();
    let output = fake.run(&["sh", "-c", "amino txn status --json; exit 0"]);
    assert!(output.status.success());
    let id = format!("{:032}", 1);
    assert!(text(&output.stdout).contains(&id), "{output:?}");
}

#[test]
fn a_commit_that_fails_is_a_failure_of_run() {
    let fake = Fake::new();
    let mut command = fake.command(AMINO, &["txn", "run", "true"]);
    let output = command.env("FAKE_FAIL", "commit:28").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(
        text(&output.stderr),
        "amino: txn run: no space left to commit; the transaction was aborted\n"
    );
}

#[test]
fn retry_repeats_after_conflicts_only_so_often() {
    let run = |args: &[&str], conflicts: &str| {
        let fake = Fake::new();
        let mut command = fake.command(AMINO, &["txn", "run"]);
        command.args(args).env("FAKE_CONFLICTS", conflicts);
        let output = command.output().unwrap();
        let tries = fs::read_to_string(fake.path("tries")).unwrap_or_default();
        (output.status.code(), tries.len(), text(&output.stderr))
    };
    let third = "printf x >>tries; test $(wc -c <tries) = 3";
    let (status, tries, stderr) = run(&["--retry", "5", "sh", "-c", third], "2");
    assert_eq!((status, tries), (Some(0), 3), "{stderr}");
    assert_eq!(
        stderr,
        "amino: the command exited with 1 after a conflict; trying again (1 of 5)\n\
         amino: the command exited with 1 after a conflict; trying again (2 of 5)\n"
    );
    let (status, tries, stderr) = run(&["-q", "--retry", "1", "sh", "-c", third], "2");
    assert_eq!((status, tries), (Some(1), 2));
    assert_eq!(stderr, "");
    let (status, tries, _) = run(&["sh", "-c", third], "2");
    assert_eq!((status, tries), (Some(1), 1), "--retry is 0 by default");
    let (status, tries, _) = run(&["--retry", "5", "sh", "-c", third], "0");
    assert_eq!((status, tries), (Some(1), 1), "nothing was in the way");
}

/// Starts a command of `amino txn run` that says it is ready, sends a signal, and returns how all ended.
fn signalled(script: &str, retry: &str, send: impl FnOnce(Pid)) -> (Fake, Output) {
    let fake = Fake::new();
    let args = ["txn", "run", "--retry", retry, "sh", "-c", script];
    let mut command = fake.command(AMINO, &args);
    command.env("FAKE_CONFLICTS", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.process_group(0).spawn().unwrap();
    let start = Instant::now();
    while !fake.path("ready").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "never ready");
        thread::sleep(Duration::from_millis(5));
    }
    send(Pid::from_raw(child.id().cast_signed()));
    let output = child.wait_with_output().unwrap();
    (fake, output)
}

#[test]
fn an_interrupt_ends_the_command_and_then_the_transaction() {
    let script = "touch ready; sleep 30; exit 0";
    let interrupt = |pid| killpg(pid, Signal::SIGINT).unwrap();
    let (fake, output) = signalled(script, "5", interrupt);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(!fake.log().contains(&"commit self".to_owned()));
    assert!(!text(&output.stderr).contains("again"), "{output:?}");
}

#[test]
fn a_command_that_survives_an_interrupt_commits() {
    let script =
        "trap 'touch seen' INT; touch ready; while ! test -e seen; do sleep 0.1; done; exit 0";
    let interrupt = |pid| killpg(pid, Signal::SIGINT).unwrap();
    let (fake, output) = signalled(script, "0", interrupt);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(fake.log(), ["begin self", "commit self"]);
}

#[test]
fn a_termination_is_sent_on() {
    let script = "touch ready; exec sleep 30";
    let (fake, output) = signalled(script, "5", |pid| kill(pid, Signal::SIGTERM).unwrap());
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    assert!(!fake.log().contains(&"commit self".to_owned()));
    assert!(!text(&output.stderr).contains("again"), "{output:?}");
}

#[test]
fn the_command_gets_signals_as_they_were() {
    let fake = Fake::new();
    let masks = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let lines = text(&output.stdout);
        let masks = lines.lines().map(|line| {
            let digits = line.split_once('\t').unwrap().1;
            // posix_spawn(3) of glibc ignores 32 and 33, which are its own.
            u64::from_str_radix(digits, 16).unwrap() & !(3 << 31)
        });
        masks.collect::<Vec<u64>>()
    };
    let grep = ["grep", "^Sig[BI]", "/proc/self/status"];
    let inside = fake.command(AMINO, &[&["txn", "run"], &grep[..]].concat());
    assert_eq!(masks(inside), masks(fake.command(grep[0], &grep[1..])));
}
