//! Images made by genisoimage and xorriso, and goanna run on them.

#![allow(dead_code, reason = "each test program uses its part")]

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use goanna_skip::{Facility, skip};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps};
use serde_json::Value;

use crate::common::{Fixture, is_root, snapshot};

/// A user without privilege.
pub const NOBODY: u32 = 65534;

/// The status and the output of a run of goanna.
pub struct Said {
    pub status: i32,
    pub out: Vec<u8>,
    pub complaint: String,
}

impl Said {
    pub fn new(output: Output) -> Self {
        Self {
            // The end by a signal, such as an abort, has no status.
            status: output.status.code().expect("goanna was not killed"),
            out: output.stdout,
            complaint: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    #[track_caller]
    pub fn with(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{}", self.complaint);
        self
    }

    #[track_caller]
    pub fn mentions(self, words: &str) -> Self {
        assert!(self.complaint.contains(words), "{}", self.complaint);
        self
    }
}

impl Fixture {
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["60", env!("CARGO_BIN_EXE_goanna"), "iso"]);
        command.args(args).current_dir(self.path("")).env("TZ", "");
        command.stdin(Stdio::null());
        command
    }

    pub fn iso(&self, args: &[&str]) -> Said {
        Said::new(self.command(args).output().unwrap())
    }

    /// As an ordinary user, also when root runs the tests.
    pub fn iso_as_nobody(&self, args: &[&str]) -> Said {
        let mut command = self.command(args);
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        Said::new(command.output().unwrap())
    }

    /// Runs a command that must succeed and print nothing on stderr.
    #[track_caller]
    pub fn good(&self, args: &[&str]) -> String {
        let said = self.iso(args).with(0);
        assert_eq!(said.complaint, "", "{args:?}");
        said.text()
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.good(args)).unwrap()
    }

    /// Runs a program that makes images. The test fails if the program is missing or fails.
    pub fn tool(&self, program: &str, args: &str) {
        let output = Command::new("timeout")
            .args(["60", program])
            .args(args.split_whitespace())
            .current_dir(self.path(""))
            .env("LC_ALL", "C.UTF-8")
            .output()
            .unwrap_or_else(|error| panic!("{program} cannot be run (see .ci/run): {error}"));
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args}: {stderr}");
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Exchanges bytes of an image for as many others, everywhere.
    pub fn patch(&self, image: &str, from: &[u8], to: &[u8]) {
        assert_eq!(from.len(), to.len());
        let mut bytes = fs::read(self.path(image)).unwrap();
        let places = find(&bytes, from);
        assert!(!places.is_empty(), "{} is not there", from.escape_ascii());
        for place in places {
            bytes[place..place + to.len()].copy_from_slice(to);
        }
        fs::write(self.path(image), bytes).unwrap();
    }

    /// A directory that `nobody` can write, and everything above it seen by all.
    pub fn public(&self, name: &str) {
        fs::set_permissions(self.path(""), Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(self.path(name)).unwrap();
        fs::set_permissions(self.path(name), Permissions::from_mode(0o777)).unwrap();
    }
}

pub fn find(bytes: &[u8], what: &[u8]) -> Vec<usize> {
    let windows = bytes.windows(what.len()).enumerate();
    windows
        .filter(|(_, window)| *window == what)
        .map(|(place, _)| place)
        .collect()
}

/// Bytes that do not repeat.
pub fn noise(len: u32) -> Vec<u8> {
    (0..len)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// Makes a tree that both writers and Rock Ridge can store without loss. All times are whole
/// seconds.
fn make_tree(fixture: &Fixture) {
    let top = fixture.path("tree");
    fixture.write("tree/small", "hello\n");
    fixture.write("tree/empty file", "");
    fixture.write("tree/large", noise(3_000_001));
    fixture.write("tree/zeros", vec![0; 300_000]);
    fixture.write("tree/.dot", "hidden\n");
    fixture.write("tree/a/b/c/d/deep", "deep\n");
    fixture.write("tree/gr\u{fc}n \u{65e5}", "unicode\n");
    for odd in [&b"not utf8 \xff\xfe\x80"[..], b"tab\tand\x1b[31m", b"-rf"] {
        fs::write(top.join(OsStr::from_bytes(odd)), odd).unwrap();
    }
    fs::create_dir(top.join("void")).unwrap();
    fs::hard_link(top.join("small"), top.join("a/b/small again")).unwrap();
    fs::hard_link(top.join("small"), top.join("zz third")).unwrap();
    symlink("small", top.join("link")).unwrap();
    symlink("../../small", top.join("a/b/up")).unwrap();
    symlink("/etc/passwd", top.join("a/outside")).unwrap();
    symlink("no/such/thing", top.join("dangling")).unwrap();
    nix::unistd::mkfifo(&top.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    if is_root() {
        let mode = Mode::from_raw_mode(0o666);
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, top.join("null"), FileType::CharacterDevice, mode, null).unwrap();
        std::os::unix::fs::chown(top.join("large"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::lchown(top.join("link"), Some(77), Some(88)).unwrap();
    } else {
        skip(Facility::Root, "the image has no device and no owners");
    }
    for (name, mode) in [
        ("small", 0o4755),
        ("large", 0o2750),
        ("zeros", 0o400),
        ("void", 0o1777),
        ("a/b", 0o555),
        ("a", 0o2700),
    ] {
        fs::set_permissions(top.join(name), Permissions::from_mode(mode)).unwrap();
    }
    for (second, name) in (1_000_000_000..).zip(snapshot(&top).into_keys()) {
        let time = Timespec {
            tv_sec: second,
            tv_nsec: 0,
        };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        let path = top.join(OsStr::from_bytes(&name));
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

const GENISOIMAGE: &str = "-quiet -R -V GENERATED -publisher Somebody";
/// Joliet cannot store names that are not UTF-8.
const JOLIET: &str = "-J -joliet-long -input-charset utf-8 -m not*";
const XORRISO: &str = "-abort_on SORRY -report_about SORRY -outdev x.iso -volid WRITTEN -joliet on -hardlinks on -map tree / -commit";

/// A fixture with a tree, and images of it: `i.iso`, `j.iso` with Joliet names, and `x.iso`.
pub fn images() -> Fixture {
    let fixture = Fixture::new();
    make_tree(&fixture);
    fixture.tool("genisoimage", &format!("{GENISOIMAGE} -o i.iso tree"));
    fixture.tool(
        "genisoimage",
        &format!("{GENISOIMAGE} {JOLIET} -o j.iso tree"),
    );
    fixture.tool("xorriso", XORRISO);
    fixture
}
