//! The dentry cache: for a name in a directory, the inode, or the fact that the name does not exist.
//!
//! It changes only under the namespace lock (held exclusively to change names, shared to look one
//! up), so it never disagrees with the store. It is bounded; evicted names are looked up in the store again.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::inode::Inode;

const SHARDS: usize = 16;

/// A cached name: `None` means that the name does not exist.
pub(crate) type Known = Option<Arc<Inode>>;

struct Slot {
    target: Known,
    /// Whether it was looked up since the clock hand last passed it: then it is kept once more.
    used: bool,
}

#[derive(Default)]
struct Shard {
    dirs: HashMap<u64, HashMap<Arc<[u8]>, Slot>>,
    queue: VecDeque<(u64, Arc<[u8]>)>,
    len: usize,
}

/// The cache of names and their inodes.
pub(crate) struct DentryCache {
    shards: [Mutex<Shard>; SHARDS],
    shard_cap: usize,
    hasher: RandomState,
}

impl DentryCache {
    /// A cache of at most about `cap` names.
    pub fn new(cap: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            shard_cap: (cap / SHARDS).max(8),
            hasher: RandomState::new(),
        }
    }

    /// Forgets all names, without freeing the memory of their inodes: for the end of the process.
    pub fn leak(&self) {
        for shard in &self.shards {
            std::mem::forget(std::mem::take(&mut *shard.lock()));
        }
    }

    /// The names of one directory are in all shards, so that a single large directory can use the whole cache.
    fn shard(&self, dir: u64, name: &[u8]) -> &Mutex<Shard> {
        // The index is below SHARDS by the modulus.
        &self.shards[(self.hasher.hash_one((dir, name)) % SHARDS as u64) as usize]
    }

    /// The entry of `name` in `dir`; `None` when the name is not in the cache.
    pub fn get(&self, dir: u64, name: &[u8]) -> Option<Known> {
        let mut shard = self.shard(dir, name).lock();
        let slot = shard.dirs.get_mut(&dir)?.get_mut(name)?;
        slot.used = true;
        Some(slot.target.clone())
    }

    /// Records the inode of `name` in `dir`, or that the name does not exist.
    pub fn put(&self, dir: u64, name: Arc<[u8]>, target: Known) {
        // Dropped after the lock is released: dropping the last reference to an inode runs code.
        let mut dropped = Vec::new();
        let mut guard = self.shard(dir, &name).lock();
        let shard = &mut *guard;
        let names = shard.dirs.entry(dir).or_default();
        if let Some(slot) = names.get_mut(&*name) {
            dropped.push(std::mem::replace(&mut slot.target, target));
            drop(guard);
            return;
        }
        names.insert(
            Arc::clone(&name),
            Slot {
                target,
                used: false,
            },
        );
        shard.queue.push_back((dir, name));
        shard.len += 1;
        shard.shrink(self.shard_cap, &mut dropped);
        drop(guard);
    }

    /// Forgets all names of `dir`.
    pub fn forget_dir(&self, dir: u64) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let names = shard.dirs.remove(&dir);
            shard.len -= names.as_ref().map_or(0, HashMap::len);
            drop(shard);
            drop(names);
        }
    }

    /// Number of cached names.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len).sum()
    }
}

impl Shard {
    fn shrink(&mut self, cap: usize, dropped: &mut Vec<Known>) {
        // Names of forgotten directories stay in the queue until they reach its front; its length is bounded as well.
        while self.len > cap || self.queue.len() > 2 * cap {
            let Some((dir, name)) = self.queue.pop_front() else {
                return;
            };
            let Some(names) = self.dirs.get_mut(&dir) else {
                continue;
            };
            match names.get_mut(&name) {
                None => {}
                Some(slot) if slot.used => {
                    slot.used = false;
                    self.queue.push_back((dir, name));
                }
                Some(_) => {
                    dropped.extend(names.remove(&name).map(|slot| slot.target));
                    self.len -= 1;
                    if names.is_empty() {
                        self.dirs.remove(&dir);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::ops::Bound;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use amino_txn::{Records, Store, Visit};
    use bytes::Bytes;
    use goanna_vfs::{Caller, Errno, FileSystem};

    use super::DentryCache;
    use crate::{AminoFs, Durability, Options, Volume};

    #[test]
    fn one_directory_uses_the_whole_cache_and_can_be_forgotten() {
        let cache = DentryCache::new(1600);
        for name in 0..1000_u32 {
            cache.put(7, Arc::from(&name.to_le_bytes()[..]), None);
        }
        assert_eq!(cache.len(), 1000);
        assert!((0..1000_u32).all(|name| cache.get(7, &name.to_le_bytes()).is_some()));
        for name in 1000..10_000_u32 {
            cache.put(7, Arc::from(&name.to_le_bytes()[..]), None);
        }
        assert_eq!(cache.len(), 1600);
        cache.forget_dir(7);
        assert_eq!(cache.len(), 0);
    }

    /// Counts the records that are read by their keys.
    struct Counted {
        lower: Store,
        gets: Arc<AtomicUsize>,
    }

    impl Records for Counted {
        fn get(&self, key: &[u8]) -> Result<Option<Bytes>, amino_txn::Error> {
            self.gets.fetch_add(1, SeqCst);
            self.lower.get(key)
        }

        fn scan(
            &self,
            from: Bound<&[u8]>,
            prefix: &[u8],
            visit: &mut Visit<'_>,
        ) -> Result<(), amino_txn::Error> {
            self.lower.scan(from, prefix, visit)
        }
    }

    /// An open with `O_CREAT` looks a name up, checks what only creating needs, and creates the file. The store is read once.
    #[test]
    fn a_name_that_is_looked_up_and_created_is_read_from_the_store_once() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            create: true,
            ..Options::default()
        };
        let store = crate::open_store(dir.path(), &options).unwrap();
        crate::make_root(&store, &options).unwrap();
        let gets = Arc::new(AtomicUsize::new(0));
        let counted = Box::new(Counted {
            lower: store.clone(),
            gets: Arc::clone(&gets),
        });
        let volume = Volume::over(dir.path(), options, store, counted, false).unwrap();
        let fs = AminoFs {
            volume: Arc::new(volume),
            durability: Durability::default(),
        };
        let (caller, top) = (Caller::own(), fs.root());
        gets.store(0, SeqCst);
        let missing = fs.lookup(&caller, &top, b"new").map(drop);
        assert_eq!(missing, Err(Errno::ENOENT.into()));
        assert_eq!(gets.load(SeqCst), 1);
        let created = fs.create(&caller, &top, b"new", 0o644, libc::O_RDWR);
        created.unwrap();
        assert_eq!(gets.load(SeqCst), 1);
        fs.lookup(&caller, &top, b"new").unwrap();
        assert_eq!(gets.load(SeqCst), 1);
    }
}
