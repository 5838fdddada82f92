//! Transactions across several calls (Amino 2.3 to 2.5): the interface of back ends that have them.

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
    /// Locks held, shared and other.
    pub shared_locks: usize,
    /// See `shared_locks`.
    pub exclusive_locks: usize,
    /// Calls that failed with EDEADLK or ETIMEDOUT, nested transactions included: a retry may succeed.
    pub conflicts: u64,
}

/// The programs of a run, for a back end whose files they read in the kernel, without a call.
pub trait Readers: Send + Sync {
    /// Stops every thread that could read one of `objects` through a descriptor or a mapping, and returns when none of them
    /// can. Objects are named by `(st_dev, st_ino)`. Returns which threads have which of them.
    fn pause(&self, objects: &[(u64, u64)]) -> Vec<Holder>;

    /// Lets the threads continue that were stopped; once for each pause.
    fn resume(&self);
}

/// A thread that has an object open or mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The object.
    pub object: (u64, u64),
    /// The transaction that its calls belong to.
    pub txn: Option<TxnId>,
}

/// A back end's transactions. Which one a call belongs to is [`crate::Caller::txn`]; a call of none is a transaction of its
/// own, which reads what was committed and waits for no one unless it changes something.
///
/// Every method of [`crate::FileSystem`] may answer [`crate::FsError::Blocked`] while a transaction is open; the methods here never do.
pub trait Transactions: Send + Sync {
    /// From now on `readers` are stopped while a commit changes what they read without a call.
    fn attach_readers(&self, readers: Weak<dyn Readers>);

    /// Begins a transaction, inside `parent` if that is given.
    fn begin(&self, parent: Option<TxnId>) -> Result<TxnId, Errno>;

    /// Begins an outermost transaction of a whole run: every descriptor of the file system that its programs have is
    /// younger than it, and none is left when it ends. Its programs therefore read, map and execute natively what
    /// [`crate::FileSystem::open`] gives them, which is the transaction's own content; [`crate::CachedContent::has_own_content`] is
    /// false for it, but not for transactions inside it. EIO.
    fn begin_run(&self) -> Result<TxnId, Errno>;

    /// Commits the transaction: its changes become its parent's or, of an outermost one, visible to all, in one step. Returns
    /// whether there are changes, which [`Transactions::harden`] brings to the disk. EBUSY, without effect, while a transaction
    /// inside it is open; any other failure (ENOSPC, EIO) has aborted it.
    fn commit(&self, id: TxnId) -> Result<bool, Errno>;

    /// Waits until what was committed has reached the disk, if `durable`, or for `None` the back end's durability, says so.
    /// EIO, ENOSPC: it may be lost when the machine stops.
    fn harden(&self, durable: Option<bool>) -> Result<(), Errno>;

    /// Ends the transaction, and those inside it, without a trace.
    fn abort(&self, id: TxnId);

    /// Whether `id` is an open transaction of this back end in which a file's descriptors can show other content than its members read:
    /// every one but the outermost of a whole run.
    fn is_explicit(&self, id: TxnId) -> bool;

    /// Figures. ENOENT for one that is not open.
    fn status(&self, id: TxnId) -> Result<TxnStatus, Errno>;

    /// Of an outermost transaction: the most bytes that it can take, once after calls in it have failed with ENOSPC because of its
    /// size.
    fn take_refused(&self, id: TxnId) -> Option<u64> {
        let _ = id;
        None
    }
}
