//! Makes images with the usual programs, and the trees for them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use goanna_isofs::{Entry, Iso, Options};
use goanna_vfs::{FileKind, Stamp};

/// Runs a program to its end; and returns its output. A missing program or a status other than 0 fails the test.
pub fn run(program: &str, args: &[&OsStr]) -> Vec<u8> {
    // genisoimage, for one, never ends for a symbolic link of some lengths.
    let output = Command::new("timeout")
        .args(["200", program])
        .args(args)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be run (see .ci/run): {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    output.stdout
}

/// As [`run`], with arguments in one text, then paths.
pub fn run_with(program: &str, args: &str, paths: &[&Path]) -> Vec<u8> {
    let args = args.split_whitespace().map(OsStr::new);
    let paths = paths.iter().map(|path| path.as_os_str());
    run(program, &args.chain(paths).collect::<Vec<_>>())
}

/// `genisoimage ARGS -o IMAGE TREE`
pub fn genisoimage(args: &str, image: &Path, tree: &Path) {
    let charset = if args.contains("-J") {
        "-input-charset utf-8"
    } else {
        ""
    };
    let args = format!("-quiet {charset} {args} -o");
    run_with("genisoimage", &args, &[image, tree]);
}

/// `xorriso -outdev IMAGE ARGS -map TREE / AFTER -commit`
pub fn xorriso(args: &str, image: &Path, tree: &Path, after: &str) {
    let words = |text: &'static str| text.split_whitespace().map(OsStr::new);
    let mut all: Vec<&OsStr> = words("-abort_on SORRY -report_about SORRY -outdev").collect();
    all.push(image.as_os_str());
    all.extend(args.split_whitespace().map(OsStr::new));
    all.extend([OsStr::new("-map"), tree.as_os_str(), OsStr::new("/")]);
    all.extend(after.split_whitespace().map(OsStr::new));
    all.push(OsStr::new("-commit"));
    run("xorriso", &all);
}

/// As [`xorriso`], but zeros in the image become holes while it is written, so that an image of gigabytes takes no space.
pub fn xorriso_sparse(image: &Path, tree: &Path) {
    let script = "set -o pipefail; xorriso -abort_on SORRY -report_about SORRY -outdev - -map \"$1\" / -commit \
        | dd conv=sparse bs=1M iflag=fullblock status=none of=\"$0\"";
    let words = ["-c".as_ref(), script.as_ref()];
    run(
        "bash",
        &[&words[..], &[image.as_os_str(), tree.as_os_str()]].concat(),
    );
}

/// Bytes that differ everywhere, and neither compress to nothing nor repeat.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let words = (0..len).map(|_| random.u8(b'a'..b'q'));
    words.collect()
}

/// Makes a tree with files of all kinds.
pub fn make_tree(top: &Path) {
    let write = |name: &str, content: &[u8]| {
        let path = top.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    };
    write("readme.txt", b"hello\n");
    write("empty", b"");
    write("large.bin", &bytes(300_001, 1));
    write("zeros", &[0; 200_000]);
    write("one-sector", &bytes(2048, 2));
    write("dir/sub/file", b"deep\n");
    write("dir/Gr\u{fc}\u{df}e \u{65e5}\u{672c}", b"unicode\n");
    write("1/2/3/4/5/6/7/8/9/10/bottom", b"relocated\n");
    write("1/2/3/4/5/6/7/8/side/x", b"relocated too\n");
    write(&"n".repeat(248), b"a long name\n");
    write("prog", b"#!/bin/sh\necho run\n");
    fs::create_dir(top.join("void")).unwrap();
    for n in 0..120 {
        write(
            &format!("many/file number {n:04}"),
            format!("{n}\n").as_bytes(),
        );
    }
    fs::hard_link(top.join("readme.txt"), top.join("dir/hard")).unwrap();
    let long_target = format!("{}end", "some/where/".repeat(15));
    let links: [(&str, &str); 5] = [
        ("link", "readme.txt"),
        ("dir/up", "../readme.txt"),
        ("dir/absolute", "/etc/./passwd"),
        ("dangling", "no/such/thing"),
        ("dir/long", &long_target),
    ];
    for (name, target) in links {
        symlink(target, top.join(name)).unwrap();
    }
    nix::unistd::mkfifo(
        &top.join("fifo"),
        nix::sys::stat::Mode::from_bits_truncate(0o640),
    )
    .unwrap();
    for (name, mode) in [
        ("prog", 0o755),
        ("dir", 0o750),
        ("large.bin", 0o600),
        ("void", 0o1777),
    ] {
        fs::set_permissions(top.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400 * 365 * 30);
    let file = fs::File::open(top.join("readme.txt")).unwrap();
    file.set_modified(old).unwrap();
}

/// The compared metadata of a file.
pub struct Compared {
    /// Modes, owners, kinds other than file and directory.
    pub posix: bool,
    /// Link counts of files.
    pub links: bool,
}

pub const ALL: Compared = Compared {
    posix: true,
    links: true,
};

/// Compares a directory of the image with one of the host, and all below.
pub fn same(iso: &Iso, entry: &std::sync::Arc<Entry>, host: &Path, compared: &Compared) {
    let meta = fs::symlink_metadata(host).unwrap();
    let shown = host.display();
    if compared.posix {
        assert_eq!(entry.mode, meta.mode(), "mode of {shown}");
        assert_eq!(
            (entry.uid, entry.gid),
            (meta.uid(), meta.gid()),
            "owner of {shown}"
        );
        let kind = FileKind::from_mode(meta.mode()).unwrap();
        assert_eq!(entry.kind, kind, "{shown}");
        if compared.links && kind != FileKind::Directory {
            assert_eq!(u64::from(entry.nlink), meta.nlink(), "links of {shown}");
        }
    }
    // The root has the times of the image's creation.
    if entry.parent().is_some() && compared.posix {
        assert_eq!(entry.mtime.sec, meta.mtime(), "time of {shown}");
    }
    match entry.kind {
        FileKind::Regular => {
            let expected = fs::read(host).unwrap();
            assert_eq!(entry.size, expected.len() as u64, "size of {shown}");
            let mut read = vec![0; expected.len()];
            iso.check_content(entry).unwrap();
            assert_eq!(iso.read_at(entry, 0, &mut read).unwrap(), read.len());
            assert!(read == expected, "content of {shown}");
            assert_eq!(iso.read_at(entry, entry.size, &mut [0; 9]).unwrap(), 0);
        }
        FileKind::Symlink => {
            let target = fs::read_link(host).unwrap();
            let read = iso.readlink(entry).unwrap();
            assert_eq!(OsStr::from_bytes(&read), target, "{shown}");
            assert_eq!(entry.size, target.as_os_str().len() as u64, "{shown}");
        }
        FileKind::Directory => {
            let mut expected: Vec<Vec<u8>> = fs::read_dir(host)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().as_bytes().to_vec())
                .collect();
            expected.sort();
            let entries = iso.list(entry).unwrap();
            let mut names: Vec<_> = entries.iter().map(|entry| entry.name.to_vec()).collect();
            let is_moved = |name: &[u8]| matches!(name, b"rr_moved" | b".rr_moved");
            names.retain(|name| !is_moved(name) || entry.parent().is_some());
            names.sort();
            let lossy = |names: &[Vec<u8>]| -> Vec<String> {
                names
                    .iter()
                    .map(|name| name.escape_ascii().to_string())
                    .collect()
            };
            assert_eq!(lossy(&names), lossy(&expected), "names in {shown}");
            for name in expected {
                let child = iso.lookup(entry, &name).unwrap().unwrap();
                same(iso, &child, &host.join(OsStr::from_bytes(&name)), compared);
            }
        }
        _ => {}
    }
}

pub fn open(image: &Path, options: Options) -> Iso {
    Iso::open_file(image, &options).unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// A directory for images, and a tree in it.
pub struct Work {
    pub dir: tempfile::TempDir,
    pub tree: PathBuf,
}

impl Work {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).unwrap();
        Self { dir, tree }
    }

    pub fn full() -> Self {
        let work = Self::new();
        make_tree(&work.tree);
        work
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Adds names that only Rock Ridge can store.
pub fn add_non_utf8(top: &Path) {
    let non_utf8 = top.join(OsStr::from_bytes(b"dir/latin-\xe4\xf6"));
    fs::write(non_utf8, b"latin\n").unwrap();
}

pub fn seconds(stamp: Option<Stamp>) -> i64 {
    stamp.unwrap().sec
}
