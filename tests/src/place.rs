//! Places: where a command runs. A place has a back end, a way to intercept calls, and a user.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::binary;

/// The ordinary user of tests that run as root.
pub const NOBODY: u32 = 65534;

/// The user that runs the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// The user that runs the tests.
    Own,
    /// User and group 65534, without further groups.
    Nobody,
}

/// Storage engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The default.
    Fjall,
    /// The other one.
    Sled,
}

/// The back end that is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// A host directory, by `goanna run`.
    Pass,
    /// An encrypted directory, by `goanna run`.
    Aes,
    /// A store, by `amino run`.
    Amino(Engine),
}

/// How calls are intercepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intercept {
    /// By seccomp notification.
    Notify,
    /// By ptrace stops.
    Ptrace,
}

/// A temporary directory of a user, with a back end.
///
/// It holds `native` and `host`, directories of the host; `pass`, the source of the pass mount; and `store`, made by
/// the first command that needs it.
#[derive(Debug)]
pub struct Place {
    dir: TempDir,
    backend: Backend,
    intercept: Intercept,
    user: User,
}

impl Place {
    /// A new place.
    ///
    /// # Panics
    ///
    /// When there is no space for temporary files.
    pub fn new(backend: Backend, intercept: Intercept, user: User) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("goanna-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(
                std::env::temp_dir()
                    .canonicalize()
                    .expect("temporary files"),
            )
            .expect("a temporary directory");
        let place = Self {
            dir,
            backend,
            intercept,
            user,
        };
        if user == User::Nobody {
            chown(place.dir.path(), Some(NOBODY), Some(NOBODY)).expect("a directory of the user");
        }
        for name in ["native", "host", "pass"] {
            place.make_dir(name);
        }
        place
    }

    /// Amino on the default engine, with notifications, as the user that runs the tests.
    pub fn amino() -> Self {
        Self::new(Backend::Amino(Engine::Fjall), Intercept::Notify, User::Own)
    }

    /// Amino with each engine and each way of interception, and as another user where this one may become it.
    pub fn stores() -> Vec<Self> {
        let mut places = vec![
            Self::amino(),
            Self::new(Backend::Amino(Engine::Sled), Intercept::Ptrace, User::Own),
        ];
        if crate::may_become_another_user() {
            let backend = Backend::Amino(Engine::Fjall);
            places.push(Self::new(backend, Intercept::Notify, User::Nobody));
        }
        places
    }

    /// A pass mount, with notifications, as the user that runs the tests.
    pub fn pass() -> Self {
        Self::new(Backend::Pass, Intercept::Notify, User::Own)
    }

    /// The back end.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// The user that runs commands here.
    pub fn user(&self) -> User {
        self.user
    }

    /// Whether this is one of the places that `conditions` describe: words of `pass`, `aes`, `amino`, `notify`, `ptrace`, `own`,
    /// `nobody`, and `root` or `ordinary` for the rights of either, separated by commas, all of which must hold; `*` is
    /// everywhere.
    pub fn is_any(&self, conditions: &str) -> bool {
        let mine = [
            match self.backend {
                Backend::Pass => "pass",
                Backend::Aes => "aes",
                Backend::Amino(_) => "amino",
            },
            if self.intercept == Intercept::Notify {
                "notify"
            } else {
                "ptrace"
            },
            if self.user == User::Own {
                "own"
            } else {
                "nobody"
            },
            if self.user == User::Own && crate::is_root() {
                "root"
            } else {
                "ordinary"
            },
            "*",
        ];
        conditions.split(',').all(|word| mine.contains(&word))
    }

    /// `text` with fixed names for the paths that differ from run to run: the pass mount's source, and the run-time directory.
    pub fn without_names(&self, text: &str) -> String {
        const RUN: &str = "/dev/shm/goanna-";
        let source = self.path("pass");
        let mut rest = text.replace(&*source.to_string_lossy(), "SOURCE");
        let mut named = String::new();
        while let Some(at) = rest.find(RUN) {
            named.push_str(&rest[..at]);
            named.push_str("RUN");
            let after = rest.split_off(at + RUN.len());
            let path = after.trim_start_matches(|c: char| c.is_ascii_hexdigit());
            let (class, number) = path.split_at(path.len().min(3));
            named.push_str(class);
            rest = number
                .trim_start_matches(|c: char| c.is_ascii_hexdigit())
                .to_owned();
        }
        named + &rest
    }

    /// The temporary directory, or something in it.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A new directory of the user in the temporary directory; an existing directory is emptied.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn make_dir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        if path.exists() {
            fs::remove_dir_all(&path).expect("an old directory removed");
        }
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        if self.user == User::Nobody {
            chown(&path, Some(NOBODY), Some(NOBODY)).expect("its owner");
        }
        path
    }

    /// The path at which commands see the back end.
    pub fn top(&self) -> &'static str {
        match self.backend {
            Backend::Pass => "/mnt-test",
            Backend::Aes => "/aes-test",
            Backend::Amino(_) => "/amino-test",
        }
    }

    /// `program` as the user, natively.
    pub fn native(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", path())
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", self.path("host"))
            .env("TZ", "UTC")
            // Most programs of the tests make too few calls to be patched as those of users are.
            .env("GOANNA_TEST_CALLS_BEFORE", "0")
            .current_dir(self.path("host"));
        if self.user == User::Nobody {
            // Sets the groups, too: an empty list when root does it.
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// `goanna run` or `amino run` with its options; the caller adds the command.
    pub fn run(&self) -> Command {
        self.run_with(&[])
    }

    /// [`Place::run`] with further options.
    pub fn run_with(&self, options: &[&str]) -> Command {
        let mut command = match self.backend {
            Backend::Pass => {
                let mut command = self.native(binary("goanna"));
                let mut spec = b"pass=".to_vec();
                spec.extend_from_slice(self.path("pass").as_os_str().as_bytes());
                spec.extend_from_slice(b":/mnt-test");
                command
                    .args(["run", "--mount"])
                    .arg(OsStr::from_bytes(&spec));
                command
            }
            Backend::Aes => {
                self.make_volume();
                let mut command = self.native(binary("goanna"));
                let (volume, password) = (self.path("volume"), self.path("password"));
                let mut spec = b"aes=".to_vec();
                spec.extend_from_slice(volume.as_os_str().as_bytes());
                spec.extend_from_slice(b":/aes-test,passfile=");
                spec.extend_from_slice(password.as_os_str().as_bytes());
                command
                    .args(["run", "--mount"])
                    .arg(OsStr::from_bytes(&spec));
                command
            }
            Backend::Amino(engine) => {
                let mut command = self.amino_command("run");
                command.args(["--at", self.top()]);
                // The engine is for a store that is made now.
                if !self.path("store").exists() {
                    command.args([
                        "--engine",
                        match engine {
                            Engine::Fjall => "fjall",
                            Engine::Sled => "sled",
                        },
                    ]);
                }
                command
            }
        };
        command.args([
            "--intercept",
            match self.intercept {
                Intercept::Notify => "notify",
                Intercept::Ptrace => "ptrace",
            },
        ]);
        let is_off = std::env::var("GOANNA_TEST_FAST_PATH").is_ok_and(|fast| fast == "0");
        if is_off && !options.contains(&"--no-fast-path") {
            command.arg("--no-fast-path");
        }
        command.args(options).arg("--");
        if let (Ok(_), Backend::Amino(_)) = (std::env::var("GOANNA_TEST_NESTED"), self.backend) {
            command
                .arg(binary("amino"))
                .args(["run", "--at", self.top(), "--store"])
                .arg(self.path("inner"))
                .arg("--");
        }
        command
    }

    /// Makes the encrypted directory `volume`, whose password is in `password`, if it is not there.
    fn make_volume(&self) {
        if self.path("volume").exists() {
            return;
        }
        let volume = self.make_dir("volume");
        fs::write(self.path("password"), "secret\n").expect("a password");
        let mut init = self.native(binary("goanna"));
        init.args(["aes", "init", "--scrypt-n", "10", "--passfile"])
            .arg(self.path("password"))
            .arg(volume);
        crate::finish(&mut init).expect(0);
    }

    /// [`Place::run`] of a shell script that starts in the mount.
    pub fn shell(&self, script: &str) -> Command {
        self.shell_with(&[], script)
    }

    /// [`Place::shell`] as one transaction.
    pub fn transaction(&self, script: &str) -> Command {
        self.shell_with(&["--txn"], script)
    }

    /// [`Place::shell`] with options of `amino run`.
    pub fn shell_with(&self, options: &[&str], script: &str) -> Command {
        let mut command = self.run_with(options);
        command.args(["/bin/bash", "-c", &format!("cd {} && {script}", self.top())]);
        command
    }

    /// A subcommand of `amino` on this place's store; the caller adds further arguments.
    pub fn amino_command(&self, subcommand: &str) -> Command {
        let mut command = self.native(binary("amino"));
        command
            .arg(subcommand)
            .arg("--store")
            .arg(self.path("store"));
        command
    }

    /// The differences that `list` explains for the program `name` in this place. Each of its lines names a program, the
    /// places, and one line of the difference; it must be there exactly so, or the list and its document are wrong.
    pub fn known(&self, list: &str, name: &str) -> String {
        let mut lines = String::new();
        for line in list.lines() {
            let mut words = line.splitn(3, ' ');
            let (program, places, difference) = (words.next(), words.next(), words.next());
            if program == Some(name) && places.is_some_and(|places| self.is_any(places)) {
                lines.push_str(difference.unwrap_or_default());
                lines.push('\n');
            }
        }
        lines
    }

    /// The process id of `aminod`, if it has the store now, and how many commands it follows.
    ///
    /// # Panics
    ///
    /// When `amino daemon status` prints something else.
    #[track_caller]
    pub fn owner(&self) -> Option<(i32, usize)> {
        let mut status = self.native(binary("amino"));
        status.args(["daemon", "status", "--json", "--store"]);
        let ended = crate::finish(status.arg(self.path("store")));
        let status: serde_json::Value = serde_json::from_str(&ended.text()).unwrap();
        if status["running"] == false {
            ended.expect(1);
            return None;
        }
        ended.expect(0);
        let pid = i32::try_from(status["pid"].as_i64().unwrap()).unwrap();
        Some((pid, status["runs"].as_array().unwrap().len()))
    }

    /// Fails the test unless the store, or the encrypted directory, is clean.
    ///
    /// # Panics
    ///
    /// When `amino fsck` finds something.
    #[track_caller]
    pub fn fsck(&self) {
        match self.backend {
            Backend::Pass => {}
            Backend::Aes => {
                self.make_volume();
                let mut fsck = Command::new(binary("goanna"));
                fsck.args(["aes", "fsck", "--passfile"])
                    .arg(self.path("password"))
                    .arg(self.path("volume"));
                crate::finish(&mut fsck).expect(0);
            }
            Backend::Amino(_) => {
                crate::finish(&mut self.amino_command("fsck")).expect(0);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Tests leave directories behind that their owner may not search; when the tests run as that owner, removing
        // the place needs the permission back.
        if !crate::is_root() {
            let _ = Command::new("chmod")
                .args(["-R", "u+rwX"])
                .arg(self.dir.path())
                .status();
        }
    }
}

/// Where programs are looked for: the tests' own path, so that tools of the machine are found, without directories
/// that only root can search, which would make "permission denied" of "not found".
fn path() -> std::ffi::OsString {
    let own = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let open = |dir: &Path| {
        dir.ancestors()
            .all(|dir| fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0))
    };
    let dirs = std::env::split_paths(&own).filter(|dir| open(dir));
    std::env::join_paths(dirs).expect("the parts of a path")
}
