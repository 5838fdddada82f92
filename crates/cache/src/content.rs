//! The content of an open file that changes: its cache object, and the pages in which it differs from the stored content.

use std::ops::{Deref, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use goanna_vfs::Opened;

use crate::Result;
use crate::object::CacheObject;
use crate::range_set::RangeSet;
use crate::spares::SpareObjects;

/// A file's content while the file is in use. The back end keeps it with the file's state, under the lock of that state.
///
/// Changes are recorded in pages of `PAGE` bytes, the unit in which the back end stores content.
#[derive(Debug)]
pub struct Content<const PAGE: u64> {
    object: CacheObject,
    pages: ChangedPages,
    in_use: bool,
    is_mapped: bool,
    is_idle: bool,
    has_stale_descriptors: bool,
}

/// The pages in which a content differs from what its back end has stored. No page is in both sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChangedPages {
    changed: RangeSet,
    erased: RangeSet,
}

impl ChangedPages {
    /// The pages to store.
    pub fn changed(&self) -> &RangeSet {
        &self.changed
    }

    /// Stored pages to delete: they were truncated or punched out and not written again.
    pub fn erased(&self) -> &RangeSet {
        &self.erased
    }

    /// Records that the pages `start..end` changed. Returns how many of them had not changed before.
    pub fn change(&mut self, start: u64, end: u64) -> u64 {
        self.erased.remove(start, end);
        self.changed.insert(start, end)
    }

    /// Records that the back end has stored `page`. Returns whether the page had changed.
    pub fn stored(&mut self, page: u64) -> bool {
        let had_changed = self.changed.contains(page);
        self.changed.remove(page, page + 1);
        had_changed
    }

    /// Records that the pages `start..end` were erased. Of them, the back end may have stored those in `stored`.
    pub fn erase(&mut self, start: u64, end: u64, stored: &RangeSet) {
        self.changed.remove(start, end);
        for (from, to) in stored.intersect(start, end) {
            self.erased.insert(from, to);
        }
    }
}

/// The methods of the object are available on the content.
impl<const PAGE: u64> Deref for Content<PAGE> {
    type Target = CacheObject;

    fn deref(&self) -> &CacheObject {
        &self.object
    }
}

impl<const PAGE: u64> Content<PAGE> {
    /// A content of `size` zeros that counts as stored, and a writable descriptor to fill it with. With
    /// `large_dir` the object is a nameless file there instead of memory.
    pub fn create(size: u64, large_dir: Option<&Path>) -> Result<(Self, OwnedFd)> {
        let (object, writer) = CacheObject::create(size, large_dir)?;
        Ok((Self::stored(object), writer))
    }

    /// As [`Content::create`], in memory, of an object that was made ahead if one is ready.
    pub fn create_from(spares: &SpareObjects, size: u64) -> Result<(Self, OwnedFd)> {
        let (object, writer) = spares.take(size)?;
        Ok((Self::stored(object), writer))
    }

    fn stored(object: CacheObject) -> Self {
        Self {
            object,
            pages: ChangedPages::default(),
            in_use: false,
            is_mapped: false,
            is_idle: false,
            has_stale_descriptors: false,
        }
    }

    /// A new open file description for a program that opened the file with `flags`. The content is in use from now on.
    pub fn open(&mut self, flags: i32) -> Opened {
        self.in_use = true;
        self.object.open(flags)
    }

    /// The pages that differ from the stored content.
    pub fn pages(&self) -> &ChangedPages {
        &self.pages
    }

    /// The same, to record that pages changed or were stored.
    pub fn pages_mut(&mut self) -> &mut ChangedPages {
        &mut self.pages
    }

    /// Whether programs got descriptors and not all are known to be closed.
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Whether programs may write through a mapping.
    pub fn is_mapped(&self) -> bool {
        self.is_mapped
    }

    /// Records that a program maps the content shared. Returns whether it is the first one.
    pub fn map_shared(&mut self) -> bool {
        !std::mem::replace(&mut self.is_mapped, true)
    }

    /// Records that no program has a descriptor or a mapping of the object any more.
    pub fn release(&mut self) {
        (self.in_use, self.is_mapped) = (false, false);
    }

    /// Determines anew whether programs have the object open, for a content that replaces another one.
    pub fn refresh_use(&mut self) -> bool {
        self.in_use = !self.object.is_unused();
        self.in_use
    }

    /// Whether the content is in the list of contents that may be dropped ([`crate::IdleList`]).
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Records whether the content is in that list. Returns whether that is a change.
    pub fn set_idle(&mut self, is_idle: bool) -> bool {
        std::mem::replace(&mut self.is_idle, is_idle) != is_idle
    }

    /// Records that programs may have descriptors of another object, which this one replaces.
    pub fn mark_descriptors_stale(&mut self) {
        self.has_stale_descriptors = true;
    }

    /// Whether a program that writes through its descriptor `fd` writes to this content.
    pub fn is_written_through(&self, fd: impl AsFd) -> Result<bool> {
        Ok(!self.has_stale_descriptors || self.object.is_object_of(fd)?)
    }

    /// Replaces the object by another one with the same content. Returns the former object.
    pub fn exchange_object(&mut self, object: CacheObject) -> CacheObject {
        std::mem::replace(&mut self.object, object)
    }

    /// Moves a content of `size` bytes from memory to a nameless file in `large_dir`, and opens it there with `flags`: there is a
    /// descriptor. An error leaves the content unchanged.
    pub fn relocate(&mut self, size: u64, large_dir: &Path, flags: i32) -> Result<Opened> {
        let (object, writer) = CacheObject::create(size, Some(large_dir))?;
        self.object.copy_to(&writer, size)?;
        let opened = object.open(flags);
        opened.fd()?;
        self.exchange_object(object);
        self.mark_descriptors_stale();
        Ok(opened)
    }

    /// The pages of a content of `size` bytes that are not holes: starts and ends.
    pub fn data_pages(&self, size: u64) -> Result<Vec<(u64, u64)>> {
        let segments = self.object.data_segments(size)?;
        let pages = segments
            .into_iter()
            .map(|(start, len)| (start / PAGE, (start + len).div_ceil(PAGE)));
        Ok(pages.collect())
    }

    /// Finds the pages of `range` that programs changed through mappings: the pages that are not recorded as changed and
    /// differ from the result of `read_stored`. The back end may have stored the pages in `stored`; others read as zeros.
    /// The content has `size` bytes. Pages found before an error are in `found`.
    pub fn find_mapped_changes<D: AsRef<[u8]>>(
        &self,
        range: Range<u64>,
        size: u64,
        stored: &RangeSet,
        mut read_stored: impl FnMut(u64) -> Result<Option<D>>,
        found: &mut Vec<u64>,
    ) -> Result<()> {
        let mut buf = vec![0; usize::try_from(PAGE).unwrap_or(0)];
        let end = range.end.min(size.div_ceil(PAGE));
        let mut hole_end = range.start;
        for page in range.start..end {
            if page < hole_end || self.pages.changed.contains(page) {
                continue;
            }
            let is_stored = stored.contains(page) && !self.pages.erased.contains(page);
            if !is_stored {
                // Where both are holes, nothing is compared.
                let data = self.object.next_data(page * PAGE)?;
                let data = data.map_or(end, |at| at / PAGE);
                let next = stored.intersect(page, end).next();
                hole_end = data.min(next.map_or(end, |(from, _)| from));
                if page < hole_end {
                    continue;
                }
            }
            let stored = if is_stored { read_stored(page)? } else { None };
            let len = usize::try_from(size.saturating_sub(page * PAGE).min(PAGE)).unwrap_or(0);
            let Some(content) = buf.get_mut(..len) else {
                break;
            };
            self.object.read_at(page * PAGE, content)?;
            let stored = stored.as_ref().map_or(&[][..], AsRef::as_ref);
            let (head, tail) = content.split_at(stored.len().min(len));
            if head != stored || tail.iter().any(|&byte| byte != 0) {
                found.push(page);
            }
        }
        Ok(())
    }
}
