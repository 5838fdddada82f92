//! The installed library, as C and Python programs use it: outside of a monitor, and under a fake one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use goanna_skip::{Facility, skip};

use tempfile::TempDir;

/// An installation all tests share.
struct Installed {
    dir: TempDir,
}

fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let mut install = Command::new(env!("CARGO"));
        install.args(["xtask", "install-client", "--prefix"]);
        install
            .arg(dir.path())
            .current_dir(tests().join("../../.."));
        // Twice: a later installation takes the place of an earlier one.
        for _ in 0..2 {
            succeed(install.stdout(Stdio::null()));
        }
        Installed { dir }
    })
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

impl Installed {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn pkg_config(&self, args: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let text = succeed(command.args(args).arg("amino"));
        text.split_whitespace().map(ToOwned::to_owned).collect()
    }

    /// Compiles a program of this directory with `link` and what pkg-config answers to `ask`.
    fn compile(&self, source: &str, program: &str, link: &[&str], ask: &[&str]) -> PathBuf {
        let out = self.path(program);
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-o"]);
        gcc.arg(&out).arg(tests().join(source)).args(link);
        succeed(gcc.args(self.pkg_config(ask)));
        out
    }

    fn program(&self, path: &Path) -> Command {
        let mut command = Command::new(path);
        command.env("LD_LIBRARY_PATH", self.path("lib"));
        command
    }

    fn python(&self, script: &str) -> Command {
        let mut command = Command::new("python3");
        let dir = self.pkg_config(&["--variable=pythondir"]).concat();
        command.env("PYTHONPATH", dir).arg(tests().join(script));
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Runs `command` under the fake monitor, in which the first `conflicts` transactions meet a conflict.
fn under_fake(command: &mut Command, conflicts: u32) {
    let dir = tempfile::tempdir().unwrap();
    let fake = dir.path().join("fake.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-o"]).arg(&fake);
    succeed(gcc.arg(tests().join("fake_monitor.c")).arg("-ldl"));
    command.env("LD_PRELOAD", &fake);
    command.env("FAKE_STATE", dir.path().join("state"));
    command.env("FAKE_LOG", dir.path().join("log"));
    command.env("FAKE_CONFLICTS", conflicts.to_string());
    succeed(command);
}

#[test]
fn c_programs_link_the_shared_library() {
    let installed = installed();
    let ask = ["--cflags", "--libs"];
    let program = installed.compile("outside.c", "shared", &[], &ask);
    succeed(&mut installed.program(&program));
    let inside = installed.compile("inside.c", "inside", &[], &ask);
    under_fake(&mut installed.program(&inside), 0);
}

#[test]
fn c_programs_link_the_static_library() {
    let installed = installed();
    let ask = ["--static", "--cflags", "--libs"];
    let program = installed.compile("outside.c", "static", &["-static"], &ask);
    succeed(&mut Command::new(&program));
    // The archive by its name: the fake monitor needs a C library that is not static.
    let archive = installed.path("lib/libamino.a");
    let link = [archive.to_str().unwrap()];
    let inside = installed.compile("inside.c", "archive", &link, &["--cflags"]);
    under_fake(&mut Command::new(&inside), 0);
}

#[test]
fn the_examples_compile_and_do_nothing_outside() {
    let installed = installed();
    let ask = ["--cflags", "--libs"];
    let spool = tempfile::tempdir().unwrap();
    let outcome = |program: &Path, args: &[&str]| {
        let mut command = installed.program(program);
        command.args(args).current_dir(&spool).stdin(Stdio::null());
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let posix = ["-D_GNU_SOURCE"];
    let mail = installed.compile("../../../examples/mail/deliver_txn.c", "mail", &posix, &ask);
    let (status, stderr) = outcome(&mail, &[".", "user"]);
    assert_eq!(status, Some(75));
    assert_eq!(stderr, "./user: not delivered: not running under amino\n");
    let helper = installed.compile("../../../examples/shared/helper.c", "helper", &posix, &ask);
    let id = "0123456789abcdef0123456789abcdef";
    let (status, stderr) = outcome(&helper, &[id, "."]);
    assert_eq!(status, Some(1));
    assert_eq!(stderr, format!("attach {id}: not running under amino\n"));
    assert_eq!(spool.path().read_dir().unwrap().count(), 0);

    let classic = "../../../examples/mail/deliver_classic.c";
    let classic = installed.compile(classic, "classic", &[], &["--cflags"]);
    assert_eq!(outcome(&classic, &[".", "user"]), (Some(0), String::new()));
    let quota = std::fs::read_to_string(spool.path().join("user.quota"));
    assert_eq!(quota.unwrap(), "1 52428800\n");
    assert_eq!(spool.path().read_dir().unwrap().count(), 2);
}

#[test]
fn the_header_is_cpp_too() {
    if Command::new("g++").arg("--version").output().is_err() {
        skip(Facility::Program, "g++ is not installed");
        return;
    }
    let header = tests().join("../include/amino.h");
    let mut cpp = Command::new("g++");
    cpp.args([
        "-std=c++11",
        "-pedantic",
        "-Wall",
        "-Werror",
        "-fsyntax-only",
    ]);
    succeed(cpp.args(["-x", "c++"]).arg(header));
}

#[test]
fn the_library_is_known_by_its_soname_and_starts_no_threads() {
    let library = installed().path("lib/libamino.so");
    let dynamic = succeed(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("soname: [libamino.so.0]"), "{dynamic}");
    let symbols = succeed(Command::new("nm").arg("-D").arg(&library));
    let exported: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name))
        .collect();
    let functions = [
        "amino_abort",
        "amino_attach",
        "amino_begin",
        "amino_commit",
        "amino_detach",
        "amino_resume",
        "amino_status",
        "amino_strerror",
        "amino_suspend",
    ];
    assert_eq!(exported, functions);
    assert!(!symbols.contains("pthread_create"), "{symbols}");
    let bytes = library.metadata().unwrap().len();
    assert!(bytes < 512 << 10, "{bytes} bytes");
}

#[test]
fn python_programs_use_the_module() {
    let installed = installed();
    succeed(&mut installed.python("outside.py"));
    under_fake(&mut installed.python("inside.py"), 2);
    let source = tests().join("../python");
    let mut named = Command::new("python3");
    named
        .env("PYTHONPATH", &source)
        .args(["-B", "-c", "import amino"]);
    named.env("AMINO_LIBRARY", installed.path("lib/libamino.so.0"));
    succeed(&mut named);
    named.env("AMINO_LIBRARY", "/nonexistent");
    assert!(!named.output().unwrap().status.success());
}
