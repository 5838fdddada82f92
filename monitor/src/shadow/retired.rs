//! Backing directories that were removed because no thread held them.
//!
//! No thread holds a descriptor that waits in a socket. When it arrives, its backing directory is removed, but the kernel's
//! object still has the same identity. So the path of each directory is kept for a while, and the directory is found again by
//! it. The inode number must be the same, so another directory is never found.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use goanna_vfs::{Caller, Place, Result};

use super::Identity;

/// Maximum number of retired directories; the oldest one is dropped first.
const MAX: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Retired {
    by_identity: HashMap<Identity, Former>,
    oldest_first: VecDeque<Identity>,
}

/// The former path of a directory. It does not keep the directory in memory.
#[derive(Debug, Clone)]
pub(super) struct Former {
    mount: Arc<goanna_vfs::Mount>,
    path: Vec<u8>,
    ino: u64,
}

impl Former {
    /// `None` for a directory that was removed.
    pub(super) fn of(caller: &Caller, place: &Place) -> Result<Option<Self>> {
        let (path, deleted) = place.mount.fs.path(caller, &place.node)?;
        Ok((!deleted).then(|| Self {
            mount: Arc::clone(&place.mount),
            path,
            ino: place.node.ino(),
        }))
    }

    /// The directory, if it still has that path.
    pub(super) fn find(&self, caller: &Caller) -> Option<Place> {
        let mut node = self.mount.fs.root();
        for name in self
            .path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
        {
            node = self.mount.fs.lookup(caller, &node, name).ok()?;
        }
        (node.ino() == self.ino && node.is_dir()).then(|| Place {
            mount: Arc::clone(&self.mount),
            node,
        })
    }
}

impl Retired {
    pub(super) fn add(&mut self, identity: Identity, former: Former) {
        if self.by_identity.insert(identity, former).is_none() {
            self.oldest_first.push_back(identity);
        }
        if self.oldest_first.len() > MAX
            && let Some(oldest) = self.oldest_first.pop_front()
        {
            self.by_identity.remove(&oldest);
        }
    }

    /// Takes out the directories of `mount`.
    pub(super) fn take(&mut self, mount: &goanna_vfs::Mount) -> Vec<Former> {
        let is_inside = |former: &Former| former.mount.number == mount.number;
        let taken = self
            .by_identity
            .extract_if(|_, former| is_inside(former))
            .map(|(_, former)| former);
        let taken = taken.collect();
        let known = &self.by_identity;
        self.oldest_first
            .retain(|identity| known.contains_key(identity));
        taken
    }

    pub(super) fn get(&self, identity: &Identity) -> Option<Former> {
        self.by_identity.get(identity).cloned()
    }
}
