//! `/proc/PID/pagemap`: finds the pages of a process's memory that have given properties, by the `PAGEMAP_SCAN` ioctl (Linux
//! 6.7).
//!
//! `region.rs` finds private copies with it, `tracees/page_watch.rs` the pages that a tracee has touched.
#![allow(unsafe_code, reason = "the PAGEMAP_SCAN ioctl")]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use nix::errno::Errno;

/// Written since the page was write-protected asynchronously (userfaultfd(2)); without that protection, each page.
pub const WRITTEN: u64 = 1 << 1;
/// Of a file or of shared memory.
pub const FILE: u64 = 1 << 2;
/// In memory.
pub const PRESENT: u64 = 1 << 3;
/// Swapped out.
pub const SWAPPED: u64 = 1 << 4;

/// The condition of a scan, and its effect. It finds the pages that have all categories of `all`, none of `none` and, unless
/// `any` is 0, one of `any`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection {
    /// Categories that a page must have.
    pub all: u64,
    /// Categories that a page must not have.
    pub none: u64,
    /// Categories of which a page must have one.
    pub any: u64,
    /// Write-protects the pages that it finds again, in the same step. The scan fails with `EPERM` where a range is not
    /// registered for asynchronous write protection.
    pub protect_again: bool,
}

/// A process's page table.
#[derive(Debug)]
pub struct Pagemap(File);

/// Maximum number of page ranges that one call returns: 6 KiB.
const RUNS: usize = 256;

impl Pagemap {
    /// Opens this process's page table. In a child of fork(2) the value still refers to the parent.
    ///
    /// ENOTTY: Linux before 6.7. ENOENT: no /proc. EACCES: the process has made itself unreadable (`PR_SET_DUMPABLE`).
    pub fn own() -> Result<Self, Errno> {
        Self::open("/proc/self/pagemap")
    }

    /// Opens the page table of process `pid`. ENOTTY as for [`own`](Self::own); EACCES: ptrace(2) of it is not permitted, either.
    pub fn of(pid: i32) -> Result<Self, Errno> {
        Self::open(&format!("/proc/{pid}/pagemap"))
    }

    fn open(path: &str) -> Result<Self, Errno> {
        let errno = |e: io::Error| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        let pagemap = Self(File::open(path).map_err(errno)?);
        // An empty scan fails on a kernel that cannot scan.
        pagemap.scan(0..0, Selection::default(), |_| ())?;
        Ok(pagemap)
    }

    /// Calls `each` for every range of selected pages between the addresses of `range`, in order.
    pub fn scan(
        &self,
        range: Range<u64>,
        selection: Selection,
        mut each: impl FnMut(Range<u64>),
    ) -> Result<(), Errno> {
        let mut start = range.start;
        loop {
            let mut found = [PageRegion::default(); RUNS];
            let mut arg = ScanArg::new(start..range.end, selection, &mut found);
            // SAFETY: the kernel writes `walk_end` and at most `vec_len` records to `vec`, both of which are ours alone.
            let count = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let count = Errno::result(count)?.cast_unsigned() as usize;
            for run in found.iter().take(count) {
                each(run.start..run.end);
            }
            if arg.walk_end >= range.end {
                return Ok(());
            }
            if arg.walk_end <= start {
                return Err(Errno::EIO);
            }
            start = arg.walk_end;
        }
    }
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 3 << 30 | (size_of::<ScanArg>() as libc::Ioctl) << 16 | 0x66_10;

/// `PM_SCAN_WP_MATCHING`.
const PROTECT_FOUND: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`.
const CHECK_PROTECTED: u64 = 1 << 1;

/// `struct pm_scan_arg`.
#[derive(Default)]
#[repr(C)]
struct ScanArg {
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

const _: () = assert!(size_of::<ScanArg>() == 96);

/// `struct page_region`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

impl ScanArg {
    /// The argument of a scan that stores its runs in `found`. The kernel joins neighbouring pages whose returned categories
    /// are equal, so no category is returned.
    fn new(range: Range<u64>, selection: Selection, found: &mut [PageRegion]) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            flags: if selection.protect_again {
                PROTECT_FOUND | CHECK_PROTECTED
            } else {
                0
            },
            start: range.start,
            end: range.end,
            vec: found.as_mut_ptr().addr() as u64,
            vec_len: found.len() as u64,
            category_inverted: selection.none,
            category_mask: selection.all | selection.none,
            category_anyof_mask: selection.any,
            ..Self::default()
        }
    }
}
