//! Runs a command to its end, with a time limit, and keeps its output.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The status of a command that was killed at the time limit.
pub const TOO_LONG: i32 = -1;

/// The exit status and the output of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit status as a shell gives it: 128+N for signal N; [`TOO_LONG`] when it did not end by itself.
    pub status: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
}

impl Ended {
    /// How it ended, in words.
    pub fn how(&self) -> String {
        match self.status {
            TOO_LONG => "it did not end in time".to_owned(),
            status => format!("exit status {status}"),
        }
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Fails the test unless the exit status is `status`.
    ///
    /// # Panics
    ///
    /// When it is another; the message has the output.
    #[track_caller]
    pub fn expect(self, status: i32) -> Self {
        assert!(
            self.status == status,
            "{} instead of exit status {status}\n{}{}",
            self.how(),
            self.text(),
            self.errors()
        );
        self
    }
}

/// Runs `command` in a process group of its own and waits at most two minutes; then its group is killed.
///
/// # Panics
///
/// When it cannot be started.
#[track_caller]
pub fn finish(command: &mut Command) -> Ended {
    finish_within(command, Duration::from_secs(120))
}

/// [`finish`] with another limit.
///
/// # Panics
///
/// As [`finish`].
#[track_caller]
pub fn finish_within(command: &mut Command, limit: Duration) -> Ended {
    // Files rather than pipes: a process that was left behind cannot keep us waiting for the end of a file.
    let mut stdout = tempfile::tempfile().expect("a file for the output");
    let mut stderr = tempfile::tempfile().expect("a file for the messages");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a second descriptor"))
        .stderr(stderr.try_clone().expect("a second descriptor"))
        .process_group(0)
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait(&mut child, limit);
    let read = |file: &mut File| {
        let mut bytes = Vec::new();
        file.rewind().expect("the output's start");
        file.read_to_end(&mut bytes).expect("the output");
        bytes
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let stderr = without_new_store(&stderr);
    Ended {
        status: status.unwrap_or(TOO_LONG),
        stdout,
        stderr,
    }
}

/// Removes the line by which the first command in a place may report that it made the store: it does not matter which
/// command that is.
fn without_new_store(stderr: &[u8]) -> Vec<u8> {
    let lines = stderr.split_inclusive(|&byte| byte == b'\n');
    let others = lines.filter(|line| !line.starts_with(b"amino: made a store in "));
    others.flatten().copied().collect()
}

/// Waits for `child`; kills its group when it takes longer than `limit`.
///
/// # Panics
///
/// When waiting fails.
pub fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait().expect("the status of a child") {
            let signal = status.signal().map(|signal| 128 + signal);
            return Some(
                status
                    .code()
                    .or(signal)
                    .expect("an exit status or a signal"),
            );
        }
        if Instant::now() > end {
            if let Some(group) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
