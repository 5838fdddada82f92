//! The map of a store's attributes that a run has, from which stubs answer stat(2) and access(2)
//! ([ADR 0098](../../../docs/decisions/0098-attributes-in-shared-memory.md)). `shared` puts entries into it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use goanna_sys::stub::map::AttributeMap;
use goanna_vfs::{Mount, Mounts, SharedAttributes};

/// Places to remember paths in, of calls that have come to the monitor once: more than the map has entries, so that most paths stay that the map could have.
const REMEMBERED: usize = 1 << 16;

/// The map of a run, and what leads into it.
#[derive(Debug)]
pub struct RunMap {
    map: Arc<AttributeMap>,
    /// The number of the run in the map: the start of absolute paths, and the space of its backing directories. Zero for a map without attributes.
    run: u64,
    /// The mount whose attributes it has.
    pub(super) mount: Option<Arc<Mount>>,
    /// `/NAME`, if the mount point is in the root directory.
    pub(super) prefix: Option<Vec<u8>>,
    hasher: RandomState,
    asked: Box<[AtomicU32]>,
}

impl RunMap {
    /// The map of the first mount that has one. If there is none, or if a mount point lies inside a mount, an empty map. `None` if the system does not let programs map one.
    pub(super) fn of(mounts: &Mounts) -> Option<Self> {
        let mut all = mounts.iter().filter(|_| !mounts.nested());
        let found = all.find_map(|mount| Some((mount, attributes(mount)?.map()?)));
        let (mount, map) = match found {
            Some((mount, map)) => (Some(mount), map),
            None => (None, Arc::new(AttributeMap::new().ok()?)),
        };
        let mut in_root = mounts.on_host().filter(|(dir, ..)| dir.is_empty());
        let named =
            in_root.find(|(.., other)| mount.is_some_and(|mount| Arc::ptr_eq(other, mount)));
        Some(Self {
            run: mount.map_or(0, |_| map.new_id()),
            map,
            mount: mount.cloned(),
            prefix: named.map(|(_, name, _)| [b"/", name].concat()),
            hasher: RandomState::new(),
            asked: (0..REMEMBERED).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    /// Whether the map has the attributes of `mount`.
    pub(super) fn has(&self, mount: &Arc<Mount>) -> bool {
        let own = self.mount.as_ref();
        own.is_some_and(|own| Arc::ptr_eq(own, mount))
    }

    /// The map.
    pub fn map(&self) -> &AttributeMap {
        &self.map
    }

    /// The number of the run in it.
    pub(super) fn run(&self) -> u64 {
        self.run
    }

    /// The host object with this inode number in the run-time directory is a new one.
    pub fn forget_backing(&self, ino: u64) {
        self.map.forget_object(self.run, ino);
    }

    /// Whether it was asked for this path before: an entry costs as much as several answers.
    pub(super) fn is_repeated(&self, start: u64, path: &[u8]) -> bool {
        let hash = self.hasher.hash_one((start, path));
        let tag = (hash >> 32) as u32;
        let place = self.asked.get(hash as usize % REMEMBERED);
        place.is_some_and(|place| place.swap(tag, Ordering::Relaxed) == tag)
    }
}

/// What the file system of `mount` shares, if it shares attributes.
pub(super) fn attributes(mount: &Mount) -> Option<&dyn SharedAttributes> {
    mount.fs.shared_attributes()
}
