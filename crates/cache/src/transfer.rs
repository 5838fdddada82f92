//! Copying content from one cache object to another, and moving it within one.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use goanna_sys::{memfile, stat};
use goanna_vfs::Errno;

use crate::Result;
use crate::object::{CacheObject, PIECE, copy_range, write_all_at};

/// Descriptors of the object that is read and of the object that is changed, which may be the same one. They are opened
/// before anything changes, since that can fail.
#[derive(Debug)]
pub struct Transfer {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Transfer {
    /// Copies from one object to another. ETXTBSY while the file of the other is executed.
    pub fn between(from: &CacheObject, to: &CacheObject) -> Result<Self> {
        let writer = to.writer()?;
        let reader = from.reader()?;
        Ok(Self { reader, writer })
    }

    /// Moves content within one object.
    pub fn within(object: &CacheObject) -> Result<Self> {
        Self::between(object, object)
    }

    /// `(st_dev, st_ino)` of the object that is changed.
    pub fn target(&self) -> Result<(u64, u64)> {
        let (dev, ino, _) = stat::identity(self.writer.as_fd())?;
        Ok((dev, ino))
    }

    /// Allocates the memory for a later copy to `offset..offset+len`, so that the copy cannot fail in an object in memory.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        memfile::allocate(self.writer.as_fd(), offset, len)
    }

    /// Sets the size of the object that is changed.
    pub fn resize(&self, size: u64) -> Result<()> {
        memfile::set_len(self.writer.as_fd(), size)
    }

    /// Makes `offset..offset+len` read as zeros.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        memfile::punch(self.writer.as_fd(), offset, len)
    }

    /// Copies the bytes `start..end` to the same place, and gives them to `copied` in pieces, each with its offset.
    pub fn copy(&self, start: u64, end: u64, mut copied: impl FnMut(u64, &[u8])) -> Result<()> {
        let mut read = |at, buf: &mut [u8]| {
            let len = memfile::pread(self.reader.as_fd(), buf, at)?;
            copied(at, buf.get(..len).unwrap_or_default());
            Ok(len)
        };
        copy_range(&mut read, self.writer.as_fd(), start, end)
    }

    /// Moves the `len` bytes at the offset `from` to the offset `to`, where the two ranges may overlap. Holes stay holes, and
    /// their length does not matter for the cost. The part of `from..from+len` outside of `to..to+len` is unchanged.
    pub fn shift(&self, from: u64, to: u64, len: u64) -> Result<()> {
        let mut at = 0;
        let mut parts = Vec::new();
        for (start, data) in memfile::data_segments(self.reader.as_fd(), from, from + len)? {
            let start = start - from;
            if at < start {
                parts.push(Part::Hole(at..start));
            }
            at = start + data;
            parts.push(Part::Data(start..at));
        }
        if at < len {
            parts.push(Part::Hole(at..len));
        }
        if to > from {
            // From the last part on, so that none is overwritten before it is read.
            parts.reverse();
        }
        for part in parts {
            match part {
                Part::Hole(range) => self.punch(to + range.start, range.end - range.start)?,
                Part::Data(range) => {
                    self.shift_data(
                        from + range.start,
                        to + range.start,
                        range.end - range.start,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn shift_data(&self, from: u64, to: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            let at = if to > from { len - done - piece } else { done };
            let mut data = vec![0; usize::try_from(piece).map_err(|_| Errno::ENOMEM)?];
            memfile::pread(self.reader.as_fd(), &mut data, from + at)?;
            write_all_at(&self.writer, to + at, &data)?;
            done += piece;
        }
        Ok(())
    }
}

/// A part of the bytes that are moved, in offsets from their start.
enum Part {
    Hole(Range<u64>),
    Data(Range<u64>),
}
