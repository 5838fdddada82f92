//! The content of one file: how it is decrypted into the file's cache object, and how changes are encrypted and stored.
//!
//! A change is stored before its call returns: as after a native write(2), the data are then in the host's page cache. Only writes through shared
//! mappings are stored later.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_cache::{Content as CachedContent, RangeSet, write_all_at};
use goanna_sys::memfile;
use goanna_vfs::Errno;

use super::lower::{LowerFile, Version};
use super::memory::Share;
use crate::error::{Damage, Failure};
use crate::format::content::{
    BLOCK, Cipher, ContentCipher, FileId, HEADER, blocks_of, header, is_zero, parse_header,
};
use crate::format::keys;

/// Bytes of a plain block, as an offset.
pub(crate) const PAGE: u64 = BLOCK as u64;

/// Blocks that are decrypted or encrypted at once.
const PIECE: u64 = 64;

/// Blocks from which on two threads decrypt a file.
const PARALLEL: u64 = 1024;

pub(crate) type Content = CachedContent<PAGE>;
type Result<T> = std::result::Result<T, Failure>;

/// A file that programs have open, or whose decrypted content is kept for the next open.
pub(crate) struct State {
    /// The encrypted file, while programs have the file open.
    pub lower: Option<LowerFile>,
    /// The encrypted file to be read, where `lower` can only be written: some programs may only write the file, and others only read it.
    pub reader: Option<LowerFile>,
    /// The decrypted content.
    pub content: Option<Content>,
    /// The memory that `content` takes, at least.
    pub share: Share,
    /// The file's id; `None` for an empty file, which has no header.
    pub id: Option<FileId>,
    /// The plain size.
    pub size: u64,
    /// The lower file's metadata when `content` was last known to be equal to it. `None`: unknown, because both changed at once, or a change failed.
    pub version: Option<Version>,
    /// The file has no `security.capability` that a change would have to remove, as far as this mount knows.
    pub has_no_capability: bool,
    /// A change through a mapping could not be stored; the next fsync(2) reports it.
    pub failed: Option<Errno>,
    /// The state is no longer in the table.
    pub is_removed: bool,
}

impl State {
    /// The state of a file that is not open.
    pub fn new(share: Share) -> Self {
        Self {
            lower: None,
            reader: None,
            content: None,
            share,
            id: None,
            size: 0,
            version: None,
            has_no_capability: false,
            failed: None,
            is_removed: false,
        }
    }

    pub fn lower(&self) -> Result<&LowerFile> {
        Ok(self.lower.as_ref().ok_or(Errno::EBADF)?)
    }

    /// The encrypted file, for reading. EACCES if the programs that have the file open may only write it.
    fn readable(&self) -> Result<&LowerFile> {
        let lower = self.lower()?;
        if lower.can_read() {
            return Ok(lower);
        }
        Ok(self.reader.as_ref().ok_or(Errno::EACCES)?)
    }

    /// Closes the encrypted file, because no program has the file open any more.
    pub fn close_lower(&mut self) {
        (self.lower, self.reader) = (None, None);
    }

    pub fn content(&self) -> Result<&Content> {
        Ok(self.content.as_ref().ok_or(Errno::EIO)?)
    }

    pub fn content_mut(&mut self) -> Result<&mut Content> {
        Ok(self.content.as_mut().ok_or(Errno::EIO)?)
    }

    /// Reads the plain size and the file id from the encrypted file. Returns the data that this has read: the first `len` bytes, which include the
    /// header, and the metadata from before.
    fn read_header(&mut self, cipher: Cipher, len: usize) -> Result<(Vec<u8>, Version)> {
        let version = self.lower()?.version()?;
        let len = usize::try_from(version.size).map_or(len, |size| len.min(size));
        let mut beginning = vec![0; len];
        (self.id, self.size) = match version.size {
            0 => (None, 0),
            encrypted => {
                let got = self.readable()?.read_at(0, &mut beginning)?;
                beginning.truncate(got);
                let header = beginning.get(..HEADER).unwrap_or(&beginning);
                (Some(parse_header(header)?), plain_size(cipher, encrypted)?)
            }
        };
        Ok((beginning, version))
    }

    /// Runs `change` on the current content of the file, and keeps other runs from changing the file meanwhile.
    pub fn change<T>(
        &mut self,
        cipher: &ContentCipher,
        change: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.lower()?.lock()?;
        let result = self.catch_up(cipher).and_then(|()| {
            let before = self.version;
            let result = change(self);
            self.follow_own_change(before, result.is_ok());
            result
        });
        if let Some(lower) = &mut self.lower {
            lower.unlock();
            lower.leave_memory();
        }
        result
    }

    /// Records the version after a change that `content` has followed if it `is_done`, or that has perhaps changed nothing. `before` is the version before it.
    pub fn follow_own_change(&mut self, before: Option<Version>, is_done: bool) {
        let now = self.lower.as_ref().and_then(|lower| lower.version().ok());
        self.version = before.and(now).filter(|_| is_done || now == before);
    }

    /// Whether `content` is known to differ from the encrypted file, whose metadata are `now`.
    pub fn is_outdated(&self, now: &Version) -> bool {
        self.version
            .is_some_and(|version| !version.has_content_of(now))
    }

    /// Takes memory for a write of `len` bytes at `start`. ENOSPC if there is none, as on a full file system.
    pub fn reserve(&mut self, start: u64, len: u64) -> Result<()> {
        let end = start.saturating_add(len);
        let pages = blocks_of(start..end);
        // A file without holes takes its size. A file with holes takes at most the bytes written to it.
        let whole = self.size.max(end).next_multiple_of(PAGE);
        let more = (pages.end - pages.start).saturating_mul(PAGE);
        let wanted = self.share.bytes().saturating_add(more).min(whole);
        let wanted = wanted.max(self.share.bytes());
        if self.share.reserve(wanted).is_ok() {
            return Ok(());
        }
        // The share is an upper bound: the object may take less, and a write may replace data.
        let content = self.content()?;
        let range = pages.start * PAGE..pages.end.saturating_mul(PAGE);
        let present = content
            .handle()
            .with(|fd| memfile::data_segments(fd, range.start, range.end))?;
        let present = present.iter().map(|(_, len)| len).sum();
        let taken = content.blocks().unwrap_or(0).saturating_mul(512);
        self.share.set(taken);
        let wanted = taken.saturating_add(more.saturating_sub(present));
        Ok(self.share.reserve(wanted).map_err(|_| Errno::ENOSPC)?)
    }

    /// Corrects the share of a content that programs may change through mappings.
    pub fn count_memory(&mut self) {
        match &self.content {
            Some(content) => {
                let blocks = content.blocks().unwrap_or(0);
                self.share.set(blocks.saturating_mul(512));
            }
            None => self.share.set(0),
        }
    }

    /// Reads the file again if another process has changed it: blocks encrypted for another size or id would be damaged, and a block that is
    /// stored as a whole would undo the changes in the rest of it. If programs map the file, their content is stored as a whole instead where size or id have
    /// changed, because a mapping's content cannot be replaced.
    fn catch_up(&mut self, cipher: &ContentCipher) -> Result<()> {
        let Some(content) = &self.content else {
            return self.read_header(cipher.cipher(), HEADER).map(drop);
        };
        let lower = self.lower()?;
        let now = lower.version()?;
        let has_same_format = match (now.size, self.id) {
            (0, None) => true,
            (0, Some(_)) | (_, None) => false,
            (encrypted, Some(id)) => {
                plain_size(cipher.cipher(), encrypted) == Ok(self.size)
                    && match self.readable() {
                        Ok(reader) => read_id(reader)? == id,
                        Err(_) => true,
                    }
            }
        };
        let is_outdated = self.is_outdated(&now);
        if has_same_format && !is_outdated {
            return Ok(());
        }
        if !content.is_mapped() {
            self.version = Some(self.fill(cipher)?);
            return Ok(());
        }
        if has_same_format {
            self.version = None;
            return Ok(());
        }
        lower.set_len(0)?;
        (self.id, self.version) = (None, None);
        self.store_range(cipher, 0..self.size.div_ceil(PAGE))?;
        let encrypted = cipher.cipher().encrypted_size(self.size);
        let lower = self.lower()?;
        lower.set_len(encrypted)?;
        self.version = Some(lower.version()?);
        Ok(())
    }

    /// Removes the content, and with it the file's id.
    pub fn clear(&mut self) -> Result<()> {
        let lower = self.lower()?;
        lower.lock()?;
        let cleared = lower.set_len(0).and_then(|()| lower.version());
        lower.unlock();
        (self.id, self.size, self.version) = (None, 0, Some(cleared?));
        // The open that truncates the file did not check whether another process has changed it.
        self.has_no_capability = false;
        Ok(())
    }

    /// Decrypts the whole content into the cache object, which is made if there is none. Returns the encrypted file's metadata before that.
    pub fn fill(&mut self, cipher: &ContentCipher) -> Result<Version> {
        self.has_no_capability = false;
        // A file of one block is read by one call.
        let len = HEADER + cipher.cipher().block();
        let (beginning, version) = self.read_header(cipher.cipher(), len)?;
        let encrypted = cipher.cipher().encrypted_size(self.size);
        let segments = match self.id {
            // A hole is a whole block.
            Some(_) if self.size < PAGE => vec![(0, encrypted)],
            Some(_) => self.lower()?.data_segments(encrypted)?,
            None => Vec::new(),
        };
        let blocks =
            |(start, len): &(u64, u64)| encrypted_blocks(cipher.cipher(), *start, start + len);
        let data = segments.iter().map(blocks).map(|it| it.end - it.start);
        self.share.reserve(data.sum::<u64>().saturating_mul(PAGE))?;
        // A readable descriptor. For an empty file any descriptor will do, because nothing is read.
        let lower = self.readable().or_else(|_| self.lower())?;
        let (created, writer) = self.object_to_fill()?;
        let leave_hole = |blocks: Range<u64>| match &self.content {
            Some(content) if !blocks.is_empty() => {
                content.punch(blocks.start * PAGE, (blocks.end - blocks.start) * PAGE)
            }
            _ => Ok(()),
        };
        let end = self.size.div_ceil(PAGE);
        let mut next = 0;
        if let Some(id) = &self.id {
            let read = |offset: u64, buf: &mut [u8]| {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                match beginning.get(start..start.saturating_add(buf.len())) {
                    Some(bytes) => {
                        buf.copy_from_slice(bytes);
                        Ok(bytes.len())
                    }
                    None => lower.read_at(offset, buf),
                }
            };
            let piece = |blocks: Range<u64>| {
                let data = decrypt_read(cipher, id, self.size, blocks.clone(), read)?;
                Ok(write_all_at(&writer, blocks.start * PAGE, &data)?)
            };
            for blocks in segments.iter().map(blocks) {
                let blocks = blocks.start.max(next)..blocks.end.min(end);
                leave_hole(next..blocks.start)?;
                next = next.max(blocks.end);
                in_pieces(blocks, piece)?;
            }
            if !self.size.is_multiple_of(PAGE) && next < end {
                // Only a whole block can be a hole, so this one is refused.
                leave_hole(next..end - 1)?;
                in_pieces(end - 1..end, piece)?;
                next = end;
            }
        }
        leave_hole(next..end)?;
        if let Some(content) = created {
            self.content = Some(content);
        }
        Ok(version)
    }

    /// A writer of the cache object, of the file's size, and the object itself if it had to be made.
    fn object_to_fill(&self) -> Result<(Option<Content>, OwnedFd)> {
        match &self.content {
            None => {
                let (content, writer) = Content::create(self.size, None)?;
                Ok((Some(content), writer))
            }
            Some(content) => {
                // Programs have descriptors of this object, and another process has changed the file.
                content.resize(self.size)?;
                Ok((None, content.writer()?))
            }
        }
    }

    /// The present content of block `number`: from the cache object, otherwise decrypted.
    fn block(&self, cipher: &ContentCipher, number: u64) -> Result<Vec<u8>> {
        let len = self.size.saturating_sub(number * PAGE).min(PAGE);
        let Some(content) = &self.content else {
            let Some(id) = self.id.as_ref().filter(|_| len > 0) else {
                return Ok(Vec::new());
            };
            return decrypt_blocks(self.readable()?, cipher, id, self.size, number..number + 1);
        };
        let mut data = vec![0; usize::try_from(len).unwrap_or(0)];
        let got = content.read_at(number * PAGE, &mut data)?;
        data.truncate(got);
        Ok(data)
    }

    /// Encrypts and stores `data` at `start`, and changes the cache object by `change`, piece by piece. Returns the number of bytes written; an
    /// error only if none was. The content is loaded, and `start` is not beyond its end.
    pub fn write(
        &mut self,
        cipher: &ContentCipher,
        start: u64,
        data: &[u8],
        change: impl Fn(&Content, &[u8], u64) -> goanna_vfs::Result<usize>,
    ) -> Result<usize> {
        let mut done = 0;
        while let Some(rest) = data.get(done..).filter(|rest| !rest.is_empty()) {
            let at = start + done as u64;
            let len = (PIECE * PAGE - at % PAGE) as usize;
            let piece = rest.get(..len).unwrap_or(rest);
            let result = self.write_piece(cipher, at, piece).and_then(|()| {
                let written = change(self.content()?, piece, at)?;
                self.size = self.size.max(at + written as u64);
                Ok(written)
            });
            match result {
                Ok(written) if written == piece.len() => done += written,
                other => {
                    // The cache object has the right content; part of the piece may be stored.
                    self.store_again(cipher, at, piece.len());
                    return match other {
                        Ok(written) => Ok(done + written),
                        Err(_) if done > 0 => Ok(done),
                        Err(failure) => Err(failure),
                    };
                }
            }
        }
        Ok(done)
    }

    fn write_piece(&mut self, cipher: &ContentCipher, at: u64, piece: &[u8]) -> Result<()> {
        let end = at + piece.len() as u64;
        let blocks = blocks_of(at..end);
        let (first, last) = (blocks.start, blocks.end.saturating_sub(1));
        let mut plain = Vec::with_capacity(((blocks.end - first) * PAGE) as usize);
        let head = usize::try_from(at - first * PAGE).unwrap_or(0);
        if head > 0 {
            plain = self.block(cipher, first)?;
            let tail = plain.split_off(head.min(plain.len()));
            plain.resize(head, 0);
            plain.extend_from_slice(piece);
            if first == last {
                plain.extend_from_slice(tail.get(piece.len()..).unwrap_or_default());
            }
        } else {
            plain.extend_from_slice(piece);
        }
        let block_end = (last + 1) * PAGE;
        if end < block_end && end < self.size && (first != last || head == 0) {
            let old = self.block(cipher, last)?;
            let kept = usize::try_from(end - last * PAGE).unwrap_or(0);
            plain.extend_from_slice(old.get(kept..).unwrap_or_default());
        }
        self.store(cipher, first, &plain)
    }

    /// Encrypts and stores `plain`, which begins at block `first`, with the header of a file that has none.
    fn store(&mut self, cipher: &ContentCipher, first: u64, plain: &[u8]) -> Result<()> {
        let mut out = Vec::with_capacity(plain.len() + plain.len() / 64 + 64);
        let id = match self.id {
            Some(id) => id,
            None => {
                let mut id = FileId::default();
                keys::random(&mut id)?;
                out.extend_from_slice(&header(&id));
                if first > 0 {
                    self.lower()?.write_at(0, &out)?;
                    out.clear();
                }
                id
            }
        };
        let offset = if out.is_empty() {
            cipher.cipher().offset(first)
        } else {
            0
        };
        for (number, block) in (first..).zip(plain.chunks(BLOCK)) {
            cipher.encrypt(block, number, Some(&id), &mut out)?;
        }
        // From here on the header exists, even if only a part of the blocks is stored.
        let written = self.lower()?.write_at(offset, &out);
        self.id = Some(id);
        Ok(written?)
    }

    /// After a failed change: stores the blocks `start..start + len` again as the cache object has them, and truncates the file to its size. A
    /// block that fails again is damaged; the next read of it reports that.
    fn store_again(&mut self, cipher: &ContentCipher, start: u64, len: usize) {
        let end = (start + len as u64).min(self.size);
        let _ = self.store_range(cipher, blocks_of(start..end.max(start)));
        if let Ok(lower) = self.lower() {
            let _ = lower.set_len(cipher.cipher().encrypted_size(self.size));
        }
        if self.size == 0 {
            self.id = None;
        }
    }

    /// Encrypts and stores blocks as the cache object has them. Zeros become holes where that is a whole block.
    pub fn store_range(&mut self, cipher: &ContentCipher, blocks: Range<u64>) -> Result<()> {
        let end = blocks.end.min(self.size.div_ceil(PAGE));
        let mut first = blocks.start;
        while first < end {
            let last = end.min(first + PIECE);
            let len = (last * PAGE).min(self.size) - first * PAGE;
            let mut plain = vec![0; usize::try_from(len).unwrap_or(0)];
            self.content()?.read_at(first * PAGE, &mut plain)?;
            let is_hole = plain.len().is_multiple_of(BLOCK) && is_zero(&plain);
            if !is_hole || self.store_hole(cipher, first..last).is_err() {
                self.store(cipher, first, &plain)?;
            }
            first = last;
        }
        Ok(())
    }

    /// Makes whole blocks a hole of the encrypted file.
    fn store_hole(&mut self, cipher: &ContentCipher, blocks: Range<u64>) -> Result<()> {
        if self.id.is_none() {
            self.store(cipher, 0, &[])?;
        }
        let lower = self.lower()?;
        let offset = cipher.cipher().offset(blocks.start);
        let end = cipher.cipher().offset(blocks.end);
        // A hole at the end must be in the size.
        if lower.size()? < end {
            lower.set_len(end)?;
        }
        Ok(lower.punch(offset, end - offset)?)
    }

    /// Sets the plain size.
    pub fn resize(&mut self, cipher: &ContentCipher, size: u64) -> Result<()> {
        if size > cipher.cipher().largest_file() {
            return Err(Errno::EFBIG.into());
        }
        if size < self.size {
            self.shrink(cipher, size)
        } else if size > self.size {
            self.grow(cipher, size)
        } else {
            // Linux changes the times also then.
            let lower = self.lower()?;
            Ok(lower.set_len(lower.size()?)?)
        }
    }

    fn shrink(&mut self, cipher: &ContentCipher, size: u64) -> Result<()> {
        if !size.is_multiple_of(PAGE) {
            let last = size / PAGE;
            let mut block = self.block(cipher, last)?;
            block.truncate(usize::try_from(size % PAGE).unwrap_or(0));
            self.store(cipher, last, &block)?;
        }
        self.lower()?
            .set_len(cipher.cipher().encrypted_size(size))?;
        if size == 0 {
            self.id = None;
        }
        if let Some(content) = &self.content {
            content.resize(size)?;
        }
        self.size = size;
        Ok(())
    }

    /// Only the block in which the file ended, and that in which it ends now, are stored; between them there is a hole.
    fn grow(&mut self, cipher: &ContentCipher, size: u64) -> Result<()> {
        let old = self.size;
        let (from, to) = (old / PAGE, size / PAGE);
        if !old.is_multiple_of(PAGE) {
            let mut block = self.block(cipher, from)?;
            let len = (size - from * PAGE).min(PAGE);
            block.resize(usize::try_from(len).unwrap_or(BLOCK), 0);
            self.store(cipher, from, &block)?;
        }
        if size.is_multiple_of(PAGE) {
            if self.id.is_none() {
                self.store(cipher, 0, &[])?;
            }
            self.lower()?
                .set_len(cipher.cipher().encrypted_size(size))?;
        } else if to > from || old.is_multiple_of(PAGE) {
            let zeros = [0; BLOCK];
            let len = usize::try_from(size % PAGE).unwrap_or(0);
            self.store(cipher, to, zeros.get(..len).unwrap_or_default())?;
        }
        if let Some(content) = &self.content {
            content.resize(size)?;
        }
        self.size = size;
        Ok(())
    }

    /// Makes the bytes `range` of the file zeros. The content is loaded.
    pub fn punch(&mut self, cipher: &ContentCipher, range: Range<u64>) -> Result<()> {
        let range = range.start..range.end.min(self.size);
        if range.is_empty() {
            return Ok(());
        }
        self.content()?
            .punch(range.start, range.end - range.start)?;
        // The blocks at the edges are stored; those between them become a hole.
        let blocks = blocks_of(range);
        let middle = (blocks.start + 1).min(blocks.end)..blocks.end.saturating_sub(1);
        self.store_range(cipher, blocks.start..blocks.start + 1)?;
        if blocks.end - blocks.start > 1 {
            self.store_range(cipher, middle)?;
            self.store_range(cipher, blocks.end - 1..blocks.end)?;
        }
        Ok(())
    }

    /// Stores writes through mappings to the bytes `range`.
    pub fn store_mapped(&mut self, cipher: &ContentCipher, range: Range<u64>) -> Result<()> {
        if !self.content.as_ref().is_some_and(Content::is_mapped) {
            return Ok(());
        }
        let mut found = Vec::new();
        let id = self.id;
        let read_stored = |number: u64| -> goanna_vfs::Result<Option<Vec<u8>>, Errno> {
            let (Some(id), Some(lower)) = (&id, &self.lower) else {
                return Ok(None);
            };
            match decrypt_blocks(lower, cipher, id, self.size, number..number + 1) {
                Ok(data) => Ok(Some(data)),
                // A block that cannot be read is stored again.
                Err(Failure::Damage(_)) => Ok(Some(vec![0xff; BLOCK])),
                Err(failure) => Err(failure.errno().unwrap_or(Errno::EAGAIN)),
            }
        };
        let all = RangeSet::up_to(self.size.div_ceil(PAGE));
        let result = self.content()?.find_mapped_changes(
            blocks_of(range),
            self.size,
            &all,
            read_stored,
            &mut found,
        );
        for number in found {
            self.store_range(cipher, number..number + 1)?;
        }
        Ok(result?)
    }
}

/// The blocks that the bytes `start..end` of an encrypted file touch.
pub(crate) fn encrypted_blocks(cipher: Cipher, start: u64, end: u64) -> Range<u64> {
    let block = cipher.block() as u64;
    let content = |offset: u64| offset.saturating_sub(HEADER as u64);
    content(start) / block..content(end).div_ceil(block)
}

/// The plain size of an encrypted file that is not cut off within a nonce or a tag.
pub(crate) fn plain_size(cipher: Cipher, encrypted: u64) -> Result<u64> {
    let size = cipher.plain_size(encrypted);
    let fits = encrypted == HEADER as u64 || cipher.encrypted_size(size) == encrypted;
    Ok(fits.then_some(size).ok_or(Damage::Block(size / PAGE))?)
}

pub(crate) fn read_id(lower: &LowerFile) -> Result<FileId> {
    let mut bytes = [0; HEADER];
    let got = lower.read_at(0, &mut bytes)?;
    Ok(parse_header(bytes.get(..got).unwrap_or_default())?)
}

/// Blocks of a file of `size` plain bytes, decrypted.
fn decrypt_blocks(
    lower: &LowerFile,
    cipher: &ContentCipher,
    id: &FileId,
    size: u64,
    blocks: Range<u64>,
) -> Result<Vec<u8>> {
    decrypt_read(cipher, id, size, blocks, |offset, buf| {
        lower.read_at(offset, buf)
    })
}

/// Decrypts blocks as [`decrypt_blocks`] does; `read` returns the data at an offset of the encrypted file.
pub(crate) fn decrypt_read(
    cipher: &ContentCipher,
    id: &FileId,
    size: u64,
    blocks: Range<u64>,
    read: impl Fn(u64, &mut [u8]) -> goanna_vfs::Result<usize>,
) -> Result<Vec<u8>> {
    let kind = cipher.cipher();
    let end = (blocks.end * PAGE).min(size);
    let Some(len) = end.checked_sub(blocks.start * PAGE) else {
        return Ok(Vec::new());
    };
    let mut plain = vec![0; usize::try_from(len).map_err(|_| Errno::ENOMEM)?];
    let overhead = plain.len().div_ceil(BLOCK) * kind.overhead();
    let mut encrypted = vec![0; plain.len() + overhead];
    let got = read(kind.offset(blocks.start), &mut encrypted)?;
    if got < encrypted.len() {
        // The file was truncated since its size was read.
        return Err(Damage::Block(blocks.start + (got / kind.block()) as u64).into());
    }
    let pairs = encrypted.chunks(kind.block()).zip(plain.chunks_mut(BLOCK));
    for (number, (block, plain)) in (blocks.start..).zip(pairs) {
        cipher.decrypt(block, number, Some(id), plain)?;
    }
    Ok(plain)
}

/// Calls `work` for pieces of `blocks`, on two threads if there are many. Returns the first error.
fn in_pieces(blocks: Range<u64>, work: impl Fn(Range<u64>) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicU64::new(blocks.start);
    let run = || {
        loop {
            let first = next.fetch_add(PIECE, Ordering::Relaxed);
            if first >= blocks.end {
                return Ok(());
            }
            work(first..blocks.end.min(first + PIECE))?;
        }
    };
    if blocks.end.saturating_sub(blocks.start) < PARALLEL {
        return run();
    }
    std::thread::scope(|scope| {
        let other = std::thread::Builder::new().spawn_scoped(scope, run);
        let result = run();
        let others = match other {
            Ok(other) => other.join().unwrap_or(Err(Errno::EIO.into())),
            // This thread has done all the work.
            Err(_) => Ok(()),
        };
        result.and(others)
    })
}
