//! The content of a regular file in use: one memfd, or a nameless host file for large ones.
//!
//! The object always holds the file's whole content, holes as holes, so that programs read and map it without asking
//! us. The only open file description we keep is read-only: a writable one would make executing the file ETXTBSY.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use goanna_sys::witness::Witness;
use goanna_sys::{memfile, stat};
use goanna_vfs::{Errno, Result};
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Whence, lseek};

use crate::ranges::RangeSet;

/// Status flags of open(2) that mean the same on the cache object.
const KEPT_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_DSYNC
    | libc::O_NOATIME;

const PIECE: usize = 1 << 20;

/// A regular file's content in use.
pub(crate) struct Cache {
    /// Our own open file description: read-only, opened anew (see docs/decisions/0003).
    pub witness: Arc<Witness>,
    /// Descriptors were handed out and not all are known to be gone.
    pub in_use: bool,
    /// In the list of caches that may go.
    pub idle: bool,
    /// Programs may write through a mapping.
    pub mapped: bool,
    /// Pages that differ from the store; space to store each of them is reserved.
    pub dirty: RangeSet,
    /// Pages that the store has and that were cut off or punched out since; space to delete them is reserved, and no
    /// more: one that is written again becomes dirty.
    pub erased: RangeSet,
    /// A host file, not memory.
    pub on_disk: bool,
    /// The host's disk failed in the middle of a commit, and this object replaced one that programs have open. What they
    /// write to that one is refused.
    pub left_behind: bool,
}

impl Cache {
    /// An empty object of `size` bytes, all hole, and a writable descriptor to fill it with. With `large_dir` it is a
    /// nameless file there instead of memory.
    pub fn create(size: u64, large_dir: Option<&Path>) -> Result<(Self, OwnedFd)> {
        let first = match large_dir {
            None => memfile::create(c"amino")?,
            Some(dir) => nix::fcntl::open(
                dir,
                OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC,
                Mode::from_bits_truncate(0o700),
            )?,
        };
        if size > 0 {
            memfile::set_len(first.as_fd(), size)?;
        }
        let witness = Arc::new(Witness::new(memfile::reopen(
            first.as_fd(),
            libc::O_RDONLY,
        )?)?);
        let cache = Self {
            witness,
            in_use: false,
            idle: false,
            mapped: false,
            dirty: RangeSet::default(),
            erased: RangeSet::default(),
            on_disk: large_dir.is_some(),
            left_behind: false,
        };
        Ok((cache, first))
    }

    /// A new open file description for a program that opened the file with `flags`.
    pub fn open(&self, flags: i32) -> Result<OwnedFd> {
        self.witness.open(flags & KEPT_FLAGS)
    }

    /// A descriptor to change the content with, to be closed at once: ETXTBSY while the file is executed, as on any
    /// file system.
    pub fn writer(&self) -> Result<OwnedFd> {
        self.witness.open(libc::O_WRONLY)
    }

    /// Allocated units of 512 bytes.
    pub fn blocks(&self) -> Option<u64> {
        let stat = self.witness.with(|fd| fstat(fd)).ok()?;
        u64::try_from(stat.st_blocks).ok()
    }

    /// Fills `buf` from `offset`; short only at the end.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.witness.with(|fd| memfile::pread(fd, buf, offset))
    }

    /// Sets the object's size.
    pub fn resize(&self, size: u64) -> Result<()> {
        memfile::set_len(self.writer()?.as_fd(), size)
    }

    /// Makes `offset..offset+len` read as zeros, without changing the size.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        memfile::punch(self.writer()?.as_fd(), offset, len)
    }

    /// Copies the first `size` bytes to an object that is all hole, holes as holes.
    pub fn copy_to(&self, to: &OwnedFd, size: u64) -> Result<()> {
        let mut piece = vec![0; PIECE];
        let segments = self
            .witness
            .with(|fd| memfile::data_segments(fd, 0, size))?;
        for (start, len) in segments {
            let mut done = 0;
            while done < len {
                let want = usize::try_from(len - done).map_or(PIECE, |left| left.min(PIECE));
                let Some(buf) = piece.get_mut(..want) else {
                    break;
                };
                let got = self.read_at(start + done, buf)?;
                let Some(data) = buf.get(..got).filter(|data| !data.is_empty()) else {
                    break;
                };
                write_all_at(to, start + done, data)?;
                done += got as u64;
            }
        }
        Ok(())
    }

    /// The first offset at or after `offset` where there may be data; `None` when only a hole follows.
    pub fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        let Ok(at) = i64::try_from(offset) else {
            return Ok(None);
        };
        match self.witness.with(|fd| lseek(fd, at, Whence::SeekData)) {
            Ok(found) => Ok(u64::try_from(found).ok()),
            Err(Errno::ENXIO) => Ok(None),
            // A host file system without holes: everything is data.
            Err(Errno::EINVAL) => Ok(Some(offset)),
            Err(errno) => Err(errno),
        }
    }

    /// Whether `fd` is a descriptor of this object.
    pub fn is_object_of(&self, fd: impl AsFd) -> Result<bool> {
        let (dev, ino, _) = stat::identity(fd.as_fd())?;
        Ok((dev, ino) == self.witness.identity())
    }

    /// Whether nobody else has an open file description or a mapping of the object.
    pub fn is_unused(&self) -> bool {
        self.witness.sole_opener()
    }
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_all_at(fd: impl AsFd, offset: u64, data: &[u8]) -> Result<()> {
    match memfile::pwrite(fd.as_fd(), data, offset)? {
        n if n == data.len() => Ok(()),
        _ => Err(Errno::ENOSPC),
    }
}
