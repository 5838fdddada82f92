//! Opening, writing and resizing regular files. `fallocate.rs` has what fallocate(2) does to them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use amino_schema::INLINE_MAX;
use amino_txn::OpGuard;
use goanna_sys::memfile;
use goanna_vfs::{
    Caller, Errno, FileKind, Node, OpenFile, Opened, Result, WritePosition, caps, file_flags,
};
use nix::unistd::Whence;

use crate::content::cost::{PAGE_COST, REAP_PAGES, deletes};
use crate::inode::{Inode, PAGE, State, now};
use crate::view::View;
use crate::{Durability, Volume};

/// The largest file, in bytes: ext4's limit with blocks of 4 KiB, so that a host file can hold its content.
pub(crate) const MAX_FILE: u64 = (1 << 44) - 4096;

/// The bits that Linux clears when a process without CAP_FSETID changes content: set-user-id, and set-group-id on files that the
/// group may execute (without that bit it meant mandatory locking).
fn clear_set_ids(caller: &Caller, state: &mut State) {
    if !caller.capable(caps::FSETID) {
        state.meta.mode &= !libc::S_ISUID;
        if state.meta.mode & libc::S_IXGRP != 0 {
            state.meta.mode &= !libc::S_ISGID;
        }
    }
}

impl State {
    /// A new open file description of the loaded content.
    fn open_content(&mut self, flags: i32) -> Result<Opened, Errno> {
        let cache = self.cache.as_mut().ok_or(Errno::EIO)?;
        Ok(cache.open(flags))
    }
}

impl Volume {
    /// Runs `op`; when the process has no descriptors left, again without the contents of unused files, each of which
    /// holds one. No lock is held.
    pub(crate) fn with_descriptors<T, E: PartialEq<Errno>>(
        &self,
        op: impl Fn() -> Result<T, E>,
    ) -> Result<T, E> {
        match op() {
            Err(error) if error == Errno::EMFILE => {
                self.shrink_idle(0, 0, usize::MAX);
                op()
            }
            other => other,
        }
    }

    /// Pages `start..end` now differ from the store, or from what a copy was made of. Space to store them was reserved in
    /// the same operation.
    pub(crate) fn dirty_pages(&self, state: &mut State, start: u64, end: u64) {
        if let Some(cache) = &mut state.cache {
            let new = cache.pages_mut().change(start, end);
            if state.copy.is_none() {
                self.dirty_bytes
                    .fetch_add(new.saturating_mul(PAGE), Ordering::Relaxed);
            }
        }
    }

    /// Resizes the loaded content. The log space for this was reserved.
    pub(crate) fn set_content_size(&self, state: &mut State, size: u64) -> Result<(), Errno> {
        if size != state.meta.size {
            let cache = state.cache.as_ref().ok_or(Errno::EIO)?;
            cache.resize(size)?;
        }
        self.note_content_size(state, size);
        Ok(())
    }

    /// Records that the content has another size, which its object has already or gets next.
    pub(crate) fn note_content_size(&self, state: &mut State, size: u64) {
        let end = size.div_ceil(PAGE);
        if size < state.meta.size
            && let Some(cache) = &mut state.cache
        {
            // Delete the stored pages, even if the file has grown again by then.
            cache.pages_mut().erase(end, u64::MAX, &state.stored);
            if !size.is_multiple_of(PAGE) {
                self.dirty_pages(state, end - 1, end);
            }
        }
        state.meta.size = size;
        if let Some(copy) = &mut state.copy {
            copy.low = copy.low.min(size);
        }
    }
}

impl View<'_> {
    pub(crate) fn do_open(&self, caller: &Caller, node: &Node, flags: i32) -> Result<Opened> {
        let inode = self.inode_to_read(node)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::ENXIO.into()),
        }
        let open = || self.with_descriptors(|| self.open_once(caller, &inode, flags));
        if flags & libc::O_TRUNC == 0 {
            return open();
        }
        self.retry_on_full_disk(open)
    }

    fn open_once(&self, caller: &Caller, inode: &Arc<Inode>, flags: i32) -> Result<Opened> {
        if flags & libc::O_TRUNC != 0 {
            return self.change(|guard| {
                let inode = &self.for_change(inode)?;
                if inode.under.is_none() {
                    let _names = self.names.read();
                    let mut state = inode.state.lock();
                    self.truncate_to_open(guard, caller, inode, &mut state)?;
                    let opened = state.open_content(flags)?;
                    self.share_opened(inode, &state);
                    return Ok(opened);
                }
                self.truncate_to_open(guard, caller, inode, &mut inode.state.lock())?;
                self.open_anchor(inode, flags)
            });
        }
        self.open_anchor(inode, flags)
    }

    fn truncate_to_open(
        &self,
        guard: &OpGuard<'_>,
        caller: &Caller,
        inode: &Arc<Inode>,
        state: &mut State,
    ) -> Result<()> {
        state.check_there()?;
        self.drop_capabilities(guard, inode.ino, state)?;
        self.resize(caller, inode, state, 0)
    }

    fn open_anchor(&self, inode: &Arc<Inode>, flags: i32) -> Result<Opened> {
        // A commit that is publishing has already looked which programs have the file open.
        let _names = self.names.read();
        let anchor = self.inode_for_open(inode);
        let mut state = anchor.state.lock();
        state.check_there()?;
        self.ensure_cache(&anchor, &mut state)?;
        let opened = state.open_content(flags)?;
        self.share_opened(&anchor, &state);
        Ok(opened)
    }

    pub(crate) fn do_write(
        &self,
        caller: &Caller,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        let inode = self.inode(file.node)?;
        if data.is_empty() {
            return Ok(0);
        }
        let written = self.change(|guard| {
            let inode = self.for_change(&inode)?;
            let shown = Arc::ptr_eq(&inode, &self.inode_with_object(&inode));
            let mut state = inode.state.lock();
            self.drop_capabilities(guard, inode.ino, &mut state)?;
            self.write_locked(caller, (&inode, shown), &mut state, file, position, data)
        })?;
        // O_SYNC contains O_DSYNC's bit.
        let synced = file.flags & libc::O_DSYNC != 0;
        if synced && !self.in_transaction() && self.durability() != Durability::Acid {
            self.flush()?;
            self.failures.check(inode.ino)?;
        }
        Ok(written)
    }

    /// `shown`: the descriptor is of the inode's own content.
    fn write_locked(
        &self,
        caller: &Caller,
        (inode, shown): (&Arc<Inode>, bool),
        state: &mut State,
        file: OpenFile<'_>,
        position: WritePosition,
        data: &[u8],
    ) -> Result<usize> {
        state.unless_flagged(file_flags::IMMUTABLE)?;
        let size = state.meta.size;
        let append = file.flags & libc::O_APPEND != 0;
        let start = match position {
            _ if append => size,
            WritePosition::End => size,
            WritePosition::Cursor => nix::unistd::lseek(file.ofd, 0, Whence::SeekCur)? as u64,
            WritePosition::At(at) => at,
        };
        // As Linux: EINVAL if the end is beyond the largest offset. Otherwise what fits is written; EFBIG if nothing fits.
        if (i64::MAX as u64).saturating_sub(start) < data.len() as u64 {
            return Err(Errno::EINVAL.into());
        }
        let available = usize::try_from(MAX_FILE.saturating_sub(start)).unwrap_or(usize::MAX);
        let data = data.get(..available).unwrap_or(data);
        if data.is_empty() {
            return Err(Errno::EFBIG.into());
        }
        let (first, last) = pages_of(start, data.len() as u64);
        if inode.under.is_some() {
            self.ensure_cache(inode, state)?;
        }
        let cache = state.cache.as_ref().ok_or(Errno::EIO)?;
        if shown && !cache.is_written_through(file.ofd)? {
            return Err(Errno::EIO.into());
        }
        let changed = cache.pages().changed();
        let new_pages = usize::try_from(changed.missing(first, last)).unwrap_or(usize::MAX);
        // With the first page, which is stored from now on when the content was inline before.
        let was_inline = size <= INLINE_MAX as u64 && first > 0 && !changed.contains(0);
        let pages = new_pages.saturating_add(usize::from(was_inline));
        let meta = if state.dirty { 0 } else { state.meta_cost() };
        self.reserve(pages.saturating_mul(PAGE_COST).saturating_add(meta))?;
        self.unshare(inode.ino);
        // At `start`, whatever else happens to the description meanwhile: these pages count as changed.
        let written = if shown {
            memfile::pwrite_at(file.ofd, data, start)?
        } else {
            memfile::pwrite_at(cache.writer()?.as_fd(), data, start)?
        };
        if position == WritePosition::Cursor {
            advance(file, append, start, written)?;
        }
        if written > 0 {
            let (first, last) = pages_of(start, written as u64);
            self.dirty_pages(state, first, last);
            state.meta.size = size.max(start + written as u64);
            clear_set_ids(caller, state);
            state.touch(now());
            self.mark_dirty(inode, state);
        }
        Ok(written)
    }

    /// Sets the size, within an operation.
    pub(crate) fn resize(
        &self,
        caller: &Caller,
        inode: &Arc<Inode>,
        state: &mut State,
        size: u64,
    ) -> Result<()> {
        let old = state.meta.size;
        let end = size.div_ceil(PAGE);
        if size < old {
            if !state.stored_exact && state.stored.len() > REAP_PAGES {
                self.learn_stored(inode, state)?;
            }
            // A file that becomes small enough is stored inline and loses all its pages.
            let gone = if size <= INLINE_MAX as u64 { 0 } else { end };
            let stored = state.stored.intersect(gone, u64::MAX).map(|(s, e)| e - s);
            self.reserve_removal(deletes(stored.sum()))?;
        }
        // The last page is stored shorter; the first one is stored when the content was inline before.
        let bytes = 2 * PAGE_COST + state.meta_cost();
        if size < old {
            self.reserve_removal(bytes)?;
        } else {
            self.reserve(bytes)?;
        }
        self.unshare(inode.ino);
        if size == 0 && state.cache.is_none() {
            // Nothing of the content is needed any more.
            self.empty_cache(state)?;
        } else {
            self.ensure_cache(inode, state)?;
        }
        self.set_content_size(state, size)?;
        clear_set_ids(caller, state);
        state.touch(now());
        self.mark_dirty(inode, state);
        Ok(())
    }

    pub(crate) fn do_truncate(&self, caller: &Caller, node: &Node, size: u64) -> Result<()> {
        let inode = self.inode(node)?;
        match inode.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::EISDIR.into()),
            _ => return Err(Errno::EINVAL.into()),
        }
        if size > MAX_FILE {
            return Err(Errno::EFBIG.into());
        }
        let resize = || {
            self.with_descriptors(|| {
                self.change(|guard| {
                    let inode = self.for_change(&inode)?;
                    let mut state = inode.state.lock();
                    state.check_there()?;
                    state.unless_flagged(file_flags::PROTECTED)?;
                    self.drop_capabilities(guard, inode.ino, &mut state)?;
                    self.resize(caller, &inode, &mut state, size)
                })
            })
        };
        let shrinks = size < inode.state.lock().meta.size;
        if shrinks {
            self.retry_on_full_disk(resize)?;
        } else {
            resize()?;
        }
        self.release_if_closed(inode.base());
        self.add_idle(&inode);
        Ok(())
    }
}

/// Moves the description's offset behind what was written at `start`. Another thread of the program may have moved it
/// since, by an lseek(2) that the kernel answered: then it stays there, as if the lseek had come after the write.
fn advance(file: OpenFile<'_>, append: bool, start: u64, written: usize) -> Result<(), Errno> {
    use nix::unistd::lseek;
    let at = i64::try_from(start).map_err(|_| Errno::EINVAL)?;
    if append || lseek(file.ofd, 0, Whence::SeekCur)? == at {
        let end = at.saturating_add_unsigned(written as u64);
        lseek(file.ofd, end, Whence::SeekSet)?;
    }
    Ok(())
}

/// The pages that `offset..offset+len` touches: first and end.
pub(crate) fn pages_of(offset: u64, len: u64) -> (u64, u64) {
    if len == 0 {
        return (0, 0);
    }
    let end = offset.saturating_add(len);
    (offset / PAGE, end.div_ceil(PAGE))
}
