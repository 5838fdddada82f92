//! Maps threads to transactions. A child inherits its parent's current transaction, as it inherits the working directory. A
//! transaction without participants is aborted.
//!
//! Threads without a transaction of their own belong to the run transaction, if there is one; transactions that they begin are
//! nested in it. The run transaction is not in the registry, and no call of a program ends, leaves or shows it
//! ([`crate::participants::run_transaction`]).
//!
//! The registry is a leaf in the lock order: the back end is never asked while it is held.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock};

use goanna_sys::txncall::DEPTH_MAX;
use goanna_sys::{pidfd, procfs};
use goanna_vfs::{Errno, Mount, MountFlags, Mounts, Result, TxnId, TxnStatus, escape};
use nix::sys::stat::fstat;
use nix::unistd::{Whence, lseek};
use parking_lot::Mutex;

pub mod delegate;
mod named;
pub mod outside;
pub mod profile;
pub mod profiled;
pub mod run_end;
pub mod run_transaction;

use crate::Reporter;
use named::Held;

/// A descriptor, and where it stood when the transaction began.
#[derive(Debug, Clone)]
pub struct Offset {
    pid: i32,
    fd: i32,
    object: (u64, u64),
    at: i64,
}

impl Offset {
    /// Whether `other`, of the process that started ours, is likely the same open file description.
    pub fn is_twin(&self, other: &Self) -> bool {
        (self.fd, self.object, self.at) == (other.fd, other.object, other.at)
    }
}

/// How to commit a transaction that was begun for a program.
#[derive(Debug, Clone)]
pub struct Deferred {
    /// As [`goanna_vfs::Transactions::harden`] takes it.
    pub durable: Option<bool>,
    /// The program for which it was begun.
    pub program: Arc<str>,
}

#[derive(Debug, Clone, Default)]
struct Participant {
    /// One that is not open was held under a name and was aborted: what the thread does in it fails ([`named`]).
    current: Option<TxnId>,
    suspended: Vec<TxnId>,
    /// The name of the thread that is about to be reaped.
    comm: Option<String>,
}

#[derive(Debug)]
struct Open {
    parent: Option<TxnId>,
    uid: u32,
    offsets: Vec<Offset>,
    /// It is committed when nothing inside it is open any more.
    deferred: Option<Deferred>,
    /// It stays open without participants.
    held: Option<Held>,
}

/// What becomes of the participants of a transaction that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterAbort {
    /// They continue in the one around it, or outside of all.
    GoOn,
    /// What they do on the store fails, so that no half of their work happens outside.
    Fail,
}

#[derive(Debug, Default)]
struct Registry {
    threads: HashMap<i32, Participant>,
    open: HashMap<TxnId, Open>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Participants {
    registry: Mutex<Registry>,
    /// Whether there has ever been a transaction. If not, the other checks are skipped.
    used: AtomicBool,
    /// Where the store is mounted that transactions belong to.
    store: Option<Arc<Mount>>,
    /// The mounts that show files of that store in another form.
    layers: Vec<Arc<Mount>>,
    /// The transaction of the whole run.
    run: OnceLock<TxnId>,
    note: Option<Reporter>,
    /// How many notes of aborted transactions there have been.
    noted: AtomicUsize,
    report: Option<Reporter>,
    /// Commits that failed without a caller to return the error to.
    lost: AtomicUsize,
    /// The run is being killed.
    is_ending: AtomicBool,
}

impl std::fmt::Debug for Participants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.registry.lock().fmt(f)
    }
}

impl Registry {
    /// The transaction and those around it, innermost first.
    fn chain(&self, id: Option<TxnId>) -> impl Iterator<Item = TxnId> {
        std::iter::successors(id, |id| self.open.get(id)?.parent)
    }

    fn around(&self, id: TxnId) -> Option<TxnId> {
        self.open.get(&id)?.parent
    }

    fn deferred(&self, id: TxnId) -> Option<Deferred> {
        self.open.get(&id)?.deferred.clone()
    }

    fn depth(&self, id: Option<TxnId>) -> usize {
        self.chain(id).count()
    }

    fn takes_part(&self, member: &Participant, id: TxnId) -> bool {
        let roots = member.suspended.iter().copied().chain(member.current);
        roots
            .into_iter()
            .any(|root| self.chain(Some(root)).any(|at| at == id))
    }

    /// Those of the transactions that have no participants.
    fn deserted(&self, ids: impl IntoIterator<Item = TxnId>) -> Vec<TxnId> {
        let alone = |id: &TxnId| {
            let is_kept = |open: &Open| open.held.is_some();
            let members = &mut self.threads.values();
            self.open.get(id).is_some_and(|open| !is_kept(open))
                && !members.any(|member| self.takes_part(member, *id))
        };
        ids.into_iter().filter(alone).collect()
    }

    /// What a member has open: by its current transaction, and those it suspended.
    fn of(&self, member: &Participant) -> Vec<TxnId> {
        let roots = member.suspended.iter().copied().chain(member.current);
        roots
            .flat_map(|root| self.chain(Some(root)).collect::<Vec<_>>())
            .collect()
    }

    /// The transaction has ended, and those in it.
    fn end(&mut self, id: TxnId, after: AfterAbort) -> Vec<Offset> {
        let parent = self.open.get(&id).and_then(|open| open.parent);
        let mut ended: Vec<_> = self
            .open
            .keys()
            .copied()
            .filter(|at| self.chain(Some(*at)).any(|x| x == id))
            .collect();
        // What stood first is set back last.
        ended.sort_by_key(|at| Reverse(self.depth(Some(*at))));
        for member in self.threads.values_mut() {
            if after == AfterAbort::GoOn
                && member
                    .current
                    .is_some_and(|current| ended.contains(&current))
            {
                member.current = parent;
            }
            for suspended in &mut member.suspended {
                if ended.contains(suspended) {
                    // Removed below where nothing is around it.
                    *suspended = parent.unwrap_or(*suspended);
                }
            }
            member
                .suspended
                .retain(|suspended| !ended.contains(suspended));
        }
        let gone = ended.iter().filter_map(|id| self.open.remove(id));
        gone.flat_map(|open| open.offsets).collect()
    }
}

/// Whether `mount` shows files of the store that is mounted as `store`, which has its transactions.
fn is_over(mount: &Arc<Mount>, store: &Arc<Mount>) -> bool {
    let (Some(own), Some(transactions)) = (mount.fs.transactions(), store.fs.transactions()) else {
        return false;
    };
    !Arc::ptr_eq(mount, store) && std::ptr::addr_eq(own, transactions)
}

impl Participants {
    /// No participants. Transactions belong to the first mount, in mount order, that has them and can be changed; where
    /// all are read-only, to the first one. `note` is called with a line for transactions that are aborted though no program
    /// asked for it, `tell` for each failed commit whose error cannot be returned to a program.
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

    /// Whether transactions cover what is in `mount`: in the store, and in mounts that show files of it. A further store is outside of them, as
    /// the host is.
    pub fn cover(&self, mount: &Arc<Mount>) -> bool {
        let is_mount = |covered: &Arc<Mount>| Arc::ptr_eq(covered, mount);
        self.store.as_ref().is_some_and(is_mount) || self.layers.iter().any(is_mount)
    }

    /// Whether the whole run is a transaction.
    pub fn is_run(&self) -> bool {
        self.run.get().is_some()
    }

    /// Makes the whole run a transaction, before anybody of it calls.
    pub fn begin_run(&self) -> Result<(), Errno> {
        let id = self.transactions()?.begin_run()?;
        let _ = self.run.set(id);
        Ok(())
    }

    /// Commits the run's transaction; returns when it is on the disk. EBUSY, and nothing has happened; any other
    /// failure has aborted it, or is one of the disk.
    pub fn commit_run(&self) -> Result<(), Errno> {
        let id = *self.run.get().ok_or(Errno::ENODATA)?;
        let transactions = self.transactions()?;
        for layer in &self.layers {
            // What programs have written through mappings.
            if let Err(error) = layer.fs.sync(None) {
                let errno = error.errno().unwrap_or(Errno::EIO);
                if errno != Errno::EBUSY {
                    transactions.abort(id);
                }
                return Err(errno);
            }
        }
        if transactions.commit(id)? {
            transactions.harden(Some(true))?;
        }
        Ok(())
    }

    /// Aborts the run's transaction.
    pub fn abort_run(&self) {
        if let (Some(id), Ok(transactions)) = (self.run.get(), self.transactions()) {
            transactions.abort(*id);
        }
    }

    /// The transaction that a thread's calls belong to.
    pub fn current(&self, tid: i32) -> Option<TxnId> {
        self.own(tid).or_else(|| self.run.get().copied())
    }

    /// The thread's current transaction, other than the run's.
    fn own(&self, tid: i32) -> Option<TxnId> {
        if !self.used.load(Relaxed) {
            return None;
        }
        self.registry.lock().threads.get(&tid)?.current
    }

    /// `parent` has started `child`.
    pub fn inherit(&self, parent: i32, child: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        let mut registry = self.registry.lock();
        if let Some(current) = registry
            .threads
            .get(&parent)
            .and_then(|member| member.current)
        {
            registry.threads.entry(child).or_default().current = Some(current);
        }
    }

    /// Thread `former` continues as `tid`: it has executed a program.
    pub fn rename(&self, former: i32, tid: i32) {
        if former != tid && self.used.load(Relaxed) {
            let mut registry = self.registry.lock();
            if let Some(member) = registry.threads.remove(&former) {
                registry.threads.insert(tid, member);
            }
        }
    }

    /// The thread has ended and is about to be reaped.
    pub fn leaving(&self, tid: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        if let Some(member) = self.registry.lock().threads.get_mut(&tid) {
            let comm = procfs::comm(tid).unwrap_or_default();
            member.comm = Some(escape(&comm));
        }
    }

    /// The thread has ended: so have the transactions that only it took part in.
    pub fn left(&self, tid: i32) {
        if !self.used.load(Relaxed) {
            return;
        }
        let (member, deserted) = {
            let mut registry = self.registry.lock();
            let Some(member) = registry.threads.remove(&tid) else {
                return;
            };
            let open = registry.of(&member);
            (member, registry.deserted(open))
        };
        let name = member.comm.unwrap_or_default();
        self.end_deserted(&deserted, &format!("process {tid} ({name}), ended"));
    }

    /// Ends transactions without participants, innermost first: by a commit those whose profile commits. `last` says
    /// which participant was the last, and what it did.
    fn end_deserted(&self, ids: &[TxnId], last: &str) {
        for id in ids {
            let (deferred, around) = {
                let registry = self.registry.lock();
                (registry.deferred(*id), registry.around(*id))
            };
            if deferred.is_some() {
                self.commit_deferred(Some(*id));
                continue;
            }
            self.abort_one(*id);
            if !around.is_some_and(|around| ids.contains(&around)) {
                self.note_deserted(*id, last);
            }
        }
    }

    /// Aborts a transaction, if it is open.
    pub fn abort_one(&self, id: TxnId) {
        self.abort_with(id, AfterAbort::GoOn);
    }

    fn abort_with(&self, id: TxnId, after: AfterAbort) {
        let Ok(transactions) = self.transactions() else {
            return;
        };
        let (around, held) = {
            let registry = self.registry.lock();
            (registry.around(id), registry.held_inside(id))
        };
        self.note_refused();
        transactions.abort(id);
        restore(self.registry.lock().end(id, after));
        self.note_ended_inside(&held);
        self.commit_deferred(around);
    }

    /// Process `tid`, of which this is the last thread, ends what it began inside `id`, which was begun for it.
    pub fn retreat(&self, tid: i32, id: TxnId) {
        let deserted = {
            let mut registry = self.registry.lock();
            if !registry.open.contains_key(&id) {
                return;
            }
            let member = Participant {
                current: Some(id),
                ..Participant::default()
            };
            let Some(former) = registry.threads.insert(tid, member) else {
                return;
            };
            let open = registry.of(&former);
            registry.deserted(open)
        };
        self.end_deserted(&deserted, &format!("process {tid}, ended"));
    }

    /// Commits a transaction that was begun for a program, if it is open: at once, or when the last one inside it has
    /// ended. A failure is reported.
    pub fn commit_when_free(&self, id: TxnId, how: Deferred) {
        if let Some(open) = self.registry.lock().open.get_mut(&id) {
            open.deferred = Some(how);
        }
        self.commit_free(id);
    }

    /// From now on the run is being killed: what waits for a transaction inside it is aborted.
    pub fn end_run(&self) {
        self.is_ending.store(true, SeqCst);
    }

    /// Something inside the transaction has ended. Commits it if it waits for that and nothing else inside it is open; then what
    /// waited for it. In a run that is being killed the part inside has not ended by itself, so the rest of the work is aborted, too.
    fn commit_deferred(&self, id: Option<TxnId>) {
        let Some(id) = id else { return };
        if !self.is_ending.load(SeqCst) {
            self.commit_free(id);
        } else if self.registry.lock().deferred(id).is_some() {
            self.abort_one(id);
        }
    }

    /// Commits the transaction if it waits for that and nothing inside it is open; then what waited for it.
    fn commit_free(&self, id: TxnId) {
        let (deferred, around) = {
            let registry = self.registry.lock();
            (registry.deferred(id), registry.around(id))
        };
        let Some(Deferred { durable, program }) = deferred else {
            return;
        };
        match self.commit_one(id, durable) {
            Ok(()) => {}
            // Something inside it is open; another thread was faster.
            Err(Errno::EBUSY | Errno::ENOENT) => return,
            Err(errno) => {
                self.lost.fetch_add(1, Relaxed);
                if let Some(report) = &self.report {
                    let why = errno.desc();
                    report.line(&format!(
                        "{program}: its transaction could not be committed: {why}"
                    ));
                }
            }
        }
        self.commit_deferred(around);
    }

    fn commit_one(&self, id: TxnId, durable: Option<bool>) -> Result<(), Errno> {
        let transactions = self.transactions()?;
        self.note_refused();
        let outcome = transactions.commit(id);
        match outcome {
            Err(Errno::EBUSY) => {}
            // ENOENT: another thread has ended it.
            Ok(_) | Err(Errno::ENOENT) => drop(self.registry.lock().end(id, AfterAbort::GoOn)),
            Err(_) => restore(self.registry.lock().end(id, AfterAbort::GoOn)),
        }
        // Its participants have left it by then: the disk takes long.
        if outcome? {
            transactions.harden(durable)?;
        }
        Ok(())
    }

    /// How many commits failed without a caller to return the error to.
    pub fn lost(&self) -> usize {
        self.lost.load(Relaxed)
    }

    /// Begins a transaction, in the current one of the first of `tids`; it is all of theirs from then on. Returns its
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
            // Another member has ended the one around it meanwhile.
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

    /// Commits the current transaction. ENODATA, EBUSY; after any other failure it is aborted.
    pub fn commit(&self, tids: &[i32]) -> Result<(), Errno> {
        let id = self.current_of(tids)?;
        let around = self.registry.lock().around(id);
        self.commit_one(id, None)?;
        self.commit_deferred(around);
        Ok(())
    }

    /// Aborts the current transaction. ENODATA.
    pub fn abort(&self, tids: &[i32]) -> Result<(), Errno> {
        let id = self.current_of(tids)?;
        self.abort_one(id);
        self.leave_ended(tids);
        Ok(())
    }

    /// Sets the current transaction aside. ENODATA.
    pub fn suspend(&self, tids: &[i32]) -> Result<TxnId, Errno> {
        let id = self.current_of(tids)?;
        let mut registry = self.registry.lock();
        for tid in tids {
            let member = registry.threads.entry(*tid).or_default();
            if member.current.take() == Some(id) {
                member.suspended.push(id);
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
                .is_some_and(|member| member.suspended.contains(&id))
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
        let deserted = {
            let mut registry = self.registry.lock();
            for tid in tids {
                registry.threads.entry(*tid).or_default().current = None;
            }
            let chain: Vec<_> = registry.chain(Some(id)).collect();
            registry.deserted(chain)
        };
        let tid = tids.first().copied().unwrap_or_default();
        self.end_deserted(&deserted, &format!("process {tid}, left it"));
        Ok(())
    }

    fn figures(&self, id: TxnId) -> TxnStatus {
        let status = self.transactions().and_then(|all| all.status(id));
        // It has ended meanwhile.
        status.unwrap_or_default()
    }

    /// What a member participates in, as JSON.
    pub fn describe(&self, tid: i32) -> String {
        let (chain, suspended) = {
            let registry = self.registry.lock();
            let member = registry.threads.get(&tid).cloned().unwrap_or_default();
            let mut chain: Vec<_> = registry.chain(member.current).collect();
            chain.reverse();
            let with_tids = |id| (id, registry.participants(id));
            let chain: Vec<_> = chain.into_iter().map(with_tids).collect();
            (chain, member.suspended)
        };
        let mut text = String::from("{\"current\":[");
        for (index, (id, tids)) in chain.into_iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push('{');
            describe_one(&mut text, id, index + 1, &self.figures(id), tids);
            text.push('}');
        }
        let suspended: Vec<_> = suspended.iter().map(|id| format!("\"{id}\"")).collect();
        let _ = write!(text, "],\"suspended\":[{}]}}", suspended.join(","));
        text
    }
}

impl Registry {
    /// The threads that participate in a transaction, in one that it is around included.
    fn participants(&self, id: TxnId) -> Vec<i32> {
        let threads = self.threads.iter();
        let part = threads.filter(|(_, member)| self.takes_part(member, id));
        part.map(|(tid, _)| *tid).collect()
    }

    fn make_current(&mut self, tids: &[i32], id: TxnId) -> Result<(), Errno> {
        let busy = |tid: &i32| {
            self.threads
                .get(tid)
                .is_some_and(|member| member.current.is_some())
        };
        if tids.iter().any(busy) {
            return Err(Errno::EBUSY);
        }
        for tid in tids {
            let member = self.threads.entry(*tid).or_default();
            member.suspended.retain(|suspended| *suspended != id);
            member.current = Some(id);
        }
        Ok(())
    }
}

/// Participants of a JSON object. Threads of one process are named by the process.
fn describe_one(text: &mut String, id: TxnId, depth: usize, figures: &TxnStatus, tids: Vec<i32>) {
    let mut pids: Vec<i32> = tids
        .into_iter()
        .map(|tid| procfs::status(tid).map_or(tid, |status| status.tgid))
        .collect();
    pids.sort_unstable();
    pids.dedup();
    let TxnStatus {
        names,
        inodes,
        bytes,
        shared_locks,
        exclusive_locks,
        conflicts,
    } = figures;
    let _ = write!(
        text,
        "\"id\":\"{id}\",\"depth\":{depth},\"names\":{names},\"inodes\":{inodes},\"bytes\":{bytes},\
         \"shared_locks\":{shared_locks},\"exclusive_locks\":{exclusive_locks},\"conflicts\":{conflicts},\
         \"processes\":{pids:?}"
    );
}

/// The offsets of those descriptors of process `pid` whose objects are, according to `is_ours`, of a mount.
pub fn offsets(pid: i32, is_ours: impl Fn((u64, u64)) -> bool) -> Vec<Offset> {
    let Ok(process) = pidfd::open(pid) else {
        return Vec::new();
    };
    let offset = |fd: i32| {
        let ofd = pidfd::getfd(process.as_fd(), fd).ok()?;
        let stat = fstat(&ofd).ok()?;
        let object = (stat.st_dev, stat.st_ino);
        let at = lseek(&ofd, 0, Whence::SeekCur).ok()?;
        is_ours(object).then_some(Offset {
            pid,
            fd,
            object,
            at,
        })
    };
    let fds = procfs::fds(pid).unwrap_or_default();
    fds.into_iter().filter_map(offset).collect()
}

/// Sets descriptors back to where they stood. Those that are closed, or something else by now, are left alone.
fn restore(offsets: Vec<Offset>) {
    for Offset {
        pid,
        fd,
        object,
        at,
    } in offsets
    {
        let back = || -> Result<()> {
            let process = pidfd::open(pid)?;
            let ofd = pidfd::getfd(process.as_fd(), fd)?;
            let stat = fstat(&ofd)?;
            if (stat.st_dev, stat.st_ino) == object {
                lseek(&ofd, at, Whence::SeekSet)?;
            }
            Ok(())
        };
        // The process may have gone.
        let _ = back();
    }
}
