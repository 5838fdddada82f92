//! Hands the store the changes that are only in memory.
//!
//! The store collects them at each flush point, while no operation is in progress: the state then is the result of all operations
//! before it and of none after it. The operations have reserved the log space for their changes, and collecting does not call the
//! store.
//!
//! A state may also be submitted earlier, as an operation of its own: before a flush point, to keep that short, and when an idle
//! content is dropped. If it changes again before the flush point, it is dirty again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use amino_schema::{INLINE_MAX, MetaFlags, OrphanRecord, key, record};
use amino_txn::{Changes, DirtySource, OpGuard};
use bytes::Bytes;
use goanna_cache::ChangedPages;
use goanna_vfs::{Errno, FileKind, Result};

use crate::content::cost::{META_COST, PAGE_COST, REAP_PAGES, deletes};
use crate::inode::{Content, Inode, MetaLocation, PAGE, State};
use crate::{Volume, errno};

/// With fewer dirty bytes than this, nothing is submitted before the flush point.
const COLLECT_BYTES: usize = 256 << 10;

/// Pages that are read by one call. A few, because pages of a hole behind the first one are read, too.
const READ_PAGES: u64 = 8;

impl DirtySource for Volume {
    fn prepare(&self) {
        if self.dirty_bytes() < COLLECT_BYTES {
            return;
        }
        let _operation = self.operation();
        let dirty: Vec<Arc<Inode>> = self.dirty.lock().values().cloned().collect();
        for inode in dirty {
            let guard = self.store.enter();
            let _names = self.names.read();
            let mut state = inode.state.lock();
            // Orphans, and files that cannot be read now, are collected at the flush point.
            if state.dirty && !state.gone && state.home != MetaLocation::Orphan {
                let _ = self.submit_named_file(&guard, &inode, &mut state);
            }
        }
    }

    fn collect(&self, out: &mut Changes) {
        self.end_grants_to_collect();
        let dirty = std::mem::take(&mut *self.dirty.lock());
        self.dirty_bytes.store(0, Relaxed);
        let mut kept = 0;
        for inode in dirty.into_values() {
            kept += self.collect_inode(&inode, out);
        }
        // The reservation for the files that are still dirty stays.
        self.dirty_bytes.fetch_add(kept as u64, Relaxed);
        let reserved = self.reserved.swap(kept, Relaxed);
        debug_assert!(
            out.byte_size() <= reserved,
            "{} bytes collected, {reserved} reserved",
            out.byte_size()
        );
    }

    fn dirty_bytes(&self) -> usize {
        usize::try_from(self.dirty_bytes.load(Relaxed)).unwrap_or(usize::MAX)
    }
}

impl Volume {
    /// Bytes that must stay reserved for what could not be collected.
    fn collect_inode(&self, inode: &Arc<Inode>, out: &mut Changes) -> usize {
        let mut state = inode.state.lock();
        state.dirty = false;
        if state.gone {
            self.failures.remove(inode.ino);
            return 0;
        }
        if state.home == MetaLocation::Orphan {
            // The one reference is what the dirty set held.
            let unused = Arc::strong_count(inode) == 1 || state.doomed;
            if unused && reap(inode, &mut state, out) {
                self.failures.remove(inode.ino);
                return 0;
            }
            if !state.linkable {
                put_orphan(inode, &mut state, out);
                return 0;
            }
        }
        self.note_mapped(inode, &mut state);
        if let Err(errno) = store_content(inode, &mut state, out) {
            // The host could not read a large file's content. It stays dirty, and its metadata with it.
            self.failures.add(inode.ino, errno, state.committed);
            self.mark_dirty(inode, &mut state);
            return state.meta_cost() + state.cache.as_ref().map_or(0, content_cost);
        }
        self.stored(inode, &mut state);
        inode.put_meta(&mut state, out);
        0
    }
}

impl Volume {
    /// The content of the file is in the store, or on its way to it.
    fn stored(&self, inode: &Inode, state: &mut State) {
        state.committed = false;
        self.failures.remove(inode.ino);
    }
}

/// Log bytes that storing the content can take.
fn content_cost(cache: &Content) -> usize {
    let pages = usize::try_from(cache.pages().changed().len()).unwrap_or(usize::MAX);
    let erased = deletes(cache.pages().erased().len());
    // With the first page, if the content was inline before.
    pages
        .saturating_add(1)
        .saturating_mul(PAGE_COST)
        .saturating_add(erased)
}

/// Removes all that the store holds of an inode without names, if that is little enough to do it now.
fn reap(inode: &Inode, state: &mut State, out: &mut Changes) -> bool {
    let xattrs = state.meta.flags.contains(MetaFlags::HAS_XATTR);
    let pages = state.stored.len();
    if xattrs || pages > if state.reap_reserved { REAP_PAGES } else { 0 } {
        state.reap_reserved = false;
        return false;
    }
    for page in state.stored.pages() {
        out.delete(key::page_key(inode.ino, page));
    }
    if state.orphan_stored {
        out.delete(key::orphan_key(inode.ino));
    }
    state.gone = true;
    true
}

/// Writes the orphan record of a file without names. No process can reach its content after a crash, so what is not stored yet stays
/// in memory; the size covers what is stored.
fn put_orphan(inode: &Inode, state: &mut State, out: &mut Changes) {
    let mut meta = state.meta.clone();
    if inode.kind == FileKind::Regular {
        let end = state.stored.ranges().last().map_or(0, |(_, end)| end);
        meta.size = meta.size.max(end.saturating_mul(PAGE));
        meta.inline = None;
    }
    out.put(key::orphan_key(inode.ino), OrphanRecord { meta }.encode());
    state.orphan_stored = true;
    state.reap_reserved = false;
}

/// Hands over the pages that changed, or the whole of a tiny file.
fn store_content(inode: &Inode, state: &mut State, out: &mut Changes) -> Result<(), Errno> {
    let Some(cache) = &mut state.cache else {
        return Ok(());
    };
    let size = state.meta.size;
    if size <= INLINE_MAX as u64 {
        let mut content = vec![0; size as usize];
        cache.read_at(0, &mut content)?;
        *cache.pages_mut() = ChangedPages::default();
        delete_pages(inode, state, 0, u64::MAX, out);
        state.meta.inline = Some(Bytes::from(content));
        return Ok(());
    }
    if state.meta.inline.is_some() {
        cache.pages_mut().change(0, 1);
    }
    let mut buf = vec![0; size.min(READ_PAGES * PAGE) as usize];
    let end = size.div_ceil(PAGE);
    let pages = cache.pages().clone();
    // Without a look at the content: what a mapping has put there since is not reserved, and found later.
    for (from, to) in pages.erased().ranges() {
        delete_pages(inode, state, from, to, out);
    }
    for (mut page, end) in pages.changed().intersect(0, end) {
        while page < end {
            let Some(cache) = &state.cache else { break };
            // Holes are skipped without reading them.
            let data = cache.next_data(page * PAGE)?.map_or(end, |at| at / PAGE);
            if data > page {
                delete_pages(inode, state, page, data.min(end), out);
                page = data;
                continue;
            }
            let stop = end.min(page + READ_PAGES);
            let len = size.min(stop * PAGE) - page * PAGE;
            let Some(content) = buf.get_mut(..len as usize) else {
                break;
            };
            cache.read_at(page * PAGE, content)?;
            for (page, content) in (page..stop).zip(content.chunks(PAGE as usize)) {
                if is_zero(content) {
                    delete_pages(inode, state, page, page + 1, out);
                } else {
                    out.put(key::page_key(inode.ino, page), record::encode_page(content));
                    state.stored.insert(page, page + 1);
                }
            }
            page = stop;
        }
    }
    // Only now: had reading failed, everything would still be dirty.
    if let Some(cache) = &mut state.cache {
        *cache.pages_mut() = ChangedPages::default();
    }
    state.meta.inline = None;
    delete_pages(inode, state, end, u64::MAX, out);
    Ok(())
}

/// Deletes those of the pages that may be stored.
fn delete_pages(inode: &Inode, state: &mut State, start: u64, end: u64, out: &mut Changes) {
    for (from, to) in state.stored.intersect(start, end) {
        for page in from..to {
            out.delete(key::page_key(inode.ino, page));
        }
    }
    state.stored.remove(start, end);
}

/// Whether there is nothing but zeros: such a page has no record.
pub(crate) fn is_zero(content: &[u8]) -> bool {
    // Whole chunks at a time, which the compiler turns into wide instructions.
    content
        .chunks(256)
        .all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

impl Volume {
    /// Submits the changes of a file that has a name, as at a flush point. The caller holds the namespace lock, because the metadata is stored
    /// with the name.
    pub(crate) fn submit_named_file(
        &self,
        guard: &OpGuard<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
    ) -> Result<(), Errno> {
        self.note_mapped(inode, state);
        let before = state.cache.as_ref().map(|cache| cache.pages().clone());
        let (stored, inline) = (state.stored.clone(), state.meta.inline.clone());
        let mut changes = Changes::new();
        let result = store_content(inode, state, &mut changes).and_then(|()| {
            inode.put_meta(state, &mut changes);
            let submitted = self.store.submit_reserved(guard, changes);
            submitted.map_err(|error| errno(&error))
        });
        match result {
            Ok(()) => {
                let pages = before.map_or(0, |pages| pages.changed().len());
                let bytes = pages.saturating_mul(PAGE) + META_COST as u64;
                let less = |all: u64| Some(all.saturating_sub(bytes));
                let _ = self.dirty_bytes.fetch_update(Relaxed, Relaxed, less);
                state.dirty = false;
                self.dirty.lock().remove(&inode.ino);
                self.stored(inode, state);
            }
            Err(_) => {
                state.stored = stored;
                state.meta.inline = inline;
                if let (Some(cache), Some(pages)) = (&mut state.cache, before) {
                    *cache.pages_mut() = pages;
                }
            }
        }
        result
    }
}
