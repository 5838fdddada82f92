//! Commits of content: gives a file the content of a transaction's copy.
//!
//! All that can fail comes first, in [`Volume::plan`]: descriptors, memory, space on the disk. Nothing has changed by then.
//! [`Volume::merge`] follows the plan and does not fail, because the log has the commit already.
//!
//! Where no program has the file's object open, the copy's object takes its place. Where programs have it open, it changes
//! in place: descriptors, locks and mappings are the kernel's, and belong to the object.

use std::sync::atomic::Ordering::SeqCst;

use amino_schema::{INLINE_MAX, key, record};
use amino_txn::Changes;
use bytes::Bytes;
use goanna_cache::{ChangedPages, RangeSet, Transfer};
use goanna_vfs::{Errno, Result};

use super::copies::take_mapped;
use crate::Volume;
use crate::content::collect::is_zero;
use crate::content::cost::REAP_PAGES;
use crate::inode::{Inode, MetaLocation, PAGE, State};

/// How a file gets its content when a transaction's copy of it is committed.
pub(super) enum Plan {
    /// It stays; or the copy around takes the object, because it has no content of its own.
    Keep,
    /// The commit's record has it. The file needs no object.
    Stored(StoredContent),
    /// The copy's object takes the place of the file's, which no program has open.
    Replace,
    /// The file's object, which programs have open, gets the content of the copy's.
    InPlace(Transfer),
    /// The transaction changed the file and removed it, and its programs do not have it open any more. No other program sees
    /// what it wrote: programs that still have the file open, or have just looked its name up, get the content that was
    /// committed before.
    Withhold,
}

impl Plan {
    /// The object that changes in place, by `(st_dev, st_ino)`.
    pub fn object(&self) -> Option<(u64, u64)> {
        match self {
            Self::InPlace(transfer) => transfer.target().ok(),
            _ => None,
        }
    }
}

/// What an inode records of content that was stored: the bytes themselves, or which pages there are.
pub(super) struct StoredContent {
    inline: Option<Bytes>,
    pages: RangeSet,
}

impl StoredContent {
    /// Puts `content` into `out` as the pages of file `ino`; tiny ones lie with the metadata. Of the pages that are
    /// `stored` already the others are deleted.
    pub fn put(ino: u64, content: Bytes, stored: &RangeSet, out: &mut Changes) -> Self {
        let mut pages = RangeSet::default();
        let is_inline = content.len() <= INLINE_MAX;
        for (index, page) in (0_u64..).zip(content.chunks(PAGE as usize)) {
            if !is_inline && page.iter().any(|&byte| byte != 0) {
                out.put(key::page_key(ino, index), record::encode_page(page));
                pages.insert(index, index + 1);
            }
        }
        for index in stored.pages().filter(|&index| !pages.contains(index)) {
            out.delete(key::page_key(ino, index));
        }
        let inline = is_inline.then_some(content);
        Self { inline, pages }
    }

    /// Log bytes that the inode's metadata takes more with it.
    pub fn meta_cost(&self) -> usize {
        self.inline.as_ref().map_or(0, Bytes::len)
    }

    /// Makes `state`, which has no object, that of a file with this content.
    pub fn describe(self, state: &mut State) {
        state.meta.inline = self.inline;
        state.stored = self.pages;
        state.stored_exact = true;
        state.cache = None;
    }
}

/// The part of a commit's record that has the pages of file `ino`.
pub(super) struct PageRecords<'a> {
    pub ino: u64,
    pub changes: &'a mut Changes,
}

/// The pages that [`change_in_place`] has copied, as their records hold them; `None` for a page of zeros, which has no record.
struct CopiedPages {
    size: u64,
    is_wanted: bool,
    values: Vec<(u64, Option<Bytes>)>,
}

impl CopiedPages {
    /// For content of `size` bytes. Tiny content is stored with the metadata, at the next flush point.
    fn of(size: u64, is_wanted: bool) -> Self {
        Self {
            size,
            is_wanted: is_wanted && size > INLINE_MAX as u64,
            values: Vec::new(),
        }
    }

    /// Takes the whole pages of `data`, which stands at the offset `at`. The last page ends with the content.
    fn take(&mut self, at: u64, data: &[u8]) {
        if !self.is_wanted || !at.is_multiple_of(PAGE) {
            return;
        }
        for (page, content) in (at / PAGE..).zip(data.chunks(PAGE as usize)) {
            if content.len() as u64 == PAGE.min(self.size - page * PAGE) {
                let value = (!is_zero(content)).then(|| record::encode_page(content));
                self.values.push((page, value));
            }
        }
    }
}

/// Whether programs have the content's object open, or mapped, or may have written to it through a mapping.
fn is_held(state: &State) -> bool {
    let cache = state.cache.as_ref();
    cache.is_some_and(|cache| cache.is_mapped() || (cache.is_in_use() && !cache.is_unused()))
}

impl Volume {
    /// Takes what it needs to give `into` the content of its copy `from`: descriptors, memory, space on the disk. What lies
    /// in the commit's record is put into `out`. The namespace lock is held exclusively, so no process opens the file before
    /// [`Volume::merge`].
    pub(super) fn plan(
        &self,
        from: &Inode,
        into: &Inode,
        out: &mut Changes,
    ) -> Result<Plan, Errno> {
        let mut from_state = from.state.lock();
        let mut into_state = into.state.lock();
        if into_state.uncommitted {
            take_mapped(&mut from_state)?;
            return Ok(from_state.packed().map_or(Plan::Keep, |content| {
                let nothing = RangeSet::default();
                Plan::Stored(StoredContent::put(into.ino, content.clone(), &nothing, out))
            }));
        }
        if !into_state.stored_exact && into_state.stored.len() > REAP_PAGES {
            self.learn_stored(into, &mut into_state)?;
        }
        let is_held = is_held(&into_state);
        let is_removed =
            from_state.home == MetaLocation::Orphan && into_state.home != MetaLocation::Orphan;
        if into.under.is_none() && is_removed && !is_held {
            return Ok(Plan::Withhold);
        }
        if into.under.is_none()
            && !is_held
            && let Some(content) = from_state.packed()
        {
            let stored = &into_state.stored;
            let content = StoredContent::put(into.ino, content.clone(), stored, out);
            return Ok(Plan::Stored(content));
        }
        self.unpack(&mut from_state)?;
        take_mapped(&mut from_state)?;
        let own = from_state.copy.as_ref().is_some_and(|copy| copy.content);
        let content = from_state.cache.as_ref().filter(|_| own);
        let takes_object = into_state.copy.as_ref().is_some_and(|copy| !copy.content);
        let Some(content) = content.filter(|_| !takes_object) else {
            return Ok(Plan::Keep);
        };
        if !is_held {
            return Ok(Plan::Replace);
        }
        let held = into_state.cache.as_ref().ok_or(Errno::EIO)?;
        let transfer = Transfer::between(content, held)?;
        for (start, end) in content.pages().changed().ranges() {
            transfer.allocate(start * PAGE, (end - start) * PAGE)?;
        }
        Ok(Plan::InPlace(transfer))
    }

    /// Gives `into` the content of its copy `from`, by `plan`.
    pub(super) fn merge_content(
        &self,
        plan: Plan,
        from: &mut State,
        into: &mut State,
        record: Option<PageRecords<'_>>,
    ) {
        match plan {
            Plan::Keep => move_content(from, into),
            Plan::Withhold => {
                from.meta.size = into.meta.size;
                from.meta.mtime = into.meta.mtime;
            }
            Plan::Stored(content) => {
                content.describe(into);
                into.meta.size = from.meta.size;
            }
            Plan::Replace => self.replace(from, into),
            Plan::InPlace(transfer) => {
                let mut copied = CopiedPages::of(from.meta.size, record.is_some());
                if change_in_place(from, into, &transfer, &mut copied).is_ok() {
                    self.note_content(from, into);
                    if let Some(record) = record {
                        self.store_copied(copied, into, record);
                    }
                } else {
                    // This fails only if the object is a host file: all pages of one in memory are allocated. Programs that have the file
                    // open keep the old object, whose changes are lost; later opens get the committed content.
                    self.replace(from, into);
                    if let Some(cache) = &mut into.cache {
                        cache.mark_descriptors_stale();
                    }
                }
            }
        }
    }

    /// The object of the copy `from` becomes that of `into`.
    fn replace(&self, from: &mut State, into: &mut State) {
        let Some(mut new) = from.cache.take() else {
            return;
        };
        let changes = std::mem::take(new.pages_mut());
        let packed = into.copy.as_mut().and_then(|copy| copy.packed.take());
        let old = into.cache.take();
        new.set_idle(old.as_ref().is_some_and(|old| old.is_idle()));
        if !new.refresh_use() {
            new.release();
        }
        *new.pages_mut() = match (old, packed) {
            (Some(mut old), _) => std::mem::take(old.pages_mut()),
            (None, Some(packed)) => {
                let mut pages = ChangedPages::default();
                pages.change(0, (packed.len() as u64).div_ceil(PAGE));
                pages
            }
            (None, None) => ChangedPages::default(),
        };
        into.cache = Some(new);
        self.note_changes(from, into, changes.changed());
    }

    /// Records what differs from the store now that `into` has the content of the copy `from`.
    fn note_content(&self, from: &State, into: &mut State) {
        if let Some(cache) = &from.cache {
            self.note_changes(from, into, cache.pages().changed());
        }
    }

    /// Puts the pages that were copied to the object of `into` into the commit's record, so that the next flush point need not read them again.
    fn store_copied(&self, copied: CopiedPages, into: &mut State, record: PageRecords<'_>) {
        let mut settled = 0;
        for (page, value) in copied.values {
            let key = key::page_key(record.ino, page);
            match value {
                Some(value) => {
                    record.changes.put(key, value);
                    into.stored.insert(page, page + 1);
                }
                None if into.stored.contains(page) => {
                    record.changes.delete(key);
                    into.stored.remove(page, page + 1);
                }
                None => {}
            }
            if let Some(cache) = &mut into.cache {
                settled += u64::from(cache.pages_mut().stored(page));
            }
        }
        let less = |all: u64| Some(all.saturating_sub(settled * PAGE));
        let _ = self.dirty_bytes.fetch_update(SeqCst, SeqCst, less);
    }

    fn note_changes(&self, from: &State, into: &mut State, changed: &RangeSet) {
        let low = from.copy.as_ref().map_or(0, |copy| copy.low);
        self.note_content_size(into, low.min(into.meta.size));
        self.note_content_size(into, from.meta.size);
        let end = from.meta.size.div_ceil(PAGE);
        for (start, end) in changed.intersect(0, end) {
            self.dirty_pages(into, start, end);
        }
    }
}

/// A copy's content becomes that of another copy, which has none of its own.
fn move_content(from: &mut State, into: &mut State) {
    let (Some(copy), Some(outer)) = (&from.copy, &mut into.copy) else {
        return;
    };
    if copy.content && !outer.content {
        outer.content = true;
        outer.low = outer.low.min(copy.low);
        into.cache = from.cache.take();
    }
}

/// Makes the object of `into` like that of the copy `from`. The size changes once, from the old to the new one.
fn change_in_place(
    from: &State,
    into: &State,
    transfer: &Transfer,
    copied: &mut CopiedPages,
) -> Result<(), Errno> {
    let (Some(content), Some(copy)) = (&from.cache, &from.copy) else {
        return Ok(());
    };
    let (old, new) = (into.meta.size, from.meta.size);
    if new > old {
        transfer.resize(new)?;
    }
    // The range that was truncated and not written again is a hole. The page that the truncation shortened is among those that changed.
    let mut cleared = copy.low.div_ceil(PAGE);
    let end = old.min(new).div_ceil(PAGE);
    let punch = |from: u64, to: u64| transfer.punch(from * PAGE, to.saturating_sub(from) * PAGE);
    let changed = content.pages().changed();
    for (start, stop) in changed.intersect(0, new.div_ceil(PAGE)) {
        punch(cleared, start.min(end))?;
        cleared = cleared.max(stop);
        let end = (stop * PAGE).min(new);
        transfer.copy(start * PAGE, end, |at, data| copied.take(at, data))?;
    }
    punch(cleared, end)?;
    if new < old {
        transfer.resize(new)?;
    }
    Ok(())
}
