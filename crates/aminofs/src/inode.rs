//! Inodes in memory, and the table of those in use.
//!
//! While an inode is in the table its state is the truth; the store may be older (see `collect.rs`). An inode
//! whose state is newer than the store is held by the dirty set, so one that can no longer be upgraded equals the store.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use amino_schema::{DataRecord, Meta, MetaFlags, OrphanRecord, PathRecord, Timestamp, key};
use amino_txn::Changes;
use bytes::Bytes;
use goanna_cache::RangeSet;
use goanna_vfs::{Attr, Errno, FileKind, Node, Result, Stamp};
use parking_lot::{Condvar, Mutex};

use crate::content::cost::META_COST;
use crate::directory::order::DirOrder;

const SHARDS: u64 = 16;

/// Bytes of a page. The store refuses other sizes at open.
pub(crate) const PAGE: u64 = amino_schema::PAGE_SIZE as u64;

/// The content of a regular file in use.
pub(crate) type Content = goanna_cache::Content<PAGE>;

/// Where an inode's metadata is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MetaLocation {
    /// With its only name.
    Path { parent: u64, name: Arc<[u8]> },
    /// In a data record of its own, because it has several names.
    Data,
    /// It has no name.
    Orphan,
}

/// The name by which an inode was reached, as the kernel's dentry of an open file.
#[derive(Clone)]
pub(crate) struct Seen {
    /// The directory; `None` for the root and for files made without a name. Holding it keeps the way to the root
    /// in memory, which the store could not give.
    pub parent: Option<Arc<Inode>>,
    pub name: Arc<[u8]>,
    /// That name was removed.
    pub deleted: bool,
}

impl Seen {
    /// As `name` in `dir`, whose inode in the table is held.
    pub fn at(dir: &Arc<Inode>, name: &Arc<[u8]>) -> Self {
        Self {
            parent: Some(Arc::clone(dir.base())),
            name: Arc::clone(name),
            deleted: false,
        }
    }

    pub fn is(&self, parent: u64, name: &[u8]) -> bool {
        *self.name == *name && self.parent.as_ref().is_some_and(|dir| dir.ino == parent)
    }
}

/// What can change about an inode.
pub(crate) struct State {
    /// Size, times and so on are current. `inline` is current for symbolic links and for regular files without cache.
    /// A directory's `size` is its number of entries.
    pub meta: Meta,
    pub home: MetaLocation,
    pub seen: Seen,
    /// In the dirty set.
    pub dirty: bool,
    /// Made by `O_TMPFILE` without `O_EXCL`: may be given a first name.
    pub linkable: bool,
    /// The store may hold an orphan record.
    pub orphan_stored: bool,
    /// Space in the log is reserved, until the next flush point, for deleting what the store holds of this orphan.
    pub reap_reserved: bool,
    /// Without names, and not open: removed at the next flush point, even if a node still pins it.
    pub doomed: bool,
    /// Without names and given up: its content leaves the store, nothing of it is stored again.
    pub gone: bool,
    /// Made by a transaction that has not committed, or was aborted; `gone` as well.
    pub uncommitted: bool,
    /// A commit changed it, and the store does not have that yet.
    pub committed: bool,
    /// Pages that the store may hold; a superset until `stored_exact`.
    pub stored: RangeSet,
    pub stored_exact: bool,
    /// A program may write to the content itself (`content/grants.rs`).
    pub is_granted: bool,
    /// The content of a regular file in use.
    pub cache: Option<Content>,
    /// The order of a directory in use.
    pub dir: Option<DirOrder>,
    /// What a transaction's copy must know beyond the state itself.
    pub copy: Option<CopyState>,
}

/// See [`State::copy`].
pub(crate) struct CopyState {
    /// The smallest size that the content has had since, in bytes: data beyond it were truncated, whatever the size is now.
    pub low: u64,
    /// The content differs from that of the level below.
    pub content: bool,
    /// A directory's times were set explicitly, and do not follow those of what lies below.
    pub times: bool,
    /// The whole content, where there is no object for it.
    pub packed: Option<Bytes>,
}

/// An inode in use; or a transaction's copy of one, which is not in the table.
pub(crate) struct Inode {
    pub ino: u64,
    pub kind: FileKind,
    pub state: Mutex<State>,
    table: Arc<Table>,
    /// Of a copy: what it was made from, the table's inode or the copy of the transaction around.
    pub under: Option<Arc<Inode>>,
    /// Of a copy: it differs from what it was made from, or is about to.
    pub changed: AtomicBool,
}

/// The content that an inode without names left in the store. Its orphan record is stored (an inode whose state is newer than
/// the store is in the dirty set and stays in memory), so the content can be deleted in several steps.
pub(crate) struct ReapJob {
    pub ino: u64,
    pub stored: RangeSet,
    pub stored_exact: bool,
    pub xattrs: bool,
}

/// The inodes in use, by number.
pub(crate) struct Table {
    shards: [Mutex<HashMap<u64, Weak<Inode>>>; SHARDS as usize],
    /// Counts inodes that left, see [`Table::load`].
    drops: AtomicU64,
    /// The jobs of the housekeeper: content that inodes without names have left.
    pub chores: Mutex<HousekeepingWork>,
    /// Held while jobs of the reaper are done, before everything that an operation takes.
    pub reaping: Mutex<()>,
    /// Number of operations of the reaper.
    pub reaped: AtomicU64,
    /// Wakes the housekeeper.
    pub wake: Condvar,
}

/// The work of the housekeeper.
#[derive(Default)]
pub(crate) struct HousekeepingWork {
    pub reap_jobs: Vec<ReapJob>,
    /// Files may be changed through mappings.
    pub mapped: bool,
    pub stop: bool,
}

pub(crate) fn kind_of(kind: amino_schema::FileKind) -> FileKind {
    FileKind::from_mode(kind.type_bits()).unwrap_or(FileKind::Regular)
}

pub(crate) fn schema_kind(kind: FileKind) -> amino_schema::FileKind {
    amino_schema::FileKind::from_mode(kind.mode_bits()).unwrap_or(amino_schema::FileKind::Regular)
}

pub(crate) fn timestamp(stamp: Stamp) -> Timestamp {
    Timestamp {
        secs: stamp.sec,
        nanos: stamp.nsec,
    }
}

pub(crate) fn stamp(time: Timestamp) -> Stamp {
    Stamp {
        sec: time.secs,
        nsec: time.nanos,
    }
}

pub(crate) fn now() -> Timestamp {
    timestamp(Stamp::now())
}

impl State {
    /// The state of an inode that the store holds.
    pub fn stored(meta: Meta, home: MetaLocation, seen: Seen) -> Self {
        let regular = meta.kind() == Some(amino_schema::FileKind::Regular);
        let pages = if regular && meta.inline.is_none() {
            meta.size.div_ceil(PAGE)
        } else {
            0
        };
        Self {
            meta,
            home,
            seen,
            dirty: false,
            linkable: false,
            orphan_stored: false,
            reap_reserved: false,
            doomed: false,
            gone: false,
            uncommitted: false,
            committed: false,
            stored: RangeSet::up_to(pages),
            stored_exact: pages == 0,
            is_granted: false,
            cache: None,
            dir: None,
            copy: None,
        }
    }

    /// The state of an inode that a transaction makes, as all others see it until the transaction has committed.
    pub fn uncommitted(meta: Meta) -> Self {
        let seen = Seen {
            parent: None,
            name: Arc::from(&b""[..]),
            deleted: true,
        };
        Self {
            gone: true,
            uncommitted: true,
            stored: RangeSet::default(),
            stored_exact: true,
            ..Self::stored(meta, MetaLocation::Orphan, seen)
        }
    }

    /// The state that a transaction's copy of an inode begins with: everything but the content.
    pub fn forked(&self) -> Self {
        Self {
            linkable: self.linkable,
            gone: self.gone,
            stored: RangeSet::default(),
            stored_exact: true,
            copy: Some(CopyState {
                low: self.meta.size,
                content: false,
                times: self.copy.as_ref().is_some_and(|copy| copy.times),
                packed: None,
            }),
            ..Self::stored(self.meta.clone(), self.home.clone(), self.seen.clone())
        }
    }

    /// This state as that of an inode which a transaction made.
    pub fn made_inside(self) -> Self {
        let copy = CopyState {
            low: 0,
            content: self.cache.is_some(),
            times: false,
            packed: None,
        };
        Self {
            copy: Some(copy),
            ..self
        }
    }

    /// The content changed at `time`.
    pub fn touch(&mut self, time: Timestamp) {
        self.meta.mtime = time;
        self.meta.ctime = time;
    }

    /// Log bytes that storing the metadata can take: key, name, and inline content included.
    pub fn meta_cost(&self) -> usize {
        META_COST + self.meta.inline.as_ref().map_or(0, Bytes::len)
    }

    /// EPERM with one of these [`goanna_vfs::file_flags`].
    pub fn unless_flagged(&self, flags: u32) -> Result<(), Errno> {
        if self.meta.flags.file_flags() & flags != 0 {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// ESTALE once the inode is removed. The call found it by a name that was removed or given to another file since; a lookup finds
    /// that file.
    pub fn check_there(&self) -> Result<(), Errno> {
        if self.gone {
            Err(Errno::ESTALE)
        } else {
            Ok(())
        }
    }

    /// Whether entries may be made in this directory: ENOENT once it was removed.
    pub fn check_alive(&self) -> Result<(), Errno> {
        if self.home == MetaLocation::Orphan {
            Err(Errno::ENOENT)
        } else {
            Ok(())
        }
    }
}

/// Puts into `attr` what entries in a directory change, of `meta`.
pub(crate) fn set_dir_attr(attr: &mut Attr, meta: &Meta) {
    (attr.size, attr.blocks) = dir_size(meta);
    attr.nlink = meta.nlink;
    (attr.mtime, attr.ctime) = (stamp(meta.mtime), stamp(meta.ctime));
    attr.version = attr.version.max(meta.version);
}

impl Inode {
    /// What others hold of this inode: of a copy, the table's.
    pub fn node(self: &Arc<Self>) -> Node {
        Node::new(self.ino, self.kind, Arc::clone(self.base()) as _)
    }

    /// The table's inode; this one may be a copy of it.
    pub fn base(self: &Arc<Self>) -> &Arc<Self> {
        let mut at = self;
        while let Some(under) = &at.under {
            at = under;
        }
        at
    }

    /// A transaction's copy with `state`.
    pub fn copy(under: &Arc<Self>, state: State) -> Arc<Self> {
        Arc::new(Self {
            ino: under.ino,
            kind: under.kind,
            state: Mutex::new(state),
            table: Arc::clone(&under.table),
            under: Some(Arc::clone(under)),
            changed: AtomicBool::new(true),
        })
    }

    /// The path record of this inode for any of its names.
    pub fn path_record(&self, state: &State) -> PathRecord {
        PathRecord {
            ino: self.ino,
            kind: schema_kind(self.kind),
            meta: match state.home {
                MetaLocation::Path { .. } => Some(state.meta.clone()),
                _ => None,
            },
        }
    }

    /// Puts the metadata where it belongs.
    pub fn put_meta(&self, state: &mut State, changes: &mut Changes) {
        match &state.home {
            MetaLocation::Path { parent, name } => {
                let record = self.path_record(state);
                changes.put(key::path_key(*parent, name), record.encode());
            }
            MetaLocation::Data => {
                let meta = state.meta.clone();
                changes.put(key::data_key(self.ino), DataRecord { meta }.encode());
            }
            MetaLocation::Orphan => {
                let meta = state.meta.clone();
                changes.put(key::orphan_key(self.ino), OrphanRecord { meta }.encode());
                state.orphan_stored = true;
            }
        }
    }

    /// Attributes as stat(2) reports them, `dev` being the file system's device number.
    pub fn attr(&self, state: &State, dev: u64) -> Attr {
        let meta = &state.meta;
        let (size, blocks) = match self.kind {
            FileKind::Directory => dir_size(meta),
            FileKind::Regular => {
                let dense = meta.size.div_ceil(4096).saturating_mul(8);
                let blocks = state.cache.as_ref().and_then(|cache| cache.blocks());
                (meta.size, blocks.unwrap_or(dense))
            }
            _ => (meta.size, 0),
        };
        Attr {
            dev,
            ino: self.ino,
            mode: meta.mode,
            nlink: meta.nlink,
            uid: meta.uid,
            gid: meta.gid,
            rdev: meta.rdev,
            size,
            blksize: 4096,
            blocks,
            atime: stamp(meta.atime),
            mtime: stamp(meta.mtime),
            ctime: stamp(meta.ctime),
            btime: Some(stamp(meta.btime)),
            flags: meta.flags.file_flags(),
            of_statx: None,
            may_have_acl: meta.flags.contains(MetaFlags::HAS_ACL),
            version: meta.version,
        }
    }
}

/// Size in bytes and blocks of a directory: an entry counts as 32 bytes, so that the size says how full it is.
fn dir_size(meta: &Meta) -> (u64, u64) {
    let pages = meta.size.div_ceil(4096 / 32).max(1);
    (pages.saturating_mul(4096), pages.saturating_mul(4096 / 512))
}

impl ReapJob {
    /// The records to remove for an inode without names; `None` when the store has none.
    pub fn of(ino: u64, state: &mut State) -> Option<Self> {
        state.gone = true;
        let xattrs = state.meta.flags.contains(MetaFlags::HAS_XATTR);
        if !state.orphan_stored && !xattrs && state.stored.is_empty() {
            return None;
        }
        Some(Self {
            ino,
            stored: std::mem::take(&mut state.stored),
            stored_exact: state.stored_exact,
            xattrs,
        })
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if self.under.is_some() {
            return;
        }
        let state = self.state.get_mut();
        if state.home == MetaLocation::Orphan
            && !state.gone
            && let Some(job) = ReapJob::of(self.ino, state)
        {
            self.table.queue_reap(job);
        }
        self.table.left(self.ino);
        // The way to the root can be thousands of directories long: not by recursion.
        let mut next = state.seen.parent.take();
        while let Some(mut inode) = next.and_then(Arc::into_inner) {
            next = inode.state.get_mut().seen.parent.take();
        }
    }
}

impl Table {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            drops: AtomicU64::new(0),
            chores: Mutex::default(),
            reaping: Mutex::default(),
            reaped: AtomicU64::new(0),
            wake: Condvar::new(),
        })
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Weak<Inode>>> {
        // Below SHARDS by the modulus.
        &self.shards[(ino % SHARDS) as usize]
    }

    pub fn queue_reap(&self, job: ReapJob) {
        self.chores.lock().reap_jobs.push(job);
        self.wake.notify_one();
    }

    /// The inode `ino` if it is in use.
    pub fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).lock().get(&ino)?.upgrade()
    }

    /// How many inodes are in use.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Value for [`Table::load`], to be taken before the store is read.
    pub fn drops(&self) -> u64 {
        self.drops.load(Ordering::Acquire)
    }

    fn left(&self, ino: u64) {
        self.drops.fetch_add(1, Ordering::Release);
        let mut shard = self.shard(ino).lock();
        if shard.get(&ino).is_some_and(|weak| weak.strong_count() == 0) {
            shard.remove(&ino);
        }
    }

    /// An inode that did not exist before, with an unused number.
    pub fn insert_new(self: &Arc<Self>, ino: u64, kind: FileKind, state: State) -> Arc<Inode> {
        let inode = Arc::new(Inode {
            ino,
            kind,
            state: Mutex::new(state),
            table: Arc::clone(self),
            under: None,
            changed: AtomicBool::new(false),
        });
        self.shard(ino).lock().insert(ino, Arc::downgrade(&inode));
        inode
    }

    /// The inode `ino`: the one in use, or a new one made of what the caller read in the store.
    ///
    /// Since that reading another thread may have loaded the inode, changed it, and dropped it. `drops` is
    /// [`Table::drops`] from before the reading; when it has changed, or when a dying inode is still in the table,
    /// `reread` reads again, while the table is locked and no thread can load the inode.
    pub fn load(
        self: &Arc<Self>,
        ino: u64,
        kind: FileKind,
        drops: u64,
        state: State,
        reread: impl FnOnce() -> Result<State, Errno>,
    ) -> Result<Arc<Inode>, Errno> {
        let mut shard = self.shard(ino).lock();
        let mut stale = false;
        if let Some(weak) = shard.get(&ino) {
            if let Some(inode) = weak.upgrade() {
                return Ok(inode);
            }
            stale = true;
        }
        let state = if stale || self.drops() != drops {
            reread()?
        } else {
            state
        };
        let inode = Arc::new(Inode {
            ino,
            kind,
            state: Mutex::new(state),
            table: Arc::clone(self),
            under: None,
            changed: AtomicBool::new(false),
        });
        shard.insert(ino, Arc::downgrade(&inode));
        Ok(inode)
    }
}
