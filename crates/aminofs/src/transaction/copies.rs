//! The copies of files that a transaction's programs have open: the content that their descriptors show, and the last close.
//!
//! Descriptors can be older than an explicit transaction and outlive it. So they show the content outside of it, and the
//! transaction's own content is in an object that no program has open. Programs of a run transaction get all their
//! descriptors after its begin, and close them before its end: an open makes the transaction's own copy, and the descriptors
//! are of that copy, so these programs read, map and execute natively.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use amino_schema::MetaFlags;
use bytes::Bytes;
use goanna_vfs::{Errno, FileKind, Node, Result};

use super::Txn;
use crate::Volume;
use crate::content::cost::PAGE_COST;
use crate::inode::{Inode, MetaLocation, PAGE, State, now};
use crate::view::View;

/// Contents of at most this many bytes are kept without a descriptor while no program has them open.
const PACK_MAX: u64 = 64 << 10;

impl View<'_> {
    /// The run transaction that this operation is part of.
    fn run(&self) -> Option<&Arc<Txn>> {
        let outermost = self.within()?.chain().last()?;
        outermost.is_run.then_some(outermost)
    }

    /// The inode whose content object programs get descriptors of.
    pub(crate) fn inode_with_object(&self, inode: &Arc<Inode>) -> Arc<Inode> {
        let mut at = inode;
        while let Some(under) = &at.under {
            if under.state.lock().uncommitted {
                // An inode that a transaction has made exists in no outer state.
                return Arc::clone(at);
            }
            at = under;
        }
        let own = |run: &Arc<Txn>| run.level.lock().inodes.get(&at.ino).cloned();
        self.run().and_then(own).unwrap_or_else(|| Arc::clone(at))
    }

    /// The inode of [`View::inode_with_object`], for an open: a run transaction has a copy from then on.
    pub(crate) fn inode_for_open(&self, inode: &Arc<Inode>) -> Arc<Inode> {
        let anchor = self.inode_with_object(inode);
        let Some(run) = self.run().filter(|_| anchor.under.is_none()) else {
            return anchor;
        };
        let copy = Inode::copy(&anchor, anchor.state.lock().forked());
        copy.changed.store(false, SeqCst);
        // Another thread of the transaction may have made the copy first.
        let mut level = run.level.lock();
        Arc::clone(level.inodes.entry(copy.ino).or_insert(copy))
    }

    /// Handles a change of the file by a name: if no process has the file open, no close will follow.
    pub(crate) fn release_if_closed(&self, base: &Arc<Inode>) {
        if self.in_transaction() {
            self.release_copies(base);
        }
    }

    pub(crate) fn do_has_own_content(&self, node: &Node) -> Result<bool> {
        Ok(self.differs_from_descriptors(&self.inode_to_read(node)?))
    }

    /// The part of the transaction's own content of the file, if it has one.
    pub(crate) fn do_read_own(
        &self,
        node: &Node,
        offset: u64,
        len: usize,
    ) -> Result<Option<Vec<u8>>> {
        let inode = self.inode_to_read(node)?;
        if !self.differs_from_descriptors(&inode) {
            return Ok(None);
        }
        let left = inode.state.lock().meta.size.saturating_sub(offset);
        let len = len.min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut data = vec![0; len];
        let got = self.read_content(&inode, offset, &mut data)?;
        data.truncate(got);
        Ok(Some(data))
    }

    /// Whether the transaction has a content of the file, which it sees as `inode`, that differs from the one that
    /// descriptors show.
    fn differs_from_descriptors(&self, inode: &Arc<Inode>) -> bool {
        let anchor = self.inode_with_object(inode);
        let own = |copy: &Arc<Inode>| {
            let state = copy.state.lock();
            state.copy.as_ref().is_some_and(|copy| copy.content)
        };
        std::iter::successors(Some(inode), |copy| copy.under.as_ref())
            .take_while(|copy| !Arc::ptr_eq(copy, &anchor))
            .any(own)
    }

    /// Records that the file's content can change without a call from now on.
    pub(crate) fn do_map_shared(&self, node: &Node) -> Result<()> {
        if self.in_transaction() {
            return self.map_inside(node);
        }
        // A snapshot's files cannot be open for writing.
        if !self.is_snapshot {
            self.do_mapped_shared(node);
        }
        Ok(())
    }

    /// In a transaction, content can be mapped only if it is the transaction's own and its descriptors show it.
    fn map_inside(&self, node: &Node) -> Result<()> {
        let mut inode = self.inode(node)?;
        if Arc::ptr_eq(&inode, &self.inode_with_object(&inode)) && self.is_own(&inode) {
            inode = self.for_change(&inode)?;
        } else {
            return Err(Errno::ENODEV.into());
        }
        let mut state = inode.state.lock();
        let size = state.meta.size;
        let cache = state.cache.as_mut().ok_or(Errno::ENODEV)?;
        if !cache.is_mapped() {
            // Filling holes takes additional memory.
            let clean: u64 = cache
                .data_pages(size)?
                .into_iter()
                .map(|(start, end)| cache.pages().changed().missing(start, end))
                .sum();
            let bytes = usize::try_from(clean).unwrap_or(usize::MAX);
            self.reserve(bytes.saturating_mul(PAGE_COST))?;
            cache.map_shared();
        }
        Ok(())
    }
}

/// All of a mapped copy counts as changed, because the written pages are not known.
pub(super) fn take_mapped(state: &mut State) -> Result<(), Errno> {
    let size = state.meta.size;
    if let Some(cache) = state.cache.as_mut().filter(|cache| cache.is_mapped()) {
        for (start, end) in cache.data_pages(size)? {
            cache.pages_mut().change(start, end);
        }
        state.touch(now());
    }
    Ok(())
}

impl View<'_> {
    /// Loads the content, as [`Volume::ensure_cache`]; a packed content gets its object and its reservation in the log
    /// again.
    pub(crate) fn ensure_cache(&self, inode: &Inode, state: &mut State) -> Result<()> {
        let was_packed = state.packed().map(|packed| packed.len() as u64);
        Volume::ensure_cache(self, inode, state)?;
        if let Some(len) = was_packed {
            let pages = usize::try_from(len.div_ceil(PAGE)).unwrap_or(0);
            // The content had this reservation before it was packed, so this never fails.
            let more = pages.saturating_mul(PAGE_COST) - len as usize;
            self.reserve_removal(more)?;
        }
        Ok(())
    }
}

impl State {
    /// The content of a copy that is kept without an object.
    pub(crate) fn packed(&self) -> Option<&Bytes> {
        self.copy.as_ref()?.packed.as_ref()
    }
}

impl Volume {
    /// Releases the copies of the file in open transactions that no program has open any more.
    pub(crate) fn release_copies(&self, base: &Arc<Inode>) {
        if self.transactions.count.load(SeqCst) == 0 {
            return;
        }
        // A nested transaction's commit writes to copies that it has found, and holds this lock.
        let _names = self.names.read();
        for txn in self.transactions.all() {
            let copy = txn.level.lock().inodes.get(&base.ino).cloned();
            if let Some(copy) = copy
                && Arc::ptr_eq(copy.base(), base)
                && copy.kind == FileKind::Regular
            {
                // After a failure the content stays where it is.
                let _ = self.release_copy(&txn, &copy);
            }
        }
    }

    fn release_copy(&self, txn: &Arc<Txn>, copy: &Arc<Inode>) -> Result<(), Errno> {
        // The end of the transaction uses the level in its present state.
        let Some(_using) = txn.using.try_read_recursive() else {
            return Ok(());
        };
        let mut state = copy.state.lock();
        let size = state.meta.size;
        let cache = state.cache.as_ref();
        if cache.is_some_and(|cache| !cache.is_unused()) {
            return Ok(());
        }
        // The reservation for the content.
        let packed = state.packed().map_or(0, Bytes::len);
        let pages = cache.map_or(0, |cache| cache.pages().changed().len());
        let bytes = pages
            .saturating_mul(PAGE_COST as u64)
            .saturating_add(packed as u64);
        let uncommitted = copy
            .under
            .as_ref()
            .is_some_and(|under| under.state.lock().uncommitted);
        let xattrs = state.meta.flags.contains(MetaFlags::HAS_XATTR);
        let never_was = uncommitted && state.home == MetaLocation::Orphan && !xattrs;
        if never_was || !copy.changed.load(SeqCst) {
            let mut level = txn.level.lock();
            // The level's reference, and the caller's.
            if Arc::strong_count(copy) == 2 {
                level.inodes.remove(&copy.ino);
                txn.release(bytes);
            }
            return Ok(());
        }
        take_mapped(&mut state)?;
        let Some(cache) = &mut state.cache else {
            return Ok(());
        };
        cache.release();
        if size > PACK_MAX {
            return Ok(());
        }
        let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
        let got = cache.read_at(0, &mut content)?;
        if got == content.len()
            && let Some(own) = &mut state.copy
        {
            own.packed = Some(Bytes::from(content));
            state.cache = None;
            txn.release(bytes.saturating_sub(size));
        }
        Ok(())
    }
}
