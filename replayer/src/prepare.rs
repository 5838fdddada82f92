//! Creates the initial state of a replay below a directory, and lists missing files.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use amino_schema::replay::{Index, Initial, What};
use goanna_sys::Errno;
use goanna_sys::escape::escape;
use goanna_sys::replay::{self as sys, PLAIN, WITHIN};

use crate::Error;
use crate::stored::Stored;

/// Counts of the files that were created.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Files of all types.
    pub files: u64,
    /// Bytes of regular files whose content is known.
    pub known: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Files that were there already, as they should be.
    pub present: u64,
}

/// Longest piece of generated content that is written at a time.
const PIECE: usize = 1 << 20;

/// Makes the initial state of the compiled replay at `path` below `root`.
pub fn prepare(path: &Path, root: &Path) -> Result<Made, Error> {
    let stored = Stored::open(path)?;
    let root = File::open(root).map_err(|why| Error::file(root, why))?;
    check_space(&stored.index, &root)?;
    let root = root.as_raw_fd();
    let mut made = Made::default();
    sys::own_directory().map_err(|why| Error::System {
        what: "unshare",
        why,
    })?;
    let _ = sys::umask(0);
    for file in &stored.index.initial {
        let failed = |why| Error::Place {
            path: file.path.clone(),
            why,
        };
        if is_there(&stored.index, root, file).map_err(failed)? {
            made.present += 1;
            continue;
        }
        make(&stored, root, file, &mut made)?;
        made.files += 1;
    }
    // Directories last: one without the right to write could not be filled.
    for file in stored.index.initial.iter().rev() {
        if let (What::Directory, Some(mode)) = (&file.what, file.mode) {
            let set = at(root, &file.path, |directory, name| {
                sys::chmod(directory, name, mode)
            });
            set.map_err(|why| Error::Place {
                path: file.path.clone(),
                why,
            })?;
        }
    }
    Ok(made)
}

/// Refuses sizes that exceed the free space of the root: a hostile trace can have any size.
fn check_space(index: &Index, root: &File) -> Result<(), Error> {
    let sizes = index.initial.iter().map(|file| file.size);
    let needed = sizes.fold(0u64, u64::saturating_add);
    let found = nix::sys::statvfs::fstatvfs(root).map_err(|why| Error::System {
        what: "the space of the root",
        why,
    })?;
    let free = found
        .blocks_available()
        .saturating_mul(found.fragment_size());
    if needed > free {
        return Err(Error::Space { needed, free });
    }
    Ok(())
}

/// The files that a replay needs below `root` and that are missing or different, each with the reason.
pub fn missing(index: &Index, root: i32) -> Result<Vec<String>, Error> {
    let mut missing = Vec::new();
    for file in &index.initial {
        match is_there(index, root, file) {
            Ok(true) => {}
            Ok(false) => missing.push(escape(&file.path)),
            Err(why) => missing.push(format!("{} ({why})", escape(&file.path))),
        }
    }
    Ok(missing)
}

/// Whether a file is there; an error when another type of file is.
fn is_there(index: &Index, root: i32, file: &Initial) -> Result<bool, Errno> {
    let wanted = match &file.what {
        What::Regular => libc::S_IFREG,
        What::Directory => libc::S_IFDIR,
        What::Symlink(_) => libc::S_IFLNK,
        What::Fifo => libc::S_IFIFO,
        What::Link(first) => {
            let first = index.initial.get(*first as usize);
            return first.map_or(Ok(true), |first| {
                let is_other = matches!(first.what, What::Link(_));
                let found = at(root, &file.path, |directory, name| {
                    sys::stat(directory, name).map(|it| i64::from(it.mode))
                });
                found_or(found.map(|_| ())).map(|found| found || is_other)
            });
        }
    };
    let found = at(root, &file.path, |directory, name| {
        sys::stat(directory, name).map(|it| i64::from(it.mode))
    });
    match found {
        Ok(mode) if mode as u32 & libc::S_IFMT == wanted => Ok(true),
        Ok(_) => Err(Errno::EEXIST),
        Err(why) => found_or(Err(why)),
    }
}

fn found_or(found: Result<(), Errno>) -> Result<bool, Errno> {
    match found {
        Ok(()) => Ok(true),
        Err(Errno::ENOENT) => Ok(false),
        Err(why) => Err(why),
    }
}

/// Performs a call on the directory and the name of `path`, below the root.
fn at(
    root: i32,
    path: &[u8],
    act: impl FnOnce(i32, &std::ffi::CStr) -> Result<i64, Errno>,
) -> Result<i64, Errno> {
    let split = path.iter().rposition(|&byte| byte == b'/');
    let (directory, name) = match split {
        Some(end) => (path.get(..end), path.get(end + 1..)),
        None => (None, Some(path)),
    };
    let name = CString::new(name.unwrap_or_default()).map_err(|_| Errno::EINVAL)?;
    let Some(directory) = directory else {
        return act(root, &name);
    };
    let directory = CString::new(directory).map_err(|_| Errno::EINVAL)?;
    let flags = (libc::O_PATH | libc::O_DIRECTORY) as u64;
    let handle = sys::open(root, &directory, flags, 0, WITHIN)? as i32;
    let result = act(handle, &name);
    let _ = sys::close(handle);
    result
}

fn make(stored: &Stored, root: i32, file: &Initial, made: &mut Made) -> Result<(), Error> {
    let failed = |why| Error::Place {
        path: file.path.clone(),
        why,
    };
    let mode = file.mode.unwrap_or(match file.what {
        What::Directory => 0o755,
        _ => 0o644,
    });
    match &file.what {
        What::Directory => at(root, &file.path, |directory, name| {
            sys::mkdir(directory, name, 0o700)?;
            sys::chmod(directory, name, mode | 0o700)
        })
        .map(drop)
        .map_err(failed),
        What::Fifo => at(root, &file.path, |directory, name| {
            sys::mknod(directory, name, libc::S_IFIFO | mode)
        })
        .map(drop)
        .map_err(failed),
        What::Symlink(target) => {
            let unknown = vec![b'x'; (file.size as usize).clamp(1, libc::PATH_MAX as usize - 1)];
            let target = if target.is_empty() { &unknown } else { target };
            let target = CString::new(target.as_slice()).map_err(|_| failed(Errno::EINVAL))?;
            at(root, &file.path, |directory, name| {
                sys::symlink(&target, directory, name)
            })
            .map(drop)
            .map_err(failed)
        }
        What::Link(first) => {
            let Some(first) = stored.index.initial.get(*first as usize) else {
                return Ok(());
            };
            at(root, &file.path, |directory, name| {
                at(root, &first.path, |from, old| {
                    sys::link((from, old), (directory, name))
                })
            })
            .map(drop)
            .map_err(failed)
        }
        What::Regular => regular(stored, root, file, mode, made),
    }
}

fn regular(
    stored: &Stored,
    root: i32,
    file: &Initial,
    mode: u32,
    made: &mut Made,
) -> Result<(), Error> {
    let failed = |why| Error::Place {
        path: file.path.clone(),
        why,
    };
    let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL) as u64;
    let opened = at(root, &file.path, |directory, name| {
        sys::open(directory, name, flags, 0o600, PLAIN)
    });
    let fd = opened.map_err(failed)? as i32;
    let filled = fill(stored, fd, file, made);
    let set = sys::chmod(fd, c"", mode).map_err(failed);
    let closed = sys::close(fd).map_err(failed);
    filled?;
    set?;
    closed.map(drop)
}

/// Writes what is known of a file's content, and generated content around it.
fn fill(stored: &Stored, fd: i32, file: &Initial, made: &mut Made) -> Result<(), Error> {
    let failed = |why| Error::Place {
        path: file.path.clone(),
        why,
    };
    let known: u64 = file
        .extents
        .iter()
        .map(|extent| u64::from(extent.buffer.1))
        .sum();
    made.bytes += file.size;
    made.known += known.min(file.size);
    if known < file.size {
        let piece: Vec<u8> = (0..PIECE).map(|at| (at * 31 + at / 251) as u8).collect();
        let mut at = 0;
        while at < file.size {
            let length = (file.size - at).min(PIECE as u64) as usize;
            let bytes = piece.get(..length).unwrap_or(&piece);
            let offset = i64::try_from(at).map_err(|_| failed(Errno::EFBIG))?;
            let written = sys::write(fd, &[bytes], Some(offset)).map_err(failed)?;
            at += written.max(1).unsigned_abs();
        }
    }
    for extent in &file.extents {
        let bytes = stored.buffer(extent.buffer)?;
        let offset = i64::try_from(extent.at).map_err(|_| failed(Errno::EFBIG))?;
        sys::write(fd, &[&bytes], Some(offset)).map_err(failed)?;
    }
    Ok(())
}
