//! What the tests share: a caller, and the calls as the monitor makes them.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its part, and fails by panicking"
)]

pub mod user;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use amino_fs::{AminoFs, EngineKind, Options};
use goanna_vfs::{
    CachedContent, Caller, Errno, FileSystem, FsError, Node, OpenFile, Result, Wait, WritePosition,
};

pub fn caller() -> Caller {
    Caller {
        groups: Arc::from([1000]),
        ..Caller::with_ids(1000, 1000)
    }
}

pub fn root() -> Caller {
    Caller {
        uid: 0,
        gid: 0,
        real_uid: 0,
        real_gid: 0,
        groups: Arc::from([0]),
        caps: u64::MAX,
        real_caps: u64::MAX,
        ..caller()
    }
}

pub fn options(engine: EngineKind) -> Options {
    Options {
        engine: Some(engine),
        create: true,
        ..Options::default()
    }
}

/// A process that another test is just starting holds the store's lock from its fork to its exec.
fn retry_while_locked<T>(mut open: impl FnMut() -> std::result::Result<T, amino_fs::Error>) -> T {
    for _ in 0..200 {
        match open() {
            Err(amino_fs::Error::Store(amino_txn::Error::Held { pid, .. }))
                if pid == std::process::id() =>
            {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            other => return other.unwrap(),
        }
    }
    open().unwrap()
}

pub fn open(dir: &Path) -> Arc<AminoFs> {
    open_with(dir, &options(EngineKind::Memory))
}

pub fn open_with(dir: &Path, options: &Options) -> Arc<AminoFs> {
    retry_while_locked(|| AminoFs::open(dir, options.clone()))
}

/// Closes the file system and checks the store.
pub fn close_and_check(fs: Arc<AminoFs>, dir: &Path) {
    fs.close().unwrap();
    drop(fs);
    check(dir);
}

pub fn check(dir: &Path) {
    let report = fsck(dir);
    let findings: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "fsck: {findings:#?}");
}

pub fn fsck(dir: &Path) -> amino_fs::fsck::Report {
    retry_while_locked(|| amino_fs::fsck::fsck(dir, &mut |_| {}))
}

/// An open file: what a tracee's descriptor is.
pub struct Handle {
    pub node: Node,
    pub fd: OwnedFd,
    pub flags: i32,
}

impl Handle {
    pub fn write(&self, fs: &AminoFs, position: WritePosition, data: &[u8]) -> Result<usize> {
        let file = OpenFile {
            node: &self.node,
            ofd: self.fd.as_fd(),
            flags: self.flags,
        };
        fs.write(&caller(), file, position, data)
    }

    pub fn close(self, fs: &AminoFs) {
        drop(self.fd);
        fs.released(&self.node);
    }
}

/// Whether an operation met a lock.
pub fn is_blocked<T>(result: &Result<T>) -> bool {
    matches!(result, Err(FsError::Blocked(_)))
}

/// The wait for the lock that an operation met.
pub fn lock_of<T>(result: Result<T>) -> Wait {
    let lock = match result {
        Err(FsError::Blocked(lock)) => Some(lock),
        _ => None,
    };
    lock.unwrap()
}

/// Walks `path` (components separated by `/`) from the root.
pub fn walk(fs: &AminoFs, path: &str) -> Result<Node> {
    let mut node = fs.root();
    for name in path.split('/').filter(|name| !name.is_empty()) {
        node = fs.lookup(&caller(), &node, name.as_bytes())?;
    }
    Ok(node)
}

/// The directory and the last name of `path`.
pub fn parent<'a>(fs: &AminoFs, path: &'a str) -> Result<(Node, &'a [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = walk(fs, dir)?;
    if !dir.is_dir() {
        return Err(Errno::ENOTDIR.into());
    }
    Ok((dir, name.as_bytes()))
}

pub fn create(fs: &AminoFs, path: &str) -> Result<Handle> {
    let (dir, name) = parent(fs, path)?;
    let flags = libc::O_RDWR;
    let (node, opened) = fs.create(&caller(), &dir, name, 0o644, flags)?;
    let fd = opened.into_fd()?;
    Ok(Handle { node, fd, flags })
}

pub fn open_file(fs: &AminoFs, path: &str, flags: i32) -> Result<Handle> {
    let node = walk(fs, path)?;
    let fd = fs.open(&caller(), &node, flags)?.into_fd()?;
    Ok(Handle { node, fd, flags })
}

pub fn write_file(fs: &AminoFs, path: &str, data: &[u8]) -> Result<()> {
    let handle = match create(fs, path) {
        Err(FsError::Errno(Errno::EEXIST)) => open_file(fs, path, libc::O_RDWR | libc::O_TRUNC)?,
        other => other?,
    };
    assert_eq!(handle.write(fs, WritePosition::Cursor, data)?, data.len());
    handle.close(fs);
    Ok(())
}

/// Reads a file by its content object, as a program would.
pub fn read_file(fs: &AminoFs, path: &str) -> Result<Vec<u8>> {
    let handle = open_file(fs, path, libc::O_RDONLY)?;
    let mut data = Vec::new();
    let mut file = std::fs::File::from(handle.fd.try_clone().unwrap());
    std::io::Read::read_to_end(&mut file, &mut data).unwrap();
    drop(file);
    handle.close(fs);
    Ok(data)
}

/// Reads a file without opening it.
pub fn read_direct(fs: &AminoFs, node: &Node) -> Result<Vec<u8>> {
    let size = fs.getattr(&caller(), node)?.size as usize;
    // More than there is, in pieces that do not match pages.
    let mut data = vec![0xee; size + 100];
    let mut done = 0;
    loop {
        let end = data.len().min(done + 10_007);
        let n = fs.read_at(&caller(), node, done as u64, &mut data[done..end])?;
        if n == 0 {
            break;
        }
        done += n;
    }
    data.truncate(done);
    Ok(data)
}

pub fn list(fs: &AminoFs, dir: &Node) -> Vec<(Vec<u8>, u64, u64)> {
    let mut entries = Vec::new();
    fs.readdir(&caller(), dir, 0, &mut |entry| {
        entries.push((entry.name.to_vec(), entry.ino, entry.cookie));
        true
    })
    .unwrap();
    entries
}

pub fn names(fs: &AminoFs, path: &str) -> Vec<String> {
    let mut names: Vec<_> = list(fs, &walk(fs, path).unwrap())
        .into_iter()
        .map(|(name, _, _)| String::from_utf8(name).unwrap())
        .collect();
    names.sort();
    names
}

/// The bytes of every file of the store's directory, as a crash of the process would leave them: what was written,
/// synced or not.
pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            // The engine deletes files of its own while we copy.
            let _ = std::fs::copy(entry.path(), target);
        }
    }
}
