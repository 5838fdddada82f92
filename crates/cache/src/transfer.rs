//! Copying content from one cache object to another, and moving it within one.

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
    /// From one object to another. ETXTBSY while the file of the other is executed.
    pub fn between(from: &CacheObject, to: &CacheObject) -> Result<Self> {
        let writer = to.writer()?;
        let reader = from.reader()?;
        Ok(Self { reader, writer })
    }

    /// Within one object.
    pub fn within(object: &CacheObject) -> Result<Self> {
        Self::between(object, object)
    }

    /// `(st_dev, st_ino)` of the object that is changed.
    pub fn target(&self) -> Result<(u64, u64)> {
        let (dev, ino, _) = stat::identity(self.writer.as_fd())?;
        Ok((dev, ino))
    }

    /// Allocates what a later copy to `offset..offset+len` needs, so that it does not fail in an object in memory.
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

    /// Copies the bytes `start..end` to the same place.
    pub fn copy(&self, start: u64, end: u64) -> Result<()> {
        let read = |at, buf: &mut [u8]| memfile::pread(self.reader.as_fd(), buf, at);
        copy_range(read, self.writer.as_fd(), start, end)
    }

    /// Copies `len` bytes from the offset `from` to the offset `to`, where the two may overlap. Pieces of zeros become holes.
    pub fn shift(&self, from: u64, to: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            // Towards the end of the file from the last piece on, so that none is overwritten before it is read.
            let at = if to > from { len - done - piece } else { done };
            self.shift_piece(from + at, to + at, piece)?;
            done += piece;
        }
        Ok(())
    }

    fn shift_piece(&self, from: u64, to: u64, len: u64) -> Result<()> {
        let mut data = vec![0; usize::try_from(len).map_err(|_| Errno::ENOMEM)?];
        memfile::pread(self.reader.as_fd(), &mut data, from)?;
        if data.iter().all(|&byte| byte == 0) {
            return self.punch(to, len);
        }
        write_all_at(&self.writer, to, &data)
    }
}
