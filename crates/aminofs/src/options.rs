//! The options for opening a store: durability, and limits of memory, disk and transactions.

use std::time::Duration;

use amino_txn::EngineKind;
use nix::sys::resource::{Resource, getrlimit};

/// The durability level: which operations wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Atomic, consistent, isolated: only fsync(2) and similar calls wait.
    Aci,
    /// As `Aci`; explicit transactions wait for the disk when they commit.
    #[default]
    Commit,
    /// Every operation that changes something waits for the disk; those that wait together share one sync.
    Acid,
}

/// The options for opening a store.
#[derive(Debug, Clone)]
pub struct Options {
    /// The storage engine; `None`: that of the store, or the default for a new one.
    pub engine: Option<EngineKind>,
    /// The durability level.
    pub durability: Durability,
    /// Make the store when there is none.
    pub create: bool,
    /// Owner of a new store's root directory: user and group id.
    pub root_owner: (u32, u32),
    /// Permission bits of a new store's root directory.
    pub root_mode: u32,
    /// Files of more bytes than this are kept in a host file while in use, not in memory. A file that grows past it
    /// while open may stay in memory until its last close.
    pub large_file_bytes: u64,
    /// Keeps at most about this many contents of unused files; each takes a descriptor. By default a quarter of the
    /// process's limit on descriptors when the options are made, at most 4096.
    pub idle_files: usize,
    /// Maximum bytes of these contents.
    pub idle_bytes: u64,
    /// Approximate maximum number of cached names.
    pub dentries: usize,
    /// The store's log takes at most this many bytes of the host's disk; beyond that, ENOSPC.
    pub log_limit_bytes: u64,
    /// Largest transaction, in bytes of log: it is kept in memory until it is committed.
    pub transaction_bytes: u64,
    /// Maximum time that a change stays in memory only, and that a change through a mapping stays undetected.
    pub flush_interval: Duration,
}

impl Default for Options {
    fn default() -> Self {
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let descriptors = usize::try_from(limit.min(4 * 4096)).unwrap_or(1024);
        Self {
            engine: None,
            durability: Durability::default(),
            create: false,
            root_owner: (0, 0),
            root_mode: 0o755,
            large_file_bytes: 64 << 20,
            idle_files: descriptors / 4,
            idle_bytes: 256 << 20,
            dentries: 1 << 16,
            log_limit_bytes: u64::MAX,
            transaction_bytes: 1 << 30,
            flush_interval: amino_txn::Options::default().flush_interval,
        }
    }
}
