//! Shared memory that is accessed as atomic words.
#![allow(unsafe_code, reason = "mmap(2), and atomic access to what it maps")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};

use crate::memfile;

/// A shared mapping of a memfd.
#[derive(Debug)]
pub(crate) struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the memory belongs to the value and to no thread; all access to it is atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Makes an empty memfd `len` bytes long, at least a page, for good, and maps it. If a program that has it could truncate it, our next access would be SIGBUS.
    pub fn of_new(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        memfile::set_len(file, len as u64)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
        Self::map(file, len)
    }

    /// Maps the first `len` bytes of `file`, at least a page. The caller seals the file against shrinking: access behind its end raises SIGBUS.
    pub fn map(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new shared mapping at an address that the kernel chooses.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { start, len })
    }

    /// The word at offset `at`, a multiple of 8 below the length.
    pub fn at(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8) && at < self.len);
        // SAFETY: the mapping is `len` bytes long and aligned to a page, and lives as long as `self`.
        unsafe { self.start.add(at % self.len / 8).as_ref() }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
