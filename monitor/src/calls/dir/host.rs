//! Directories of the host that lead to mounts: their lists show mount points that the host does not have.
//!
//! The kernel keeps the position in the host's directory, and each file system has positions of its own. So the mount points
//! come with the first entries of a list, after its first entry, and have that entry's position. The kernel performs all
//! further reads.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use goanna_sys::entries::{self, EntriesCall};
use goanna_sys::tracee;
use goanna_vfs::{DirEntry, Errno, FileKind, Mount, Result};
use nix::sys::stat::{lstat, stat};
use nix::unistd::{Whence, lseek};

use crate::abi::{DirentLayout, Dirents};
use crate::call::{Answer, Call};

/// At most this many bytes of the host's entries are read at once.
const ENTRIES_MAX: usize = 64 << 10;

/// getdents(2) of a host directory.
pub fn read_entries(call: &Call<'_>, layout: DirentLayout) -> Result<Answer> {
    if call.mounts.on_host().next().is_none() {
        return Ok(Answer::PassOn);
    }
    let missing = missing_in(call, call.task.identity(call.int(0))?);
    let root = call.root();
    // Paths from another root directory in the kernel do not lead to them.
    if missing.is_empty() || root.is_some_and(|root| root.is_in_kernel) {
        return Ok(Answer::PassOn);
    }
    let (_, ofd) = call.descriptor_of_any(call.int(0))?;
    // The kernel refuses O_PATH descriptors, and objects that are not directories any more.
    let at_start = lseek(ofd.as_fd(), 0, Whence::SeekCur) == Ok(0);
    if at_start {
        first_entries(call, layout, &ofd, &missing)
    } else {
        Ok(Answer::PassOn)
    }
}

/// The mounts in the host directory with this identity whose mount points the host does not have.
fn missing_in<'c>(call: &'c Call<'_>, identity: (u64, u64)) -> Vec<(&'c [u8], &'c Arc<Mount>)> {
    let mounts = call.mounts.on_host();
    let here = |dir: &[u8]| {
        let dir: &[u8] = if dir.is_empty() { b"/" } else { dir };
        stat(OsStr::from_bytes(dir)).is_ok_and(|meta| (meta.st_dev, meta.st_ino) == identity)
    };
    let missing = |mount: &Mount| lstat(OsStr::from_bytes(&mount.target)) == Err(Errno::ENOENT);
    mounts
        .filter(|(dir, _, mount)| here(dir) && missing(mount))
        .map(|(_, name, mount)| (name, mount))
        .collect()
}

/// The first part of a list: the host's entries, and `mounts` after the first one.
fn first_entries(
    call: &Call<'_>,
    layout: DirentLayout,
    ofd: &OwnedFd,
    mounts: &[(&[u8], &Arc<Mount>)],
) -> Result<Answer> {
    let number = match layout {
        DirentLayout::Old => EntriesCall::Old,
        DirentLayout::New => EntriesCall::New,
    };
    let capacity = usize::try_from(call.int(2)).unwrap_or(0);
    let needed = of_mounts(layout, mounts, 0).bytes.len();
    // A buffer without space for the mount points and one entry is too small: entries left out here would never be shown.
    let rest = capacity.checked_sub(needed).ok_or(Errno::EINVAL)?;
    let native = entries::read(number, ofd.as_fd(), rest.min(ENTRIES_MAX))?;
    let mut out = Dirents::new(layout, capacity, 0);
    if let Some((length, position)) = first_record(&native) {
        let (first, others) = native.split_at_checked(length).ok_or(Errno::EIO)?;
        out.bytes.extend_from_slice(first);
        out.bytes
            .extend_from_slice(&of_mounts(layout, mounts, position).bytes);
        out.bytes.extend_from_slice(others);
    }
    let put = tracee::write(call.task.tid, call.arg(1), &out.bytes);
    if put != Ok(out.bytes.len()) {
        // The program's memory ends before the count: return as many entries as fit.
        out.truncate(put.unwrap_or(0));
        lseek(ofd.as_fd(), out.position as i64, Whence::SeekSet)?;
        if out.bytes.is_empty() {
            return Err(Errno::EFAULT.into());
        }
    }
    Ok(Answer::Value(out.bytes.len() as i64))
}

/// The mount points as entries, each at `position`.
fn of_mounts(layout: DirentLayout, mounts: &[(&[u8], &Arc<Mount>)], position: u64) -> Dirents {
    let mut out = Dirents::new(layout, usize::MAX, 0);
    for (name, mount) in mounts {
        out.push(DirEntry {
            name,
            ino: mount.fs.root().ino(),
            kind: FileKind::Directory,
            cookie: position,
        });
    }
    out
}

/// Length of the first record, in bytes, and the position after its entry. Both layouts have them at the same place.
fn first_record(bytes: &[u8]) -> Option<(usize, u64)> {
    let position = bytes.get(8..)?.first_chunk::<8>()?;
    let length = bytes.get(16..)?.first_chunk::<2>()?;
    Some((
        usize::from(u16::from_ne_bytes(*length)),
        u64::from_ne_bytes(*position),
    ))
}
