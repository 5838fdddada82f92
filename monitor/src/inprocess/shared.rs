//! The map of a store's attributes, from which stubs answer stat(2) and access(2) (docs/decisions/0098): which one a run has, and what is put into
//! it for the calls that have come to the monitor.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use goanna_sys::procfs;
use goanna_sys::stub::map::AttributeMap;
use goanna_vfs::{Mount, Mounts, SharedAttributes};

use super::InProcess;
use crate::call::Call;
use crate::shadow::Shadow;

/// Paths that are remembered, of calls that have come to the monitor once.
const REMEMBERED: usize = 4096;

/// The map of a run, and what leads into it.
#[derive(Debug)]
pub struct RunMap {
    map: Arc<AttributeMap>,
    /// The number of the run in the map: the start of absolute paths, and the space of its backing directories.
    run: u64,
    mount: Arc<Mount>,
    /// `/NAME`, if the mount point is in the root directory.
    prefix: Option<Vec<u8>>,
    hasher: RandomState,
    asked: Box<[AtomicU64]>,
}

impl RunMap {
    /// That of the first mount that has one. None where something is mounted in a mount, which the map does not see.
    pub(super) fn of(mounts: &Mounts) -> Option<Self> {
        if mounts.nested() {
            return None;
        }
        let mut all = mounts.iter();
        let (mount, map) = all.find_map(|mount| Some((mount, attributes(mount)?.map()?)))?;
        let mut in_root = mounts.on_host().filter(|(dir, ..)| dir.is_empty());
        let named = in_root.find(|(.., other)| Arc::ptr_eq(other, mount));
        Some(Self {
            run: map.new_id(),
            map,
            mount: Arc::clone(mount),
            prefix: named.map(|(_, name, _)| [b"/", name].concat()),
            hasher: RandomState::new(),
            asked: (0..REMEMBERED).map(|_| AtomicU64::new(0)).collect(),
        })
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
    fn is_repeated(&self, start: u64, path: &[u8]) -> bool {
        let hash = self.hasher.hash_one((start, path));
        let place = self.asked.get(hash as usize % REMEMBERED);
        place.is_some_and(|place| place.swap(hash, Ordering::Relaxed) == hash)
    }

    fn share_path(&self, call: &Call<'_>, dirfd: i32, path: &[u8]) -> Option<()> {
        let attributes = attributes(&self.mount)?;
        if path.first() == Some(&b'/') {
            let rest = path.strip_prefix(self.prefix.as_deref()?)?;
            if rest.first().is_none_or(|&byte| byte == b'/') && self.is_repeated(0, path) {
                let root = self.mount.fs.root();
                attributes.share_path(Some(self.run), path, &root, rest);
            }
            return Some(());
        }
        let identity = if dirfd == libc::AT_FDCWD {
            procfs::cwd_identity(call.task.tid).ok()?
        } else {
            call.task.identity(dirfd).ok()?
        };
        if !self.is_repeated(identity.1, path) {
            return Some(());
        }
        let shadow = call.monitor.shadows.find(identity)?;
        let Shadow::Dir { place, .. } = &*shadow else {
            return None;
        };
        if Arc::ptr_eq(&place.mount, &self.mount) {
            attributes.share_object(&place.node, self.run, identity.1);
            attributes.share_path(None, path, &place.node, path);
        }
        Some(())
    }

    fn share_descriptor(&self, call: &Call<'_>, fd: i32) -> Option<()> {
        let identity = call.task.identity(fd).ok()?;
        let shadow = call.monitor.shadows.find(identity)?;
        let space = match &*shadow {
            Shadow::File { .. } => 0,
            Shadow::Dir { .. } => self.run,
            _ => return None,
        };
        let place = shadow.place();
        if Arc::ptr_eq(&place.mount, &self.mount) {
            attributes(&self.mount)?.share_object(&place.node, space, identity.1);
        }
        Some(())
    }
}

fn attributes(mount: &Mount) -> Option<&dyn SharedAttributes> {
    mount.fs.content()?.shared_attributes()
}

impl InProcess {
    /// A call that asks for attributes has come to the monitor: the next ones of the process may be answered from the map. An empty path is
    /// `dirfd` itself.
    pub fn share(&self, call: &Call<'_>, dirfd: i32, path: &[u8]) {
        let Some(Some(shared)) = self.shared.get() else {
            return;
        };
        let has_map = |space: Arc<super::Space>| space.has_map();
        if !self.space(call.task.tid).is_some_and(has_map) {
            return;
        }
        // What is not shared notifies.
        let _ = if path.is_empty() {
            shared.share_descriptor(call, dirfd)
        } else {
            shared.share_path(call, dirfd, path)
        };
    }
}
