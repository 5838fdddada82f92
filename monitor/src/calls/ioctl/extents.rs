//! The extents of a file (`FS_IOC_FIEMAP`, Documentation/filesystems/fiemap.rst of Linux).
//!
//! Those of a file with a cache object are the parts of the object that are not holes. Where the back end stores them, it does not tell, as other file systems for data that are not on a disk yet
//! (`FIEMAP_EXTENT_UNKNOWN`).

use goanna_sys::memfile;
use goanna_sys::object_handle::ObjectHandle;
use goanna_vfs::{Errno, Result};
use nix::sys::stat::fstat;

use crate::call::{Answer, Call, words};

/// `sizeof(struct fiemap)`, and of `struct fiemap_extent`.
const HEADER: usize = 32;
const EXTENT: usize = 56;

// What follows is of linux/fiemap.h.
const FLAG_SYNC: u32 = 1;
const FLAG_XATTR: u32 = 2;
const FLAG_CACHE: u32 = 4;
const EXTENT_LAST: u32 = 1;
const EXTENT_UNKNOWN: u32 = 2;

/// Extents begin and end at multiples of this, bytes.
const BLOCK: u64 = 4096;

/// What a program asks for.
struct Request {
    /// The offset in the file, and the number of bytes from there on.
    start: u64,
    len: u64,
    flags: u32,
    /// The number of extents that the program's structure can hold. With 0, the program only asks how many there are.
    capacity: u32,
}

impl Request {
    fn read(call: &Call<'_>) -> Result<Self> {
        let [start, len, flags, capacity] = words(&call.read(call.arg(2), HEADER)?);
        Ok(Self {
            start,
            len,
            // Flags and the number of extents found, then the capacity and a reserved word.
            flags: flags as u32,
            capacity: capacity as u32,
        })
    }

    fn answer(&self, call: &Call<'_>, flags: u32, found: usize) -> Result<()> {
        let answer = [flags.to_ne_bytes(), (found as u32).to_ne_bytes()];
        Ok(call.put(call.arg(2).wrapping_add(16), answer.as_flattened())?)
    }
}

/// FS_IOC_FIEMAP. `object` has the content; `None` for a directory, and for attributes, which have no extents. EINVAL for an empty range or too large a structure, EFBIG for one behind `largest`, the largest size of a file; EBADR, with
/// the flags that are the cause, for unknown flags.
pub fn list(call: &Call<'_>, object: Option<&ObjectHandle>, largest: u64) -> Result<Answer> {
    let request = Request::read(call)?;
    if request.capacity as usize > (u32::MAX as usize) / EXTENT || request.len == 0 {
        return Err(Errno::EINVAL.into());
    }
    if request.start >= largest {
        return Err(Errno::EFBIG.into());
    }
    let unknown = request.flags & !(FLAG_SYNC | FLAG_XATTR | FLAG_CACHE);
    if unknown != 0 {
        request.answer(call, unknown, 0)?;
        return Err(Errno::EBADR.into());
    }
    let object = object.filter(|_| request.flags & FLAG_XATTR == 0);
    let found = match object {
        Some(object) => object.with(|fd| {
            let end = request.start.saturating_add(request.len);
            let end = fstat(fd)?.st_size.unsigned_abs().min(end);
            let start = request.start - request.start % BLOCK;
            memfile::data_segments(fd, start, end)
        })?,
        None => Vec::new(),
    };
    let most = match request.capacity {
        0 => usize::MAX,
        capacity => capacity as usize,
    };
    let count = found.len().min(most);
    if request.capacity > 0 {
        let mut extents = Vec::with_capacity(count * EXTENT);
        for (index, (start, len)) in found.iter().enumerate().take(count) {
            let last = if index + 1 == found.len() {
                EXTENT_LAST
            } else {
                0
            };
            let flags = u64::from(EXTENT_UNKNOWN | last);
            // Logical and physical offset, length, two reserved words, the flags and three reserved half words.
            let fields = [*start, 0, len.next_multiple_of(BLOCK), 0, 0, flags, 0];
            extents.extend(fields.into_iter().flat_map(u64::to_ne_bytes));
        }
        call.put(call.arg(2).wrapping_add(HEADER as u64), &extents)?;
    }
    request.answer(call, request.flags & !FLAG_CACHE, count)?;
    Ok(Answer::DONE)
}
