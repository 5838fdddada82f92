//! The map of attributes of a run, from which stubs answer stat(2) and access(2). It is the map of a store
//! ([ADR 0098](../../../docs/decisions/0098-attributes-in-shared-memory.md)), which `shared` fills, or the run's own one for a mount with files of the host
//! ([ADR 0132](../../../docs/decisions/0132-attributes-that-the-host-confirms.md)), which `on_host` fills.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use goanna_sys::stub::map::AttributeMap;
use goanna_vfs::{Mount, Mounts, Place, SharedAttributes};

/// Places to remember paths in, of calls that have come to the monitor once: more than the map has entries, so that most paths stay that the map could have.
const REMEMBERED: usize = 1 << 16;

/// How often it was asked for a path, in what is remembered of it.
const COUNT: u32 = 3;
const TWICE: u32 = 2;
const REFUSED: u32 = 3;

/// The map of a run, and what leads into it.
#[derive(Debug)]
pub struct RunMap {
    map: Arc<AttributeMap>,
    /// The number of the run in the map: the start of absolute paths, and the space of its backing directories. Zero for a map without attributes.
    run: u64,
    /// The mount whose attributes it has.
    pub(super) mount: Option<Arc<Mount>>,
    /// They are those of objects of the host. The map is the run's own one.
    is_on_host: bool,
    /// Its files and directories are those of the host: what a path of the host leads to, or that it leads to nothing, is so here.
    has_host_files: bool,
    /// Some have backing directories of the run there.
    has_directories: AtomicBool,
    /// `/NAME`, if the mount point is in the root directory.
    pub(super) prefix: Option<Vec<u8>>,
    hasher: RandomState,
    asked: Box<[AtomicU32]>,
}

impl RunMap {
    /// The map of the first mount that has one, else a new one for the first mount that shows objects of the host. If there is none, or if a mount point lies
    /// inside a mount, an empty map. A new map is closed. `None` if the system does not let programs map one.
    pub(super) fn of(mounts: &Mounts) -> Option<Self> {
        let all = || mounts.iter().filter(|_| !mounts.nested());
        let found = all().find_map(|mount| Some((mount, attributes(mount)?.map()?)));
        let is_on_host = found.is_none();
        let (mount, map) = match found {
            Some((mount, map)) => (Some(mount), map),
            None => {
                let map = AttributeMap::new().ok()?;
                map.set_has_files(false);
                let shows_host = |mount: &&Arc<Mount>| mount.fs.on_host(&mount.fs.root()).is_some();
                (all().find(shows_host), Arc::new(map))
            }
        };
        let mut in_root = mounts.on_host().filter(|(dir, ..)| dir.is_empty());
        let named =
            in_root.find(|(.., other)| mount.is_some_and(|mount| Arc::ptr_eq(other, mount)));
        Some(Self {
            run: mount.map_or(0, |_| map.new_id()),
            map,
            mount: mount.cloned(),
            is_on_host: is_on_host && mount.is_some(),
            has_host_files: mount.is_some_and(has_host_files),
            has_directories: AtomicBool::new(false),
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

    /// Whether the host is asked whether attributes are as they were.
    pub(super) fn is_on_host(&self) -> bool {
        self.is_on_host
    }

    /// Whether the mount's files and directories are those of the host.
    pub(super) fn has_host_files(&self) -> bool {
        self.has_host_files
    }

    /// Closes a map of attributes of the host's objects while something is mounted in a mount. A store closes its map itself.
    pub(super) fn settle(&self, is_covered: bool) {
        if self.is_on_host {
            self.map.set_closed(is_covered);
        }
    }

    /// Whether processes may open files that the host confirms. Those of a store are shared one by one.
    pub(super) fn set_may_open_files(&self, may_open: bool) {
        if self.is_on_host {
            self.map.set_has_files(may_open);
        }
    }

    /// A program maps the file to write: its content changes without the host's object, so processes do not open it themselves.
    pub(super) fn end_file(&self, place: &Place) {
        if self.is_on_host && self.has(&place.mount) {
            self.map.invalidate(place.node.ino());
        }
    }

    /// A backing directory of the run has been put into the map.
    pub(super) fn set_has_directories(&self) {
        self.has_directories.store(true, Ordering::SeqCst);
    }

    /// Takes all directories with backing directories of the run out of the map.
    pub(super) fn forget_directories(&self) {
        if self.has_directories.swap(false, Ordering::SeqCst) {
            self.map.forget_directories(self.run);
        }
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
        let Some((place, tag)) = self.asked(start, path) else {
            return false;
        };
        place.swap(tag, Ordering::Relaxed) == tag
    }

    /// Whether it was asked for this path twice before: an entry that the host confirms costs more. Then it is to be asked for as often again; or it is refused, where
    /// that is called.
    pub(super) fn is_asked_often(&self, start: u64, path: &[u8]) -> bool {
        let Some((place, tag)) = self.asked(start, path) else {
            return false;
        };
        let tag = tag & !COUNT;
        let before = place.load(Ordering::Relaxed);
        let count = if before & !COUNT == tag {
            before & COUNT
        } else {
            0
        };
        let next = match count {
            REFUSED => return false,
            TWICE => 0,
            less => less + 1,
        };
        place.store(tag | next, Ordering::Relaxed);
        count == TWICE
    }

    /// A path that was asked for often has no entry until another path has taken its place.
    pub(super) fn refuse(&self, start: u64, path: &[u8]) {
        if let Some((place, tag)) = self.asked(start, path) {
            place.store(tag | REFUSED, Ordering::Relaxed);
        }
    }

    /// Where it is remembered that a path was asked for, and as what.
    fn asked(&self, start: u64, path: &[u8]) -> Option<(&AtomicU32, u32)> {
        let hash = self.hasher.hash_one((start, path));
        let place = self.asked.get(hash as usize % REMEMBERED)?;
        Some((place, (hash >> 32) as u32))
    }
}

/// What the file system of `mount` shares, if it shares attributes.
pub(super) fn attributes(mount: &Mount) -> Option<&dyn SharedAttributes> {
    mount.fs.shared_attributes()
}

fn has_host_files(mount: &Arc<Mount>) -> bool {
    mount.fs.host_dir(&mount.fs.root()).is_some()
}
