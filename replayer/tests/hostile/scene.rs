//! Compiled replays written by hand, and a root with links that lead out of it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use amino_schema::replay::{
    Block, Call, Command, HEAD_LEN, Head, Index, Initial, Lane, Located, Place, Target,
};
use goanna_replayer::Error;
use goanna_replayer::prepare::{Made, prepare};
use goanna_replayer::run::{Options, Reads, Report, Speed, Verify, run};

pub fn command(order: u64, call: Call) -> Command {
    Command {
        call,
        order,
        start_ns: 0,
        duration_ns: 0,
        expected: Some(0),
        is_racy: false,
        waits: Vec::new(),
        targets: Vec::new(),
        numbers: Vec::new(),
        result: None,
        text: None,
        data: None,
    }
}

pub fn place(directory: u32, name: &str) -> Target {
    let name = name.as_bytes().to_vec();
    Target::Place(Place { directory, name })
}

pub fn on(order: u64, call: Call, target: Target, numbers: &[u64]) -> Command {
    Command {
        targets: vec![target],
        numbers: numbers.to_vec(),
        ..command(order, call)
    }
}

/// Writes a compiled replay with these lanes.
pub fn write(path: &Path, mut index: Index, lanes: &[Vec<Command>]) {
    let mut raw = vec![0; HEAD_LEN];
    for lane in lanes {
        let mut block = Block::default();
        for command in lane {
            block.push(command);
        }
        let offset = raw.len() as u64;
        let bytes = block.finish();
        let length = bytes.len() as u32;
        raw.extend(bytes);
        let blocks = vec![Located { offset, length }];
        index.lanes.push(Lane { blocks });
    }
    let index_at = raw.len() as u64;
    let encoded = index.encode();
    raw.extend(&encoded);
    let head = Head {
        index_at,
        index_len: encoded.len() as u64,
        index_sum: crc32c::crc32c(&encoded),
    };
    raw[..HEAD_LEN].copy_from_slice(&head.encode());
    fs::write(path, raw).unwrap();
}

pub fn options(root: &Path) -> Options {
    Options {
        root: root.to_owned(),
        speed: Speed::Fast,
        reads: Reads::Now,
        verify: Verify::Warn,
        until: None,
        only: None,
    }
}

/// A root, and files outside of it that nothing may change.
pub struct Scene {
    scratch: tempfile::TempDir,
}

impl Scene {
    /// A root with links that lead out of it, and the files outside that they lead to.
    pub fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let outside = scratch.path().join("outside");
        let root = scratch.path().join("root");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(outside.join("victims")).unwrap();
        fs::write(outside.join("victim"), "untouched").unwrap();
        fs::write(outside.join("victims/one"), "untouched").unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../outside", root.join("relative")).unwrap();
        symlink(outside.join("victim"), root.join("file")).unwrap();
        Self { scratch }
    }

    pub fn root(&self) -> PathBuf {
        self.scratch.path().join("root")
    }

    /// A path outside of the root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Writes a compiled replay of these commands and runs it.
    pub fn run(&self, index: Index, lanes: &[Vec<Command>]) -> Result<Report, Error> {
        let path = self.compiled(index, lanes);
        run(&path, options(&self.root()))
    }

    /// A compiled replay of these commands.
    pub fn compiled(&self, index: Index, lanes: &[Vec<Command>]) -> PathBuf {
        let path = self.path("compiled");
        write(&path, index, lanes);
        path
    }

    /// Creates `initial` in the root, or returns the error.
    pub fn prepare(&self, initial: Vec<Initial>) -> Result<Made, Error> {
        let index = Index {
            initial,
            ..index(&[])
        };
        prepare(&self.compiled(index, &[]), &self.root(), None)
    }

    pub fn assert_untouched(&self) {
        let outside = self.path("outside");
        let mut names: Vec<_> = fs::read_dir(&outside)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["victim", "victims"]);
        for name in ["victim", "victims/one"] {
            let path = outside.join(name);
            assert_eq!(fs::read_to_string(&path).unwrap(), "untouched");
            let mode = fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o644);
        }
    }
}

pub fn index(directories: &[&str]) -> Index {
    Index {
        directories: directories
            .iter()
            .map(|it| it.as_bytes().to_vec())
            .collect(),
        slots: 4,
        mappings: 1,
        ..Index::default()
    }
}

pub const CREATE: u64 = (libc::O_CREAT | libc::O_RDWR) as u64;
