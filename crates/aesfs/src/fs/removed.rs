//! Directories that were removed.
//!
//! A directory is renamed to a temporary name before it is removed, and the lower file system shows this name while a program has the
//! directory open. So the former names of removed directories are kept, with the IVs by which the names in them are decrypted.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::format::names::DirIv;

/// The prefix of temporary names of directories. No encrypted name has a dot.
pub(super) const TEMPORARY: &[u8] = b"gocryptfs.tmp.";

/// Number of removed directories that are kept.
const KEPT: usize = 1024;

/// A directory that was removed.
#[derive(Debug, Clone)]
pub(super) struct Removed {
    temporary: Vec<u8>,
    /// Its plain name.
    pub name: Vec<u8>,
    /// `None` if no name in it was translated lately.
    pub iv: Option<DirIv>,
}

/// The directories that were removed last, the last one first.
#[derive(Debug, Default)]
pub(super) struct RemovedDirs(Mutex<VecDeque<Removed>>);

impl RemovedDirs {
    /// Adds a directory that gets the name `temporary` now, because it will be removed.
    pub fn add(&self, temporary: &[u8], name: &[u8], iv: Option<DirIv>) {
        let (temporary, name) = (temporary.to_vec(), name.to_vec());
        let mut all = self.0.lock();
        all.truncate(KEPT - 1);
        all.push_front(Removed {
            temporary,
            name,
            iv,
        });
    }

    /// Forgets a directory that could not be removed.
    pub fn forget(&self, temporary: &[u8]) {
        self.0.lock().retain(|one| one.temporary != temporary);
    }

    /// The directory with this temporary name. One that is not kept any more is shown by that name.
    pub fn find(&self, entry: &[u8]) -> Option<Removed> {
        if !entry.starts_with(TEMPORARY) {
            return None;
        }
        let all = self.0.lock();
        let found = all.iter().find(|one| one.temporary == entry).cloned();
        Some(found.unwrap_or_else(|| Removed {
            temporary: entry.to_vec(),
            name: entry.to_vec(),
            iv: None,
        }))
    }
}
