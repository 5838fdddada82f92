//! Creates single files of the initial state as the trace shows them.

use std::ffi::{CStr, CString};

use amino_schema::replay::{Attribute, Initial, What};
use goanna_sys::Errno;
use goanna_sys::replay::{self as sys, PLAIN, WITHIN};

use super::Made;
use crate::Error;
use crate::stored::Stored;

/// Longest piece of generated content that is written at a time.
const PIECE: usize = 1 << 20;

/// Creates a file, with its owner and extended attributes.
pub fn make(stored: &Stored, root: i32, file: &Initial, made: &mut Made) -> Result<(), Error> {
    create(stored, root, file, made)?;
    let failed = |why| Error::Place {
        path: file.path.clone(),
        why,
    };
    if let Some(owner) = file.owner.filter(|_| !matches!(file.what, What::Link(_))) {
        let set = at(root, &file.path, |directory, name| {
            set_owner(directory, name, owner, made)
        });
        set.map_err(failed)?;
        // A change of owner removes the set-user-id and set-group-id bits.
        if let (What::Regular, Some(mode)) = (&file.what, file.mode) {
            let set = at(root, &file.path, |directory, name| {
                sys::chmod(directory, name, mode)
            });
            set.map_err(failed)?;
        }
    }
    for attribute in &file.attributes {
        let value = value(stored, attribute)?;
        set_attribute(root, &file.path, &attribute.name, &value, made).map_err(failed)?;
    }
    Ok(())
}

/// Sets the owner of a name in a directory. An ordinary user can only set the owner that the file already has.
pub fn set_owner(
    directory: i32,
    name: &CStr,
    owner: (u32, u32),
    made: &mut Made,
) -> Result<i64, Errno> {
    if sys::stat(directory, name)?.owner == owner {
        return Ok(0);
    }
    match sys::chown(directory, name, owner.0, owner.1) {
        Err(Errno::EPERM) => {
            made.skipped_owners += 1;
            Ok(0)
        }
        other => other,
    }
}

/// Sets an extended attribute of a file. Counts attributes that the file system refuses, or that only root can
/// set.
pub fn set_attribute(
    root: i32,
    path: &[u8],
    name: &[u8],
    value: &[u8],
    made: &mut Made,
) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::EINVAL)?;
    let set = at(root, path, |directory, file| {
        let flags = (libc::O_PATH | libc::O_NOFOLLOW) as u64;
        let handle = sys::open(directory, file, flags, 0, PLAIN)? as i32;
        let within = CString::new(format!("/proc/self/fd/{handle}")).map_err(|_| Errno::EINVAL);
        let set =
            within.and_then(|within| sys::attribute(&within, sys::Attribute::Set(&name, value, 0)));
        let _ = sys::close(handle);
        set
    });
    match set {
        Ok(_) => Ok(()),
        Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EINVAL | Errno::ENOSPC | Errno::E2BIG) => {
            made.skipped_attributes += 1;
            Ok(())
        }
        Err(why) => Err(why),
    }
}

/// The value of an attribute, or generated content of its length.
fn value(stored: &Stored, attribute: &Attribute) -> Result<Vec<u8>, Error> {
    match attribute.buffer {
        Some(buffer) => stored.buffer(buffer),
        None => Ok(vec![b'x'; attribute.length as usize]),
    }
}

fn create(stored: &Stored, root: i32, file: &Initial, made: &mut Made) -> Result<(), Error> {
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

/// Writes the known parts of a file's content, and generated content around them.
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
    made.bytes = made.bytes.saturating_add(file.size);
    made.known = made.known.saturating_add(known.min(file.size));
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

/// Performs a call on the directory and the name of `path`, below the root.
pub fn at(
    root: i32,
    path: &[u8],
    act: impl FnOnce(i32, &CStr) -> Result<i64, Errno>,
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
