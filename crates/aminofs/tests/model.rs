//! Random sequences of operations, on the file system and on a directory of the host: every result, errno for errno, and
//! from time to time everything there is must be equal. The store is closed, checked and opened again now and then.
//!
//! `AMINO_MODEL_STEPS` and `AMINO_MODEL_SEED` change how long and which; with `AMINO_MODEL_VERBOSE=1` every step is printed, and
//! everything compared after each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::*;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{Errno, FileSystem, Result, SetAttr, WritePosition};
use nix::fcntl::{AtFlags, OFlag, RenameFlags, renameat2};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|value| value.parse().ok())
        .unwrap_or(default)
}

fn done(result: std::result::Result<(), Errno>) -> Result<u64> {
    Ok(result.map(|()| 0)?)
}

fn host<T>(result: std::io::Result<T>) -> Result<T> {
    Ok(result.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))?)
}

struct Open {
    ours: Handle,
    theirs: File,
}

/// An operation: what it was, what it returned here and on the host.
type Step = (String, Result<u64>, Result<u64>);

struct World {
    rng: fastrand::Rng,
    store: PathBuf,
    options: Options,
    fs: Arc<AminoFs>,
    host: PathBuf,
    open: Vec<Open>,
}

/// A few names, so that collisions are frequent; two levels of directories.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

impl World {
    fn path(&mut self) -> String {
        let depth = self.rng.usize(1..4);
        let parts: Vec<_> = (0..depth)
            .map(|_| NAMES[self.rng.usize(..NAMES.len())])
            .collect();
        parts.join("/")
    }

    fn host_path(&self, path: &str) -> PathBuf {
        self.host.join(path)
    }

    fn data(&mut self) -> Vec<u8> {
        let len = match self.rng.u8(..6) {
            0 => 0,
            1 => self.rng.usize(..20),
            2 => self.rng.usize(..1000),
            3 => self.rng.usize(..20_000),
            4 => self.rng.usize(..70_000),
            _ => 16384,
        };
        let byte = self.rng.u8(..4);
        // Zeros too, which are stored as holes.
        vec![byte; len]
    }

    fn offset(&mut self) -> u64 {
        match self.rng.u8(..5) {
            0 => 0,
            1 => self.rng.u64(..600),
            2 => self.rng.u64(..5) * 16384,
            3 => self.rng.u64(..100_000),
            _ => self.rng.u64(..400_000),
        }
    }

    /// One random operation on both sides; the description and both results.
    fn step(&mut self) -> Step {
        let path = self.path();
        match self.rng.u8(..100) {
            0..12 => self.create(&path),
            12..22 => self.open(&path),
            22..42 => self.write(),
            42..45 => self.close(),
            45..55 => self.mkdir(&path),
            55..60 => self.symlink(&path),
            60..68 => self.unlink(&path),
            68..73 => self.rmdir(&path),
            73..81 => self.link(&path),
            81..92 => self.rename(&path),
            92..96 => self.truncate(&path),
            96..98 => self.chmod(&path),
            98 => ("sync".to_owned(), self.fs.sync(None).map(|()| 0), Ok(0)),
            _ => self.allocate(),
        }
    }

    fn create(&mut self, path: &str) -> Step {
        let ours = create(&self.fs, path);
        let theirs = host(
            File::options()
                .read(true)
                .write(true)
                .create_new(true)
                .open(self.host_path(path)),
        );
        self.opened(format!("create {path}"), ours, theirs)
    }

    fn open(&mut self, path: &str) -> Step {
        let flags = match self.rng.u8(..4) {
            0 => libc::O_TRUNC,
            1 => libc::O_APPEND,
            _ => 0,
        } | libc::O_RDWR;
        let ours = open_file(&self.fs, path, flags);
        let theirs = nix::fcntl::open(
            &self.host_path(path),
            OFlag::from_bits_retain(flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK),
            nix::sys::stat::Mode::empty(),
        );
        // A symbolic link is followed by the layer above.
        let theirs = match theirs {
            Err(Errno::ELOOP) => Err(Errno::ENXIO.into()),
            Err(errno) => Err(errno.into()),
            Ok(fd) => Ok(File::from(fd)),
        };
        self.opened(format!("open {path} {flags:o}"), ours, theirs)
    }

    fn close(&mut self) -> Step {
        if self.open.is_empty() {
            return ("no file".to_owned(), Ok(0), Ok(0));
        }
        let index = self.rng.usize(..self.open.len());
        let file = self.open.swap_remove(index);
        file.ours.close(&self.fs);
        (format!("close {index}"), Ok(0), Ok(0))
    }

    fn mkdir(&self, path: &str) -> Step {
        let ours = parent(&self.fs, path)
            .and_then(|(dir, name)| self.fs.mkdir(&root(), &dir, name, 0o755));
        let theirs = host(fs::create_dir(self.host_path(path)));
        (format!("mkdir {path}"), ours.map(|_| 0), theirs.map(|()| 0))
    }

    fn symlink(&self, path: &str) -> Step {
        let ours = parent(&self.fs, path)
            .and_then(|(dir, name)| self.fs.symlink(&root(), &dir, name, b"/dev/null"));
        let theirs = host(std::os::unix::fs::symlink(
            "/dev/null",
            self.host_path(path),
        ));
        (
            format!("symlink {path}"),
            ours.map(|_| 0),
            theirs.map(|()| 0),
        )
    }

    fn unlink(&self, path: &str) -> Step {
        let ours =
            parent(&self.fs, path).and_then(|(dir, name)| self.fs.unlink(&root(), &dir, name));
        let theirs = nix::unistd::unlink(&self.host_path(path));
        (format!("unlink {path}"), ours.map(|()| 0), done(theirs))
    }

    fn rmdir(&self, path: &str) -> Step {
        let ours =
            parent(&self.fs, path).and_then(|(dir, name)| self.fs.rmdir(&root(), &dir, name));
        let theirs = host(fs::remove_dir(self.host_path(path)));
        (
            format!("rmdir {path}"),
            ours.map(|()| 0),
            theirs.map(|()| 0),
        )
    }

    fn link(&mut self, path: &str) -> Step {
        let to = self.path();
        let ours = walk(&self.fs, path).and_then(|node| {
            let (dir, name) = parent(&self.fs, &to)?;
            self.fs.link(&root(), &node, &dir, name)
        });
        let theirs = nix::unistd::linkat(
            nix::fcntl::AT_FDCWD,
            &self.host_path(path),
            nix::fcntl::AT_FDCWD,
            &self.host_path(&to),
            AtFlags::empty(),
        );
        // Which of two applicable errors comes first is the layer's above.
        let both = match (ours, theirs) {
            (Err(_), Err(_)) => (Ok(0), Ok(0)),
            (ours, theirs) => (ours.map(|()| 0), done(theirs)),
        };
        (format!("link {path} {to}"), both.0, both.1)
    }

    fn truncate(&mut self, path: &str) -> Step {
        let size = self.offset();
        let there = self.host_path(path);
        let ours = walk(&self.fs, path).and_then(|node| self.fs.truncate(&root(), &node, size));
        let theirs = if fs::symlink_metadata(&there).is_ok_and(|m| m.is_symlink()) {
            Err(Errno::EINVAL)
        } else {
            nix::unistd::truncate(&there, size as i64)
        };
        (
            format!("truncate {path} {size}"),
            ours.map(|()| 0),
            done(theirs),
        )
    }

    fn chmod(&mut self, path: &str) -> Step {
        let mode = self.rng.u32(..0o1000) | 0o600;
        let there = self.host_path(path);
        if fs::symlink_metadata(&there).is_ok_and(|m| m.is_symlink()) {
            return ("chmod of a link".to_owned(), Ok(0), Ok(0));
        }
        let mode = if there.is_dir() { mode | 0o700 } else { mode };
        let set = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        let ours = walk(&self.fs, path).and_then(|node| self.fs.setattr(&root(), &node, &set));
        let permissions = fs::Permissions::from_mode(mode);
        let theirs = host(fs::set_permissions(&there, permissions));
        (
            format!("chmod {path} {mode:o}"),
            ours.map(|()| 0),
            theirs.map(|()| 0),
        )
    }

    fn opened(&mut self, what: String, ours: Result<Handle>, theirs: Result<File>) -> Step {
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                self.open.push(Open { ours, theirs });
                if self.open.len() > 12 {
                    self.open.remove(0).ours.close(&self.fs);
                }
                (what, Ok(0), Ok(0))
            }
            (ours, theirs) => (what, ours.map(|_| 0), theirs.map(|_| 0)),
        }
    }

    fn write(&mut self) -> Step {
        let (data, offset) = (self.data(), self.offset());
        if self.open.is_empty() {
            return ("no file".to_owned(), Ok(0), Ok(0));
        }
        let index = self.rng.usize(..self.open.len());
        let at = self.rng.bool();
        let file = &self.open[index];
        let position = if at {
            WritePosition::At(offset)
        } else {
            WritePosition::Cursor
        };
        let ours = file.ours.write(&self.fs, position, &data);
        let theirs = if at {
            file.theirs.write_at(&data, offset)
        } else {
            nix::unistd::write(file.theirs.as_fd(), &data).map_err(Into::into)
        };
        let what = format!("write {index} {position:?} {}", data.len());
        (what, ours.map(|n| n as u64), host(theirs).map(|n| n as u64))
    }

    fn allocate(&mut self) -> Step {
        if self.open.is_empty() {
            return ("no file".to_owned(), Ok(0), Ok(0));
        }
        let index = self.rng.usize(..self.open.len());
        let modes = [
            0,
            libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            libc::FALLOC_FL_ZERO_RANGE,
        ];
        let mode = modes[self.rng.usize(..modes.len())];
        let (offset, len) = (self.offset(), self.offset());
        let file = &self.open[index];
        let ours = self
            .fs
            .fallocate(&root(), &file.ours.node, mode, offset, len);
        let theirs = nix::fcntl::fallocate(
            &file.theirs,
            nix::fcntl::FallocateFlags::from_bits_retain(mode),
            offset as i64,
            len as i64,
        );
        let what = format!("fallocate {index} {mode} {offset} {len}");
        if theirs == Err(Errno::EOPNOTSUPP) && ours.is_ok() {
            // The host's file system lacks the mode: do by hand what it means.
            let size = file.theirs.metadata().unwrap().len();
            let end = (offset + len).min(size);
            if mode != libc::FALLOC_FL_KEEP_SIZE && mode != 0 && end > offset {
                let zeros = vec![0; (end - offset) as usize];
                // Through a description without O_APPEND.
                let path = format!(
                    "/proc/self/fd/{}",
                    std::os::fd::AsRawFd::as_raw_fd(&file.theirs)
                );
                let plain = File::options().write(true).open(path).unwrap();
                plain.write_all_at(&zeros, offset).unwrap();
            }
            if mode & libc::FALLOC_FL_KEEP_SIZE == 0 && offset + len > size {
                file.theirs.set_len(offset + len).unwrap();
            }
            return (what, Ok(0), Ok(0));
        }
        (what, ours.map(|()| 0), done(theirs))
    }

    fn rename(&mut self, from: &str) -> Step {
        let to = self.path();
        let flags = match self.rng.u8(..6) {
            0 => libc::RENAME_NOREPLACE,
            1 => libc::RENAME_EXCHANGE,
            _ => 0,
        };
        let ours = parent(&self.fs, from).and_then(|(from_dir, name)| {
            let (to_dir, to_name) = parent(&self.fs, &to)?;
            self.fs
                .rename(&root(), &from_dir, name, &to_dir, to_name, flags)
        });
        let cwd = nix::fcntl::AT_FDCWD;
        let theirs = renameat2(
            cwd,
            &self.host_path(from),
            cwd,
            &self.host_path(&to),
            RenameFlags::from_bits_retain(flags),
        );
        let what = format!("rename {from} {to} {flags}");
        (what, ours.map(|()| 0), done(theirs))
    }

    /// Everything below a directory on both sides is equal.
    fn compare(&self, path: &str, inos: &mut BTreeMap<u64, u64>) {
        let node = walk(&self.fs, path).unwrap();
        let there = self.host_path(path);
        let mut theirs: Vec<_> = fs::read_dir(&there)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        theirs.sort();
        assert_eq!(names(&self.fs, path), theirs, "names in {path}");
        let _ = node;
        for name in theirs {
            let path = if path.is_empty() {
                name
            } else {
                format!("{path}/{name}")
            };
            let node = walk(&self.fs, &path).unwrap();
            let attr = self.fs.getattr(&root(), &node).unwrap();
            let meta = fs::symlink_metadata(self.host_path(&path)).unwrap();
            assert_eq!(attr.mode, meta.mode(), "mode of {path}");
            assert_eq!(u64::from(attr.nlink), meta.nlink(), "links of {path}");
            // Names of one file here are names of one file there.
            assert_eq!(
                *inos.entry(attr.ino).or_insert(meta.ino()),
                meta.ino(),
                "identity of {path}"
            );
            if meta.is_dir() {
                self.compare(&path, inos);
            } else {
                assert_eq!(attr.size, meta.len(), "size of {path}");
            }
            if meta.is_file() {
                let theirs = fs::read(self.host_path(&path)).unwrap();
                assert!(
                    read_direct(&self.fs, &node).unwrap() == theirs,
                    "content of {path}"
                );
                assert!(
                    read_file(&self.fs, &path).unwrap() == theirs,
                    "opened content of {path}"
                );
            }
        }
    }

    fn compare_open(&self) {
        for file in &self.open {
            let attr = self.fs.getattr(&root(), &file.ours.node).unwrap();
            let meta = file.theirs.metadata().unwrap();
            assert_eq!(
                (attr.size, u64::from(attr.nlink)),
                (meta.len(), meta.nlink())
            );
            let mut theirs = vec![0; meta.len() as usize];
            let mut ours = theirs.clone();
            file.theirs.read_exact_at(&mut theirs, 0).unwrap();
            File::from(file.ours.fd.try_clone().unwrap())
                .read_exact_at(&mut ours, 0)
                .unwrap();
            assert!(ours == theirs, "content of an open file");
        }
    }

    fn reopen(&mut self) {
        self.open.clear();
        self.fs.close().unwrap();
        self.fs = {
            let empty = tempfile::tempdir().unwrap();
            let other = open(&empty.path().join("other"));
            let old = std::mem::replace(&mut self.fs, other);
            drop(old);
            check(&self.store);
            AminoFs::open(&self.store, self.options.clone()).unwrap()
        };
    }
}

fn run(options: Options, seed: u64, steps: u64) {
    let dir = tempfile::tempdir().unwrap();
    let (store, host) = (dir.path().join("store"), dir.path().join("host"));
    fs::create_dir(&host).unwrap();
    let fs = AminoFs::open(&store, options.clone()).unwrap();
    let mut world = World {
        rng: fastrand::Rng::with_seed(seed),
        store: store.clone(),
        options,
        fs,
        host,
        open: Vec::new(),
    };
    let verbose = env("AMINO_MODEL_VERBOSE", 0) != 0;
    for step in 0..steps {
        let (what, ours, theirs) = world.step();
        assert_eq!(ours, theirs, "seed {seed} step {step}: {what}");
        if verbose {
            eprintln!("{step}: {what}: {ours:?}");
            world.compare("", &mut BTreeMap::new());
        }
        if step % 97 == 0 {
            world.compare_open();
        }
        if step % 397 == 0 {
            world.compare("", &mut BTreeMap::new());
        }
        if world.rng.u64(..700) == 0 {
            world.reopen();
            world.compare("", &mut BTreeMap::new());
        }
    }
    world.compare_open();
    world.compare("", &mut BTreeMap::new());
    world.reopen();
    world.compare("", &mut BTreeMap::new());
    let World { fs, open, .. } = world;
    drop(open);
    close_and_check(fs, Path::new(&store));
}

#[test]
fn as_the_host_in_memory_engine() {
    let steps = env("AMINO_MODEL_STEPS", 4000);
    let seed = env("AMINO_MODEL_SEED", 1);
    for seed in seed..seed + 3 {
        run(options(EngineKind::Memory), seed, steps);
    }
}

#[test]
fn as_the_host_in_fjall() {
    let steps = env("AMINO_MODEL_STEPS", 4000);
    let seed = env("AMINO_MODEL_SEED", 100);
    run(options(EngineKind::Fjall), seed, steps);
}

#[test]
fn as_the_host_in_sled() {
    let steps = env("AMINO_MODEL_STEPS", 4000) / 3;
    let seed = env("AMINO_MODEL_SEED", 300);
    run(options(EngineKind::Sled), seed, steps);
}

/// Everything is dropped and loaded all the time, and contents are host files.
#[test]
fn as_the_host_with_hardly_any_memory() {
    let steps = env("AMINO_MODEL_STEPS", 4000);
    let tight = Options {
        dentries: 1,
        idle_files: 1,
        large_file_bytes: 10_000,
        ..options(EngineKind::Memory)
    };
    run(tight, env("AMINO_MODEL_SEED", 200), steps);
}
