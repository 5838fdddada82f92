//! What changes take in the store's log, and how much of them one operation may make.

use amino_schema::PAGE_SIZE;
use amino_txn::change_cost;

/// What a deferred change of an inode's metadata can take in the log: names and inline content included.
pub(crate) const META_COST: usize = 1024;

/// Log bytes of one page's change.
pub(crate) const PAGE_COST: usize = change_cost(17, PAGE_SIZE as usize + 1);

/// Pages that are deleted at the flush point that removes a file's last name; larger files go in steps, as orphans.
pub(crate) const REAP_PAGES: u64 = 1024;

/// Log bytes of deleting this many pages.
pub(crate) fn deletes(pages: u64) -> usize {
    usize::try_from(pages)
        .unwrap_or(usize::MAX)
        .saturating_mul(change_cost(17, 0))
}
