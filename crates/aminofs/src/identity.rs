//! Ids and versions of files, and reports of changes.
//!
//! A version is a session's number and a counter. A session begins with the first change after the store was opened: its
//! number is on disk before a version of it is given, so no version is given twice, whatever a crash takes back. After
//! a crash all files count as changed: one of them may have had a newer version, which was seen and is lost.
//!
//! The generation of a file is its first version: after a crash the store may give an inode number once more, but never a
//! version.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

use amino_schema::{Super, key};
use amino_txn::Changes;
use goanna_vfs::{Caller, Change, Errno, FileId, Identity, Node, Result, Subscriber};
use parking_lot::{Mutex, RwLock};

use crate::inode::{Inode, State};
use crate::{AminoFs, Volume, errno};

/// Bits of a version that count the changes of one session.
const COUNTER_BITS: u32 = 40;

/// The first version of a session.
fn first_of(session: u32) -> u64 {
    u64::from(session) << COUNTER_BITS
}

/// The versions of one open store.
pub(crate) struct Versions {
    /// The next version.
    next: AtomicU64,
    /// The end of the session's versions.
    end: AtomicU64,
    /// Callers see smaller versions as this one.
    least: u64,
    /// Whether the last session has ended. Locked while a session begins or ends; it comes before all locks of operations.
    ended: Mutex<bool>,
}

impl Versions {
    /// The versions of a store with `superblock`, before its first change.
    pub(crate) fn of(superblock: &Super) -> Self {
        Self {
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
            least: first_of(first_session(superblock)),
            ended: Mutex::new(false),
        }
    }

    /// The versions of a snapshot of this store, which gives no new ones.
    pub(crate) fn of_snapshot(&self) -> Self {
        Self {
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
            least: self.least,
            ended: Mutex::new(true),
        }
    }

    /// A version that was never given before. A session has begun.
    pub(crate) fn next(&self) -> u64 {
        self.next.fetch_add(1, SeqCst)
    }

    /// The version that callers see of what has `version`.
    pub(crate) fn seen(&self, version: u64) -> u64 {
        version.max(self.least)
    }

    fn has_begun(&self) -> bool {
        self.next.load(SeqCst) < self.end.load(SeqCst)
    }
}

/// The session from which on the versions of a store with this superblock are compared: the next one after a crash.
fn first_session(superblock: &Super) -> u32 {
    if superblock.closed {
        superblock.first_session
    } else {
        superblock.session.saturating_add(1)
    }
}

/// The subscribers, which receive reports of changes.
#[derive(Default)]
pub(crate) struct Subscribers {
    all: RwLock<Vec<Weak<dyn Subscriber>>>,
    /// Mapped files that were stored with what programs may have written through the mappings.
    stored: Mutex<Vec<Arc<Inode>>>,
    /// Whether there are any; without a lock, because every change looks.
    any: AtomicBool,
}

impl Subscribers {
    /// Whether changes have to be reported.
    pub(crate) fn any(&self) -> bool {
        self.any.load(SeqCst)
    }
}

impl Volume {
    /// Begins a session if none has begun. Before an operation that changes something, with no lock held.
    pub(crate) fn begin_session(&self) -> Result<(), Errno> {
        if self.versions.has_begun() {
            return Ok(());
        }
        let ended = self.versions.ended.lock();
        if *ended {
            return Err(Errno::EIO);
        }
        if self.versions.has_begun() {
            return Ok(());
        }
        let session = self.write_super(|superblock| {
            superblock.first_session = first_session(superblock);
            superblock.session = superblock.session.saturating_add(1);
            superblock.closed = false;
        })?;
        self.flush()?;
        // No file has the first version, so that all that are seen after a crash differ from it.
        self.versions.next.store(first_of(session) + 1, SeqCst);
        let half = 1 << (COUNTER_BITS - 1);
        self.versions.end.store(first_of(session) + half, SeqCst);
        Ok(())
    }

    /// Ends the session, if one has begun: from then on all changes are on disk. No operation begins any more.
    pub(crate) fn end_session(&self) -> Result<(), Errno> {
        let mut ended = self.versions.ended.lock();
        let has_begun = self.versions.has_begun();
        *ended = true;
        self.versions.end.store(0, SeqCst);
        if has_begun {
            self.store.wait_for_operations();
            self.write_super(|superblock| superblock.closed = true)?;
        }
        Ok(())
    }

    /// Changes the superblock; the number of its session.
    fn write_super(&self, change: impl FnOnce(&mut Super)) -> Result<u32, Errno> {
        let guard = self.store.enter();
        let mut pool = self.inos.lock();
        let mut superblock = pool.superblock.clone();
        change(&mut superblock);
        let mut changes = Changes::new();
        changes.put(key::super_key(), superblock.encode());
        // Also on a disk that is full for everything but removals.
        let reserved = self.store.reserve_removal(changes.byte_size());
        reserved.map_err(|error| errno(&error))?;
        let submitted = self.store.submit_reserved(&guard, changes);
        submitted.map_err(|error| errno(&error))?;
        let session = superblock.session;
        pool.superblock = superblock;
        Ok(session)
    }

    /// Gives a new version to a file that is mapped and about to be stored: programs may have written since.
    pub(crate) fn note_mapped(&self, inode: &Arc<Inode>, state: &mut State) {
        let cache = state.cache.as_ref();
        if cache.is_some_and(|cache| cache.is_mapped() && !cache.pages().changed().is_empty()) {
            state.meta.version = self.versions.next();
            if self.subscribers.any() {
                self.subscribers.stored.lock().push(Arc::clone(inode));
            }
        }
    }

    /// Reports the mapped files that were stored. No lock is held.
    pub(crate) fn report_stored(&self) {
        let stored = std::mem::take(&mut *self.subscribers.stored.lock());
        self.report(&stored);
    }

    fn id_of(&self, inode: &Inode, state: &State) -> FileId {
        FileId {
            fs: self.id,
            inode: inode.ino,
            generation: state.meta.generation,
        }
    }

    /// Reports that these inodes have changed. No lock is held.
    pub(crate) fn report(&self, inodes: &[Arc<Inode>]) {
        if inodes.is_empty() || !self.subscribers.any() {
            return;
        }
        let changes: Vec<_> = inodes
            .iter()
            .map(|inode| {
                let state = inode.state.lock();
                Change {
                    file: self.id_of(inode, &state),
                    version: self.versions.seen(state.meta.version),
                }
            })
            .collect();
        let all: Vec<_> = {
            let all = self.subscribers.all.read();
            all.iter().filter_map(Weak::upgrade).collect()
        };
        for subscriber in all {
            subscriber.changed(&changes);
        }
    }
}

impl Identity for AminoFs {
    fn file_id(&self, caller: &Caller, node: &Node) -> Result<FileId> {
        self.view(caller, |view| {
            let inode = view.inode_to_read(node)?;
            let state = inode.state.lock();
            Ok(self.id_of(&inode, &state))
        })
    }

    fn subscribe(&self, subscriber: Weak<dyn Subscriber>) -> Result<()> {
        if self.is_snapshot {
            return Ok(());
        }
        let mut all = self.subscribers.all.write();
        all.retain(|known| known.strong_count() > 0);
        all.push(subscriber);
        self.subscribers.any.store(true, SeqCst);
        drop(all);
        self.end_grants();
        // Operations that saw no subscriber do not report; they end before the subscriber makes its first copy.
        self.store.wait_for_operations();
        Ok(())
    }
}
