//! Cutting a range out of a file, and making room for one: fallocate(2) with `FALLOC_FL_COLLAPSE_RANGE` and
//! `FALLOC_FL_INSERT_RANGE`. What lies behind the range moves, and is stored anew.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use goanna_sys::memfile;
use goanna_vfs::{Caller, Errno, Result};

use crate::data::{MAX_FILE, PAGE_COST, deletes};
use crate::inode::{Inode, PAGE, State};
use crate::view::View;

/// Which way the end of the file moves.
#[derive(Clone, Copy)]
pub(crate) enum Shift {
    /// The range goes.
    Collapse,
    /// A hole of the range's length comes.
    Insert,
}

/// Ranges are of whole blocks of this size, as on ext4.
const BLOCK: u64 = 4096;
/// Moved at once.
const PIECE: u64 = 1 << 20;

impl View<'_> {
    /// Shifts what begins at `offset`, by `len` bytes, within an operation. The content object is there. EINVAL for ranges of
    /// other than whole blocks, and for a range that does not end, or begin, in the file.
    pub(crate) fn shift(
        &self,
        caller: &Caller,
        inode: &Arc<Inode>,
        state: &mut State,
        shift: Shift,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let size = state.meta.size;
        if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) {
            return Err(Errno::EINVAL);
        }
        let new_size = match shift {
            Shift::Collapse if offset + len >= size => return Err(Errno::EINVAL),
            Shift::Collapse => size - len,
            Shift::Insert if len > MAX_FILE - size => return Err(Errno::EFBIG),
            Shift::Insert if offset >= size => return Err(Errno::EINVAL),
            Shift::Insert => size + len,
        };
        let (first, last) = (offset / PAGE, new_size.div_ceil(PAGE));
        let pages = usize::try_from(last - first).unwrap_or(usize::MAX);
        let cut = deletes(size.div_ceil(PAGE).saturating_sub(last));
        self.reserve(pages.saturating_mul(PAGE_COST).saturating_add(cut))?;
        let writer = state.cache.as_ref().ok_or(Errno::EIO)?.writer()?;
        let witness = &state.cache.as_ref().ok_or(Errno::EIO)?.witness;
        let content = witness.open(libc::O_RDONLY)?;
        let (from, to) = (content.as_fd(), writer.as_fd());
        // Before anything moves: a failure half way leaves a content that is stored as it is.
        self.dirty_pages(state, first, last);
        match shift {
            Shift::Collapse => {
                move_down(from, to, offset + len, offset, size - offset - len)?;
                self.resize(caller, inode, state, new_size)?;
            }
            Shift::Insert => {
                self.resize(caller, inode, state, new_size)?;
                move_up(from, to, offset, offset + len, size - offset)?;
                memfile::punch(to, offset, len)?;
            }
        }
        self.mark_dirty(inode, state);
        Ok(())
    }
}

/// Moves `len` bytes towards the beginning, in pieces from the first.
fn move_down(
    content: BorrowedFd<'_>,
    writer: BorrowedFd<'_>,
    from: u64,
    to: u64,
    len: u64,
) -> Result<()> {
    let mut done = 0;
    while done < len {
        let piece = PIECE.min(len - done);
        move_piece(content, writer, from + done, to + done, piece)?;
        done += piece;
    }
    Ok(())
}

/// Moves `len` bytes towards the end, in pieces from the last.
fn move_up(
    content: BorrowedFd<'_>,
    writer: BorrowedFd<'_>,
    from: u64,
    to: u64,
    len: u64,
) -> Result<()> {
    let mut left = len;
    while left > 0 {
        let piece = PIECE.min(left);
        left -= piece;
        move_piece(content, writer, from + left, to + left, piece)?;
    }
    Ok(())
}

fn move_piece(
    content: BorrowedFd<'_>,
    writer: BorrowedFd<'_>,
    from: u64,
    to: u64,
    len: u64,
) -> Result<()> {
    let mut data = vec![0; usize::try_from(len).map_err(|_| Errno::ENOMEM)?];
    memfile::pread(content, &mut data, from)?;
    if data.iter().all(|&byte| byte == 0) {
        // A hole stays one.
        return memfile::punch(writer, to, len);
    }
    match memfile::pwrite(writer, &data, to)? {
        n if n == data.len() => Ok(()),
        _ => Err(Errno::ENOSPC),
    }
}
