//! The entries of a directory in the order in which they are listed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use goanna_vfs::FileKind;

/// One entry.
pub(crate) struct Entry {
    pub name: Arc<[u8]>,
    pub ino: u64,
    pub kind: FileKind,
}

/// The entries of a directory by cookie.
#[derive(Default)]
pub(crate) struct DirOrder {
    pub entries: BTreeMap<u64, Entry>,
    cookies: HashMap<Arc<[u8]>, u64>,
    pub last: u64,
}

impl DirOrder {
    pub fn has(&self, name: &[u8]) -> bool {
        self.cookies.contains_key(name)
    }

    /// Adds an entry. An existing name keeps its place and stands for the new inode.
    pub fn set(&mut self, name: &Arc<[u8]>, ino: u64, kind: FileKind) {
        let cookie = match self.cookies.get(&**name) {
            Some(&cookie) => cookie,
            None => {
                self.last += 1;
                self.cookies.insert(Arc::clone(name), self.last);
                self.last
            }
        };
        let name = Arc::clone(name);
        self.entries.insert(cookie, Entry { name, ino, kind });
    }

    pub fn remove(&mut self, name: &[u8]) {
        if let Some(cookie) = self.cookies.remove(name) {
            self.entries.remove(&cookie);
        }
    }
}
