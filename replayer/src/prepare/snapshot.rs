//! Copies the initial state from a directory that is as the traced directory was before the trace.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use amino_schema::replay::Index;
use goanna_sys::Errno;
use goanna_sys::escape::escape;
use goanna_sys::replay as sys;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::Made;
use super::check::missing;
use super::make::{at, set_attribute, set_owner};
use crate::Error;

/// Bytes that are copied at a time.
const PIECE: usize = 1 << 20;
/// Longest list of the names of a file's extended attributes (`XATTR_LIST_MAX`), and longest value.
const MAX_ATTRIBUTES: usize = 64 << 10;

/// A directory to copy.
#[derive(Debug)]
pub struct Snapshot {
    directory: PathBuf,
    files: Vec<Entry>,
    /// Bytes of all regular files.
    pub bytes: u64,
}

#[derive(Debug)]
struct Entry {
    /// Its path relative to the snapshot.
    path: Vec<u8>,
    metadata: Metadata,
}

impl Snapshot {
    /// Lists the files of `directory`.
    ///
    /// # Errors
    ///
    /// [`Error::Snapshot`] if a file that the replay needs is not there, or `root` is in `directory`.
    pub fn open(index: &Index, directory: &Path, root: &Path) -> Result<Self, Error> {
        let failed = |why| Error::file(directory, why);
        let opened = File::open(directory).map_err(failed)?;
        let missing = missing(index, opened.as_raw_fd())?;
        if !missing.is_empty() {
            return Err(Error::Snapshot {
                directory: directory.to_owned(),
                missing,
            });
        }
        let own = directory.canonicalize().map_err(failed)?;
        let is_within = root
            .ancestors()
            .find_map(|path| path.canonicalize().ok())
            .is_some_and(|root| root.starts_with(&own));
        if is_within {
            let why = io::Error::other("the root is in the snapshot");
            return Err(failed(why));
        }
        let mut snapshot = Self {
            directory: own.clone(),
            files: Vec::new(),
            bytes: 0,
        };
        snapshot.list(&own).map_err(failed)?;
        Ok(snapshot)
    }

    /// Lists everything below the snapshot, directories before what is in them.
    fn list(&mut self, top: &Path) -> io::Result<()> {
        let mut pending = vec![top.to_owned()];
        let mut counted = HashSet::new();
        while let Some(directory) = pending.pop() {
            for entry in fs::read_dir(&directory)? {
                let path = entry?.path();
                let metadata = path.symlink_metadata()?;
                if metadata.is_dir() {
                    pending.push(path.clone());
                }
                if metadata.is_file() && counted.insert((metadata.dev(), metadata.ino())) {
                    self.bytes = self.bytes.saturating_add(metadata.blocks() * 512);
                }
                let relative = path.strip_prefix(top).unwrap_or(&path);
                self.files.push(Entry {
                    path: relative.as_os_str().as_bytes().to_vec(),
                    metadata,
                });
            }
        }
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(())
    }

    /// The files of the snapshot that have another type below `root`.
    pub fn conflicts(&self, root: i32) -> Result<Vec<String>, Error> {
        let mut conflicts = Vec::new();
        for entry in &self.files {
            match found(root, entry) {
                Ok(_) => {}
                Err(why) => conflicts.push(format!("{} ({why})", escape(&entry.path))),
            }
        }
        Ok(conflicts)
    }

    /// Copies all files that are not there.
    pub fn copy(&self, root: &File) -> Result<Made, Error> {
        let mut made = Made::default();
        let mut names: HashMap<(u64, u64), &[u8]> = HashMap::new();
        let mut directories = Vec::new();
        let root_fd = root.as_raw_fd();
        for entry in &self.files {
            let failed = |why| Error::Place {
                path: entry.path.clone(),
                why,
            };
            let key = (entry.metadata.dev(), entry.metadata.ino());
            let first = match entry.metadata.is_dir() {
                true => None,
                false => names.insert(key, &entry.path),
            };
            if found(root_fd, entry).map_err(failed)? {
                made.present += 1;
                continue;
            }
            if let Some(first) = first {
                link(root_fd, first, &entry.path).map_err(failed)?;
                made.files += 1;
                continue;
            }
            let kind = entry.metadata.file_type();
            if kind.is_block_device() || kind.is_char_device() || kind.is_socket() {
                made.skipped_files += 1;
                continue;
            }
            self.create(root, entry, &mut made)?;
            made.files += 1;
            match kind.is_dir() {
                true => directories.push(entry),
                false => attributes(root_fd, entry).map_err(failed)?,
            }
        }
        // Directories last: files cannot be created in a directory without write permission, and new entries
        // change its times.
        for entry in directories.into_iter().rev() {
            attributes(root_fd, entry).map_err(|why| Error::Place {
                path: entry.path.clone(),
                why,
            })?;
        }
        Ok(made)
    }

    /// Creates a file with content, owner and extended attributes.
    fn create(&self, root: &File, entry: &Entry, made: &mut Made) -> Result<(), Error> {
        let failed = |why| Error::Place {
            path: entry.path.clone(),
            why,
        };
        let source = self.source(entry);
        let kind = entry.metadata.file_type();
        let root_fd = root.as_raw_fd();
        if kind.is_file() {
            self.content(root, entry, made)
                .map_err(|why| Error::file(&source, why))?;
        } else {
            let target = match kind.is_symlink() {
                true => fs::read_link(&source).map_err(|why| Error::file(&source, why))?,
                false => PathBuf::new(),
            };
            let target = CString::new(target.as_os_str().as_bytes());
            let target = target.map_err(|_| failed(Errno::EINVAL))?;
            let created = at(root_fd, &entry.path, |directory, name| {
                if kind.is_dir() {
                    sys::mkdir(directory, name, 0o700)
                } else if kind.is_symlink() {
                    sys::symlink(&target, directory, name)
                } else {
                    sys::mknod(directory, name, libc::S_IFIFO | 0o600)
                }
            });
            created.map_err(failed)?;
        }
        let owner = (entry.metadata.uid(), entry.metadata.gid());
        let set = at(root_fd, &entry.path, |directory, name| {
            set_owner(directory, name, owner, made)
        });
        set.map_err(failed)?;
        if kind.is_file() || kind.is_dir() {
            let listed = extended(&source).map_err(|why| Error::file(&source, why.into()))?;
            for (name, value) in listed {
                set_attribute(root_fd, &entry.path, &name, &value, made).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn source(&self, entry: &Entry) -> PathBuf {
        self.directory
            .join(std::ffi::OsStr::from_bytes(&entry.path))
    }

    /// Copies the content of a regular file. Holes stay holes.
    fn content(&self, root: &File, entry: &Entry, made: &mut Made) -> io::Result<()> {
        let how = OpenHow::new()
            .flags(OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC)
            .mode(Mode::from_bits_truncate(0o600))
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let to = openat2(root.as_fd(), entry.path.as_slice(), how)?;
        let mut to = File::from(to);
        let mut from = File::open(self.source(entry))?;
        let mut piece = vec![0; PIECE];
        let mut at = 0u64;
        loop {
            let length = from.read(&mut piece)?;
            let bytes = piece.get(..length).unwrap_or_default();
            if bytes.is_empty() {
                break;
            }
            match bytes.iter().all(|byte| *byte == 0) {
                true => drop(to.seek(SeekFrom::Current(length as i64))?),
                false => to.write_all(bytes)?,
            }
            at += length as u64;
        }
        made.bytes += at;
        made.known += at;
        to.set_len(at)
    }
}

/// Whether an entry is below `root`. It is an error if a file of another type is there.
fn found(root: i32, entry: &Entry) -> Result<bool, Errno> {
    let found = at(root, &entry.path, |directory, name| {
        sys::stat(directory, name).map(|it| i64::from(it.mode))
    });
    match found {
        Ok(mode) if (mode as u32 ^ entry.metadata.mode()) & libc::S_IFMT == 0 => Ok(true),
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => Ok(false),
        Err(why) => Err(why),
    }
}

fn link(root: i32, first: &[u8], path: &[u8]) -> Result<(), Errno> {
    let linked = at(root, path, |directory, name| {
        at(root, first, |from, old| {
            sys::link((from, old), (directory, name))
        })
    });
    linked.map(drop)
}

/// Sets permission bits and times.
fn attributes(root: i32, entry: &Entry) -> Result<(), Errno> {
    let metadata = &entry.metadata;
    let times = [
        (metadata.atime(), metadata.atime_nsec()),
        (metadata.mtime(), metadata.mtime_nsec()),
    ];
    let set = at(root, &entry.path, |directory, name| {
        if !metadata.is_symlink() {
            sys::chmod(directory, name, metadata.mode() & 0o7777)?;
        }
        sys::utimes(directory, name, Some(times))
    });
    set.map(drop)
}

/// Name and value of an extended attribute.
type Extended = (Vec<u8>, Vec<u8>);

/// The extended attributes of a file that is not a symbolic link.
fn extended(path: &Path) -> Result<Vec<Extended>, Errno> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    let mut buffer = vec![0; MAX_ATTRIBUTES];
    let length = match sys::attribute(&path, sys::Attribute::List(&mut buffer)) {
        Err(Errno::EOPNOTSUPP) => return Ok(Vec::new()),
        length => length?,
    };
    buffer.truncate(usize::try_from(length).unwrap_or(0));
    let names = buffer
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    let mut attributes = Vec::new();
    for name in names {
        let mut value = vec![0; MAX_ATTRIBUTES];
        let text = CString::new(name).map_err(|_| Errno::EINVAL)?;
        let length = sys::attribute(&path, sys::Attribute::Get(&text, &mut value))?;
        value.truncate(usize::try_from(length).unwrap_or(0));
        attributes.push((name.to_vec(), value));
    }
    Ok(attributes)
}
