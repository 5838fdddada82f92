//! Mappings of files.
#![allow(unsafe_code, reason = "mmap(2), madvise(2), msync(2), munmap(2)")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::Errno;

/// A range of the address space that maps a file.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: an area is only an address range; its users are responsible for accesses to its bytes.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl Area {
    fn new(fd: i32, length: usize, prot: i32, flags: i32, offset: i64) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses the address, so nothing that is mapped changes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, prot, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let start = NonNull::new(start.cast()).ok_or(Errno::ENOMEM)?;
        Ok(Self { start, length })
    }

    fn advise(&self, offset: usize, length: usize, advice: i32) -> Result<(), Errno> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.length.next_multiple_of(4096)) {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: the range lies in the area. The callers' advice changes no byte of it.
        let result =
            unsafe { libc::madvise(self.start.as_ptr().add(offset).cast(), length, advice) };
        Errno::result(result).map(drop)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the area was mapped by `new`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A file that is read through a mapping. No process may shorten it meanwhile: a read behind its end would kill this one.
#[derive(Debug)]
pub struct View {
    area: Option<Area>,
}

impl View {
    /// Maps the first `length` bytes.
    pub fn new(file: BorrowedFd<'_>, length: usize) -> Result<Self, Errno> {
        let area = match length {
            0 => None,
            length => Some(Area::new(
                file.as_raw_fd(),
                length,
                libc::PROT_READ,
                libc::MAP_SHARED,
                0,
            )?),
        };
        Ok(Self { area })
    }

    /// The bytes of a range, if it lies in the file.
    pub fn bytes(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let area = self.area.as_ref()?;
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(length)?;
        if end > area.length {
            return None;
        }
        // SAFETY: the range lies in the area, which is readable and lives as long as the borrow. Nobody changes the file.
        Some(unsafe { std::slice::from_raw_parts(area.start.as_ptr().add(offset), length) })
    }

    /// Unmaps the pages: they stay in the page cache and no longer count as memory of this process.
    pub fn release(&self) {
        if let Some(area) = &self.area {
            // The pages are read again when they are needed.
            let _ = area.advise(0, area.length, libc::MADV_DONTNEED);
        }
    }

    /// Makes the kernel read a range ahead.
    pub fn expect(&self, offset: u64, length: usize) {
        const PAGE: usize = 4096;
        let start = usize::try_from(offset).unwrap_or(usize::MAX) / PAGE * PAGE;
        if let Some(area) = &self.area {
            let length = length.min(area.length.saturating_sub(start));
            // It is only advice.
            let _ = area.advise(start, length, libc::MADV_WILLNEED);
        }
    }
}

/// A mapping that a replayed program has made. This process never reads its bytes, so a truncated file cannot kill it by SIGBUS.
#[derive(Debug)]
pub struct Mapping {
    area: Area,
}

impl Mapping {
    /// mmap(2) at an address that the kernel chooses. Of `prot`, only reading and writing count; of `flags`, only whether the mapping
    /// is shared.
    pub fn new(fd: i32, length: u64, prot: i32, flags: i32, offset: i64) -> Result<Self, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::ENOMEM)?;
        let prot = prot & (libc::PROT_READ | libc::PROT_WRITE);
        let flags = match flags & libc::MAP_TYPE {
            libc::MAP_PRIVATE => libc::MAP_PRIVATE,
            _ => libc::MAP_SHARED,
        };
        let area = Area::new(fd, length, prot, flags | libc::MAP_NORESERVE, offset)?;
        Ok(Self { area })
    }

    /// Reads pages, or makes them dirty without changing them.
    pub fn touch(&self, offset: u64, length: u64, write: bool) -> Result<(), Errno> {
        let advice = match write {
            true => libc::MADV_POPULATE_WRITE,
            false => libc::MADV_POPULATE_READ,
        };
        let range = usize::try_from(offset)
            .ok()
            .zip(usize::try_from(length).ok());
        let (offset, length) = range.ok_or(Errno::ENOMEM)?;
        self.area.advise(offset, length, advice)
    }

    /// msync(2).
    pub fn sync(&self, offset: u64, length: u64, flags: i32) -> Result<(), Errno> {
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > self.area.length.next_multiple_of(4096) as u64) {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: the range lies in the area, whose bytes the call does not change.
        let result = unsafe {
            let start = self.area.start.as_ptr().add(offset as usize);
            libc::msync(start.cast(), length as usize, flags)
        };
        Errno::result(result).map(drop)
    }
}
