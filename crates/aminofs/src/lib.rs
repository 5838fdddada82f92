//! Amino's file system: the switch's operations above the transactional store.
//!
//! Every method is atomic, and after a crash the store has the result of a prefix of all operations: metadata
//! operations submit their changes to the store at once; the content of files, and metadata that changes with every
//! write, stay in memory (`collect`) and are handed over at each flush point of the store, while no operation is in
//! progress. A file written and removed between two flush points costs the store nothing.
//!
//! Intended differences from ext4: the access time changes only by utimensat(2) (as `noatime`);
//! `fallocate` reserves nothing, it only sets the size; a directory's size is 32 bytes an entry, rounded up; of
//! a file that is not in use, `st_blocks` counts holes.
//!
//! # Lock order
//!
//! 1. the store's operation barrier (`OpGuard`, shared by operations, exclusive for the committer that collects),
//! 2. `names`, the namespace lock: exclusive to change names, shared to look one up or to see a consistent inode;
//!    or the lock under which the map of attributes is opened and closed, and then the list of grants (`content/grants.rs`),
//! 3. one inode's state (never two at once),
//! 4. leaves: the dentry cache, the inode table, the dirty set, the idle list, the spare objects, the inode allocator,
//! 5. the store's own locks.
//!
//! No lock is held across `Store::throttle` and `Store::sync`, which wait for the committer, or while a sink or reader
//! that the caller gave is called. The exception is `reaping`, which comes before all others: the committer does not take it.

mod content;
mod directory;
mod error;
pub mod fsck;
mod housekeeping;
mod identity;
mod import;
mod inode;
mod metadata;
mod options;
mod records;
mod salvage;
mod snapshot;
mod switch;
mod transaction;
mod view;

use std::collections::HashMap;
use std::io;
use std::ops::{Bound, ControlFlow, Deref};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use amino_schema::{Meta, MetaFlags, ParsedKey, PathRecord, ROOT_INO, Super, key};
use amino_txn::{Changes, DirtySource, OpGuard, Records, Store};
use bytes::Bytes;
use goanna_cache::{IdleList, RangeSet, SpareObjects};
use goanna_vfs::{Errno, FileKind, Node, Result};
use parking_lot::{Mutex, RwLock};

use crate::content::cost::META_COST;
use crate::content::failures::Failures;
use crate::content::grants::Grants;
use crate::directory::dentry::DentryCache;
use crate::identity::{Subscribers, Versions};
use crate::inode::{Inode, MetaLocation, PAGE, ReapJob, Seen, State, Table};
use crate::metadata::shared::Shared;
use crate::transaction::Transactions;

pub use amino_txn::{EngineKind, Loss, Salvaged};
pub use error::Error;
pub use import::ImportError;
pub use options::{Durability, Options};
pub use salvage::salvage;

/// Counters for diagnostics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Inodes in memory.
    pub inodes: usize,
    /// Names in the dentry cache.
    pub dentries: usize,
    /// Inodes whose state the store does not have yet.
    pub dirty_inodes: usize,
    /// Upper bound of content that the store does not have yet, bytes.
    pub dirty_bytes: u64,
    /// Number of kept contents of unused files.
    pub idle_files: usize,
}

/// Inode numbers that were reserved in the store and not given out yet.
struct InoPool {
    next: u64,
    superblock: Super,
}

/// Inode numbers reserved at a time; a crash skips what is left of them.
const INO_CHUNK: u64 = 4096;

/// A store as a file system, with a durability level. Several file systems can share an open store.
pub struct AminoFs {
    volume: Arc<Volume>,
    durability: Durability,
}

impl Deref for AminoFs {
    type Target = Volume;

    fn deref(&self) -> &Volume {
        &self.volume
    }
}

impl AminoFs {
    /// Opens the store in `store_dir`; with `options.create` makes it when there is none. Files that had lost their
    /// last name and were open at a crash are removed.
    pub fn open(store_dir: &Path, options: Options) -> std::result::Result<Arc<Self>, Error> {
        let durability = options.durability;
        let volume = Volume::open(store_dir, options)?;
        Ok(Arc::new(Self { volume, durability }))
    }

    /// The same open store with another durability level.
    pub fn with_durability(&self, durability: Durability) -> Arc<Self> {
        Arc::new(Self {
            volume: Arc::clone(&self.volume),
            durability,
        })
    }
}

/// An open store, or the store at one moment ([`AminoFs::snapshot`]).
pub struct Volume {
    store: Store,
    /// What is read: `store` as it is now, or a snapshot of it.
    records: Box<dyn Records + Send + Sync>,
    /// `records` are a snapshot, and nothing can be changed.
    is_snapshot: bool,
    dir: PathBuf,
    options: Options,
    dev: u64,
    names: RwLock<()>,
    root: Arc<Inode>,
    table: Arc<Table>,
    dentries: DentryCache,
    dirty: Mutex<HashMap<u64, Arc<Inode>>>,
    dirty_bytes: AtomicU64,
    failures: Failures,
    /// Log bytes reserved since the last flush point, for the changes that the next one collects.
    reserved: AtomicUsize,
    mapped: Mutex<HashMap<u64, Weak<Inode>>>,
    idle: Mutex<IdleList<Arc<Inode>>>,
    spares: SpareObjects,
    transactions: Arc<Transactions>,
    /// Id of the store.
    id: u128,
    versions: Versions,
    subscribers: Subscribers,
    shared: Shared,
    grants: Grants,
    inos: Mutex<InoPool>,
    housekeeper: Mutex<Option<JoinHandle<()>>>,
}

/// The errno that a program gets for an error of the store.
fn errno(error: &amino_txn::Error) -> Errno {
    Errno::from_raw(error.errno())
}

/// The errno for a record that cannot be read.
fn damaged(_: amino_schema::DecodeError) -> Errno {
    Errno::EUCLEAN
}

impl Volume {
    fn open(store_dir: &Path, options: Options) -> std::result::Result<Arc<Self>, Error> {
        let store = open_store(store_dir, &options)?;
        make_root(&store, &options)?;
        prepare_cache_dir(store_dir)?;
        let records = Box::new(store.clone());
        let fs = Arc::new(Self::over(store_dir, options, store, records, false)?);
        fs.remove_orphans()?;
        let weak: Weak<Self> = Arc::downgrade(&fs);
        fs.store.set_source(weak as Weak<dyn DirtySource>);
        let housekeeper = housekeeping::start(&fs).map_err(|source| Error::Host {
            what: "start a thread for",
            path: store_dir.to_owned(),
            source,
        })?;
        *fs.housekeeper.lock() = Some(housekeeper);
        Ok(fs)
    }

    /// What `records` of `store` hold, with nothing in memory yet.
    fn over(
        store_dir: &Path,
        options: Options,
        store: Store,
        records: Box<dyn Records + Send + Sync>,
        is_snapshot: bool,
    ) -> std::result::Result<Self, Error> {
        let superblock = superblock_of(&*records)?;
        let meta = root_of(&*records)?;
        let transactions = Transactions::new()
            .map(Arc::new)
            .map_err(|source| Error::Host {
                what: "get random bytes for",
                path: store_dir.to_owned(),
                source,
            })?;
        let table = Table::new();
        let no_name: Arc<[u8]> = Arc::from(&b""[..]);
        let home = MetaLocation::Path {
            parent: amino_schema::ROOT_PARENT,
            name: Arc::clone(&no_name),
        };
        let seen = Seen {
            parent: None,
            name: no_name,
            deleted: false,
        };
        let root = table.insert_new(
            ROOT_INO,
            FileKind::Directory,
            State::stored(meta, home, seen),
        );
        Ok(Self {
            dev: device(&superblock.store_id),
            dir: store_dir.to_owned(),
            names: RwLock::new(()),
            root,
            table,
            dentries: DentryCache::new(options.dentries),
            dirty: Mutex::default(),
            dirty_bytes: AtomicU64::new(0),
            failures: Failures::default(),
            reserved: AtomicUsize::new(0),
            mapped: Mutex::default(),
            idle: Mutex::default(),
            spares: SpareObjects::start(),
            transactions,
            id: u128::from_be_bytes(superblock.store_id),
            versions: Versions::of(&superblock),
            subscribers: Subscribers::default(),
            shared: Shared::default(),
            grants: Grants::default(),
            inos: Mutex::new(InoPool {
                next: superblock.next_ino,
                superblock,
            }),
            options,
            store,
            records,
            is_snapshot,
            housekeeper: Mutex::new(None),
        })
    }

    /// Makes everything durable and stops. Operations that change something fail afterwards. The store's directory is
    /// free for others when the last reference to the file system is dropped.
    ///
    /// Nothing happens to the store where this is a snapshot.
    pub fn close(&self) -> std::result::Result<(), Error> {
        if self.is_snapshot {
            return Ok(());
        }
        let _operation = self.operation();
        // Space for changes that cannot be collected now was not reported to a program yet.
        let found = self.find_all_mapped_writes();
        self.stop_housekeeper();
        // Without it the next session takes all files for changed, and no more.
        let _ = self.end_session();
        self.store.clone().close()?;
        let all_stored = self.failures.check_all();
        found.map_err(|errno| Error::Operation {
            what: "cannot store what was written through mappings",
            errno,
        })?;
        all_stored.map_err(|errno| Error::Operation {
            what: "the host could not read the content of a file that was to be stored",
            errno,
        })
    }

    /// Leaves the memory of cached names and contents to the end of the process. For a process that ends now: freeing a content takes
    /// several microseconds, and the kernel does it after the process has closed its connections.
    pub fn leak_caches(&self) {
        self.dentries.leak();
        std::mem::forget(std::mem::take(&mut *self.idle.lock()));
    }

    /// Counters for diagnostics.
    pub fn stats(&self) -> Stats {
        Stats {
            inodes: self.table.len(),
            dentries: self.dentries.len(),
            dirty_inodes: self.dirty.lock().len(),
            dirty_bytes: self.dirty_bytes.load(Ordering::Relaxed),
            idle_files: self.idle.lock().len(),
        }
    }

    /// The store below, as it is now.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The device number that stat(2) reports for files here (`makedev(3)`).
    pub fn device(&self) -> u64 {
        self.dev
    }

    fn stop_housekeeper(&self) {
        self.table.chores.lock().stop = true;
        self.table.wake.notify_all();
        // The housekeeper itself drops the file system when it happened to hold the last reference.
        if let Some(thread) = self.housekeeper.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn remove_orphans(&self) -> std::result::Result<(), Error> {
        let mut failure = None;
        self.store
            .scan(Bound::Unbounded, key::ORPHAN_TAG, &mut |raw, _| {
                match ParsedKey::parse(raw) {
                    Ok(ParsedKey::Orphan { ino }) => {
                        // Which attributes and pages there are was not settled at the crash.
                        self.table.queue_reap(ReapJob {
                            ino,
                            stored: RangeSet::default(),
                            stored_exact: false,
                            xattrs: true,
                        });
                    }
                    Ok(_) => {}
                    Err(error) => failure = Some(error),
                }
                ControlFlow::Continue(())
            })?;
        if let Some(error) = failure {
            return Err(error.into());
        }
        loop {
            match self.reap_queued() {
                Ok(true) => {}
                // If there is no space to log even that, the housekeeper tries again later.
                Ok(false) | Err(Errno::ENOSPC) => return Ok(()),
                Err(errno) => {
                    let what = "cannot remove orphans";
                    return Err(Error::Operation { what, errno });
                }
            }
        }
    }

    /// Waits until everything done before is on the disk. No lock is held.
    fn flush(&self) -> Result<(), Errno> {
        self.store.sync().map_err(|e| errno(&e))
    }

    fn submit(&self, guard: &OpGuard<'_>, changes: Changes) -> Result<(), Errno> {
        self.store.submit(guard, changes).map_err(|e| errno(&e))
    }

    /// Makes sure that this many bytes of changes that the next flush point collects can be logged.
    fn reserve(&self, bytes: usize) -> Result<(), Errno> {
        self.store.reserve(bytes).map_err(|e| errno(&e))?;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Returns a part of a reservation that is not needed. No flush point has come since it was made.
    fn release_reserved(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        self.store.release(bytes);
    }

    /// As [`Volume::reserve`], for an operation that frees space in the end: possible when the disk is full for all others.
    fn reserve_removal(&self, bytes: usize) -> Result<(), Errno> {
        self.store.reserve_removal(bytes).map_err(|e| errno(&e))?;
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Errno> {
        records::get(&*self.records, key)
    }

    /// Calls `visit` for all keys with `prefix`, in order, until it returns false.
    fn scan(
        &self,
        prefix: &[u8],
        visit: impl FnMut(&[u8], &Bytes) -> std::result::Result<bool, amino_schema::DecodeError>,
    ) -> Result<(), Errno> {
        records::scan(&*self.records, Bound::Unbounded, prefix, visit)
    }

    /// The inode behind a node of this file system.
    fn inode(&self, node: &Node) -> Result<Arc<Inode>, Errno> {
        node.pin_arc::<Inode>().ok_or(Errno::ESTALE)
    }

    /// The state is newer than the store's: the next flush point collects it, and the inode stays in memory until then. Space in
    /// the log was reserved in the same operation ([`State::meta_cost`]). It gets another version.
    fn mark_dirty(&self, inode: &Arc<Inode>, state: &mut State) {
        self.unshare(inode.ino);
        if !state.gone {
            state.meta.version = self.versions.next();
        }
        if state.dirty || state.gone {
            return;
        }
        state.dirty = true;
        // A transaction's copy is collected by its commit.
        if state.copy.is_none() {
            self.dirty.lock().insert(inode.ino, Arc::clone(inode));
            self.dirty_bytes
                .fetch_add(META_COST as u64, Ordering::Relaxed);
        }
    }

    /// An inode number never used before.
    fn new_ino(&self, guard: &OpGuard<'_>) -> Result<u64, Errno> {
        let mut pool = self.inos.lock();
        if pool.next == pool.superblock.next_ino {
            let mut superblock = pool.superblock.clone();
            superblock.next_ino += INO_CHUNK;
            let mut changes = Changes::new();
            changes.put(key::super_key(), superblock.encode());
            self.submit(guard, changes)?;
            pool.superblock = superblock;
        }
        let ino = pool.next;
        pool.next += 1;
        Ok(ino)
    }
}

fn open_store(dir: &Path, options: &Options) -> std::result::Result<Store, Error> {
    let found = Store::engine_of(dir)?;
    let defaults = amino_txn::Options::default();
    let store_options = amino_txn::Options {
        engine: options.engine.or(found).unwrap_or(defaults.engine),
        create: options.create,
        log_limit_bytes: options.log_limit_bytes,
        flush_interval: options.flush_interval,
        ..defaults
    };
    Ok(Store::open(dir, store_options)?)
}

fn damage(record: &'static str, why: &'static str) -> Error {
    amino_schema::DecodeError {
        record,
        offset: 0,
        why,
    }
    .into()
}

/// The superblock, if it is one of this version.
fn superblock_of(records: &dyn Records) -> std::result::Result<Super, Error> {
    let superblock = match records.get(&key::super_key())? {
        Some(raw) => Super::decode(&raw)?,
        None => return Err(damage("superblock", "there is none")),
    };
    check_super(&superblock)?;
    Ok(superblock)
}

/// The attributes of the root directory.
fn root_of(records: &dyn Records) -> std::result::Result<Meta, Error> {
    let record = match records.get(&key::root_key())? {
        Some(raw) => PathRecord::decode(&raw)?,
        None => return Err(damage("path record", "the root directory is missing")),
    };
    let meta = record.meta.filter(|_| record.ino == ROOT_INO);
    meta.ok_or_else(|| damage("path record", "the root directory's entry is another's"))
}

fn check_super(superblock: &Super) -> std::result::Result<(), Error> {
    let checks = [
        (
            "format",
            u64::from(superblock.format),
            u64::from(Super::FORMAT),
        ),
        ("pages of", u64::from(superblock.page_size), PAGE),
    ];
    for (what, found, supported) in checks {
        if found != supported {
            return Err(Error::Unsupported {
                what,
                found,
                supported,
            });
        }
    }
    Ok(())
}

/// The directory for the contents of large files in use. They have no names, so a crash leaves nothing in it.
fn cache_dir(store_dir: &Path) -> PathBuf {
    store_dir.join("cache")
}

fn prepare_cache_dir(store_dir: &Path) -> std::result::Result<(), Error> {
    let path = cache_dir(store_dir);
    match std::fs::create_dir(&path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(Error::Host {
            what: "create",
            path,
            source,
        }),
        _ => Ok(()),
    }
}

/// Writes superblock and root directory, in one step, into a store that is empty: new, or left so by a crash.
fn make_root(store: &Store, options: &Options) -> std::result::Result<(), Error> {
    let mut empty = true;
    store.scan(Bound::Unbounded, b"", &mut |_, _| {
        empty = false;
        ControlFlow::Break(())
    })?;
    if !empty {
        return Ok(());
    }
    let mut changes = Changes::new();
    changes.put(key::root_key(), root_record(options).encode());
    changes.put(key::super_key(), superblock(store).encode());
    let guard = store.enter();
    store.submit(&guard, changes)?;
    drop(guard);
    store.sync()?;
    Ok(())
}

/// The root directory of a new store.
fn root_record(options: &Options) -> PathRecord {
    let time = inode::now();
    let meta = Meta {
        mode: libc::S_IFDIR | (options.root_mode & 0o7777),
        nlink: 2,
        uid: options.root_owner.0,
        gid: options.root_owner.1,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: MetaFlags::default(),
        generation: 0,
        version: 0,
        inline: None,
    };
    PathRecord {
        ino: ROOT_INO,
        kind: amino_schema::FileKind::Directory,
        meta: Some(meta),
    }
}

/// The superblock of a new store.
fn superblock(store: &Store) -> Super {
    let info = store.info();
    let seconds = u64::try_from(inode::now().secs).unwrap_or(0);
    let created_ns = seconds.saturating_mul(1_000_000_000);
    Super::new(info.store_id, info.engine.name(), created_ns)
}

/// A device number that no real device has: a major number beyond those in use, the minor from the store's id.
fn device(store_id: &[u8; 16]) -> u64 {
    let mut minor = [0; 4];
    minor.copy_from_slice(&store_id[..4]);
    libc::makedev(0xa30, u32::from_le_bytes(minor) & 0xf_ffff)
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.stop_housekeeper();
        if self.is_snapshot {
            return;
        }
        // The store cannot reach its dirty source any more, so what is dirty is submitted. After a close nothing is.
        let guard = self.store.enter();
        let mut changes = Changes::new();
        self.collect(&mut changes);
        let _ = self.store.submit(&guard, changes);
    }
}
