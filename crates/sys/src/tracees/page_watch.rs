//! Which pages of a mapping a process has touched: userfaultfd(2) with asynchronous write protection, and `PAGEMAP_SCAN` (Linux 6.7).
//!
//! A write to a write-protected page takes the protection off, and the process continues without the help of any other program; so the pages without
//! protection are those that were written. In a range that is registered the kernel maps one page at a fault, and not its neighbours as well
//! ("fault-around"); so the pages that are mapped are those that were read or written. Accesses of the kernel itself count, as by a read(2) into
//! the mapping. An ordinary user may do all this with own processes.
#![allow(
    unsafe_code,
    reason = "ioctl(2) of userfaultfd and of /proc/PID/pagemap"
)]

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::from_mut;

use nix::errno::Errno;

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

const PAGEMAP_SCAN: u64 = 0xc060_6610;
/// `PM_SCAN_WP_MATCHING`: protect the pages found again. `PM_SCAN_CHECK_WPASYNC`: fail where the range is not protected.
const PROTECT_AGAIN: u64 = 1 | 2;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// Regions of one scan.
const REGIONS: usize = 256;

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

/// `struct page_region`
#[repr(C)]
#[derive(Clone, Copy)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<Scan>() == 96 && size_of::<Register>() == 32);

/// Watches ranges of one process's address space. Dropping it ends that.
#[derive(Debug)]
pub struct PageWatch {
    userfaultfd: OwnedFd,
    pagemap: File,
}

impl PageWatch {
    /// Of process `pid`, which has made `userfaultfd` with [`CREATE_FLAGS`]. `EINVAL`: the kernel is too old.
    pub fn new(userfaultfd: OwnedFd, pid: i32) -> Result<Self, Errno> {
        let mut api = Api {
            api: UFFD_API,
            features: FEATURES,
            ioctls: 0,
        };
        // SAFETY: the request takes this structure.
        unsafe { control(userfaultfd.as_raw_fd(), UFFDIO_API, &mut api) }?;
        let pagemap = File::open(format!("/proc/{pid}/pagemap"));
        let pagemap =
            pagemap.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
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
        self.scan(start, end, PAGE_IS_WRITTEN, PROTECT_AGAIN)
    }

    /// The ranges whose pages are mapped: those that were read or written, and that the kernel has not taken back to free memory.
    pub fn mapped(&self, start: u64, end: u64) -> Result<Vec<(u64, u64)>, Errno> {
        self.scan(start, end, PAGE_IS_PRESENT, 0)
    }

    fn scan(
        &self,
        start: u64,
        end: u64,
        category: u64,
        flags: u64,
    ) -> Result<Vec<(u64, u64)>, Errno> {
        let mut found = Vec::new();
        let mut from = start;
        while from < end {
            let mut regions = [Region {
                start: 0,
                end: 0,
                categories: 0,
            }; REGIONS];
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                flags,
                start: from,
                end,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: category,
                category_anyof_mask: 0,
                return_mask: category,
            };
            // SAFETY: the request takes this structure, and `vec` names `vec_len` regions that live on.
            let count = unsafe { control(self.pagemap.as_raw_fd(), PAGEMAP_SCAN, &mut scan) }?;
            let count = usize::try_from(count).unwrap_or(0);
            let regions = regions.iter().take(count);
            found.extend(regions.map(|region| (region.start, region.end)));
            if scan.walk_end <= from {
                break;
            }
            from = scan.walk_end;
        }
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
