//! Settings: the file systems on which a tracee's calls operate, and the long-lived tracee in each.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Binaries, Error, Operation};

const MOUNT_DEADLINE: Duration = Duration::from_secs(10);
const BUILD_ADVICE: &str = "build it with `cargo build --release -p goanna-cli`, or name its directory in \
                            GOANNA_BIN_DIR";
const GOCRYPTFS_ADVICE: &str = "install the package gocryptfs";
const FUSE_ADVICE: &str = "name libfuse's passthrough_ll in GOANNA_FUSE_PASSTHROUGH (benches/README.md says how to build it)";

/// A file system on which calls operate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A directory of the host, without the monitor.
    Native,
    /// `goanna run --mount pass=...`.
    Passfs,
    /// `amino run`, engine fjall, durability `commit`.
    Amino,
    /// libfuse's passthrough_ll with its defaults: the kernel caches names and attributes for a second.
    Fuse,
    /// The same with `-o timeout=0`: the kernel requests every name and attribute, so no change on the host is
    /// missed.
    FuseUncached,
    /// `goanna run --mount aes=...`: a volume with AES-256-GCM and encrypted names.
    Aes,
    /// gocryptfs with its defaults, on a volume of the same kind: the kernel caches names and attributes for a second.
    Gocryptfs,
    /// The same with `-sharedstorage`: the kernel requests every name and attribute, so no change on the host is missed.
    GocryptfsUncached,
}

impl Kind {
    /// All settings, in the order of the page; the others are compared with the first.
    pub const ALL: [Self; 8] = [
        Self::Native,
        Self::Passfs,
        Self::Amino,
        Self::Fuse,
        Self::FuseUncached,
        Self::Aes,
        Self::Gocryptfs,
        Self::GocryptfsUncached,
    ];

    /// The name on the page and in criterion's filter.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Passfs => "passfs",
            Self::Amino => "amino",
            Self::Fuse => "fuse",
            Self::FuseUncached => "fuse-uncached",
            Self::Aes => "aes",
            Self::Gocryptfs => "gocryptfs",
            Self::GocryptfsUncached => "gocryptfs-uncached",
        }
    }

    /// The program that the setting needs.
    ///
    /// # Errors
    ///
    /// The program does not exist.
    pub fn program(self, binaries: &Binaries) -> Result<&Path, Error> {
        let (program, found, advice) = match self {
            Self::Native => return Ok(&binaries.tracee),
            Self::Passfs | Self::Aes => ("goanna", &binaries.goanna, BUILD_ADVICE),
            Self::Amino => ("amino", &binaries.amino, BUILD_ADVICE),
            Self::Fuse | Self::FuseUncached => ("passthrough_ll", &binaries.fuse, FUSE_ADVICE),
            Self::Gocryptfs | Self::GocryptfsUncached => {
                ("gocryptfs", &binaries.gocryptfs, GOCRYPTFS_ADVICE)
            }
        };
        found.as_deref().ok_or(Error::Missing {
            kind: self.name(),
            program,
            advice,
        })
    }
}

/// A running tracee in its setting. Dropping it ends the tracee, the monitor and the mount.
#[derive(Debug)]
pub struct Setting {
    kind: Kind,
    // Dropped in this order: the tracee sees the end of its input and ends before its file system is unmounted.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
    stderr: PathBuf,
    unable: Vec<Operation>,
    _mount: Option<FuseMount>,
}

impl Setting {
    /// Starts a tracee; its files are in `scratch`, a directory of the host that exists.
    ///
    /// # Errors
    ///
    /// A program is missing, or does not start.
    pub fn start(kind: Kind, binaries: &Binaries, scratch: &Path) -> Result<Self, Error> {
        let program = kind.program(binaries)?;
        let base = scratch.join(kind.name());
        let lower = base.join("files");
        fs::create_dir_all(&lower).map_err(Error::io("make", &lower))?;
        let stderr = base.join("stderr");
        let mut mount = None;
        let mut command = Command::new(program);
        match kind {
            Kind::Native => {
                command.arg(&lower);
            }
            Kind::Passfs => {
                let spec = format!("pass={}:/pass", escaped(&lower));
                command.args(["run", "--mount", &spec, "--"]);
                command.arg(&binaries.tracee).arg("/pass");
            }
            Kind::Amino => {
                command.args(["run", "--engine", "fjall", "--durability", "commit"]);
                command.arg("--store").arg(base.join("store")).arg("--");
                command.arg(&binaries.tracee).arg("/amino");
            }
            Kind::Aes => {
                let password = new_volume(kind, program, &lower)?;
                let (at, password) = (escaped(&lower), escaped(&password));
                let spec = format!("aes={at}:/secret,passfile={password}");
                command.args(["run", "--mount", &spec, "--"]);
                command.arg(&binaries.tracee).arg("/secret");
            }
            Kind::Fuse | Kind::FuseUncached | Kind::Gocryptfs | Kind::GocryptfsUncached => {
                let at = base.join("mount");
                mount = Some(FuseMount::start(kind, program, &lower, &at)?);
                command = Command::new(&binaries.tracee);
                command.arg(at);
            }
        }
        let log = File::create(&stderr).map_err(Error::io("make", &stderr))?;
        let mut child = command
            // cargo's, for its own libraries: with it, every dynamic program would look for libc in a dozen
            // directories first, and an execve(2) would cost three times as much as in a user's shell.
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(Error::io("start", program))?;
        let (Some(requests), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(ended(kind, &stderr));
        };
        let mut setting = Self {
            kind,
            requests: Some(requests),
            answers: BufReader::new(answers),
            child,
            stderr,
            unable: Vec::new(),
            _mount: mount,
        };
        if setting.answer()? == "ready" {
            Ok(setting)
        } else {
            Err(ended(kind, &setting.stderr))
        }
    }

    /// Which setting this is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether [`check`](Self::check) found that `operation` can be measured here.
    pub fn is_able(&self, operation: Operation) -> bool {
        !self.unable.contains(&operation)
    }

    /// Tries each operation once and records which ones do not work here. Returns their errors.
    ///
    /// # Errors
    ///
    /// The tracee is gone.
    pub fn check(&mut self) -> Result<Vec<Error>, Error> {
        let mut failures = Vec::new();
        for operation in Operation::ALL {
            match self.measure(operation, 1) {
                Ok(_) => {}
                Err(error @ Error::Refused { .. }) => {
                    self.unable.push(operation);
                    failures.push(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(failures)
    }

    /// Performs `operation` `iterations` times.
    ///
    /// # Errors
    ///
    /// The operation failed, or the tracee is gone.
    pub fn measure(&mut self, operation: Operation, iterations: u64) -> Result<Duration, Error> {
        self.request(&format!("{operation} {iterations}"))
    }

    /// Runs a shell command of one line in the setting's directory.
    ///
    /// # Errors
    ///
    /// The command's exit status was not 0, or the tracee is gone.
    pub fn shell(&mut self, command: &str) -> Result<Duration, Error> {
        self.request(&format!("sh {command}"))
    }

    fn request(&mut self, line: &str) -> Result<Duration, Error> {
        let sent = match &mut self.requests {
            Some(pipe) => writeln!(pipe, "{line}"),
            None => return Err(ended(self.kind, &self.stderr)),
        };
        // A broken pipe: its reason is on the tracee's standard error.
        sent.map_err(|_| ended(self.kind, &self.stderr))?;
        let answer = self.answer()?;
        match answer.parse() {
            Ok(nanos) => Ok(Duration::from_nanos(nanos)),
            Err(_) => Err(Error::Refused {
                kind: self.kind.name(),
                request: line.to_owned(),
                answer,
            }),
        }
    }

    fn answer(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(length) if length > 0 => Ok(line.trim_end().to_owned()),
            _ => Err(ended(self.kind, &self.stderr)),
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        drop(self.requests.take());
        let _ = self.child.wait();
    }
}

fn ended(kind: Kind, stderr: &Path) -> Error {
    Error::Ended {
        kind: kind.name(),
        stderr: text(stderr),
    }
}

fn text(path: &Path) -> String {
    fs::read(path).map_or_else(
        |error| error.to_string(),
        |bytes| String::from_utf8_lossy(&bytes).into_owned(),
    )
}

/// A path, escaped for a mount specification.
fn escaped(path: &Path) -> String {
    let mut escaped = String::new();
    for c in path.display().to_string().chars() {
        if matches!(c, ':' | ',' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Makes an encrypted volume in an empty directory, with a password that costs little. Returns the file of the password.
fn new_volume(kind: Kind, program: &Path, lower: &Path) -> Result<PathBuf, Error> {
    let password = lower.with_file_name("password");
    fs::write(&password, "password\n").map_err(Error::io("write", &password))?;
    let mut command = Command::new(program);
    match kind {
        Kind::Aes => command.args(["aes", "init", "-q", "--scrypt-n", "10", "--passfile"]),
        _ => command.args(["-init", "-q", "-scryptn", "10", "-passfile"]),
    };
    let output = command.arg(&password).arg(lower).output();
    let output = output.map_err(Error::io("start", program))?;
    if output.status.success() {
        Ok(password)
    } else {
        Err(Error::NoVolume {
            kind: kind.name(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}

/// A FUSE file system and its daemon, which runs in the foreground so that this program can end it.
#[derive(Debug)]
struct FuseMount {
    daemon: Child,
}

impl FuseMount {
    fn start(kind: Kind, program: &Path, source: &Path, at: &Path) -> Result<Self, Error> {
        fs::create_dir_all(at).map_err(Error::io("make", at))?;
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev());
        let below = device(at).map_err(Error::io("stat", at))?;
        let stderr = at.with_file_name("fuse-stderr");
        let log = File::create(&stderr).map_err(Error::io("make", &stderr))?;
        let mut command = Command::new(program);
        if matches!(kind, Kind::Gocryptfs | Kind::GocryptfsUncached) {
            let password = new_volume(kind, program, source)?;
            if kind == Kind::GocryptfsUncached {
                command.arg("-sharedstorage");
            }
            command.args(["-fg", "-q", "-passfile"]).arg(password);
            command.arg(source);
        } else {
            let mut options = format!("source={}", source.display());
            if kind == Kind::FuseUncached {
                options.push_str(",timeout=0");
            }
            command.args(["-f", "-o", &options]);
        }
        let daemon = command
            .arg(at)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(Error::io("start", program))?;
        let mut mount = Self { daemon };
        let start = Instant::now();
        while device(at).map_or(true, |device| device == below) {
            let gone = !matches!(mount.daemon.try_wait(), Ok(None));
            if gone || start.elapsed() > MOUNT_DEADLINE {
                return Err(Error::NoMount {
                    kind: kind.name(),
                    stderr: text(&stderr),
                });
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(mount)
    }
}

impl Drop for FuseMount {
    fn drop(&mut self) {
        // On SIGTERM the daemons unmount; a kill would leave a dead mount behind.
        if let Ok(None) = self.daemon.try_wait() {
            let _ = kill(
                Pid::from_raw(self.daemon.id().cast_signed()),
                Signal::SIGTERM,
            );
        }
        let _ = self.daemon.wait();
    }
}
