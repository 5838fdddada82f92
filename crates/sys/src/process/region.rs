//! Memory over a base, the building block of recoverable memory.
//!
//! A [`Region`] is a memfd mapped twice. Programs use the private mapping; the kernel copies a page of it at the first write,
//! whether by a thread, a system call or a ptracer. The shared mapping is the *base*, which only the functions here change.
//! So the base is a before-image of all private copies, to which [`Region::discard`] returns, and [`Region::private_pages`]
//! reports which pages were copied. No page is protected, and no signal is used.
//!
//! Private pages that have no copy show the base, also after it changed; this is Linux's behaviour, POSIX leaves it open.
#![allow(
    unsafe_code,
    reason = "mmap(2), madvise(2), and access to what they map"
)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};

use nix::errno::Errno;

use crate::pagemap::{self, Pagemap, Selection};
use crate::{limits, memfile};

/// Size of a page, in bytes.
pub const PAGE: usize = 4096;

/// The content of a page.
pub type Page = [u8; PAGE];

/// Pages by number, counted from the start of a region.
pub type Pages = Range<usize>;

/// A private mapping of zeros over its base. Not inherited by fork(2): parent and child would share the base, but not the
/// private copies.
#[derive(Debug)]
pub struct Region {
    private: NonNull<u8>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mappings belong to the value alone and to no thread; what changes them takes `&mut self`.
unsafe impl Send for Region {}
// SAFETY: as above; what takes `&self` only reads.
unsafe impl Sync for Region {}

impl Region {
    /// A region of at least `len` bytes, rounded up to whole pages. It takes no memory at first, then a page in the base for
    /// each page read, and a second one for each page written.
    ///
    /// EINVAL: `len` is 0. EFBIG: it is beyond the limit on file sizes, at which the kernel would send SIGXFSZ.
    /// ENOMEM: the address space has no free range of this size. EMFILE, ENFILE.
    pub fn new(len: usize) -> Result<Self, Errno> {
        let len = len.checked_next_multiple_of(PAGE).ok_or(Errno::ENOMEM)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        if len as u64 > limits::prlimit_fsize(0)? {
            return Err(Errno::EFBIG);
        }
        let file = memfile::create(c"recoverable")?;
        memfile::set_len(file.as_fd(), len as u64)?;
        let private = map(&file, len, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
        let base = map(&file, len, libc::MAP_SHARED).inspect_err(|_| unmap(private, len))?;
        let region = Self { private, base, len };
        region.advise(private, len, libc::MADV_DONTFORK)?;
        region.advise(base, len, libc::MADV_DONTFORK)?;
        Ok(region)
    }

    /// Length in bytes, a multiple of [`PAGE`].
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The start of the region, which never moves. Memory behind the pointer is valid as long as the region.
    pub fn start(&self) -> NonNull<u8> {
        self.private
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `len` mapped bytes, which change through `&mut self` only.
        unsafe { std::slice::from_raw_parts(self.private.as_ptr(), self.len) }
    }

    /// The content, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` mapped bytes, exclusively ours.
        unsafe { std::slice::from_raw_parts_mut(self.private.as_ptr(), self.len) }
    }

    /// The word at `offset`, `None` when it is not aligned to 8 bytes or not inside. Unlike a slice, this makes no reference
    /// to the rest of the region, into which the program has pointers.
    pub fn load(&self, offset: usize) -> Option<u64> {
        let at = self.word(offset)?;
        // SAFETY: `word` has checked that eight mapped, aligned bytes are there.
        Some(unsafe { at.read() })
    }

    /// Sets the word at `offset`; `None` as for [`Region::load`].
    pub fn store(&mut self, offset: usize, value: u64) -> Option<()> {
        let at = self.word(offset)?;
        // SAFETY: `word` has checked that eight mapped, aligned bytes are there.
        unsafe { at.write(value) };
        Some(())
    }

    fn word(&self, offset: usize) -> Option<*mut u64> {
        const WORD: usize = size_of::<u64>();
        let inside = offset
            .checked_add(WORD)
            .is_some_and(|end| end <= self.len && offset.is_multiple_of(WORD));
        // SAFETY: `offset` lies inside the mapping.
        inside.then(|| unsafe { self.private.as_ptr().add(offset) }.cast())
    }

    /// Copies the private page to the base's page. If they differ, `before` first gets the content of the base's. Returns
    /// whether they differed; `false` beyond the region.
    pub fn absorb(&mut self, page: usize, before: impl FnOnce(&Page)) -> bool {
        let Some(at) = self.offset(page) else {
            return false;
        };
        // SAFETY: `at` lies in both mappings with all of its page, they do not overlap, and both are ours alone.
        let (base, private): (&mut Page, &Page) = unsafe {
            (
                &mut *self.base.as_ptr().add(at).cast(),
                &*self.private.as_ptr().add(at).cast(),
            )
        };
        let differs = base != private;
        if differs {
            before(base);
            base.copy_from_slice(private);
        }
        differs
    }

    /// Sets the content of the base's page. Does nothing beyond the region.
    pub fn restore(&mut self, page: usize, content: &Page) {
        if let Some(at) = self.offset(page) {
            // SAFETY: `at` lies in the base with all of its page; `content` is not in it, since that is borrowed mutably.
            unsafe { ptr::copy_nonoverlapping(content.as_ptr(), self.base.as_ptr().add(at), PAGE) };
        }
    }

    /// Calls `each` for every range of pages that are private copies, in memory or swapped out, in order. `pagemap` is that
    /// of this process.
    pub fn private_pages(
        &self,
        pagemap: &Pagemap,
        mut each: impl FnMut(Pages),
    ) -> Result<(), Errno> {
        // A page that belongs to no file and is present or swapped out is a private copy.
        let copies = Selection {
            none: pagemap::FILE,
            any: pagemap::PRESENT | pagemap::SWAPPED,
            ..Selection::default()
        };
        let start = self.private.addr().get() as u64;
        let number = |at: u64| usize::try_from(at.saturating_sub(start)).unwrap_or(0) / PAGE;
        pagemap.scan(start..start + self.len as u64, copies, |run| {
            each(number(run.start)..number(run.end));
        })
    }

    fn offset(&self, page: usize) -> Option<usize> {
        page.checked_mul(PAGE).filter(|at| *at < self.len)
    }

    /// Drops the private copies of all pages: the region shows its base.
    pub fn discard(&mut self) -> Result<(), Errno> {
        self.advise(self.private, self.len, MADV_DONTNEED_LOCKED)
    }

    /// Drops the private copies of some pages.
    pub fn discard_pages(&mut self, pages: Pages) -> Result<(), Errno> {
        let end = pages.end.min(self.len / PAGE);
        let Some(count) = end.checked_sub(pages.start).filter(|count| *count > 0) else {
            return Ok(());
        };
        // SAFETY: `start` lies inside the mapping, as do the `count` pages from there.
        let at = unsafe { self.private.add(pages.start * PAGE) };
        self.advise(at, count * PAGE, MADV_DONTNEED_LOCKED)
    }

    fn advise(&self, at: NonNull<u8>, len: usize, advice: libc::c_int) -> Result<(), Errno> {
        // SAFETY: the range lies in one of our mappings. MADV_DONTNEED changes content, which its callers have exclusively.
        Errno::result(unsafe { libc::madvise(at.as_ptr().cast(), len, advice) }).map(drop)
    }

    /// Drops the value without unmapping, in a process that does not have the mappings: a child of fork.
    pub fn forget(self) {
        std::mem::forget(self);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        unmap(self.private, self.len);
        unmap(self.base, self.len);
    }
}

/// Like MADV_DONTNEED, which refuses memory that the program has locked (`mlockall`). Linux 5.18.
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

fn map(file: &OwnedFd, len: usize, flags: libc::c_int) -> Result<NonNull<u8>, Errno> {
    // SAFETY: the kernel picks a free place; the descriptor is open.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(Errno::last());
    }
    NonNull::new(at.cast()).ok_or(Errno::ENOMEM)
}

fn unmap(at: NonNull<u8>, len: usize) {
    // SAFETY: a mapping of ours of this length, to which nothing refers any more.
    unsafe { libc::munmap(at.as_ptr().cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn private(pagemap: &Pagemap, region: &Region) -> Vec<Pages> {
        let mut found = Vec::new();
        region
            .private_pages(pagemap, |run| found.push(run))
            .unwrap();
        found
    }

    #[test]
    fn only_written_pages_are_private() {
        let pagemap = Pagemap::own().unwrap();
        let mut region = Region::new(64 * PAGE).unwrap();
        assert_eq!(region.bytes().iter().map(|b| u64::from(*b)).sum::<u64>(), 0);
        assert_eq!(private(&pagemap, &region), []);
        for page in [0, 3, 4, 63] {
            region.bytes_mut()[page * PAGE + 17] = 1;
        }
        assert_eq!(private(&pagemap, &region), [0..1, 3..5, 63..64]);
    }

    #[test]
    fn a_scan_finds_more_runs_than_one_call_returns() {
        let pagemap = Pagemap::own().unwrap();
        let runs = 2 * 256 + 3;
        let mut region = Region::new(2 * runs * PAGE).unwrap();
        for run in 0..runs {
            region.bytes_mut()[2 * run * PAGE] = 1;
        }
        let expected: Vec<Pages> = (0..runs).map(|run| 2 * run..2 * run + 1).collect();
        assert_eq!(private(&pagemap, &region), expected);
    }

    #[test]
    fn discard_shows_the_base() {
        let pagemap = Pagemap::own().unwrap();
        let mut region = Region::new(2 * PAGE).unwrap();
        region.bytes_mut()[5] = 1;
        assert!(region.absorb(0, |before| assert_eq!(before, &[0; PAGE])));
        assert!(!region.absorb(0, |_| unreachable!("they are equal")));
        region.bytes_mut()[5] = 2;
        region.discard().unwrap();
        assert_eq!(region.bytes()[5], 1);
        assert_eq!(private(&pagemap, &region), []);
        region.restore(1, &[9; PAGE]);
        assert_eq!(region.bytes()[PAGE], 9);
        region.bytes_mut()[PAGE] = 8;
        region.discard_pages(1..usize::MAX).unwrap();
        assert_eq!(region.bytes()[PAGE], 9);
        assert!(!region.absorb(2, |_| unreachable!("there is no such page")));
    }

    #[test]
    fn words_outside_are_refused() {
        let mut region = Region::new(1).unwrap();
        assert_eq!(region.len(), PAGE);
        assert_eq!(region.store(PAGE - 8, 7), Some(()));
        assert_eq!(region.load(PAGE - 8), Some(7));
        for offset in [PAGE, PAGE - 4, 1, usize::MAX - 7] {
            assert_eq!(region.load(offset), None);
            assert_eq!(region.store(offset, 1), None);
        }
    }

    #[test]
    fn lengths_are_checked() {
        assert_eq!(Region::new(0).unwrap_err(), Errno::EINVAL);
        assert_eq!(Region::new(usize::MAX).unwrap_err(), Errno::ENOMEM);
        assert_eq!(Region::new(usize::MAX / 4).unwrap_err(), Errno::ENOMEM);
    }
}
