//! Runs that last until the test ends them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Place, binary, finish};

/// Longest time that anything may take here.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Returns when `is_so`.
///
/// # Panics
///
/// When that takes longer than [`LIMIT`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `amino run` with `amino` in its path; the caller adds the command.
///
/// # Panics
///
/// When the binary has no directory.
pub fn command_in_path(place: &Place, options: &[&str]) -> Command {
    let mut command = place.run_with(options);
    let dir = binary("amino").parent().unwrap().to_owned();
    let others = std::env::split_paths("/usr/local/bin:/usr/bin:/bin");
    let path = std::env::join_paths(std::iter::once(dir).chain(others)).unwrap();
    command.env("PATH", path);
    command
}

/// A run that lasts until the test ends it, so that `aminod` has the store. Dropping it kills the run.
#[derive(Debug)]
pub struct Held {
    marks: PathBuf,
    name: &'static str,
    child: Child,
}

impl Held {
    /// Runs `script`, in which %GO% is the wait, and returns when the script has reached the wait.
    ///
    /// # Panics
    ///
    /// When it ends before.
    #[track_caller]
    pub fn new(place: &Place, name: &'static str, options: &[&str], script: &str) -> Self {
        let marks = place.path("host");
        let mark = |mark| marks.join(format!("{name}.{mark}"));
        for left in ["ready", "go"] {
            let _ = fs::remove_file(mark(left));
        }
        let wait = format!(
            "echo > {}; while ! test -e {}; do sleep 0.02; done",
            mark("ready").display(),
            mark("go").display(),
        );
        let script = format!(
            "cd {}; umask 022; {}",
            place.top(),
            script.replace("%GO%", &wait)
        );
        let child = command_in_path(place, options)
            .args(["bash", "-ec", &script])
            .process_group(0)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let ready = mark("ready");
        let mut held = Self { marks, name, child };
        until("the run is ready", || {
            assert_eq!(held.child.try_wait().unwrap(), None, "it ended before");
            ready.exists()
        });
        held
    }

    /// The process id of the launcher.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends the wait and returns its exit status.
    ///
    /// # Panics
    ///
    /// When it does not end.
    #[track_caller]
    pub fn go(self) -> i32 {
        fs::write(self.marks.join(format!("{}.go", self.name)), "").unwrap();
        self.status()
    }

    /// Its exit status, when it ends by itself; 128+N for signal N.
    ///
    /// # Panics
    ///
    /// When it does not end.
    #[track_caller]
    pub fn status(mut self) -> i32 {
        finish::wait(&mut self.child, LIMIT).expect("it goes on")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
