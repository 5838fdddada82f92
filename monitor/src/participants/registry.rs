//! The open transactions, and the threads that participate in them. Plain data: nothing here calls the back end.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use goanna_vfs::{Errno, Result, TxnId};

use super::offsets::Offset;

/// How to commit a transaction that was begun for a program.
#[derive(Debug, Clone)]
pub struct Deferred {
    /// The argument of [`goanna_vfs::Transactions::make_durable`].
    pub durable: Option<bool>,
    /// The program for which it was begun.
    pub program: Arc<str>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Participant {
    /// The current transaction. If it is not open any more, it was a named transaction that was aborted: the
    /// thread's operations on the store fail (`named.rs`).
    pub(super) current: Option<TxnId>,
    pub(super) suspended: Vec<TxnId>,
    /// The name of the thread that is about to be reaped.
    pub(super) comm: Option<String>,
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) parent: Option<TxnId>,
    pub(super) uid: u32,
    pub(super) offsets: Vec<Offset>,
    /// Set when it is to be committed as soon as no transaction inside it is open.
    pub(super) deferred: Option<Deferred>,
    /// Set when it stays open without participants.
    pub(super) held: Option<Held>,
}

/// The name and the deadline of a transaction that stays open without participants.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) name: Arc<str>,
    /// When it is aborted, and its life time in seconds.
    pub(super) expires: Option<(Instant, u32)>,
    /// Whether it is being committed, so that no thread can join it any more.
    pub(super) ending: bool,
}

/// What the participants of an aborted transaction do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterAbort {
    /// They continue in the enclosing transaction, or without one.
    Continue,
    /// Their operations on the store fail, so that no part of their work takes effect outside of the transaction.
    Fail,
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) threads: HashMap<i32, Participant>,
    pub(super) open: HashMap<TxnId, Open>,
}

impl Registry {
    /// The transaction and those around it, innermost first.
    pub(super) fn chain(&self, id: Option<TxnId>) -> impl Iterator<Item = TxnId> {
        std::iter::successors(id, |id| self.open.get(id)?.parent)
    }

    pub(super) fn parent(&self, id: TxnId) -> Option<TxnId> {
        self.open.get(&id)?.parent
    }

    pub(super) fn deferred(&self, id: TxnId) -> Option<Deferred> {
        self.open.get(&id)?.deferred.clone()
    }

    pub(super) fn depth(&self, id: Option<TxnId>) -> usize {
        self.chain(id).count()
    }

    pub(super) fn takes_part(&self, participant: &Participant, id: TxnId) -> bool {
        let roots = participant
            .suspended
            .iter()
            .copied()
            .chain(participant.current);
        roots
            .into_iter()
            .any(|root| self.chain(Some(root)).any(|at| at == id))
    }

    /// Those of `ids` that have no participants.
    pub(super) fn without_participants(&self, ids: impl IntoIterator<Item = TxnId>) -> Vec<TxnId> {
        let alone = |id: &TxnId| {
            let is_kept = |open: &Open| open.held.is_some();
            let participants = &mut self.threads.values();
            self.open.get(id).is_some_and(|open| !is_kept(open))
                && !participants.any(|participant| self.takes_part(participant, *id))
        };
        ids.into_iter().filter(alone).collect()
    }

    /// The open transactions of a participant: the current one, the suspended ones, and those around them.
    pub(super) fn of(&self, participant: &Participant) -> Vec<TxnId> {
        let roots = participant
            .suspended
            .iter()
            .copied()
            .chain(participant.current);
        roots
            .flat_map(|root| self.chain(Some(root)).collect::<Vec<_>>())
            .collect()
    }

    /// Removes a transaction that has ended, and those inside it. Returns the offsets to restore after an abort.
    pub(super) fn end(&mut self, id: TxnId, after: AfterAbort) -> Vec<Offset> {
        let parent = self.open.get(&id).and_then(|open| open.parent);
        let mut ended: Vec<_> = self
            .open
            .keys()
            .copied()
            .filter(|at| self.chain(Some(*at)).any(|x| x == id))
            .collect();
        // Offsets are restored in reverse order.
        ended.sort_by_key(|at| Reverse(self.depth(Some(*at))));
        for participant in self.threads.values_mut() {
            if after == AfterAbort::Continue
                && participant
                    .current
                    .is_some_and(|current| ended.contains(&current))
            {
                participant.current = parent;
            }
            for suspended in &mut participant.suspended {
                if ended.contains(suspended) {
                    // Removed below if no transaction is around it.
                    *suspended = parent.unwrap_or(*suspended);
                }
            }
            participant
                .suspended
                .retain(|suspended| !ended.contains(suspended));
        }
        let gone = ended.iter().filter_map(|id| self.open.remove(id));
        gone.flat_map(|open| open.offsets).collect()
    }

    /// The threads that participate in a transaction, or in one inside it.
    pub(super) fn participants(&self, id: TxnId) -> Vec<i32> {
        let threads = self.threads.iter();
        let part = threads.filter(|(_, participant)| self.takes_part(participant, id));
        part.map(|(tid, _)| *tid).collect()
    }

    pub(super) fn make_current(&mut self, tids: &[i32], id: TxnId) -> Result<(), Errno> {
        let busy = |tid: &i32| {
            self.threads
                .get(tid)
                .is_some_and(|participant| participant.current.is_some())
        };
        if tids.iter().any(busy) {
            return Err(Errno::EBUSY);
        }
        for tid in tids {
            let participant = self.threads.entry(*tid).or_default();
            participant.suspended.retain(|suspended| *suspended != id);
            participant.current = Some(id);
        }
        Ok(())
    }

    /// The open transaction of this user and name.
    pub(super) fn named(&self, uid: u32, name: &str) -> Option<TxnId> {
        let is_it = |open: &Open| {
            open.uid == uid && open.held.as_ref().is_some_and(|held| &*held.name == name)
        };
        let mut open = self.open.iter();
        open.find(|(_, open)| is_it(open)).map(|(id, _)| *id)
    }

    /// The names of transactions that are open inside `id`.
    pub(super) fn held_inside(&self, id: TxnId) -> Vec<Arc<str>> {
        let inside = self.open.iter().filter(|(inner, open)| {
            open.held.is_some() && **inner != id && self.chain(Some(**inner)).any(|at| at == id)
        });
        let held = inside.filter_map(|(_, open)| open.held.as_ref());
        held.map(|held| Arc::clone(&held.name)).collect()
    }

    pub(super) fn held_mut(&mut self, id: TxnId) -> Option<&mut Held> {
        self.open.get_mut(&id)?.held.as_mut()
    }

    pub(super) fn name(&self, id: TxnId) -> Option<Arc<str>> {
        let held = self.open.get(&id)?.held.as_ref();
        held.map(|held| Arc::clone(&held.name))
    }
}
