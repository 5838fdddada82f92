//! The steps of continuous integration: their commands, order and messages.

use std::ffi::OsString;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use thiserror::Error;

use crate::failures::Failures;
use crate::tally::Tally;

/// One named step of `cargo xtask ci`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Step {
    /// Formatting: cargo fmt --check
    Fmt,
    /// Lints of every target, warnings are errors
    Clippy,
    /// Documentation builds, warnings and broken links are errors
    Doc,
    /// The binaries, then every test of the workspace
    Test,
    /// Licences, bans and sources of dependencies (cargo-deny)
    Deny,
    /// Known vulnerabilities of dependencies (cargo-deny; fetches the advisory database; only when named)
    Advisories,
}

/// The steps that `cargo xtask ci` runs when no step is named.
///
/// `Advisories` is missing on purpose: its data base lives outside the package registry, and a machine that reaches only
/// registries must still be able to pass.
const DEFAULT: [Step; 5] = [Step::Fmt, Step::Clippy, Step::Doc, Step::Test, Step::Deny];

/// Why a run of the steps ended early.
#[derive(Debug, Error)]
pub enum Error {
    /// A command of the step exited with a status other than 0.
    #[error("step {step} failed: {command}: {status}")]
    Failed {
        /// The step's name as on the command line.
        step: String,
        /// The command as one would type it.
        command: String,
        /// Its exit status.
        status: ExitStatus,
    },
    /// A command could not be started, or its output not be read; or a file could not be read or written.
    #[error("step {step} failed: {command}: {source}")]
    Io {
        /// The step's name as on the command line.
        step: String,
        /// The command as one would type it, or the file.
        command: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The test runners ran no test: success would mean nothing.
    #[error("step {0} failed: no test was run")]
    NoTests(String),
    /// A test passes on a store that is broken on purpose, although the test must detect that.
    #[error("step {step} failed: with {mutant} broken: {why}")]
    Mutant {
        /// The step's name as on the command line.
        step: String,
        /// The description of the mutant.
        mutant: String,
        /// The unexpected result.
        why: String,
    },
    /// The cargo subcommand for dependency policy is missing.
    #[error(
        "step {0} failed: cargo-deny is not installed; install it with: cargo install cargo-deny --locked"
    )]
    NoCargoDeny(String),
}

/// Runs `steps`, or the default ones when none is named, and stops at the first failure.
///
/// # Errors
///
/// The first failure, with the name of its step.
pub fn run(steps: &[Step]) -> Result<(), Error> {
    let steps = if steps.is_empty() { &DEFAULT } else { steps };
    let started = Instant::now();
    let mut tally = Tally::default();
    let mut times = Vec::with_capacity(steps.len());
    for (index, step) in steps.iter().enumerate() {
        eprintln!("==> [{}/{}] {}", index + 1, steps.len(), step.name());
        let step_started = Instant::now();
        step.run(&mut tally)?;
        let elapsed = step_started.elapsed();
        eprintln!("==> {} ok, {}", step.name(), seconds(elapsed));
        times.push(format!("{} {}", step.name(), seconds(elapsed)));
    }
    eprintln!(
        "==> all ok, {} ({})",
        seconds(started.elapsed()),
        times.join(", ")
    );
    if steps.contains(&Step::Test) {
        println!("{tally}");
    }
    Ok(())
}

impl Step {
    /// The step's name on the command line and in messages.
    fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    fn run(self, tally: &mut Tally) -> Result<(), Error> {
        match self {
            Self::Fmt => self.cargo(&["fmt", "--all", "--check"]),
            Self::Clippy => self
                .clippy(&["--workspace", "--all-targets"])
                .and_then(|()| {
                    // Without the features that can be left out, as well.
                    self.clippy(&["-p", "goanna-cli", "--no-default-features"])
                }),
            Self::Doc => self.doc(),
            Self::Test => self.test(tally),
            // With the data base out of reach `check` alone would fail, so the checks are named one by one.
            Self::Deny => self.deny(&["bans", "licenses", "sources"]),
            Self::Advisories => self.deny(&["advisories"]),
        }
    }

    fn cargo(self, arguments: &[&str]) -> Result<(), Error> {
        self.status(&mut cargo(arguments))
    }

    fn clippy(self, what: &[&str]) -> Result<(), Error> {
        let arguments = [&["clippy"], what, &["--", "-D", "warnings"]].concat();
        self.cargo(&arguments)
    }

    fn doc(self) -> Result<(), Error> {
        let mut command = cargo(&["doc", "--no-deps", "--workspace"]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        self.status(&mut command)
    }

    /// Builds the binaries first: the end-to-end tests start them, and `cargo test` builds a package's binaries only for
    /// that package's own integration tests.
    fn test(self, tally: &mut Tally) -> Result<(), Error> {
        self.cargo(&["build", "--workspace", "--bins"])?;
        let before = tally.ran();
        let skipped = Skipped::new().map_err(|source| self.io("a temporary file", source))?;
        let mut command = cargo(&["test", "--workspace", "--no-fail-fast"]);
        command.env("GOANNA_SKIPPED", &skipped.path);
        self.counted(&mut command, tally)?;
        let lines = skipped.lines();
        for line in lines.lines() {
            eprintln!("    not run: {line}");
        }
        tally.add_skipped(&lines);
        if tally.ran() == before {
            return Err(Error::NoTests(self.name()));
        }
        Ok(())
    }

    fn deny(self, checks: &[&str]) -> Result<(), Error> {
        let probe = cargo(&["deny", "--version"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !probe.is_ok_and(|status| status.success()) {
            return Err(Error::NoCargoDeny(self.name()));
        }
        let mut arguments = vec!["deny", "--workspace", "check"];
        arguments.extend_from_slice(checks);
        self.cargo(&arguments)
    }

    fn status(self, command: &mut Command) -> Result<(), Error> {
        eprintln!("    {}", typed(command));
        complete(&self.name(), command)
    }

    /// Runs test runners: every line they print is copied to stdout, and their closing lines are counted. The output of failed tests is
    /// printed again on stderr at the end.
    fn counted(self, command: &mut Command, tally: &mut Tally) -> Result<(), Error> {
        let typed = typed(command);
        eprintln!("    {typed}");
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| self.io(&typed, source))?;
        let Some(output) = child.stdout.take() else {
            return Ok(());
        };
        let (sender, lines) = mpsc::channel();
        // Not joined: a process that a failed test has left running may hold the output open forever.
        thread::spawn(move || send_lines(BufReader::new(output), &sender));
        let mut failures = Failures::default();
        let has_ended = || !matches!(child.try_wait(), Ok(None));
        let copied = copy_counted(&lines, tally, &mut failures, has_ended);
        // Waited for in any case: otherwise the child would continue to build into the target directory.
        let status = child.wait().map_err(|source| self.io(&typed, source))?;
        let is_closed = copied.map_err(|source| self.io(&typed, source))?;
        if !is_closed {
            eprintln!(
                "    a process that a test has started still runs, and holds the output open"
            );
        }
        for line in failures.lines() {
            eprintln!("    {line}");
        }
        outcome(&self.name(), typed, status)
    }

    fn io(self, command: &str, source: io::Error) -> Error {
        Error::Io {
            step: self.name(),
            command: command.to_owned(),
            source,
        }
    }
}

/// Runs a command of `step` to its end.
///
/// # Errors
///
/// A command that cannot be started, or that fails.
pub fn complete(step: &str, command: &mut Command) -> Result<(), Error> {
    let typed = typed(command);
    match command.status() {
        Ok(status) => outcome(step, typed, status),
        Err(source) => Err(Error::Io {
            step: step.to_owned(),
            command: typed,
            source,
        }),
    }
}

fn outcome(step: &str, command: String, status: ExitStatus) -> Result<(), Error> {
    if status.success() {
        return Ok(());
    }
    Err(Error::Failed {
        step: step.to_owned(),
        command,
        status,
    })
}

/// The file to which tests append the reasons for which they were skipped ([`goanna-skip`](../../tests/skip/src/lib.rs)). Removed when
/// dropped.
struct Skipped {
    path: PathBuf,
}

impl Skipped {
    fn new() -> io::Result<Self> {
        let path = workspace().join(format!("target/skipped-{}", std::process::id()));
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        std::fs::write(&path, "")?;
        // Some tests run as another user.
        std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        Ok(Self { path })
    }

    fn lines(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }
}

impl Drop for Skipped {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sends line by line. Lines are bytes: a test may print invalid UTF-8.
fn send_lines(mut from: impl BufRead, to: &mpsc::Sender<io::Result<Vec<u8>>>) {
    loop {
        let mut line = Vec::new();
        let read = from.read_until(b'\n', &mut line);
        if matches!(read, Ok(0)) || to.send(read.map(|_| line)).is_err() {
            return;
        }
    }
}

/// Copies lines to stdout until their sender has closed the channel (`true`), or until a program that has ended sends nothing for a while.
fn copy_counted(
    lines: &mpsc::Receiver<io::Result<Vec<u8>>>,
    tally: &mut Tally,
    failures: &mut Failures,
    mut has_ended: impl FnMut() -> bool,
) -> io::Result<bool> {
    const PAUSE: Duration = Duration::from_secs(2);
    loop {
        let line = match lines.recv_timeout(PAUSE) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => return Ok(true),
            Err(RecvTimeoutError::Timeout) if has_ended() => return Ok(false),
            Err(RecvTimeoutError::Timeout) => continue,
        };
        let text = String::from_utf8_lossy(&line);
        tally.add_line(&text);
        failures.add_line(&text);
        let mut stdout = io::stdout().lock();
        stdout.write_all(&line)?;
        stdout.flush()?;
    }
}

/// The cargo that runs this program, in the workspace's root.
pub fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace());
    command
}

/// The workspace's root: the parent of this package's directory.
///
/// Cargo passes that directory to the programs that it runs. The compiled-in directory is only the second choice: checkouts that share a
/// target directory also share this binary, and the steps could run in the wrong checkout.
pub fn workspace() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().unwrap_or(&package).to_path_buf()
}

/// The command as one would type it.
pub fn typed(command: &Command) -> String {
    let mut words = vec!["cargo".to_owned()];
    words.extend(
        command
            .get_args()
            .map(|word| word.to_string_lossy().into_owned()),
    );
    words.join(" ")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        let names: Vec<String> = Step::value_variants()
            .iter()
            .map(|step| step.name())
            .collect();
        assert_eq!(
            names,
            ["fmt", "clippy", "doc", "test", "deny", "advisories"]
        );
    }

    #[test]
    fn output_that_a_leftover_process_holds_open_is_not_waited_for() {
        let (sender, lines) = mpsc::channel();
        let closing = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
        sender
            .send(Ok(closing.into()))
            .expect("the receiver is there");
        let (mut tally, mut failures) = (Tally::default(), Failures::default());
        let is_closed =
            copy_counted(&lines, &mut tally, &mut failures, || true).expect("stdout is open");
        assert!(!is_closed);
        assert_eq!(tally.ran(), 1);
        drop(sender);
        let is_closed =
            copy_counted(&lines, &mut tally, &mut failures, || false).expect("stdout is open");
        assert!(is_closed);
    }

    #[test]
    fn a_failed_command_names_its_step() {
        let error = Step::Fmt
            .status(cargo(&["no-such-subcommand-of-cargo"]).stderr(Stdio::null()))
            .expect_err("cargo knows no such subcommand");
        let text = error.to_string();
        assert!(
            text.starts_with("step fmt failed: cargo no-such-subcommand-of-cargo:"),
            "{text}"
        );
    }

    #[test]
    fn the_workspace_root_is_found() {
        assert!(workspace().join("Cargo.toml").is_file());
        assert!(workspace().join("xtask/Cargo.toml").is_file());
    }
}
