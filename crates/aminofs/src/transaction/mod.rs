//! Transactions across several calls: overlays on the committed state, under strict two-phase locking.
//!
//! A transaction's changes are kept in its [`Level`]: records, copies of inodes, differences of directories. Its
//! operations look through the levels, innermost first, and then at the committed state ([`crate::view::View`]). A commit merges a level
//! into the one around it, or, of an outermost transaction, into the committed state, within one operation, so that the log
//! gets all of it in one frame ([`publish`]). An abort drops the level.
//!
//! A single operation outside of transactions reads the committed state without locks: it is serialised before all open transactions.
//! Before it changes something it takes the same locks as a transaction, and releases them at its end.
//!
//! Lock order: a transaction's `using` comes before everything in the crate's order; [`Transactions`]' `open`, the levels and the
//! lock manager are leaves. No lock is held while an operation waits for a lock: the operation is undone (it takes all
//! its locks before it changes anything) and restarted.

mod content;
mod copies;
pub(crate) mod level;
mod lock_wait;
mod paused;
mod publish;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use amino_txn::Authors;
use amino_txn::locks::{Conflict, Locks, Owner};
use goanna_vfs::{Errno, Readers, Result, TxnId, TxnStatus, Wait};
use parking_lot::{Mutex, RwLock};

use crate::{AminoFs, Volume};
use level::Level;
use lock_wait::LockWait;

/// The first cookie of entries that a transaction has added; cookies of committed directories start at 1.
const FIRST_COOKIE: u64 = 1 << 48;

/// An open transaction.
pub(crate) struct Txn {
    pub id: TxnId,
    pub owner: Owner,
    pub parent: Option<Arc<Txn>>,
    /// Whether it is a run transaction: its programs get all descriptors after its begin, and close them before its end ([`copies`]).
    pub is_run: bool,
    pub level: Mutex<Level>,
    /// Held shared by operations of the transaction, exclusively by its end.
    pub using: RwLock<()>,
    pub ended: AtomicBool,
    inner: Mutex<Vec<Weak<Txn>>>,
    conflicts: AtomicU64,
    /// Maximum number of bytes of log that the commit takes.
    pub bytes: AtomicU64,
    /// The processes that have made its changes.
    pub authors: Authors,
    cookies: AtomicU64,
    /// In an outermost transaction: whether calls have failed because of its size, and whether that was reported.
    pub refused: AtomicBool,
    reported: AtomicBool,
}

impl Txn {
    /// This transaction and those around it, innermost first.
    pub fn chain(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |txn| txn.parent.as_ref())
    }

    /// Returns a new place in listings, for an added entry.
    pub fn next_cookie(self: &Arc<Self>) -> u64 {
        let outermost = self.chain().last().unwrap_or(self);
        outermost.cookies.fetch_add(1, SeqCst)
    }

    /// Bytes of log that this transaction and those around it take.
    pub fn total_bytes(self: &Arc<Self>) -> u64 {
        self.chain().map(|txn| txn.bytes.load(SeqCst)).sum()
    }

    /// Releases a reservation that is not needed.
    fn release(&self, bytes: u64) {
        let less = |all: u64| Some(all.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(SeqCst, SeqCst, less);
    }

    fn open_inside(&self) -> Vec<Arc<Txn>> {
        let mut inner = self.inner.lock();
        inner.retain(|txn| txn.strong_count() > 0);
        let open = inner.iter().filter_map(Weak::upgrade);
        open.filter(|txn| !txn.ended.load(SeqCst)).collect()
    }
}

/// The transactions of one file system.
pub(crate) struct Transactions {
    pub locks: Locks,
    /// Number of open transactions. While it is zero, operations take no locks.
    pub count: AtomicUsize,
    /// The upper half of all identifiers, so that they cannot be confused with those of another store.
    tag: u64,
    open: Mutex<HashMap<TxnId, Arc<Txn>>>,
    /// Runs whose programs may have files of the store open.
    readers: Mutex<Vec<Weak<dyn Readers>>>,
}

impl Transactions {
    /// Without transactions at first. Fails when the host returns no random numbers.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            locks: Locks::default(),
            count: AtomicUsize::new(0),
            tag: random()?,
            open: Mutex::default(),
            readers: Mutex::default(),
        })
    }

    fn find(&self, id: TxnId) -> Option<Arc<Txn>> {
        self.open.lock().get(&id).cloned()
    }

    /// The transaction that a call names, if it is one of this store's. ECANCELED when it has ended meanwhile.
    pub fn of_call(&self, id: Option<TxnId>) -> Result<Option<Arc<Txn>>, Errno> {
        match id {
            Some(id) if (id.0 >> 64) as u64 == self.tag => {
                Ok(Some(self.find(id).ok_or(Errno::ECANCELED)?))
            }
            _ => Ok(None),
        }
    }

    /// The open transactions.
    pub fn all(&self) -> Vec<Arc<Txn>> {
        self.open.lock().values().cloned().collect()
    }

    /// The wait for a lock that has blocked an operation of `txn`.
    pub fn wait_for(self: &Arc<Self>, conflict: Conflict, txn: Option<TxnId>) -> Wait {
        Wait::new(LockWait {
            transactions: Arc::clone(self),
            conflict,
            txn,
        })
    }

    /// Records that an operation of `id` fails because of a lock; it also counts for the transactions around `id`.
    fn count_conflict(&self, id: Option<TxnId>) {
        if let Some(txn) = id.and_then(|id| self.find(id)) {
            for txn in txn.chain() {
                txn.conflicts.fetch_add(1, SeqCst);
            }
        }
    }

    /// Removes the transaction, which has ended.
    fn forget(&self, txn: &Txn) {
        txn.ended.store(true, SeqCst);
        self.open.lock().remove(&txn.id);
        self.count.fetch_sub(1, SeqCst);
    }
}

/// Empties the objects that a transaction has made, so that remaining descriptors cannot read them any more.
fn discard(level: &Level) {
    for copy in level.inodes.values() {
        let state = copy.state.lock();
        if copy
            .under
            .as_ref()
            .is_some_and(|under| under.state.lock().uncommitted)
            && let Some(cache) = &state.cache
        {
            // If a program is being executed from the object, the object keeps its pages.
            let _ = cache.resize(0);
        }
    }
}

fn random() -> std::io::Result<u64> {
    Ok(getrandom::u64()?)
}

impl Volume {
    fn begin_in(&self, parent: Option<TxnId>, is_run: bool) -> Result<TxnId, Errno> {
        let parent = self.transactions.of_call(parent)?;
        let _using = parent.as_ref().map(|txn| txn.using.read());
        if parent.as_ref().is_some_and(|txn| txn.ended.load(SeqCst)) {
            return Err(Errno::ECANCELED);
        }
        let all = &self.transactions;
        let low = random().map_err(|_| Errno::EIO)?;
        let id = TxnId(u128::from(all.tag) << 64 | u128::from(low));
        all.count.fetch_add(1, SeqCst);
        self.settle_map();
        // Operations that have seen no open transaction take no locks. They must end before this transaction takes its first lock.
        self.store.wait_for_operations();
        let txn = Arc::new(Txn {
            id,
            owner: all.locks.begin(parent.as_ref().map(|txn| txn.owner)),
            parent: parent.clone(),
            is_run,
            level: Mutex::default(),
            using: RwLock::default(),
            ended: AtomicBool::new(false),
            inner: Mutex::default(),
            conflicts: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            authors: Authors::default(),
            cookies: AtomicU64::new(FIRST_COOKIE),
            refused: AtomicBool::new(false),
            reported: AtomicBool::new(false),
        });
        if let Some(parent) = &parent {
            parent.inner.lock().push(Arc::downgrade(&txn));
        }
        all.open.lock().insert(id, txn);
        Ok(id)
    }
}

impl goanna_vfs::Transactions for AminoFs {
    fn attach_readers(&self, readers: Weak<dyn Readers>) {
        let mut all = self.transactions.readers.lock();
        // A store can be mounted several times in one run.
        all.retain(|known| known.strong_count() > 0 && !known.ptr_eq(&readers));
        all.push(readers);
    }

    fn begin(&self, parent: Option<TxnId>) -> Result<TxnId, Errno> {
        self.begin_in(parent, false)
    }

    fn begin_run(&self) -> Result<TxnId, Errno> {
        self.begin_in(None, true)
    }

    fn commit(&self, id: TxnId) -> Result<bool, Errno> {
        let txn = self.transactions.find(id).ok_or(Errno::ENOENT)?;
        let using = txn.using.write();
        if txn.ended.load(SeqCst) {
            return Err(Errno::ENOENT);
        }
        if !txn.open_inside().is_empty() {
            return Err(Errno::EBUSY);
        }
        let is_empty = txn.level.lock().is_empty();
        let result = match &txn.parent {
            _ if is_empty => Ok(()),
            Some(parent) => self.merge_into(&txn, parent),
            None => self.publish(&txn),
        };
        let locks = &self.transactions.locks;
        match (&result, &txn.parent) {
            (Ok(()), Some(_)) => locks.pass_to_parent(txn.owner),
            _ => locks.end(txn.owner),
        }
        if result.is_err() {
            discard(&txn.level.lock());
        }
        self.transactions.forget(&txn);
        self.settle_map();
        drop(using);
        result.map(|()| txn.parent.is_none() && !is_empty)
    }

    fn make_durable(&self, durable: Option<bool>) -> Result<(), Errno> {
        if durable.unwrap_or(self.durability != crate::Durability::Aci) {
            self.flush()?;
            self.failures.check_committed()?;
        }
        Ok(())
    }

    fn abort(&self, id: TxnId) {
        let Some(txn) = self.transactions.find(id) else {
            return;
        };
        let using = loop {
            for inner in txn.open_inside() {
                goanna_vfs::Transactions::abort(self, inner.id);
            }
            let using = txn.using.write();
            if txn.ended.load(SeqCst) {
                return;
            }
            // Another participant may have begun a nested transaction meanwhile; from here on none can.
            if txn.open_inside().is_empty() {
                break using;
            }
        };
        let level = std::mem::take(&mut *txn.level.lock());
        discard(&level);
        self.transactions.forget(&txn);
        self.settle_map();
        self.transactions.locks.end(txn.owner);
        drop(using);
        drop(level);
    }

    fn is_explicit(&self, id: TxnId) -> bool {
        let txn = self.transactions.find(id);
        txn.is_some_and(|txn| !txn.is_run)
    }

    fn status(&self, id: TxnId) -> Result<TxnStatus, Errno> {
        let txn = self.transactions.find(id).ok_or(Errno::ENOENT)?;
        let locks = self.transactions.locks.counts(txn.owner);
        let level = txn.level.lock();
        Ok(TxnStatus {
            names: level.dirs.values().map(|dir| dir.names().len()).sum(),
            inodes: level.changed().count(),
            bytes: txn.bytes.load(SeqCst),
            shared_locks: locks.shared,
            exclusive_locks: locks.exclusive,
            conflicts: txn.conflicts.load(SeqCst),
        })
    }

    fn take_bytes_refused(&self, id: TxnId) -> Option<u64> {
        let txn = self.transactions.find(id)?;
        let is_new = txn.refused.load(SeqCst) && !txn.reported.swap(true, SeqCst);
        is_new.then_some(self.options.transaction_bytes)
    }
}
