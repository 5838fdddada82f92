//! A directory with a store, and programs run in it; a tree with everything that a copy can get wrong, and a way to
//! compare two trees in every detail.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_skip::{Facility, skip};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// A directory of its own for a test.
pub struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `program`, to be run in the directory, on the store there.
    pub fn program(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(args)
            .env("AMINO_STORE", self.path("store"))
            .current_dir(self.dir.path());
        command
    }
}

/// Whether the test runs as root, which may make devices and change owners.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn name(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn times(path: &Path, atime: (i64, i64), mtime: (i64, i64)) {
    let spec = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: spec(atime),
        last_modification: spec(mtime),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Builds the tree in `top`, which does not exist.
pub fn build(top: &Path) {
    fs::create_dir(top).unwrap();
    let at = |bytes: &[u8]| top.join(OsStr::from_bytes(bytes));
    files(top);
    fs::hard_link(at(b"empty file"), at(b"zz second name")).unwrap();
    fs::create_dir_all(at(b"deep/er/est")).unwrap();
    fs::create_dir(at(b"empty")).unwrap();
    fs::hard_link(at(b"small"), at(b"deep/er/small again")).unwrap();
    fs::hard_link(at(b"small"), at(b"deep/small")).unwrap();
    symlink("small", at(b"link")).unwrap();
    symlink("nowhere/at/all", at(b"dangling")).unwrap();
    symlink("loop b", at(b"loop a")).unwrap();
    symlink("loop a", at(b"loop b")).unwrap();
    symlink(".", at(b"deep/self")).unwrap();
    symlink("/etc/passwd", at(b"deep/outside")).unwrap();
    symlink(name(b"\xff\n"), at(b"bytes \xfe link")).unwrap();
    symlink("x".repeat(4095), at(b"long target")).unwrap();
    rustix::fs::mknodat(
        CWD,
        at(b"fifo"),
        FileType::Fifo,
        Mode::from_raw_mode(0o640),
        0,
    )
    .unwrap();
    drop(std::os::unix::net::UnixListener::bind(at(b"sock")).unwrap());
    attributes(top);
}

fn files(top: &Path) {
    let at = |bytes: &[u8]| top.join(OsStr::from_bytes(bytes));
    fs::write(at(b"small"), "hello\n").unwrap();
    fs::write(at(b"empty file"), "").unwrap();
    fs::write(at(b"zeros"), vec![0; 300_000]).unwrap();
    let pattern: Vec<u8> = (0..3_000_001_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(at(b"large"), pattern).unwrap();
    fs::write(at(b"page"), vec![7; 4096]).unwrap();
    fs::write(at(b"page and one"), vec![8; 4097]).unwrap();
    for odd in [
        &b"not utf8 \xff\xfe\x80"[..],
        b"line\nbreak",
        b"tab\tand\x1b[31mcolour",
        b"-rf",
        b" ",
        b"*?[]{}$'\"\\`",
        &[b'n'; 255],
        &[0xff; 255],
        "gr\u{fc}n \u{1f980}".as_bytes(),
        b"...",
    ] {
        fs::write(at(odd), odd).unwrap();
    }
    let mut sparse = File::create(at(b"sparse")).unwrap();
    sparse.seek(SeekFrom::Start(5 << 20)).unwrap();
    sparse.write_all(b"data in the middle").unwrap();
    sparse.set_len(64 << 20).unwrap();
    File::create(at(b"hole only"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let mut many = at(b"path longer than PATH_MAX");
    fs::create_dir(&many).unwrap();
    // One level at a time: no path here may be longer than PATH_MAX, but the one from the top is.
    let mut dir = rustix::fs::open(&many, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..24 {
        let step = "d".repeat(200);
        rustix::fs::mkdirat(&dir, &*step, Mode::RWXU).unwrap();
        dir =
            rustix::fs::openat(&dir, &*step, rustix::fs::OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    many.push("beside");
    fs::write(many, "beside").unwrap();
}

fn attributes(top: &Path) {
    let at = |bytes: &[u8]| top.join(OsStr::from_bytes(bytes));
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
    };
    set(&at(b"small"), "user.colour", b"blue\0and\xff").unwrap();
    set(&at(b"small"), "user.empty", b"").unwrap();
    set(&at(b"empty"), "user.dir", &[b'v'; 1000]).unwrap();
    if is_root() {
        set(&at(b"link"), "trusted.of.link", b"t").unwrap();
        let null = rustix::fs::makedev(1, 3);
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(CWD, at(b"null"), FileType::CharacterDevice, mode, null).unwrap();
        let disk = rustix::fs::makedev(259, 70_000);
        rustix::fs::mknodat(CWD, at(b"disk"), FileType::BlockDevice, mode, disk).unwrap();
        std::os::unix::fs::chown(at(b"page"), Some(1234), Some(4321)).unwrap();
        std::os::unix::fs::lchown(at(b"link"), Some(77), Some(88)).unwrap();
        std::os::unix::fs::chown(at(b"empty"), Some(1), Some(2)).unwrap();
    } else {
        skip(
            Facility::Root,
            "the tree has no devices, owners and trusted attributes",
        );
    }
    for (path, mode) in [
        (&b"small"[..], 0o4751),
        (b"page", 0o2755),
        (b"zeros", 0o400),
        (b"empty file", 0o600),
        (b"empty", 0o1777),
        (b"deep/er", 0o500),
        (b"deep", 0o2755),
    ] {
        fs::set_permissions(at(path), Permissions::from_mode(mode)).unwrap();
    }
    times(&at(b"small"), (1, 2), (1_000_000_000, 123_456_789));
    times(&at(b"page"), (-1, 999_999_999), (-86_400, 1));
    times(&at(b"link"), (5, 6), (4_000_000_000, 7));
    times(&at(b"deep/er"), (8, 9), (10, 11));
    times(&at(b"empty"), (12, 13), (14, 15));
    times(&at(b"fifo"), (16, 17), (18, 19));
    times(top, (20, 21), (22, 23));
}

/// Every detail of a tree, one line a name. Access times are left out: reading changes them.
pub fn snapshot(top: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut found = BTreeMap::new();
    let mut first_names = HashMap::new();
    let mut stack = vec![PathBuf::new()];
    while let Some(relative) = stack.pop() {
        let path = top.join(&relative);
        // The tree that is too deep for a path is compared as far as a path reaches.
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            let mut below: Vec<PathBuf> = fs::read_dir(&path)
                .unwrap()
                .map(|entry| relative.join(entry.unwrap().file_name()))
                .collect();
            below.sort();
            below.reverse();
            stack.extend(below);
        }
        found.insert(
            relative.as_os_str().as_bytes().to_vec(),
            describe(&path, &meta),
        );
        first_names
            .entry(meta.ino())
            .or_insert_with(Vec::new)
            .push(relative);
    }
    for names in first_names.into_values().filter(|names| names.len() > 1) {
        let all = format!(" same as {names:?}");
        for name in names {
            found
                .get_mut(name.as_os_str().as_bytes())
                .unwrap()
                .push_str(&all);
        }
    }
    found
}

fn describe(path: &Path, meta: &fs::Metadata) -> String {
    let mut line = format!("{:06o} {}:{}", meta.mode(), meta.uid(), meta.gid());
    let _ = write!(line, " mtime {}.{:09}", meta.mtime(), meta.mtime_nsec());
    let kind = meta.file_type();
    if !meta.is_dir() {
        let _ = write!(line, " links {}", meta.nlink());
    }
    if kind.is_symlink() {
        let _ = write!(line, " -> {:?}", fs::read_link(path).unwrap());
    }
    if kind.is_char_device() || kind.is_block_device() {
        let _ = write!(line, " rdev {}", meta.rdev());
    }
    if kind.is_file() {
        let mut hasher = DefaultHasher::new();
        fs::read(path).unwrap().hash(&mut hasher);
        let _ = write!(line, " size {} hash {:x}", meta.len(), hasher.finish());
    }
    let mut names = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let mut names: Vec<&[u8]> = names[..length]
        .split(|&b| b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    names.sort_unstable();
    for name in names {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        let _ = write!(
            line,
            " {}={:?}",
            String::from_utf8_lossy(name),
            &value[..length]
        );
    }
    line
}

/// Fails with the lines that differ.
pub fn assert_same(left: &Path, right: &Path) {
    let (a, b) = (snapshot(left), snapshot(right));
    let mut text = String::new();
    let names: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    for name in names {
        if a.get(name) != b.get(name) {
            let none = "nothing".to_owned();
            let _ = writeln!(
                text,
                "{}\n  {}\n  {}",
                name.escape_ascii(),
                a.get(name).unwrap_or(&none),
                b.get(name).unwrap_or(&none)
            );
        }
    }
    assert!(
        text.is_empty(),
        "{} and {} differ:\n{text}",
        left.display(),
        right.display()
    );
}
