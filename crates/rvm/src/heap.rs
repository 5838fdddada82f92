//! An allocator over a region.

use std::alloc::Layout;
use std::ptr::NonNull;

use goanna_sys::region::{PAGE, Region};

use crate::bins::{BITMAP_WORDS, COUNT, bin_of};
use crate::{Error, RegionId, Rvm};

/// An allocator over a region. All its data are in the region, so allocating and freeing roll back as writes do.
///
/// Blocks are adjacent. Each starts with its size and a bit that says whether it is in use, and the size of the block before, so
/// that free neighbours become one. Free blocks are in lists by size. Data read from the region are checked before use, since the
/// program can write there: damage is an error, not a wild access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap {
    region: RegionId,
}

impl Heap {
    /// A heap of `len` bytes, its own data of 2.1 KiB included, which it cannot exceed. Only used parts take memory, so `len` may be
    /// generous. Errors are those of [`Rvm::map`].
    pub fn new(rvm: &mut Rvm, len: usize) -> Result<Self, Error> {
        let region = rvm.map(len)?;
        Blocks::of(rvm, region)?.format()?;
        Ok(Self { region })
    }

    /// The region; [`Rvm::unmap`] frees it.
    pub fn region(self) -> RegionId {
        self.region
    }

    /// Allocates a block for `layout`. Its content is undefined, and it never moves.
    ///
    /// [`Error::Full`]; [`Error::Alignment`] beyond 4096; [`Error::Damaged`]; [`Error::NoRegion`].
    pub fn alloc(self, rvm: &mut Rvm, layout: Layout) -> Result<NonNull<u8>, Error> {
        let mut blocks = Blocks::of(rvm, self.region)?;
        let offset = blocks.alloc(layout)?;
        let start = blocks.region.start();
        let address = start.addr().checked_add(offset).ok_or(Error::Damaged)?;
        Ok(start.with_addr(address))
    }

    /// Frees a block that [`Heap::alloc`] has returned.
    ///
    /// [`Error::NotAllocated`] when it is not in use; [`Error::Damaged`]; [`Error::NoRegion`].
    pub fn free(self, rvm: &mut Rvm, block: NonNull<u8>) -> Result<(), Error> {
        let mut blocks = Blocks::of(rvm, self.region)?;
        let start = blocks.region.start().addr().get();
        let offset = block.addr().get().checked_sub(start);
        blocks.free(offset.ok_or(Error::NotAllocated)?)
    }
}

/// The position of the bitmap of non-empty lists; the heads of the lists follow, then the blocks.
const BITMAP: usize = 0;
const HEADS: usize = BITMAP + 8 * BITMAP_WORDS;
const FIRST: usize = HEADS + 8 * COUNT;

/// Of a block: its size and the bit for "in use"; then the size of the block before, 0 for the first.
const HEADER: usize = 16;
/// Sizes and positions of blocks are multiples of it, and so are the returned pointers.
const GRAIN: usize = 16;
/// A header and the two links of a free block.
const SMALLEST: usize = 32;
const USED: u64 = 1;

/// A block: where it starts, its size with the header, the size of the one before.
#[derive(Clone, Copy)]
struct Block {
    at: usize,
    size: usize,
    before: usize,
    used: bool,
}

impl Block {
    fn end(self) -> usize {
        self.at + self.size
    }
}

struct Blocks<'a> {
    region: &'a mut Region,
}

impl<'a> Blocks<'a> {
    fn of(rvm: &'a mut Rvm, region: RegionId) -> Result<Self, Error> {
        let region = rvm.region_mut(region)?;
        Ok(Self { region })
    }

    fn format(&mut self) -> Result<(), Error> {
        self.release(Block {
            at: FIRST,
            size: self.region.len() - FIRST,
            before: 0,
            used: false,
        })
    }

    fn alloc(&mut self, layout: Layout) -> Result<usize, Error> {
        let align = layout.align().max(GRAIN);
        if align > PAGE {
            return Err(Error::Alignment);
        }
        // Neither overflows: a layout's size is at most isize::MAX.
        let need = (layout.size().next_multiple_of(GRAIN) + HEADER).max(SMALLEST);
        let slack = if align > GRAIN { align + GRAIN } else { 0 };
        let mut block = self.find(need + slack)?;
        self.unlink(block)?;
        let mut skip = (block.at + HEADER).next_multiple_of(align) - HEADER - block.at;
        if skip > 0 && skip < SMALLEST {
            skip += align;
        }
        if skip > 0 {
            let front = Block {
                size: skip,
                ..block
            };
            block = Block {
                at: front.end(),
                size: block.size - skip,
                before: skip,
                used: true,
            };
            self.write(block)?;
            self.release(front)?;
        }
        let spare = block.size - need;
        block.used = true;
        if spare < SMALLEST {
            self.write(block)?;
        } else {
            block.size = need;
            self.write(block)?;
            self.release(Block {
                at: block.end(),
                size: spare,
                before: need,
                used: false,
            })?;
        }
        Ok(block.at + HEADER)
    }

    fn free(&mut self, offset: usize) -> Result<(), Error> {
        let at = offset
            .checked_sub(HEADER)
            .filter(|at| *at >= FIRST && at.is_multiple_of(GRAIN))
            .ok_or(Error::NotAllocated)?;
        let block = self.read(at).map_err(|_| Error::NotAllocated)?;
        if !block.used || !self.neighbours_agree(block) {
            return Err(Error::NotAllocated);
        }
        self.release(block)
    }

    /// Whether the headers of the blocks before and after agree with this one. Content that only looks like a header, such as one
    /// left over from merged free blocks, does not pass.
    fn neighbours_agree(&self, block: Block) -> bool {
        let after = block.end() == self.region.len()
            || self.read(block.end()).is_ok_and(|b| b.before == block.size);
        let before = if block.before == 0 {
            block.at == FIRST
        } else {
            let at = block.at.checked_sub(block.before);
            at.is_some_and(|at| self.read(at).is_ok_and(|b| b.size == block.before))
        };
        after && before
    }

    /// Makes a block that is in no list a free one, together with its free neighbours.
    fn release(&mut self, mut block: Block) -> Result<(), Error> {
        if block.before != 0 {
            let at = block.at.checked_sub(block.before).ok_or(Error::Damaged)?;
            let before = self.read(at)?;
            if before.end() != block.at {
                return Err(Error::Damaged);
            }
            if !before.used {
                self.unlink(before)?;
                block.size += before.size;
                (block.at, block.before) = (before.at, before.before);
            }
        }
        if block.end() != self.region.len() {
            let after = self.read(block.end())?;
            if !after.used {
                self.unlink(after)?;
                block.size += after.size;
            }
        }
        block.used = false;
        self.write(block)?;
        self.link(block)
    }

    /// A free block of at least `need` bytes: the first that fits of its own list, else any of the next one.
    fn find(&self, need: usize) -> Result<Block, Error> {
        let own = bin_of(need);
        let mut at = self.head(own)?;
        let mut steps = self.region.len() / SMALLEST;
        while at != 0 {
            let block = self.read_free(at)?;
            if block.size >= need {
                return Ok(block);
            }
            at = self.next(block)?;
            steps = steps.checked_sub(1).ok_or(Error::Damaged)?;
        }
        let bin = self.next_filled(own + 1)?.ok_or(Error::Full)?;
        let block = self.read_free(self.head(bin)?)?;
        if block.size < need {
            return Err(Error::Damaged);
        }
        Ok(block)
    }

    /// The first list from `bin` on that is not empty.
    fn next_filled(&self, bin: usize) -> Result<Option<usize>, Error> {
        for word in bin / 64..BITMAP_WORDS {
            let mut bits = self.load(BITMAP + 8 * word)?;
            if word == bin / 64 {
                bits &= u64::MAX << (bin % 64);
            }
            if bits != 0 {
                return Ok(Some(word * 64 + bits.trailing_zeros() as usize));
            }
        }
        Ok(None)
    }

    fn link(&mut self, block: Block) -> Result<(), Error> {
        let bin = bin_of(block.size);
        let head = self.head(bin)?;
        self.set_links(block, head, 0)?;
        if head == 0 {
            self.set_filled(bin, true)?;
        } else {
            let first = self.read_free(head)?;
            self.store(first.at + HEADER + 8, block.at)?;
        }
        self.store(HEADS + 8 * bin, block.at)
    }

    fn unlink(&mut self, block: Block) -> Result<(), Error> {
        let bin = bin_of(block.size);
        let (next, previous) = (self.next(block)?, self.previous(block)?);
        if next != 0 {
            let next = self.read_free(next)?;
            self.store(next.at + HEADER + 8, previous)?;
        }
        if previous != 0 {
            let previous = self.read_free(previous)?;
            return self.store(previous.at + HEADER, next);
        }
        if self.head(bin)? != block.at {
            return Err(Error::Damaged);
        }
        if next == 0 {
            self.set_filled(bin, false)?;
        }
        self.store(HEADS + 8 * bin, next)
    }

    fn set_filled(&mut self, bin: usize, filled: bool) -> Result<(), Error> {
        let at = BITMAP + 8 * (bin / 64);
        let bit = 1 << (bin % 64);
        let bits = self.load(at)?;
        let bits = if filled { bits | bit } else { bits & !bit };
        self.region.store(at, bits).ok_or(Error::Damaged)
    }

    fn head(&self, bin: usize) -> Result<usize, Error> {
        self.load_size(HEADS + 8 * bin)
    }

    fn next(&self, free: Block) -> Result<usize, Error> {
        self.load_size(free.at + HEADER)
    }

    fn previous(&self, free: Block) -> Result<usize, Error> {
        self.load_size(free.at + HEADER + 8)
    }

    fn set_links(&mut self, free: Block, next: usize, previous: usize) -> Result<(), Error> {
        self.store(free.at + HEADER, next)?;
        self.store(free.at + HEADER + 8, previous)
    }

    fn read_free(&self, at: usize) -> Result<Block, Error> {
        self.read(at)
            .and_then(|b| if b.used { Err(Error::Damaged) } else { Ok(b) })
    }

    fn read(&self, at: usize) -> Result<Block, Error> {
        let raw = self.load(at)?;
        let block = Block {
            at,
            size: usize::try_from(raw & !USED).map_err(|_| Error::Damaged)?,
            before: self.load_size(at.checked_add(8).ok_or(Error::Damaged)?)?,
            used: raw & USED != 0,
        };
        let inside = at >= FIRST
            && block.size >= SMALLEST
            && (at | block.size).is_multiple_of(GRAIN)
            && at
                .checked_add(block.size)
                .is_some_and(|end| end <= self.region.len());
        if inside {
            Ok(block)
        } else {
            Err(Error::Damaged)
        }
    }

    /// Writes a block's header, and records its size in the block after it.
    fn write(&mut self, block: Block) -> Result<(), Error> {
        let used = if block.used { USED } else { 0 };
        let raw = block.size as u64 | used;
        self.region.store(block.at, raw).ok_or(Error::Damaged)?;
        self.store(block.at + 8, block.before)?;
        if block.end() == self.region.len() {
            return Ok(());
        }
        self.store(block.end() + 8, block.size)
    }

    fn load(&self, at: usize) -> Result<u64, Error> {
        self.region.load(at).ok_or(Error::Damaged)
    }

    fn load_size(&self, at: usize) -> Result<usize, Error> {
        usize::try_from(self.load(at)?).map_err(|_| Error::Damaged)
    }

    fn store(&mut self, at: usize, value: usize) -> Result<(), Error> {
        self.region.store(at, value as u64).ok_or(Error::Damaged)
    }
}
