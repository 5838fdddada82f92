//! Maps threads to transactions. A child inherits its parent's current transaction, as it inherits the working directory. A
//! transaction without participants is aborted.
//!
//! Threads without a transaction of their own belong to the run transaction, if there is one; transactions that they begin are
//! nested in it. The run transaction is not in the registry, and no call of a program ends, leaves or shows it
//! ([`crate::participants::run_transaction`]).
//!
//! `registry.rs` has the data, `ends.rs` the ways in which a transaction ends, `named.rs` those that the run holds under a name.
//!
//! The registry is a leaf in the lock order: no thread calls the back end while it holds the registry.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use goanna_sys::procfs;
use goanna_sys::txncall::DEPTH_MAX;
use goanna_vfs::{Errno, Mount, MountFlags, Mounts, Result, TxnId, escape};
use parking_lot::Mutex;

pub mod delegate;
pub mod end_observer;
mod ends;
mod named;
mod offsets;
pub mod outside;
pub mod profile;
mod registry;
mod report;
pub mod run_end;
pub mod run_transaction;

use crate::Reporter;
pub use offsets::{Offset, offsets};
pub use registry::Deferred;
use registry::{Open, Registry};

/// The transactions of a run, and the threads that participate in them.
#[derive(Default)]
pub struct Participants {
    registry: Mutex<Registry>,
    /// Whether a transaction has ever begun. If not, the other checks are skipped.
    used: AtomicBool,
    /// The mount of the store that transactions belong to.
    store: Option<Arc<Mount>>,
    /// The mounts that show files of that store in another form.
    layers: Vec<Arc<Mount>>,
    /// The run transaction.
    run: OnceLock<TxnId>,
    note: Option<Reporter>,
    /// Number of notes of aborted transactions so far.
    noted: AtomicUsize,
    report: Option<Reporter>,
    /// Commits that failed without a caller to return the error to.
    lost: AtomicUsize,
    /// The run is being killed.
    is_ending: AtomicBool,
    observer: OnceLock<Arc<dyn end_observer::Ends>>,
}

impl std::fmt::Debug for Participants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.registry.lock().fmt(f)
    }
}

/// Whether `mount` shows files of the store that is mounted as `store`, and has the transactions of that store.
fn is_over(mount: &Arc<Mount>, store: &Arc<Mount>) -> bool {
    let (Some(own), Some(transactions)) = (mount.fs.transactions(), store.fs.transactions()) else {
        return false;
    };
    !Arc::ptr_eq(mount, store) && std::ptr::addr_eq(own, transactions)
}

impl Participants {
    /// Without participants at first. Transactions belong to the first mount, in mount order, that has them and can be changed; where all are
    /// read-only, to the first one. `note` receives a line for each transaction that is aborted without a program's request, `report` one for
    /// each failed commit whose error cannot be returned to a program.
    pub fn new(mounts: &Mounts, note: Reporter, report: Reporter) -> Self {
        let with_transactions = || {
            let mounts = mounts.iter();
            mounts.filter(|mount| mount.fs.transactions().is_some())
        };
        let changeable = |mount: &&Arc<Mount>| !mount.flags.contains(MountFlags::READ_ONLY);
        let store = with_transactions().find(changeable);
        let store = store.or_else(|| with_transactions().next());
        let is_layer = |mount: &&Arc<Mount>| store.is_some_and(|store| is_over(mount, store));
        Self {
            store: store.cloned(),
            layers: with_transactions().filter(is_layer).cloned().collect(),
            note: Some(note),
            report: Some(report),
            ..Self::default()
        }
    }

    /// The back end's transactions. EOPNOTSUPP when no back end has any.
    pub fn transactions(&self) -> Result<&dyn goanna_vfs::Transactions, Errno> {
        let store = self.store.as_ref().ok_or(Errno::EOPNOTSUPP)?;
        store.fs.transactions().ok_or(Errno::EOPNOTSUPP)
    }

    /// Whether transactions cover the files in `mount`: those of the store, and of mounts that show files of the store. They do not cover a
    /// further store, nor the host.
    pub fn cover(&self, mount: &Arc<Mount>) -> bool {
        let is_mount = |covered: &Arc<Mount>| Arc::ptr_eq(covered, mount.whole());
        self.store.as_ref().is_some_and(is_mount) || self.layers.iter().any(is_mount)
    }

    /// Whether the whole run is a transaction.
    pub fn is_run(&self) -> bool {
        self.run.get().is_some()
    }

    /// Begins the run transaction, before any program of the run makes a call.
    pub fn begin_run(&self) -> Result<(), Errno> {
        let id = self.transactions()?.begin_run()?;
        let _ = self.run.set(id);
        Ok(())
    }

    /// Commits the run transaction; returns when it is on the disk. EBUSY has no effect; any other error has aborted it, or comes from the
    /// disk.
    pub fn commit_run(&self) -> Result<(), Errno> {
        let id = *self.run.get().ok_or(Errno::ENODATA)?;
        let transactions = self.transactions()?;
        for layer in &self.layers {
            // Writes through mappings.
            if let Err(error) = layer.fs.sync(None) {
                let errno = error.errno().unwrap_or(Errno::EIO);
                if errno != Errno::EBUSY {
                    transactions.abort(id);
                }
                return Err(errno);
            }
        }
        let commit = self.during(|| transactions.commit(id));
        if commit.unwrap_or(Err(Errno::EIO))? {
            transactions.make_durable(Some(true))?;
        }
        Ok(())
    }

    /// Aborts the run transaction.
    pub fn abort_run(&self) {
        if let (Some(id), Ok(transactions)) = (self.run.get(), self.transactions()) {
            transactions.abort(*id);
        }
    }

    /// The transaction that a thread's calls belong to.
    pub fn current(&self, tid: i32) -> Option<TxnId> {
        self.own(tid).or_else(|| self.run.get().copied())
    }

    /// The thread's current transaction, except the run transaction.
    fn own(&self, tid: i32) -> Option<TxnId> {
        if !self.used.load(Relaxed) {
            return None;
        }
        self.registry.lock().threads.get(&tid)?.current
    }

    /// Whether the current transaction of thread `tid` is over, and stays its current one (`named`).
    pub fn keeps_ended(&self, tid: i32) -> bool {
        let registry = self.registry.lock();
        let current = registry.threads.get(&tid).and_then(|of| of.current);
        current.is_some_and(|id| !registry.open.contains_key(&id))
    }

    /// Lets `child`, which `parent` has started, inherit its transactions.
    pub fn inherit(&self, parent: i32, child: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        let mut registry = self.registry.lock();
        if let Some(current) = registry
            .threads
            .get(&parent)
            .and_then(|participant| participant.current)
        {
            registry.threads.entry(child).or_default().current = Some(current);
        }
    }

    /// Records that thread `former` has executed a program and continues as `tid`.
    pub fn rename(&self, former: i32, tid: i32) {
        if former != tid && self.used.load(Relaxed) {
            let mut registry = self.registry.lock();
            if let Some(participant) = registry.threads.remove(&former) {
                registry.threads.insert(tid, participant);
            }
        }
    }

    /// The thread has ended and is about to be reaped.
    pub fn leaving(&self, tid: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        if let Some(participant) = self.registry.lock().threads.get_mut(&tid) {
            let comm = procfs::comm(tid).unwrap_or_default();
            participant.comm = Some(escape(&comm));
        }
    }

    /// The thread has ended. Ends the transactions in which only it participated.
    pub fn left(&self, tid: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        let (participant, without_participants) = {
            let mut registry = self.registry.lock();
            let Some(participant) = registry.threads.remove(&tid) else {
                return;
            };
            let open = registry.of(&participant);
            (participant, registry.without_participants(open))
        };
        let name = participant.comm.unwrap_or_default();
        self.end_without_participants(
            &without_participants,
            &format!("process {tid} ({name}), ended"),
        );
    }

    /// Number of commits that failed without a caller to return the error to.
    pub fn lost(&self) -> usize {
        self.lost.load(Relaxed)
    }

    /// Begins a transaction, nested in the current one of the first of `tids`. All of `tids` participate in it from then on. Returns its
    /// depth. EMLINK.
    pub fn begin(
        &self,
        tids: &[i32],
        uid: u32,
        offsets: Vec<Offset>,
    ) -> Result<(TxnId, usize), Errno> {
        let open = Open {
            parent: tids.first().and_then(|tid| self.own(*tid)),
            uid,
            offsets,
            deferred: None,
            held: None,
        };
        self.open(open, tids)
    }

    /// Begins a transaction with `tids` as its participants. EMLINK, EEXIST.
    fn open(&self, open: Open, tids: &[i32]) -> Result<(TxnId, usize), Errno> {
        let parent = open.parent;
        let depth = self.registry.lock().depth(parent) + 1;
        if depth > DEPTH_MAX {
            return Err(Errno::EMLINK);
        }
        let around = parent.or_else(|| self.run.get().copied());
        let id = self.transactions()?.begin(around)?;
        self.used.store(true, Relaxed);
        let mut registry = self.registry.lock();
        let refused = if parent.is_some_and(|parent| !registry.open.contains_key(&parent)) {
            // Another participant has ended the enclosing transaction meanwhile.
            Some(Errno::ECANCELED)
        } else {
            let name = open.held.as_ref().map(|held| &*held.name);
            let taken = name.and_then(|name| registry.named(open.uid, name));
            taken.map(|_| Errno::EEXIST)
        };
        if let Some(errno) = refused {
            drop(registry);
            self.transactions()?.abort(id);
            return Err(errno);
        }
        registry.open.insert(id, open);
        for tid in tids {
            registry.threads.entry(*tid).or_default().current = Some(id);
        }
        Ok((id, depth))
    }

    fn current_of(&self, tids: &[i32]) -> Result<TxnId, Errno> {
        let current = tids.first().and_then(|tid| self.own(*tid));
        current.ok_or(Errno::ENODATA)
    }

    /// Sets the current transaction aside. ENODATA.
    pub fn suspend(&self, tids: &[i32]) -> Result<TxnId, Errno> {
        let id = self.current_of(tids)?;
        let mut registry = self.registry.lock();
        for tid in tids {
            let participant = registry.threads.entry(*tid).or_default();
            if participant.current.take() == Some(id) {
                participant.suspended.push(id);
            }
        }
        Ok(id)
    }

    /// Makes a suspended transaction the current one. ENOENT, EBUSY.
    pub fn resume(&self, tids: &[i32], id: TxnId) -> Result<(), Errno> {
        let mut registry = self.registry.lock();
        let own = |tid: &i32| {
            registry
                .threads
                .get(tid)
                .is_some_and(|participant| participant.suspended.contains(&id))
        };
        if !tids.iter().any(own) {
            return Err(Errno::ENOENT);
        }
        registry.make_current(tids, id)
    }

    /// Joins a transaction. ENOENT, EPERM, EBUSY.
    pub fn attach(&self, tids: &[i32], uid: u32, id: TxnId) -> Result<(), Errno> {
        let mut registry = self.registry.lock();
        let owner = registry.open.get(&id).ok_or(Errno::ENOENT)?.uid;
        if owner != uid {
            return Err(Errno::EPERM);
        }
        registry.make_current(tids, id)
    }

    /// Leaves the current transaction and those around it. ENODATA.
    pub fn detach(&self, tids: &[i32]) -> Result<(), Errno> {
        let id = self.current_of(tids)?;
        let without_participants = {
            let mut registry = self.registry.lock();
            for tid in tids {
                registry.threads.entry(*tid).or_default().current = None;
            }
            let chain: Vec<_> = registry.chain(Some(id)).collect();
            registry.without_participants(chain)
        };
        let tid = tids.first().copied().unwrap_or_default();
        self.end_without_participants(&without_participants, &format!("process {tid}, left it"));
        Ok(())
    }
}
