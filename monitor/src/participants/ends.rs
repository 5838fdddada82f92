//! The end of transactions: by a call of a participant, when no participants are left, or, for a transaction that was begun for a
//! program, when nothing inside it is open any more.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use goanna_vfs::{Errno, TxnId};

use super::Participants;
use super::offsets::restore;
use super::registry::{AfterAbort, Deferred, Participant, Registry};

impl Participants {
    /// Commits the current transaction. ENODATA, EBUSY; after any other failure it is aborted.
    pub fn commit(&self, tids: &[i32]) -> Result<(), Errno> {
        let id = self.current_of(tids)?;
        let around = self.registry.lock().parent(id);
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

    /// Ends transactions without participants, innermost first. Commits a transaction if its profile says so, and aborts it otherwise.
    /// `last` describes the last participant, and its last action.
    pub(super) fn end_without_participants(&self, ids: &[TxnId], last: &str) {
        for id in ids {
            let (deferred, around) = {
                let registry = self.registry.lock();
                (registry.deferred(*id), registry.parent(*id))
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
        self.abort_with(id, AfterAbort::Continue);
    }

    pub(super) fn abort_with(&self, id: TxnId, after: AfterAbort) {
        let Ok(transactions) = self.transactions() else {
            return;
        };
        let (around, held) = {
            let registry = self.registry.lock();
            (registry.parent(id), registry.held_inside(id))
        };
        self.note_refused();
        self.during(|| transactions.abort(id));
        self.notify_ended(id, false);
        restore(self.registry.lock().end(id, after));
        self.note_ended_inside(&held);
        self.commit_deferred(around);
    }

    /// Ends the transactions that process `tid`, now a single thread, began inside `id`, which was begun for it.
    pub fn end_inner(&self, tid: i32, id: TxnId) {
        let without_participants = {
            let mut registry = self.registry.lock();
            if !registry.open.contains_key(&id) {
                return;
            }
            let participant = Participant {
                current: Some(id),
                ..Participant::default()
            };
            let Some(former) = registry.threads.insert(tid, participant) else {
                return;
            };
            let open = registry.of(&former);
            registry.without_participants(open)
        };
        self.end_without_participants(&without_participants, &format!("process {tid}, ended"));
    }

    /// Commits a transaction that was begun for a program, if it is open: at once, or when the last transaction inside it has ended.
    /// Reports a failure to the user.
    pub fn commit_when_free(&self, id: TxnId, how: Deferred) {
        if let Some(open) = self.registry.lock().open.get_mut(&id) {
            open.deferred = Some(how);
        }
        self.commit_free(id);
    }

    /// Records that the run is being killed: transactions that wait for one inside them are aborted.
    pub fn end_run(&self) {
        self.is_ending.store(true, SeqCst);
    }

    /// Continues after the end of a transaction inside `id`. If `id` waits for its commit and no other transaction inside it is open,
    /// commits it, and then those that waited for it. In a run that is being killed, aborts it instead: the inner transaction did not end
    /// by itself.
    pub(super) fn commit_deferred(&self, id: Option<TxnId>) {
        let Some(id) = id else { return };
        if !self.is_ending.load(SeqCst) {
            self.commit_free(id);
        } else if self.registry.lock().deferred(id).is_some() {
            self.abort_one(id);
        }
    }

    /// Commits the transaction if its commit was deferred and no nested transaction is open any more. Then does the same for the one around it.
    fn commit_free(&self, id: TxnId) {
        let (deferred, around) = {
            let registry = self.registry.lock();
            (registry.deferred(id), registry.parent(id))
        };
        let Some(Deferred { durable, program }) = deferred else {
            return;
        };
        match self.commit_one(id, durable) {
            Ok(()) => {}
            // A transaction inside it is open, or another thread commits it.
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

    pub(super) fn commit_one(&self, id: TxnId, durable: Option<bool>) -> Result<(), Errno> {
        let transactions = self.transactions()?;
        self.note_refused();
        let commit = self.during(|| transactions.commit(id));
        let outcome = commit.unwrap_or(Err(Errno::EIO));
        if outcome != Err(Errno::EBUSY) {
            self.notify_ended(id, outcome.is_ok());
        }
        match outcome {
            Err(Errno::EBUSY) => {}
            // ENOENT: another thread has ended it.
            Ok(_) | Err(Errno::ENOENT) => drop(self.registry.lock().end(id, AfterAbort::Continue)),
            Err(_) => restore(self.registry.lock().end(id, AfterAbort::Continue)),
        }
        // By now its participants have left it, because the disk takes long.
        if outcome? {
            transactions.make_durable(durable)?;
        }
        Ok(())
    }

    /// The threads leave a current transaction that was aborted by its name.
    fn leave_ended(&self, tids: &[i32]) {
        let mut registry = self.registry.lock();
        let Registry { threads, open } = &mut *registry;
        for tid in tids {
            if let Some(participant) = threads.get_mut(tid) {
                participant.current = participant.current.filter(|id| open.contains_key(id));
            }
        }
    }
}
