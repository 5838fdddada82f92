//! Transactions across several calls (Amino paper, sections 2.3 to 2.5): the interface of back ends that have them.

use std::fmt;
use std::sync::Weak;

use crate::{Errno, Result};

/// A transaction's identifier: 128 random bits, so that it cannot be guessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxnId(pub u128);

impl TxnId {
    /// The identifier that `text` spells: 32 lower-case hexadecimal digits.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 32 || !text.iter().all(digit) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        u128::from_str_radix(text, 16).ok().map(Self)
    }
}

impl fmt::Display for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TxnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Figures of one open transaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TxnStatus {
    /// Names made, removed or replaced.
    pub names: usize,
    /// Inodes with changed content or metadata.
    pub inodes: usize,
    /// Bytes of log that a commit would take, at most.
    pub bytes: u64,
    /// Shared locks held.
    pub shared_locks: usize,
    /// Exclusive locks held.
    pub exclusive_locks: usize,
    /// Calls that failed with EDEADLK or ETIMEDOUT, nested transactions included: a retry may succeed.
    pub conflicts: u64,
}

/// The programs of a run, seen from a back end: they read its files in the kernel, without a call to the back end.
pub trait Readers: Send + Sync {
    /// Stops every thread that could read one of `objects` through a descriptor or a mapping, and returns when none of them
    /// can. Objects are named by `(st_dev, st_ino)`. Returns a [`Holder`] for each thread and each object that it has.
    fn pause(&self, objects: &[(u64, u64)]) -> Vec<Holder>;

    /// Lets the stopped threads continue. To be called once for each [`Readers::pause`].
    fn resume(&self);

    /// Number of descriptors and mappings of the object that processes of the run have: at least so many; a mapped object counts once a
    /// process. Opens that are under way do not count, nor do descriptors that are in a socket.
    fn users(&self, object: (u64, u64)) -> usize;
}

/// A thread that has an object open or mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The object.
    pub object: (u64, u64),
    /// The transaction that its calls belong to.
    pub txn: Option<TxnId>,
}

/// A back end's transactions. A call belongs to the transaction [`crate::Caller::txn`]. A call without one is a transaction of its own:
/// it reads the committed state, and waits for locks only if it changes something.
///
/// Every method of [`crate::FileSystem`] may answer [`crate::FsError::Blocked`] while a transaction is open; the methods here never do.
pub trait Transactions: Send + Sync {
    /// Registers `readers`: from now on, a commit stops them while it changes files that they read without a call.
    fn attach_readers(&self, readers: Weak<dyn Readers>);

    /// Begins a transaction, inside `parent` if that is given.
    fn begin(&self, parent: Option<TxnId>) -> Result<TxnId, Errno>;

    /// Begins a run transaction: its programs get all their descriptors of this file system after its begin, and lose them before its
    /// end. Therefore they read, map and execute natively the objects that [`crate::FileSystem::open`] gives them, which hold the
    /// transaction's own content; [`crate::CachedContent::has_own_content`] is false for it, but not for transactions inside it. EIO.
    fn begin_run(&self) -> Result<TxnId, Errno>;

    /// Commits the transaction: its changes become its parent's or, of an outermost one, visible to all, in one step. Returns
    /// whether there are changes, which [`Transactions::make_durable`] makes durable. EBUSY, without effect, while a transaction
    /// inside it is open; any other failure (ENOSPC, EIO) has aborted it.
    fn commit(&self, id: TxnId) -> Result<bool, Errno>;

    /// Waits until all committed changes are on the disk, if `durable` is true; `None` stands for the back end's durability level.
    /// After EIO or ENOSPC they may be lost when the machine stops.
    fn make_durable(&self, durable: Option<bool>) -> Result<(), Errno>;

    /// Aborts the transaction and those nested in it. None of their changes remain.
    fn abort(&self, id: TxnId);

    /// Whether `id` is an open transaction of this back end in which a file's descriptors can show other content than its participants
    /// read: every transaction except a run transaction.
    fn is_explicit(&self, id: TxnId) -> bool;

    /// The transaction's figures. ENOENT if it is not open.
    fn status(&self, id: TxnId) -> Result<TxnStatus, Errno>;

    /// The maximum size in bytes of an outermost transaction, once after calls in it have failed with ENOSPC because of its size;
    /// `None` otherwise.
    fn take_bytes_refused(&self, id: TxnId) -> Option<u64> {
        let _ = id;
        None
    }
}
