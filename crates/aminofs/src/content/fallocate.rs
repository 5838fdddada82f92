//! fallocate(2): growing a file, punching holes, zeroing ranges, and cutting a range out of a file or inserting one. What
//! lies behind such a range moves, and is stored again.

use std::sync::Arc;

use goanna_cache::{RangeSet, Transfer};
use goanna_vfs::{Caller, Errno, FileKind, Node, Result, file_flags};

use crate::content::cost::{PAGE_COST, deletes};
use crate::content::write::{MAX_FILE, pages_of};
use crate::inode::{Inode, PAGE, State};
use crate::view::View;

/// Which way the end of the file moves.
#[derive(Clone, Copy)]
enum Shift {
    /// The range goes.
    Collapse,
    /// A hole of the range's length comes.
    Insert,
}

/// Ranges are of whole blocks of this size, as on ext4.
const BLOCK: u64 = 4096;

impl View<'_> {
    pub(crate) fn do_fallocate(
        &self,
        caller: &Caller,
        node: &Node,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let inode = self.inode(node)?;
        let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let shift = match mode {
            libc::FALLOC_FL_COLLAPSE_RANGE => Some(Shift::Collapse),
            libc::FALLOC_FL_INSERT_RANGE => Some(Shift::Insert),
            _ => None,
        };
        let zero = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => false,
            _ if shift.is_some() => false,
            libc::FALLOC_FL_PUNCH_HOLE if keep_size => true,
            libc::FALLOC_FL_ZERO_RANGE => true,
            _ => return Err(Errno::EOPNOTSUPP.into()),
        };
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            FileKind::Fifo => return Err(Errno::ESPIPE.into()),
            _ => return Err(Errno::ENODEV.into()),
        }
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if len == 0 || i64::try_from(offset).is_err() {
            return Err(Errno::EINVAL.into());
        }
        if end > MAX_FILE {
            return Err(Errno::EFBIG.into());
        }
        self.change(|guard| {
            let inode = self.for_change(&inode)?;
            let mut state = inode.state.lock();
            if state.gone {
                return Err(Errno::ENOENT.into());
            }
            state.unless_flagged(file_flags::against_fallocate(mode))?;
            self.drop_capabilities(guard, inode.ino, &mut state)?;
            self.ensure_cache(&inode, &mut state)?;
            self.unshare(inode.ino);
            if let Some(shift) = shift {
                return self.shift(caller, &inode, &mut state, shift, offset, len);
            }
            let size = state.meta.size;
            if zero {
                self.zero(&inode, &mut state, offset, len)?;
            }
            let size = if keep_size { size } else { size.max(end) };
            self.resize(caller, &inode, &mut state, size)
        })?;
        self.add_idle(&inode);
        Ok(())
    }

    /// Makes a range of a file zero, as far as the file reaches.
    fn zero(&self, inode: &Arc<Inode>, state: &mut State, offset: u64, len: u64) -> Result<()> {
        let end = (offset + len).min(state.meta.size);
        let (first, last) = pages_of(offset, end.saturating_sub(offset));
        // Only the two pages at the edges can hold anything afterwards; of the others, those that are
        // stored are deleted.
        let pages = state.stored.intersect(first, last);
        let stored: u64 = pages.map(|(start, end)| end - start).sum();
        self.reserve(2 * PAGE_COST + deletes(stored) + state.meta_cost())?;
        let cache = state.cache.as_ref().ok_or(Errno::EIO)?;
        cache.punch(offset, len)?;
        self.erase_pages(state, first, last);
        self.mark_dirty(inode, state);
        Ok(())
    }

    /// Pages `start..end` were punched out, the first and the last of them perhaps in part. Space to store those two,
    /// and to delete the others, was reserved in the same operation.
    fn erase_pages(&self, state: &mut State, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if state.copy.is_some() {
            // Overwrite the stored content below with zeros.
            return self.dirty_pages(state, start, end);
        }
        if let Some(cache) = &mut state.cache {
            let pages = cache.pages_mut();
            pages.erase(start + 1, end - 1, &state.stored);
        }
        self.dirty_pages(state, start, start + 1);
        self.dirty_pages(state, end - 1, end);
    }

    /// Shifts what begins at `offset`, by `len` bytes, within an operation. The content is loaded. EINVAL for ranges of
    /// other than whole blocks, and for a range that does not end, or begin, in the file.
    fn shift(
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
            return Err(Errno::EINVAL.into());
        }
        let new_size = match shift {
            Shift::Collapse if offset + len >= size => return Err(Errno::EINVAL.into()),
            Shift::Collapse => size - len,
            Shift::Insert if len > MAX_FILE.saturating_sub(size) => return Err(Errno::EFBIG.into()),
            Shift::Insert if offset >= size => return Err(Errno::EINVAL.into()),
            Shift::Insert => size + len,
        };
        let cache = state.cache.as_ref().ok_or(Errno::EIO)?;
        let affected = affected_pages(&cache.data_pages(size)?, shift, offset / PAGE, len / PAGE);
        let pages = usize::try_from(affected.len()).unwrap_or(usize::MAX);
        let last = new_size.div_ceil(PAGE);
        let cut: u64 = state
            .stored
            .intersect(last, u64::MAX)
            .map(|(start, end)| end - start)
            .sum();
        self.reserve(pages.saturating_mul(PAGE_COST).saturating_add(deletes(cut)))?;
        let transfer = Transfer::within(cache)?;
        // Before anything moves: a failure half way leaves a content that is stored as it is.
        for (start, end) in affected.intersect(0, last) {
            self.dirty_pages(state, start, end);
        }
        match shift {
            Shift::Collapse => {
                transfer.shift(offset + len, offset, size - offset - len)?;
                self.resize(caller, inode, state, new_size)?;
            }
            Shift::Insert => {
                self.resize(caller, inode, state, new_size)?;
                transfer.shift(offset, offset + len, size - offset)?;
                transfer.punch(offset, len)?;
            }
        }
        self.mark_dirty(inode, state);
        Ok(())
    }
}

/// The pages that a shift changes of a file with data in the pages `data`: those that hold data before, and those that hold data
/// afterwards. The range begins at page `first` and has `len` pages.
fn affected_pages(data: &[(u64, u64)], shift: Shift, first: u64, len: u64) -> RangeSet {
    let mut affected = RangeSet::default();
    let source = match shift {
        Shift::Collapse => first + len,
        Shift::Insert => first,
    };
    for &(start, end) in data {
        affected.insert(start.max(first), end);
        let start = start.max(source);
        if start < end {
            match shift {
                Shift::Collapse => affected.insert(start - len, end - len),
                Shift::Insert => affected.insert(start + len, end + len),
            };
        }
    }
    affected
}
