//! Recoverable memory: regions, and the transactions over all of them. The interface of the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::process;
use std::ptr::NonNull;

use goanna_sys::Errno;
use goanna_sys::pagemap::Pagemap;
use goanna_sys::region::{Page, Pages, Region};

use crate::{Error, Files};

/// Maximum nesting depth of transactions: that of file transactions.
pub const DEPTH_MAX: usize = goanna_sys::txncall::DEPTH_MAX;

/// Number of begins after which begin unmaps all pages, so that later it needs to examine only pages in use. To examine a
/// page costs 25 ns; to map a page again at a read costs about 100 ns, and Linux maps 16 at a time.
const REFRESH_BEGINS: u32 = 64;

/// Identifies a region of an [`Rvm`]. It is never reused for another region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(u64);

/// Recoverable memory: regions, and the transactions over all of them.
///
/// The base of each region has its content as of the last begin, so that to abort is to drop the private copies. A nested
/// begin updates the base; the level around it keeps the overwritten pages.
pub struct Rvm {
    files: Box<dyn Files + Send>,
    pagemap: Pagemap,
    /// The regions in use. A region that was unmapped in a transaction is kept in the transaction's level.
    regions: BTreeMap<RegionId, Region>,
    /// Open transactions, the outermost first.
    levels: Vec<Level>,
    ids_used: u64,
    process: u32,
    begins: u32,
    /// Kept only to reuse its memory.
    runs: Vec<Pages>,
}

/// The state that an abort of one transaction restores.
#[derive(Default)]
struct Level {
    /// Pages of the bases as they were at its begin, where nested begins have changed them since.
    undo: BTreeMap<(RegionId, usize), Box<Page>>,
    mapped: BTreeSet<RegionId>,
    unmapped: BTreeMap<RegionId, Region>,
}

impl Rvm {
    /// Recoverable memory whose transactions are tied to those of `files`.
    ///
    /// [`Error::OldKernel`]; [`Error::Memory`] when /proc/self/pagemap cannot be opened: ENOENT without /proc, EACCES when
    /// the process has made itself unreadable, EMFILE, ENFILE.
    pub fn new(files: impl Files + Send + 'static) -> Result<Self, Error> {
        let pagemap = Pagemap::own().map_err(|errno| match errno {
            Errno::ENOTTY => Error::OldKernel,
            other => Error::Memory(other),
        })?;
        Ok(Self {
            files: Box::new(files),
            pagemap,
            regions: BTreeMap::new(),
            levels: Vec::new(),
            ids_used: 0,
            process: process::id(),
            begins: 0,
            runs: Vec::new(),
        })
    }

    /// The present nesting depth of transactions.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Begins a transaction, nested when one is open; returns the depth, from 1 on. Costs time for each page of the regions
    /// that was lately in use, most for those written since the last begin.
    ///
    /// [`Error::TooDeep`]; [`Error::Files`] as the hook returns it; [`Error::Memory`] when the kernel does not report the
    /// written pages. After an error no transaction was begun.
    pub fn begin(&mut self) -> Result<usize, Error> {
        self.check_process()?;
        if self.depth() == DEPTH_MAX {
            return Err(Error::TooDeep);
        }
        self.files.begin().map_err(Error::Files)?;
        if let Err(errno) = self.absorb() {
            // The cause of the failure is reported already.
            let _ = self.files.abort();
            return Err(Error::Memory(errno));
        }
        self.levels.push(Level::default());
        Ok(self.depth())
    }

    /// Commits the current transaction: a nested one into the one around it, an outermost one for good. Files first.
    ///
    /// [`Error::NoTransaction`]; [`Error::Files`] when files do not commit: with EBUSY all is still open, with others
    /// files and memory are aborted.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.check_process()?;
        if self.levels.is_empty() {
            return Err(Error::NoTransaction);
        }
        match self.files.commit() {
            Ok(()) => {
                self.merge();
                Ok(())
            }
            Err(Errno::EBUSY) => Err(Error::Files(Errno::EBUSY)),
            Err(errno) => {
                self.roll_back().map_err(Error::Memory)?;
                Err(Error::Files(errno))
            }
        }
    }

    /// Aborts the current transaction: memory is as it was at its begin.
    ///
    /// [`Error::NoTransaction`]; [`Error::Files`] when the file transaction could not be aborted; that of memory was.
    /// [`Error::Memory`] when the kernel does not drop a mapping's pages, for an unknown reason.
    pub fn abort(&mut self) -> Result<(), Error> {
        self.check_process()?;
        if self.levels.is_empty() {
            return Err(Error::NoTransaction);
        }
        let files = self.files.abort();
        self.roll_back().map_err(Error::Memory)?;
        match files {
            Ok(()) | Err(Errno::ENODATA) => Ok(()),
            Err(errno) => Err(Error::Files(errno)),
        }
    }

    /// Runs `body` in a transaction: committed when it returns `Ok`, aborted when it returns `Err` or panics, or when the
    /// commit fails. Transactions that `body` leaves open are aborted. [`Error::NoTransaction`] when it has ended this one.
    pub fn transaction<T, E: From<Error>>(
        &mut self,
        body: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let depth = self.begin()?;
        let guard = AbortTo {
            depth: depth - 1,
            rvm: self,
        };
        let value = body(guard.rvm)?;
        while guard.rvm.depth() > depth {
            guard.rvm.abort()?;
        }
        if guard.rvm.depth() < depth {
            return Err(Error::NoTransaction.into());
        }
        guard.rvm.commit()?;
        Ok(value)
    }

    /// A region of at least `len` bytes of zeros, rounded up to whole pages. In a transaction it vanishes by abort.
    ///
    /// [`Error::Memory`]: EINVAL for no length, ENOMEM without a free range in the address space, EFBIG beyond the limit on
    /// file sizes (`ulimit -f`), EMFILE, ENFILE.
    pub fn map(&mut self, len: usize) -> Result<RegionId, Error> {
        self.check_process()?;
        let region = Region::new(len).map_err(Error::Memory)?;
        self.ids_used += 1;
        let id = RegionId(self.ids_used);
        self.regions.insert(id, region);
        if let Some(level) = self.levels.last_mut() {
            level.mapped.insert(id);
        }
        Ok(id)
    }

    /// Unmaps a region. In a transaction its memory is kept until the outermost one commits, and an abort restores it at
    /// the same address. [`Error::NoRegion`].
    pub fn unmap(&mut self, id: RegionId) -> Result<(), Error> {
        self.check_process()?;
        let region = self.regions.remove(&id).ok_or(Error::NoRegion)?;
        if let Some(level) = self.levels.last_mut()
            && !level.mapped.remove(&id)
        {
            level.unmapped.insert(id, region);
        }
        Ok(())
    }

    /// The content of a region. [`Error::NoRegion`].
    pub fn bytes(&self, id: RegionId) -> Result<&[u8], Error> {
        self.region(id).map(Region::bytes)
    }

    /// The content of a region, to be written: by any threads, or by system calls. [`Error::NoRegion`].
    pub fn bytes_mut(&mut self, id: RegionId) -> Result<&mut [u8], Error> {
        self.region_mut(id).map(Region::bytes_mut)
    }

    /// The start of a region, for data structures with pointers. It does not move until it is unmapped. The caller must
    /// ensure that no thread writes through pointers during begin, commit and abort. [`Error::NoRegion`].
    pub fn start(&self, id: RegionId) -> Result<NonNull<u8>, Error> {
        self.region(id).map(Region::start)
    }

    /// The region that starts at this address.
    pub fn starting_at(&self, start: NonNull<u8>) -> Option<RegionId> {
        let found = self.regions.iter().find(|(_, r)| r.start() == start)?;
        Some(*found.0)
    }

    pub(crate) fn region(&self, id: RegionId) -> Result<&Region, Error> {
        self.regions.get(&id).ok_or(Error::NoRegion)
    }

    pub(crate) fn region_mut(&mut self, id: RegionId) -> Result<&mut Region, Error> {
        self.regions.get_mut(&id).ok_or(Error::NoRegion)
    }

    /// Copies the changed pages of memory to the bases. Pages that did not change since the last time lose their private
    /// copy; the others keep it, because they are likely to be written again, which then costs no page fault.
    ///
    /// An error halfway does no harm: the level around keeps the overwritten pages.
    fn absorb(&mut self) -> Result<(), Errno> {
        self.begins = self.begins.wrapping_add(1);
        let refresh = self.begins.is_multiple_of(REFRESH_BEGINS);
        for (id, region) in &mut self.regions {
            self.runs.clear();
            region.private_pages(&self.pagemap, |run| self.runs.push(run))?;
            for run in &self.runs {
                let mut unchanged = run.start..run.start;
                for page in run.clone() {
                    let changed = region.absorb(page, |before| {
                        if let Some(level) = self.levels.last_mut() {
                            let undo = level.undo.entry((*id, page));
                            undo.or_insert_with(|| Box::new(*before));
                        }
                    });
                    if changed {
                        region.discard_pages(unchanged)?;
                        unchanged = page + 1..page + 1;
                    } else {
                        unchanged.end = page + 1;
                    }
                }
                region.discard_pages(unchanged)?;
            }
            if refresh {
                region.discard()?;
            }
        }
        Ok(())
    }

    /// Makes the current transaction part of the one around it, or final.
    fn merge(&mut self) {
        let Some(mut level) = self.levels.pop() else {
            return;
        };
        if let Some(outer) = self.levels.last_mut() {
            for (at, page) in level.undo {
                outer.undo.entry(at).or_insert(page);
            }
            // The outer transaction has mapped it, so both an abort of that and this unmap remove it.
            level.unmapped.retain(|id, _| !outer.mapped.remove(id));
            outer.unmapped.append(&mut level.unmapped);
            outer.mapped.append(&mut level.mapped);
        }
    }

    /// Restores memory to its content at the begin of the current transaction. Processes all regions, even after an error.
    fn roll_back(&mut self) -> Result<(), Errno> {
        let Some(mut level) = self.levels.pop() else {
            return Ok(());
        };
        self.regions.append(&mut level.unmapped);
        self.regions.retain(|id, _| !level.mapped.contains(id));
        for ((id, page), before) in &level.undo {
            if let Some(region) = self.regions.get_mut(id) {
                region.restore(*page, before);
            }
        }
        self.regions
            .values_mut()
            .map(Region::discard)
            .fold(Ok(()), Result::and)
    }

    fn check_process(&self) -> Result<(), Error> {
        if process::id() == self.process {
            Ok(())
        } else {
            Err(Error::Forked)
        }
    }
}

/// Transactions that are open are aborted.
impl Drop for Rvm {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            let unmapped = self.levels.drain(..).flat_map(|level| level.unmapped);
            let regions = std::mem::take(&mut self.regions).into_iter();
            regions
                .chain(unmapped)
                .for_each(|(_, region)| region.forget());
        }
        abort_to(self, 0);
    }
}

/// Aborts what is open beyond a depth, when a body ends early.
struct AbortTo<'a> {
    rvm: &'a mut Rvm,
    depth: usize,
}

impl Drop for AbortTo<'_> {
    fn drop(&mut self) {
        abort_to(self.rvm, self.depth);
    }
}

fn abort_to(rvm: &mut Rvm, depth: usize) {
    while rvm.depth() > depth && rvm.check_process().is_ok() {
        // Memory is rolled back in any case, and an error about files has no receiver.
        let _ = rvm.abort();
    }
}
