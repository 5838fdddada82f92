//! Fills a file's cache object with its content, and reads content without a cache object.

use std::os::fd::OwnedFd;

use amino_schema::{ParsedKey, key, record};
use bytes::Bytes;
use goanna_cache::{RangeSet, write_all_at};
use goanna_vfs::{Errno, FileKind, Node, Result};

use crate::inode::{Content, Inode, PAGE, State};
use crate::view::View;
use crate::{Volume, cache_dir, damaged};

/// The pages of a file of at most this many are looked up one by one, which takes less time than a scan.
const FEW_PAGES: u64 = 4;

impl Volume {
    /// An empty cache object; idle ones make space when the process has no descriptors left.
    pub(crate) fn new_cache(&self, size: u64) -> Result<(Content, OwnedFd), Errno> {
        if size > self.options.large_file_bytes {
            Content::create(size, Some(&cache_dir(&self.dir)))
        } else {
            Content::create_from(&self.spares, size)
        }
    }

    /// Makes the object of a copy with packed content again.
    pub(crate) fn unpack(&self, state: &mut State) -> Result<bool, Errno> {
        let Some(packed) = state.packed() else {
            return Ok(false);
        };
        let len = packed.len() as u64;
        let (mut cache, fd) = self.new_cache(len)?;
        write_all_at(&fd, 0, packed)?;
        cache.pages_mut().change(0, len.div_ceil(PAGE));
        state.cache = Some(cache);
        if let Some(copy) = &mut state.copy {
            copy.packed = None;
        }
        Ok(true)
    }

    /// Gives the file a cache object without its content, which is truncated.
    pub(crate) fn empty_cache(&self, state: &mut State) -> Result<(), Errno> {
        state.cache = Some(self.new_cache(0)?.0);
        if let Some(copy) = &mut state.copy {
            (copy.content, copy.low) = (true, 0);
            copy.packed = None;
        }
        Ok(())
    }

    /// Finds out which pages the store holds.
    pub(crate) fn learn_stored(&self, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        let mut stored = RangeSet::default();
        self.scan(&key::page_prefix(inode.ino), |raw, _| {
            if let ParsedKey::Page { index, .. } = ParsedKey::parse(raw)? {
                stored.insert(index, index + 1);
            }
            Ok(true)
        })?;
        state.stored = stored;
        state.stored_exact = true;
        Ok(())
    }

    /// Gives the file a cache object with its whole content; a transaction's copy of a file one of its own.
    pub(crate) fn ensure_cache(&self, inode: &Inode, state: &mut State) -> Result<(), Errno> {
        if state.cache.is_some() {
            return Ok(());
        }
        self.unshare(inode.ino);
        match &inode.under {
            None => state.cache = Some(self.filled_cache(inode, state)?),
            Some(_) if self.unpack(state)? => {}
            Some(under) => {
                state.cache = Some(self.copied_cache(under)?);
                if let Some(copy) = &mut state.copy {
                    copy.content = true;
                }
            }
        }
        Ok(())
    }

    /// A cache object with the content of the file as it is.
    fn copied_cache(&self, from: &Inode) -> Result<Content, Errno> {
        let mut state = from.state.lock();
        match (&state.cache, &from.under) {
            (Some(content), _) => {
                let size = state.meta.size;
                let (cache, fd) = self.new_cache(size)?;
                content.copy_to(&fd, size)?;
                Ok(cache)
            }
            (None, Some(under)) => match state.packed() {
                Some(packed) => {
                    let (cache, fd) = self.new_cache(packed.len() as u64)?;
                    write_all_at(&fd, 0, packed)?;
                    Ok(cache)
                }
                None => self.copied_cache(under),
            },
            (None, None) => self.filled_cache(from, &mut state),
        }
    }

    /// A cache object with what the store has of the file.
    fn filled_cache(&self, inode: &Inode, state: &mut State) -> Result<Content, Errno> {
        let (cache, fd) = self.new_cache(state.meta.size)?;
        if let Some(inline) = &state.meta.inline {
            write_all_at(&fd, 0, inline)?;
        } else if state.meta.size > 0 {
            let mut stored = RangeSet::default();
            let mut fill = |index: u64, value: &Bytes| {
                let page = record::decode_page(value, amino_schema::PAGE_SIZE);
                let page = page.map_err(damaged)?;
                write_all_at(&fd, index.saturating_mul(PAGE), &page)?;
                stored.insert(index, index + 1);
                Ok::<_, Errno>(())
            };
            let pages = state.meta.size.div_ceil(PAGE);
            if pages <= FEW_PAGES {
                for index in 0..pages {
                    if let Some(value) = self.get(&key::page_key(inode.ino, index))? {
                        fill(index, &value)?;
                    }
                }
            } else {
                let mut failure = Ok(());
                self.scan(&key::page_prefix(inode.ino), |raw, value| {
                    if let ParsedKey::Page { index, .. } = ParsedKey::parse(raw)? {
                        failure = fill(index, value);
                    }
                    Ok(failure.is_ok())
                })?;
                failure?;
            }
            state.stored = stored;
            state.stored_exact = true;
        }
        Ok(cache)
    }

    pub(crate) fn read_content(
        &self,
        inode: &Inode,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let state = inode.state.lock();
        if let Some(cache) = &state.cache {
            return cache.read_at(offset, buf);
        }
        let packed = state.packed();
        if let Some(under) = inode.under.as_ref().filter(|_| packed.is_none()) {
            return self.read_content(under, offset, buf);
        }
        if state.gone {
            return Err(Errno::ESTALE);
        }
        let left = state.meta.size.saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(buf) = buf.get_mut(..len) else {
            return Ok(0);
        };
        buf.fill(0);
        if let Some(inline) = packed.or(state.meta.inline.as_ref()) {
            copy_part(inline, 0, offset, buf);
            return Ok(len);
        }
        let end = (offset + len as u64).div_ceil(PAGE);
        for (from, to) in state.stored.intersect(offset / PAGE, end) {
            for index in from..to {
                if let Some(raw) = self.get(&key::page_key(inode.ino, index))? {
                    let page =
                        record::decode_page(&raw, amino_schema::PAGE_SIZE).map_err(damaged)?;
                    copy_part(&page, index * PAGE, offset, buf);
                }
            }
        }
        Ok(len)
    }
}

impl View<'_> {
    pub(crate) fn do_read_at(&self, node: &Node, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.inode_to_read(node)?;
        match inode.kind {
            FileKind::Regular => Ok(self.read_content(&inode, offset, buf)?),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }
}

/// Copies the part of `data`, at `data_offset` of the file, that overlaps `buf`, at `offset`, into `buf`.
fn copy_part(data: &[u8], data_offset: u64, offset: u64, buf: &mut [u8]) {
    let (from, to) = if data_offset >= offset {
        (data, buf.get_mut((data_offset - offset) as usize..))
    } else {
        let skip = (offset - data_offset) as usize;
        (data.get(skip..).unwrap_or_default(), Some(buf))
    };
    if let Some(to) = to {
        let len = from.len().min(to.len());
        if let (Some(to), Some(from)) = (to.get_mut(..len), from.get(..len)) {
            to.copy_from_slice(from);
        }
    }
}
