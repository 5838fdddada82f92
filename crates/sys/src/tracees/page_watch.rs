//! Finds the pages of a mapping that a process has touched: userfaultfd(2) with asynchronous write protection, and [`crate::pagemap`].
//!
//! A write to a write-protected page takes the protection off, and the process continues without the help of any other program; so the written pages
//! are those without protection. In a registered range the kernel maps one page at a fault, without its neighbours (no "fault-around"); so the
//! touched pages are those that are mapped. Accesses of the kernel itself count, too, such as a read(2) into the mapping. An ordinary user may watch
//! own processes.
#![allow(unsafe_code, reason = "ioctl(2) of userfaultfd")]

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::from_mut;

use nix::errno::Errno;

use crate::pagemap::{self, Pagemap, Selection};

/// Flags of the userfaultfd(2) that the watched process performs.
pub const CREATE_FLAGS: u64 = (libc::O_CLOEXEC | UFFD_USER_MODE_ONLY) as u64;

const UFFD_USER_MODE_ONLY: i32 = 1;
const UFFD_API: u64 = 0xaa;
/// `UFFD_FEATURE_WP_UNPOPULATED`, `UFFD_FEATURE_WP_ASYNC`
const FEATURES: u64 = 1 << 13 | 1 << 15;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_WRITEPROTECT: u64 = 0xc018_aa06;
const REGISTER_MODE_WP: u64 = 2;
const WRITEPROTECT_MODE_WP: u64 = 1;

/// `struct uffdio_api`
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_writeprotect`
#[repr(C)]
struct WriteProtect {
    start: u64,
    len: u64,
    mode: u64,
}

const _: () = assert!(size_of::<Register>() == 32);

/// Watches ranges of one process's address space until it is dropped.
#[derive(Debug)]
pub struct PageWatch {
    userfaultfd: OwnedFd,
    pagemap: Pagemap,
}

impl PageWatch {
    /// Watches process `pid`, which has created `userfaultfd` with [`CREATE_FLAGS`]. `EINVAL`: the kernel is too old.
    pub fn new(userfaultfd: OwnedFd, pid: i32) -> Result<Self, Errno> {
        let mut api = Api {
            api: UFFD_API,
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: the request takes this structure.
        unsafe { control(userfaultfd.as_raw_fd(), UFFDIO_API, &mut api) }?;
        let pagemap = Pagemap::of(pid)?;
        Ok(Self {
            userfaultfd,
            pagemap,
        })
    }

    /// Watches the mappings from `start` to `end`, both multiples of the page size. `EBUSY`: another userfaultfd has them.
    pub fn add(&self, start: u64, end: u64) -> Result<(), Errno> {
        let len = end.checked_sub(start).ok_or(Errno::EINVAL)?;
        let mut register = Register {
            start,
            len,
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        let mut protect = WriteProtect {
            start,
            len,
            mode: WRITEPROTECT_MODE_WP,
        };
        let fd = self.userfaultfd.as_raw_fd();
        // SAFETY: the requests take these structures.
        unsafe {
            control(fd, UFFDIO_REGISTER, &mut register)?;
            control(fd, UFFDIO_WRITEPROTECT, &mut protect)?;
        }
        Ok(())
    }

    /// The ranges from `start` to `end` whose pages were written since the last call, or since [`add`](Self::add).
    pub fn written(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, Errno> {
        self.scan(
            start,
            end,
            Selection {
                all: pagemap::WRITTEN,
                protect_again: true,
                ..Selection::default()
            },
        )
    }

    /// The ranges whose pages are mapped: those that were read or written, and that the kernel has not taken back to free memory.
    pub fn mapped(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, Errno> {
        self.scan(
            start,
            end,
            Selection {
                all: pagemap::PRESENT,
                ..Selection::default()
            },
        )
    }

    fn scan(&self, start: u64, end: u64, selection: Selection) -> Result<Vec<(u64, u64)>, Errno> {
        let mut found = Vec::new();
        self.pagemap.scan(start..end, selection, |run| {
            found.push((run.start, run.end))
        })?;
        Ok(found)
    }
}

/// ioctl(2).
///
/// # Safety
///
/// `request` takes a `T`.
unsafe fn control<T>(fd: RawFd, request: u64, argument: &mut T) -> Result<i32, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { libc::ioctl(fd, request, from_mut(argument)) };
    Errno::result(result)
}
