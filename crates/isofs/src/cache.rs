//! A cache of directories that were read, bounded by memory.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::reader::Listing;

/// Bytes of memory for listings. The newest one is kept even when it alone is larger: its directory is being listed.
const LIMIT: usize = 64 << 20;

/// A directory: its first byte in the image, and its length.
type Key = (u64, u64);

#[derive(Default)]
pub(crate) struct Listings {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    listings: HashMap<Key, (Arc<Listing>, u64)>,
    bytes: usize,
    /// Counts uses.
    clock: u64,
}

impl Listings {
    pub fn get(&self, key: Key) -> Option<Arc<Listing>> {
        let mut held = self.held.lock();
        held.clock += 1;
        let now = held.clock;
        let (listing, used) = held.listings.get_mut(&key)?;
        *used = now;
        Some(Arc::clone(listing))
    }

    /// Two threads may have read the same directory: either listing can be used.
    pub fn put(&self, key: Key, listing: &Arc<Listing>) {
        let mut held = self.held.lock();
        held.clock += 1;
        let now = held.clock;
        held.bytes += cost(listing);
        if let Some((old, _)) = held.listings.insert(key, (Arc::clone(listing), now)) {
            held.bytes -= cost(&old);
        }
        if held.bytes > LIMIT {
            held.shrink(now);
        }
    }
}

impl Held {
    /// Drops the least recently used directories, down to three quarters of the limit, so that this is rare.
    fn shrink(&mut self, newest: u64) {
        let mut by_age: Vec<_> = self
            .listings
            .iter()
            .map(|(key, (_, used))| (*used, *key))
            .collect();
        by_age.sort_unstable();
        for (used, key) in by_age {
            if self.bytes <= LIMIT / 4 * 3 || used == newest {
                break;
            }
            if let Some((listing, _)) = self.listings.remove(&key) {
                self.bytes -= cost(&listing);
            }
        }
    }
}

fn cost(listing: &Listing) -> usize {
    listing.cost + 256
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(cost: usize) -> Arc<Listing> {
        let mut listing = Listing::default();
        listing.cost = cost;
        Arc::new(listing)
    }

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let cache = Listings::default();
        let each = LIMIT / 10;
        for dir in 0..100 {
            cache.put((dir, 0), &listing(each));
            assert!(cache.get((0, 0)).is_some(), "used all the time");
            assert!(cache.held.lock().bytes <= LIMIT);
        }
        assert!(cache.get((50, 0)).is_none());
        assert!(cache.get((99, 0)).is_some());
    }

    #[test]
    fn one_that_is_too_large_stays_until_the_next() {
        let cache = Listings::default();
        cache.put((1, 0), &listing(2 * LIMIT));
        assert!(cache.get((1, 0)).is_some());
        cache.put((2, 0), &listing(1));
        assert!(cache.get((1, 0)).is_none());
        assert_eq!(cache.held.lock().bytes, 257);
    }
}
